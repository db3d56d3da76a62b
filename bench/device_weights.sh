#!/bin/sh
# The weight channel's figures on a machine with a GPU and without network: builds with the headers
# that carry.sh has put into .carry, runs the GPU tests and the benchmarks, one log each under $1.
set -u
out=$1
cd "$(dirname "$0")/.."
export PKG_CONFIG="$PWD/.carry/pkgconfig/pkg-config" CPLUS_INCLUDE_PATH="$PWD/.carry/include"
if [ ! -f b/build.ninja ]; then
    meson setup b -Dtests=enabled -Dwerror=false -Dcuda=enabled >"$out/setup.log" 2>&1
fi
ninja -C b cli/rollring bench/rollring-bench tests/gpu/gpu_test tests/gpu/pack_rate \
    tests/gpu/domain_test tests/gpu/domain_rate tests/gpu/channel_peer >"$out/build.log" 2>&1 ||
    { tail -30 "$out/build.log"; exit 1; }
step() {
    name=$1
    shift
    echo "== $name"
    timeout 170 "$@" >"$out/$name.log" 2>&1
    echo "$name: exit $?"
    tail -c 1500 "$out/$name.log"
}
bench=b/bench/rollring-bench
for what in ${2-channel empty llama qwen soak sanitize}; do
    case $what in
        channel) step channel python3 tests/gpu/channel.py b/cli/rollring b/tests/gpu/channel_peer ;;
        empty) step empty $bench weights --list empty --device host ;;
        llama) step llama $bench weights --list llama8b --torch ;;
        llama_slots)
            for mib in 128 256 1024 2048; do
                step llama_$mib $bench weights --list llama8b --slot-bytes ${mib}MiB
            done ;;
        qwen) step qwen $bench weights --list qwen30b --torch ;;
        tiny) step tiny $bench weights --list tiny ;;
        cast) step cast $bench weights --list llama8b --cast ;;
        soak) step soak $bench weights --list llama8b --scale small --soak 1000 ;;
        pack) step pack b/tests/gpu/pack_rate ;;
        domain) step domain b/tests/gpu/domain_rate ;;
        sanitize)
            for tool in memcheck racecheck; do
                step $tool compute-sanitizer --tool $tool --target-processes application-only \
                    --report-api-errors no --error-exitcode 9 b/tests/gpu/gpu_test \
                    '-tce=*4 G*,*million*,*several MiB*'
            done ;;
    esac
done
