#!/bin/sh
# Every question of the ring, its peers among them, with the program that bench/carry.sh --peers put
# into .carry/: nothing is built, no network, at most 8 minutes on 16 cores. To $OUT (default:
# bench-results) go log.txt and results.tar.gz with a JSON file a step: few files, for a device
# machine gives back eight at most.
# REPEAT and RUN_SECONDS make it shorter, LIMIT_S is the time for all steps together.
set -u
cd "$(dirname "$0")/.." || exit 1
[ -x .carry/bin/rollring-bench ] || { echo "run bench/carry.sh --peers first" >&2; exit 1; }
out=${OUT:-bench-results}
repeat=${REPEAT:-5}
seconds=${RUN_SECONDS:-0.3}
limit=${LIMIT_S:-470}
began=$(date +%s)
export PYTHONPATH="$PWD/.carry/python"
mkdir -p "$out"
log="$out/log.txt"
: >"$log"
say() { echo "$@" | tee -a "$log"; }

step() { # name, most seconds, arguments
    name=$1
    most=$2
    shift 2
    at=$(date +%s)
    left=$((limit - (at - began)))
    if [ "$left" -lt 5 ]; then
        say "$name: not begun, no time left"
        return
    fi
    [ "$left" -gt "$most" ] || most=$left
    # By the loader, not by LD_LIBRARY_PATH: the peers in Python keep the libraries of their
    # machine. A step that is stopped still writes its results.
    timeout -k 5 "$most" /lib64/ld-linux-x86-64.so.2 --library-path "$PWD/.carry/lib" \
        .carry/bin/rollring-bench "$@" --json >"$out/$name.json" 2>>"$log"
    say "$name: exit $? ($(($(date +%s) - at)) s): $*"
}

{
    lscpu | grep -E 'Model name|^CPU\(s\)|Thread|L2|L3|NUMA node'
    df -h /dev/shm | tail -1
    python3 .carry/bin/peers.py --probe
} >>"$log" 2>&1
script=.carry/bin/peers.py
some=$(((repeat + 1) / 2))
step throughput 70 throughput --repeat "$((repeat + 2))" --seconds "$seconds"
step softwrap 60 softwrap --repeat "$repeat" --seconds "$seconds"
step latency 60 latency --repeat "$repeat" --seconds "$seconds"
step stash 60 stash --repeat "$repeat" --seconds "$seconds"
step scaling 120 scaling --repeat "$some" --seconds "$seconds"
step small-lanes 40 scaling --parts producers --producers 1,2,4,8 --lane-bytes 1MiB \
    --repeat "$some" --seconds "$seconds"
step peers 120 peers --repeat "$repeat" --seconds "$seconds" --peers-script "$script"
step peers-lengths 200 peers --repeat "$some" --seconds 0.2 --tokens 256,2048,16384,131072 \
    --most-seconds 8 --peers-script "$script"
python3 bench/short.py --show "$out" | tee -a "$log"
(cd "$out" && tar czf results.tar.gz ./*.json && rm ./*.json)
say "$(($(date +%s) - began)) s in all"
