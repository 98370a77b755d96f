#!/bin/sh
# Compiles kernels/*.cu with nvcc for every architecture that is supported, warnings being errors, and writes the PTX that
# is shipped: for compute capability 7.5, from which drivers compile for whatever newer device there is. Called as:
#
#     sh scripts/build_kernels.sh [FOLDER]
#
# FOLDER receives the PTX, kernels/ by default. Needs CUDA 12.8 or newer, no GPU.
set -eu
cd "$(dirname "$0")/.."

TARGET=${1:-kernels}
ARCHITECTURES="75 80 90 120"
FLAGS="-std=c++17 -O3 -fmad=false -Werror all-warnings"

# nvcc writes the PTX version of its own release, which only drivers of that release read. Nothing here needs more than
# 8.0 (CUDA 12.0, driver 525), which ptxas checks.
PTX_VERSION=8.0

fail() {
    echo "build_kernels: $1" >&2
    exit 1
}

command -v nvcc >/dev/null || PATH="${CUDA_HOME:-/usr/local/cuda}/bin:$PATH"
for tool in nvcc ptxas; do
    command -v $tool >/dev/null || fail "no $tool here; install the CUDA toolkit, or set CUDA_HOME"
done

HASH=$(cat kernels/*.cuh kernels/*.cu | sha256sum | cut -d' ' -f1)
SCRATCH=$(mktemp -d)
trap 'rm -rf "$SCRATCH"' EXIT
mkdir -p "$TARGET"

for source in kernels/*.cu; do
    name=$(basename "$source" .cu)
    for architecture in $ARCHITECTURES; do
        nvcc $FLAGS -ptx -arch=compute_$architecture -o "$SCRATCH/$name.$architecture.ptx" "$source" ||
            fail "nvcc does not compile $source for sm_$architecture"
        ptxas -arch=sm_$architecture -o "$SCRATCH/$name.cubin" "$SCRATCH/$name.$architecture.ptx" ||
            fail "ptxas does not assemble $source for sm_$architecture"
    done
    {
        echo "// Made by scripts/build_kernels.sh from sources with SHA-256 $HASH"
        sed "s/^\.version .*/.version $PTX_VERSION/" "$SCRATCH/$name.75.ptx"
    } >"$SCRATCH/$name.ptx"
    for architecture in $ARCHITECTURES; do
        ptxas -arch=sm_$architecture -o "$SCRATCH/$name.cubin" "$SCRATCH/$name.ptx" ||
            fail "the PTX of $source is not PTX $PTX_VERSION for sm_$architecture"
    done
    mv "$SCRATCH/$name.ptx" "$TARGET/$name.ptx"
    echo "$name.ptx: compiled for sm_$(echo $ARCHITECTURES | sed 's/ /, sm_/g')"
done
