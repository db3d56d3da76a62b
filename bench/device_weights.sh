#!/bin/sh
# The weight channel's figures on a machine with a GPU and without network: with the programs that
# `bench/carry.sh --binaries` has put into .carry, runs GPU tests and benchmarks, a log each in $1.
# $2: which of them.
set -u
out=$1
cd "$(dirname "$0")/.."
bin=$PWD/.carry/bin
export LD_LIBRARY_PATH="$PWD/.carry/lib"
step() {
    name=$1
    shift
    echo "== $name"
    timeout "${LIMIT_S:-170}" "$@" >"$out/$name.log" 2>&1
    echo "$name: exit $?"
    tail -c "${TAIL:-1500}" "$out/$name.log"
}
# Of .carry/whl: rollring for CPython 3.12 (./dev wheel), pytest and its needs.
with_wheels() {
    python3 -m pip install -q --no-index --no-deps --no-compile --upgrade \
        --target /tmp/rollring-python .carry/whl/*.whl
    export PYTHONPATH=/tmp/rollring-python
}
weights() {
    name=$1
    shift
    step "$name" "$bin/rollring-bench" weights --torch-script bench/weights/torch_sync.py "$@"
}
for what in ${2-channel empty llama cast qwen tiny soak pack domain sanitize}; do
    case $what in
        channel) step channel python3 tests/gpu/channel.py "$bin/rollring" "$bin/channel_peer" ;;
        empty) weights empty --list empty --device host ;;
        llama) weights llama --list llama8b --torch 2 ;;
        llama_slots)
            for mib in 512 1024 2048; do
                weights llama_$mib --list llama8b --slot-bytes ${mib}MiB
            done
            weights llama_512_spin --list llama8b --slot-bytes 512MiB --spin-us 2000
            weights llama_512_x4 --list llama8b --slot-bytes 512MiB --slots 4 ;;
        legacy) weights legacy --list llama8b --memory legacy_ipc ;;
        direct)
            exposed='*stream*,*exposes*,*where they lie*,*made anew*,*of its own*'
            step exposed "$bin/gpu_test" "-tc=$exposed"
            step channel python3 tests/gpu/channel.py "$bin/rollring" "$bin/channel_peer"
            for memory in direct automatic; do
                TAIL=6000 LIMIT_S=220 weights "by_$memory" --list llama8b --memory $memory \
                    --changed 0.1,1,2 --json
            done ;;
        direct_rates) # a minute
            step direct_rate "$bin/direct_rate"
            step kernels "$bin/gpu_test" '-tc=*stream*,*other sizes*,*random views*'
            TAIL=6000 LIMIT_S=60 weights direct --list llama8b --memory direct --changed 1 \
                --repeat 5 --json ;;
        direct_python)
            with_wheels
            LIMIT_S=280 step direct_python python3 -m pytest -p no:cacheprovider -v \
                tests/python/test_gpu_direct.py ;;
        checksums) weights checksums --list llama8b --checksums ;;
        qwen) LIMIT_S=400 weights qwen --list qwen30b --torch 1 --repeat 5 --scale 0.3 ;;
        tiny) weights tiny --list tiny ;;
        cast) weights cast --list llama8b --cast ;;
        soak) weights soak --list llama8b --scale small --soak 1000 ;;
        pack) step pack "$bin/pack_rate" ;;
        domain) LIMIT_S=300 step domain "$bin/domain_test" ;;
        kills)
            export LD_LIBRARY_PATH="$PWD/.carry/fault"
            LIMIT_S=280 step fault_kills .carry/fault/fault_weights "$PWD" --rounds 1 \
                --action kill --gpu
            step random_kills .carry/fault/kill_weights --kills 40 --gpu
            export LD_LIBRARY_PATH="$PWD/.carry/lib" ;;
        gpu_test) step gpu_test "$bin/gpu_test" ;;
        shards) # a GPU for each rank: two are enough
            with_wheels
            LIMIT_S=230 step shards python3 bench/weights/shards.py "$out" ;;
        python)
            with_wheels
            LIMIT_S=280 step python python3 -m pytest -p no:cacheprovider -v \
                tests/python/test_gpu.py tests/python/test_gpu_direct.py \
                tests/python/test_torch.py tests/python/test_weights*.py ;;
        sanitize)
            for tool in memcheck racecheck; do
                step $tool compute-sanitizer --tool $tool --target-processes application-only \
                    --report-api-errors no --error-exitcode 9 "$bin/gpu_test" \
                    '-tce=*4 G*,*million*,*several MiB*'
            done ;;
    esac
done
