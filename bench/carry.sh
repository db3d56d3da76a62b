#!/bin/sh
# Fills .carry/ with the headers that a bare machine lacks, from /usr/include of this one, so that
# bench/device.sh can build there without network. With --binaries: also the programs of build/ and
# the libraries that they need, for bench/device_weights.sh, which then builds nothing.
# With --peers: rollring-bench of build/ with the libraries it was linked to here, ZeroMQ and
# cpp-httplib among them, and the Python modules in $PEER_MODULES
# if set (bench/README.md), for bench/device_peers.sh.
set -eu
cd "$(dirname "$0")/.."
rm -rf .carry
mkdir -p .carry/include .carry/pkgconfig
for name in fmt CLI nlohmann xxhash.h xxh3.h doctest; do
    cp -rL "/usr/include/$name" .carry/include/
done
# Answers for Meson's dependency(): a pkg-config that knows these four, wherever it lands.
cat >.carry/pkgconfig/pkg-config <<'EOF'
#!/bin/sh
here=$(cd "$(dirname "$0")/.." && pwd)
for name; do :; done
case "$name" in
    fmt) version=9.1.0 flags=-DFMT_HEADER_ONLY ;;
    CLI11) version=2.1.2 flags= ;;
    nlohmann_json) version=3.11.2 flags= ;;
    libxxhash) version=0.8.1 flags= ;;
    --version) echo 0.29.2; exit 0 ;;
    *) exit 1 ;;
esac
case "$*" in
    *--modversion*) echo "$version" ;;
    *--cflags*) echo "-I$here/include $flags" ;;
esac
EOF
chmod +x .carry/pkgconfig/pkg-config
# Those that rollring-bench was linked to here, except the parts of the C library and the compiler,
# which are newer there.
copy_libraries() {
    ldd build/bench/rollring-bench | awk '$3 ~ /^\// { print $3 }' |
        grep -vE '/(libc|libm|libstdc\+\+|libgcc_s|libpthread|librt|libdl|libresolv)\.so' |
        while read -r library; do cp -L "$library" .carry/lib/; done
}
if [ "${1-}" = --binaries ]; then
    mkdir .carry/bin .carry/lib
    cp build/cli/rollring build/cli/rollring-inspect build/bench/rollring-bench \
        build/tests/gpu/gpu_test build/tests/gpu/pack_rate build/tests/gpu/direct_rate \
        build/tests/gpu/domain_test build/tests/gpu/channel_peer \
        .carry/bin/
    copy_libraries
    # Of a build with -Dfault_points=true, if there is one.
    if [ -x build-faultgpu/tests/crash/fault_weights ]; then
        mkdir .carry/fault
        cp build-faultgpu/tests/crash/fault_weights build-faultgpu/tests/crash/kill_weights \
            .carry/fault/
        cp /usr/lib/*/libfmt.so.9 .carry/fault/
    fi
fi
if [ "${1-}" = --peers ]; then
    mkdir .carry/bin .carry/lib
    cp build/bench/rollring-bench bench/peers/*.py .carry/bin/
    copy_libraries
    if [ -n "${PEER_MODULES-}" ]; then cp -r "$PEER_MODULES" .carry/python; fi
    rm -rf .carry/include .carry/pkgconfig
fi
du -sh .carry
