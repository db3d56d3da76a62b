#!/bin/sh
# Runs a command in a root, with mounts and processes of its own:
#   unshare --mount --pid --fork --kill-child enter.sh FOLDER USER COMMAND...
# FOLDER holds `base` (the bare system) and `work`, `upper`, `root`, or a whole copy in `root`;
# `kept` (downloads) and `carried` (this machine's part of the root). Mounts end with this process.
set -eu
folder=$1 user=$2
shift 2
root=$folder/root
if [ -d "$folder/upper" ]; then
    layers="lowerdir=$folder/base,upperdir=$folder/upper,workdir=$folder/work"
    # In a user's own namespace overlayfs keeps its notes where that user may write.
    read -r _ outside _ </proc/self/uid_map
    if [ "$outside" != 0 ]; then
        layers="$layers,userxattr"
    fi
    mount -t overlay overlay -o "$layers" "$root"
fi
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"
mkdir -p "$root/carried" "$root/kept"
mount --bind "$folder/carried" "$root/carried"
mount --bind "$folder/kept" "$root/kept"
mount --bind "$folder/kept/archives" "$root/var/cache/apt/archives"
# Not exec: this process is the first of its namespace and has to wait for orphans.
status=0
chroot --userspec="$user" "$root" "$@" || status=$?
exit $status
