#!/bin/bash
# Packs vLLM's CUDA wheel, the packages that it needs beside torch, and rollring, for a machine
# without a network: pieces of at most 47 MB, which install.sh puts together there.
#
#   tests/gpu/vllm/pack.sh [FOLDER]        by default .cache/vgpu
#
# Needs: pip and a network, strip, xz, and rollring's module of the Python package, built for CUDA:
#   meson setup build-pyc -Dpython=true -Dpython_abi3=true -Dbundled_fmt=true -Dcuda=enabled \
#       -Dtests=disabled -Dbench=false -Ddefault_library=static && ninja -C build-pyc
# VGPU_WITHOUT names packages to leave out, such as those that only TRL needs: "trl datasets pyarrow
# pandas". VGPU_XZ: -1 packs several times as fast, and a fifth larger.
# Nothing of vLLM's is changed: files are left out that models in bf16 on a Hopper GPU do not
# load, and symbols are stripped.
set -euo pipefail
cd "$(dirname "$0")/../../.."
folder=$(realpath -m "${1:-.cache/vgpu}")
core=${ROLLRING_CORE:-build-pyc/python/_core.abi3.so}
if [ ! -f "$core" ]; then
    echo "there is no $core: build it first, as this script's head says" >&2
    exit 1
fi
mkdir -p "$folder/wheels"
tree=$folder/tree
rm -rf "$tree"
mkdir -p "$tree/site-packages" "$tree/stubs"

fetch() {
    python3 -m pip download -q --no-deps --no-cache-dir --python-version 3.12 --implementation cp \
        --only-binary=:all: $(sed 's/^/--platform /' <<<"$platforms") -d "$folder/wheels" "$@"
}
platforms=$(
    printf 'manylinux_2_%s_x86_64\n' 17 24 26 27 28 31 34 35
    printf 'manylinux%s_x86_64\n' 1 2014
)

echo "fetching wheels"
for package in vllm==0.26.0 $(grep -v '^#' tests/gpu/vllm/carried.txt); do
    name=${package%%==*}
    compgen -G "$folder/wheels/${name//-/_}-*.whl" >/dev/null || fetch "$package"
done

echo "unpacking"
for wheel in "$folder"/wheels/*.whl; do
    name=$(basename "$wheel")
    [[ " ${VGPU_WITHOUT-} " != *" ${name%%-*} "* ]] || continue
    case $wheel in
    */vllm-*) unzip -q -o "$wheel" -d "$tree/site-packages" \
        -x 'vllm/vllm_flash_attn/_vllm_fa2_C*' 'vllm/_flashmla*' 'vllm/_qutlass*' \
        'vllm/third_party/deep_gemm/*' 'vllm/third_party/fmha_sm100/*' 'vllm/vllm-rs' \
        'vllm/benchmarks/*' 'vllm/entrypoints/serve/instrumentator/static/*' ;;
    */pyarrow-*) unzip -q -o "$wheel" -d "$tree/site-packages" \
        -x '*/include/*' '*/tests/*' '*flight*' '*gandiva*' '*s3*' '*.pxd' '*.pyx' ;;
    */mistral_common-*)
        unzip -q -o "$wheel" -d "$tree/site-packages" -x 'mistral_common/data/*' ;;
    */pycountry-*) unzip -q -o "$wheel" -d "$tree/site-packages" -x 'pycountry/locales/*' ;;
    *) unzip -q -o "$wheel" -d "$tree/site-packages" ;;
    esac
done
rm -rf "$tree/site-packages/pandas/tests"
find "$tree/site-packages" -name '*.so*' -type f -exec strip -s {} + 2>/dev/null || true
cp -rL python/rollring "$tree/site-packages/rollring"
rm -f "$tree"/site-packages/rollring/*.so
cp "$core" "$tree/site-packages/rollring/_core.abi3.so"
strip -s "$tree/site-packages/rollring/_core.abi3.so"
find "$tree" -name __pycache__ -prune -exec rm -rf {} +
version=$(sed -n "s/.*version: '\([0-9.]*\)'.*/\1/p" meson.build | head -1)
info=$tree/site-packages/rollring-$version.dist-info
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: rollring\nVersion: %s\n' "$version" >"$info/METADATA"
printf '[vllm.general_plugins]\nrollring = %s\n' rollring.integrations.vllm:register \
    >"$info/entry_points.txt"
cp -r tests/gpu/vllm/stubs/. "$tree/stubs/"

echo "compressing"
rm -rf "$folder"/piece*
tar -C "$tree" --sort=name --owner=0 --group=0 --mtime=@0 -cf - . |
    xz "${VGPU_XZ:--6}" -T2 >"$folder/all.tar.xz"
split -b 45M -d -a 1 --additional-suffix=.part "$folder/all.tar.xz" "$folder/part"
number=0
for part in "$folder"/part*.part; do
    number=$((number + 1))
    mkdir -p "$folder/piece$number"
    mv "$part" "$folder/piece$number/"
    cp -r tests/gpu/vllm "$folder/piece$number/scripts"
done
(cd "$folder" && sha256sum all.tar.xz >piece1/all.sha256 && echo "$number" >piece1/pieces)
rm -rf "$tree" "$folder/all.tar.xz"
du -sh "$folder"/piece*
