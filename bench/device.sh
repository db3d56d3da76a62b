#!/bin/sh
# Builds on a machine that has only g++, Meson, Ninja and Boost headers, with the files that
# bench/carry.sh put into .carry/, then runs the benchmark set. Results go to $OUT (default:
# bench-results).
set -eu
cd "$(dirname "$0")/.."
[ -d .carry ] || { echo "no .carry/: run bench/carry.sh where the headers are" >&2; exit 1; }
out=${OUT:-bench-results}
build=${BUILD:-build-device}
mkdir -p "$out"
rm -rf "$build"
# Warnings of another compiler do not forbid a measurement.
PKG_CONFIG="$PWD/.carry/pkgconfig/pkg-config" CPLUS_INCLUDE_PATH="$PWD/.carry/include" \
    meson setup "$build" -Dtests=disabled -Dwerror=false >"$out/setup.log" 2>&1 ||
    { tail -20 "$out/setup.log"; exit 1; }
CPLUS_INCLUDE_PATH="$PWD/.carry/include" \
    ninja -C "$build" bench/rollring-bench >"$out/build.log" 2>&1 ||
    { tail -40 "$out/build.log"; exit 1; }
bench="$build/bench/rollring-bench"
lscpu >"$out/lscpu.txt" 2>/dev/null || true
grep -E 'Model name|^CPU\(s\)|Thread|L2|L3|NUMA node' "$out/lscpu.txt" || true
df -h /dev/shm | tail -1
measure() { # name, arguments
    name=$1
    shift
    echo "== rollring-bench $*"
    "$bench" "$@" 2>&1 | tee "$out/$name.txt"
}
measure throughput throughput --repeat 11 --seconds 0.5
measure throughput-near throughput --repeat 7 --cpus 0,1 --tokens 2048,16384
measure throughput-batch throughput --repeat 7 --tokens 64,256,2048 --batch 32
measure softwrap softwrap --repeat 9 --seconds 0.5
measure softwrap-1g softwrap --tokens 2048 --repeat 5 --seconds 1 --lane-bytes 1GiB
measure latency latency --repeat 5
measure peers peers --repeat 5
