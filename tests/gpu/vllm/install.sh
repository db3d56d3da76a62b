#!/bin/bash
# On the GPU machine: takes one piece of pack.sh, and unpacks all once the last one is there.
#
#   tests/gpu/vllm/install.sh FOLDER/piece1
set -euo pipefail
home=${VGPU_HOME:-/tmp/rollring-vgpu}
mkdir -p "$home/parts"
find "$1" -maxdepth 1 -type f -exec cp -v {} "$home/parts/" \;
cd "$home/parts"
[ -f pieces ] || { echo "piece1 is not here yet"; exit 0; }
here=$(find . -name '*.part' | wc -l)
if [ "$here" -lt "$(cat pieces)" ]; then
    echo "$here of $(cat pieces) pieces are here"
    exit 0
fi
cat part*.part >all.tar.xz
sha256sum -c all.sha256
mkdir -p "$home/tree"
if command -v xz >/dev/null; then
    xz -dc -T0 all.tar.xz | tar -C "$home/tree" -ixf -
else
    python3 -m tarfile -e all.tar.xz "$home/tree"
fi
rm -f all.tar.xz
echo "unpacked into $home/tree"
