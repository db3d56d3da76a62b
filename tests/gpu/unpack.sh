# Sourced on the GPU machine: unpack FOLDER NAME sets up Python's path for a framework that pack.py
# packed as FOLDER/NAME.tar.xz, in ${GPU_HOME:-/tmp/rollring-gpu}/NAME. With no FOLDER the
# environment of this Python has it all already.
unpack() {
    export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
    export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
    [ -n "$1" ] || return 0
    tree=${GPU_HOME:-/tmp/rollring-gpu}/$2
    if [ ! -d "$tree/site" ]; then
        mkdir -p "$tree"
        python3 -m tarfile -e "$1/$2.tar.xz" "$tree" || return 1
        chmod +x "$tree"/bin/* 2>/dev/null
    fi
    export PYTHONPATH=$tree/site${PYTHONPATH:+:$PYTHONPATH} VGPU_STUBS=$tree/last
    export LD_LIBRARY_PATH=$tree/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}
