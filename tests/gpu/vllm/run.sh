#!/bin/bash
# Starts vLLM's servers, and asks each question of phase.py: its answers are JSON in $OUT.
#
#   OUT=FOLDER tests/gpu/vllm/run.sh [PHASE...]
#
# Phases with a + between them run at once. VGPU_SERVERS names the servers that are started; those
# of an empty one run already. Those of VGPU_LATER are started after the first phases, and run on
# after this script. VGPU_EAGER=1 starts servers without CUDA graphs.
#
# A phase that fails or takes too long does not keep the others from being run. All processes end
# with this script otherwise, which takes at most ${VGPU_SECONDS:-560} seconds.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export VGPU_HOME=${VGPU_HOME:-/tmp/rollring-vgpu}
OUT=${OUT:?the folder for results}
python=${VGPU_PYTHON:-python3}
limit=${VGPU_SECONDS:-560}
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
# A process that asks whether there is a GPU can fork afterwards.
export PYTORCH_NVML_BASED_CUDA_CHECK=1
export VLLM_DO_NOT_TRACK=1 TOKENIZERS_PARALLELISM=false PYTHONHASHSEED=0
export VLLM_ALLOW_INSECURE_SERIALIZATION=1 TRL_EXPERIMENTAL_SILENCE=1 VLLM_USE_FLASHINFER_SAMPLER=0
# By this name the packages count as installed, for those that pickle functions of others.
site=$VGPU_HOME/tree/site-packages
[ -d "$site" ] && site=$site: || site=
export PYTHONPATH=$site$here${PYTHONPATH:+:$PYTHONPATH}
# Packages that the machine has go before stubs, which are found last.
export VGPU_STUBS=$VGPU_HOME/tree/stubs
mkdir -p "$VGPU_HOME" "$OUT"
phases=("$@")
[ $# -gt 0 ] || phases=(versions+kills1+kills2 trl sleeps times waits)
servers=${VGPU_SERVERS-rollring ipc trl sleeps kills1 kills2}

stop() {
    [ -z "${serving:-}" ] || kill -TERM "$serving" 2>/dev/null
    [ -z "${serving:-}" ] || wait "$serving" 2>/dev/null
    for name in $servers; do
        log=$VGPU_HOME/server-$name.log
        [ ! -f "${log%.log}.ended" ] || { echo "--- $name ended:"; grep -v '^$' "$log" | tail -25; }
        [ -f "$log" ] && tail -c 400000 "$log" >"$OUT/server-$name.log"
    done
    grep -hs MISSING "$OUT/machine.log"
    cd "$OUT" && tar -czf logs.tar.gz ./*.log && rm -f ./*.log
}
trap stop EXIT

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$OUT/gpu.log"
if [ -n "$servers" ]; then
    timeout 100 "$python" "$here/models.py" "$VGPU_HOME" 2>&1 | tee "$OUT/models.log"
    # shellcheck disable=SC2086  # names have no spaces
    "$python" "$here/serving.py" "$VGPU_HOME" $servers &
    serving=$!
    timeout 150 "$python" "$here/check.py" >"$OUT/machine.log" 2>&1 &
fi
run_phase() { # name, the seconds that it may take
    echo "=== $1 (at most $2 s, $SECONDS s gone)"
    timeout -k 5 "$2" "$python" "$here/phase.py" "$1" "$OUT" 2>&1 | tee "$OUT/$1.log"
}
for group in "${phases[@]}"; do
    left=$((limit - SECONDS))
    [ "$left" -gt 15 ] || { echo "no time is left for $group"; continue; }
    most=${VGPU_PHASE_SECONDS:-220}
    [ "$most" -lt "$left" ] || most=$left
    running=()
    for phase in ${group//+/ }; do
        run_phase "$phase" "$most" &
        running+=($!)
    done
    wait "${running[@]}"
    if [ -n "${VGPU_LATER-}" ]; then
        # shellcheck disable=SC2086  # names have no spaces
        setsid nohup "$python" "$here/serving.py" "$VGPU_HOME" $VGPU_LATER >/dev/null 2>&1 &
        VGPU_LATER=
    fi
done
echo "=== all done after $SECONDS s"
