#!/bin/sh
# Runs `peers` and `scaling` of the program that bench/carry.sh --peers put into .carry/: nothing is
# built, no network. Results go to $OUT (default: bench-results).
set -eu
cd "$(dirname "$0")/.."
[ -x .carry/bin/rollring-bench ] || { echo "run bench/carry.sh --peers first" >&2; exit 1; }
out=${OUT:-bench-results}
mkdir -p "$out"
export PYTHONPATH="$PWD/.carry/python"
# By the loader, not by LD_LIBRARY_PATH: the peers in Python keep the libraries of their machine.
bench() {
    /lib64/ld-linux-x86-64.so.2 --library-path "$PWD/.carry/lib" .carry/bin/rollring-bench "$@"
}
scripts="--peers-script .carry/bin/peers.py"
lscpu >"$out/lscpu.txt" 2>/dev/null || true
grep -E 'Model name|^CPU\(s\)|Thread|L2|L3|NUMA node' "$out/lscpu.txt" || true
df -h /dev/shm | tail -1
python3 --version || true
measure() { # name, arguments
    name=$1
    shift
    echo "== rollring-bench $*"
    bench "$@" --json >"$out/$name.json" || echo "$name ended with $?"
}
# shellcheck disable=SC2086
measure peers peers --repeat 5 $scripts
# shellcheck disable=SC2086
measure peers-lengths peers --repeat 3 --seconds 0.2 --tokens 256,2048,16384,131072 $scripts \
    --peers limit,memcpy,unix,pipe,boost,zmq,http
measure scaling scaling --repeat 5
measure scaling-near scaling --repeat 3 --parts producers --soft-bytes 512KiB
measure throughput throughput --repeat 7
measure latency latency --repeat 5
python3 bench/short.py --show "$out"
