#!/bin/bash
# Nous' trainer on two GPUs: see titan_gpus.py. Its answer is $OUT/torchtitan.json.
#
#   OUT=FOLDER tests/gpu/torchtitan/run.sh [PACKED]
#
# PACKED: the folder with torchtitan.tar.xz of tests/gpu/pack.py. Without it, this Python has all of
# it, and ROLLRING_NOUS_TORCHTITAN names the fork. It ends within ${GPU_SECONDS:-195} seconds.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
: "${OUT:?the folder for results}"
mkdir -p "$OUT"
. "$here/../unpack.sh"
unpack "${1:-}" torchtitan || { echo "MISSING: ${1:-}/torchtitan.tar.xz"; exit 1; }
fork=${ROLLRING_NOUS_TORCHTITAN:-${tree:-}/fork}
[ -z "${tree:-}" ] || export ROLLRING_PROGRAM=$tree/bin/rollring
[ -f "$fork/torchtitan/grpo_train.py" ] || { echo "MISSING: the fork in $fork"; exit 1; }
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null
exec timeout -k 5 "${GPU_SECONDS:-195}" "${GPU_PYTHON:-python3}" "$here/titan_gpus.py" "$fork"
