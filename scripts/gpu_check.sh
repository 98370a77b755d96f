#!/bin/sh
# Checks the CUDA store on this machine's GPU: builds the kernels if nvcc is installed, holds the store against the CPU
# store byte for byte, measures it, and checks for leaks. Then decoding from a captured graph: held against the stock
# model's forward, and measured beside it. A few minutes, nothing from the network. Called as:
#
#     sh scripts/gpu_check.sh [OUT.json]
#
# OUT.json is benchmarks/results/gpu.json by default; it is written only if both halves of parity passed. Decoding's
# figures lie beside it, in answer_cuda.json. PYTHON names the Python to use: by default the checkout's .venv/bin/python,
# or else python3; it needs torch with CUDA and what `pip install -e '.[dev]'` installs.
set -eu

ROOT=$(cd "$(dirname "$0")/.." && pwd)
OUT=${1:-$ROOT/benchmarks/results/gpu.json}
case $OUT in /*) ;; *) OUT=$PWD/$OUT ;; esac
cd "$ROOT"

fail() {
    echo "gpu_check: $1" >&2
    exit 1
}

if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    [ ! -x .venv/bin/python ] || PYTHON=.venv/bin/python
fi

echo "== The store opens"
"$PYTHON" -c 'import pytest, hypothesis' || fail "tests need pytest and hypothesis: $PYTHON -m pip install -e '.[dev]'"
"$PYTHON" - <<'END' || fail "no CUDA store here, see above"
import sys
from arr_coc.errors import StoreError
from arr_coc.backends.registry import probe_backend
try:
    print("works:", probe_backend("cuda"))
except StoreError as error:
    sys.exit(str(error))
END

SCRATCH=$(mktemp -d)
trap 'rm -rf "$SCRATCH"' EXIT

echo "== Kernels"
command -v nvcc >/dev/null || PATH="${CUDA_HOME:-/usr/local/cuda}/bin:$PATH"
if ! command -v nvcc >/dev/null; then
    echo "no nvcc here: the shipped PTX is checked"
elif ! nvcc --list-gpu-arch | grep -q compute_120; then
    echo "this nvcc is older than CUDA 12.8: it compiles for the GPU that is here, and not for all that are supported"
else
    sh scripts/build_kernels.sh "$SCRATCH"
fi

echo "== Parity, with the kernels as they are loaded here"
"$PYTHON" -m pytest -q -rs tests/arr_coc/backends/cuda tests/arr_coc/allocation/test_on_device.py
"$PYTHON" -m pytest -q tests/arr_coc/texture/store/test_base.py tests/arr_coc/texture/store/test_contract.py tests/arr_coc/texture/store/test_view.py

echo "== Parity, with the shipped PTX"
ARR_COC_NVCC=no "$PYTHON" -m pytest -q tests/arr_coc/backends/cuda/test_store.py tests/arr_coc/backends/cuda/test_view.py

echo "== Speed and leaks"
"$PYTHON" -m benchmarks.gpu --out "$OUT"

echo "== Decoding from a captured graph"
"$PYTHON" -m pytest -q -rs tests/arr_coc/qwen/batching/test_captured.py
"$PYTHON" -m benchmarks.answer --device cuda --rounds 60 --rounds-2b 60 --out "$(dirname "$OUT")/answer_cuda.json"
