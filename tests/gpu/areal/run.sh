#!/bin/bash
# AReaL's colocated updates on one GPU, and on two: see areal_gpus.py, which writes $OUT/areal.json.
#
#   OUT=FOLDER tests/gpu/areal/run.sh [PACKED]
#
# PACKED: the folder with areal.tar.xz of tests/gpu/pack.py. Without it, this Python has all
# of it. It ends within ${GPU_SECONDS:-195} seconds.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
: "${OUT:?the folder for results}"
mkdir -p "$OUT"
. "$here/../unpack.sh"
unpack "${1:-}" areal || { echo "MISSING: ${1:-}/areal.tar.xz"; exit 1; }
[ -z "${tree:-}" ] || cp -r "$here"/stubs/. "$tree/last/"
# A wait for the other side is no longer than this run.
export ROLLRING_AREAL=${ROLLRING_AREAL:-'{"deadline_s": 30}'}
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null
exec timeout -k 5 "${GPU_SECONDS:-195}" "${GPU_PYTHON:-python3}" "$here/areal_gpus.py"
