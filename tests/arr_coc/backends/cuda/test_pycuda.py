"""The example of a custom kernel: its source on the CPU, and all of it if PyCUDA and a GPU are available."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.cuda_on_cpu.machine import FLAGS, HERE, QUIET, compiler

ROOT = Path(__file__).resolve().parents[4]

LAUNCH = """
static const unsigned char *patches;
static float *out;
static void invoke(const std::vector<void *> &) { contrast(patches, out); }
extern "C" const char *run(const unsigned char *from, float *to, unsigned count) {
    patches = from;
    out = to;
    return block::launch(invoke, {}, {count, 1, 1}, 256);
}
"""


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pycuda_patches", ROOT / "scripts" / "pycuda_patches.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def patches() -> npt.NDArray[np.uint8]:
    rng = np.random.default_rng(0)
    return np.concatenate(
        [rng.integers(low, low + 60, (2, 3, 32, 32), dtype=np.uint8) for low in (0, 100, 190)]
        + [np.full((1, 3, 32, 32), 77, np.uint8)]
    )


def expected(patches: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    luma = (np.einsum("kchw,c->khw", patches.astype(int), np.array([299, 587, 114])) + 500) // 1000
    return ((luma.max(axis=(1, 2)) - luma.min(axis=(1, 2))) / 255).astype(np.float32)


def test_the_kernel_measures_contrast(example: ModuleType, patches: npt.NDArray[np.uint8], tmp_path: Path) -> None:
    source, library = tmp_path / "contrast.cpp", tmp_path / "contrast.so"
    source.write_text(f'#include "cuda_on_cpu.h"\n{example.SOURCE}\n{LAUNCH}')
    subprocess.run([compiler(), *FLAGS, *QUIET, "-I", str(HERE), "-o", str(library), str(source)], check=True)
    run = ctypes.CDLL(str(library)).run
    run.restype = ctypes.c_char_p
    out = np.zeros(len(patches), np.float32)
    failure = run(ctypes.c_void_p(patches.ctypes.data), ctypes.c_void_p(out.ctypes.data), len(patches))
    assert failure is None
    np.testing.assert_array_equal(out, expected(patches))


def test_pycuda_runs_it_on_tensors(example: ModuleType, patches: npt.NDArray[np.uint8]) -> None:
    pytest.importorskip("pycuda.driver", reason="no PyCUDA here: pip install pycuda", exc_type=ImportError)
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    contrasts = example.contrasts(torch.from_numpy(patches).cuda())
    np.testing.assert_array_equal(contrasts.cpu().numpy(), expected(patches))
