#!/bin/bash
# Starts vLLM's servers, and asks each question of phase.py: its answers are JSON in $OUT.
#
#   OUT=FOLDER tests/gpu/vllm/run.sh [PHASE...]
#
# A phase that fails or takes too long does not keep the others from being run. All processes end
# with this script, which takes at most ${VGPU_SECONDS:-560} seconds.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export VGPU_HOME=${VGPU_HOME:-/tmp/rollring-vgpu}
OUT=${OUT:?the folder for results}
python=${VGPU_PYTHON:-python3}
limit=${VGPU_SECONDS:-560}
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1
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
[ $# -gt 0 ] || phases=(versions trl kills sleeps times)
servers=${VGPU_SERVERS:-rollring ipc trl sleeps}

stop() {
    [ -z "${serving:-}" ] || kill -TERM "$serving" 2>/dev/null
    [ -z "${serving:-}" ] || wait "$serving" 2>/dev/null
    for name in $servers; do
        log=$VGPU_HOME/server-$name.log
        [ ! -f "${log%.log}.ended" ] || { echo "--- $name ended:"; grep -v '^$' "$log" | tail -25; }
        [ -f "$log" ] && tail -c 400000 "$log" >"$OUT/server-$name.log"
    done
    grep -h MISSING "$OUT/machine.log"
    cd "$OUT" && tar -czf logs.tar.gz ./*.log && rm -f ./*.log
}
trap stop EXIT

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee "$OUT/gpu.log"
timeout 100 "$python" "$here/models.py" "$VGPU_HOME" 2>&1 | tee "$OUT/models.log"
"$python" "$here/serving.py" "$VGPU_HOME" $servers &
serving=$!
timeout 150 "$python" "$here/check.py" >"$OUT/machine.log" 2>&1 &
declare -A seconds=([versions]=220 [trl]=200 [kills]=150 [sleeps]=120 [times]=120)
for phase in "${phases[@]}"; do
    left=$((limit - SECONDS))
    [ "$left" -gt 15 ] || { echo "no time is left for $phase"; continue; }
    most=${seconds[$phase]}
    [ -z "${VGPU_PHASE_SECONDS:-}" ] || most=$VGPU_PHASE_SECONDS
    [ "$most" -lt "$left" ] || most=$left
    echo "=== $phase (at most $most s, $SECONDS s gone)"
    timeout -k 5 "$most" "$python" "$here/phase.py" "$phase" "$OUT" 2>&1 | tee "$OUT/$phase.log"
done
echo "=== all done after $SECONDS s"
