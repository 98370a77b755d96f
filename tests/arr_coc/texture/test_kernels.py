"""Compiled kernels: which of them is used, which is refused, and the arrays that they share."""

from __future__ import annotations

import ctypes
import logging
import subprocess
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from arr_coc.errors import BackendMissing, StoreError
from arr_coc.qwen.small_weights import kernel as linear_kernel
from arr_coc.relevance import kernel as scores
from arr_coc.texture import kernels
from arr_coc.texture.kernels import ARRAYS_MAX, REMEDY, SETTING, ArrayPool
from arr_coc.texture.store import native
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.texture.store.raster import ReferenceTexture
from arr_coc.types import TileGrid
from arr_coc.video import compiled_motion
from arr_coc.video.tile_motion import ReferenceMotion
from tests.support.stores import require
from tests.support.video import flat_planes

SHAPE = (3, 4)

KERNELS = {"tiles": native, "scores": scores, "motion": compiled_motion, "linear": linear_kernel}
"""Modules by the prefix of their kernel's functions."""

each_kernel = pytest.mark.parametrize(("prefix", "module"), KERNELS.items(), ids=KERNELS)


def test_the_reference_serves_for_kernels_that_were_not_built_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setattr(kernels, "_reported", [])
    for module in KERNELS.values():
        monkeypatch.setattr(module, "kernel_path", lambda: tmp_path / "none.so")
    with caplog.at_level(logging.WARNING):
        assert [module.kernel_or_none() for module in KERNELS.values()] == [None] * len(KERNELS)
        fmt = PlaneFormat.of(flat_planes(32, 32))
        assert isinstance(native.host_texture(fmt, Thresholds()), ReferenceTexture)
        assert isinstance(compiled_motion.motion_estimator(TileGrid.of(64, 64), "gray"), ReferenceMotion)
    (message,) = caplog.messages
    assert "four times as long: the texture's compiled kernel was not built; install a C++ compiler" in message
    assert (native.kernel_in_use(), native.kernel_remedy()) == ("reference", REMEDY)


@each_kernel
def test_a_kernel_that_is_asked_for_must_be_there(
    prefix: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "kernel_path", lambda: tmp_path / "none.so")
    monkeypatch.setenv(SETTING, "compiled")
    with pytest.raises(BackendMissing, match=f"{prefix.replace('tiles', 'texture')}.* was not built"):
        module.kernel_or_none()
    monkeypatch.setenv(SETTING, "reference")
    assert module.kernel_or_none() is None
    monkeypatch.setenv(SETTING, "fast")
    with pytest.raises(StoreError, match="compiled or reference, got 'fast'"):
        module.kernel_or_none()


@each_kernel
@pytest.mark.parametrize("content", [b"", b"half a library"])
def test_a_damaged_kernel_is_refused_with_the_remedy(
    prefix: str, module: ModuleType, content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "kernel.so").write_bytes(content)
    with pytest.raises(BackendMissing, match="cannot be loaded") as caught:
        module.load_kernel(tmp_path / "kernel.so")
    assert REMEDY in str(caught.value)


@each_kernel
@pytest.mark.parametrize(
    ("newer", "words"), [(1, "has version {}, not {}; install"), (0, "needs a processor with SSE")]
)
def test_a_kernel_of_another_version_or_processor_is_refused(
    prefix: str, module: ModuleType, newer: int, words: str, tmp_path: Path
) -> None:
    require("compiled")
    version, path = module.VERSION + newer, tmp_path / "kernel.so"
    source = f"int {prefix}_version() {{ return {version}; }} const char *{prefix}_set() {{ return 0; }}"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path], input=source, text=True, check=True)
    with pytest.raises(BackendMissing, match=words.format(version, module.VERSION)):
        module.load_kernel(path)


def test_an_unreferenced_array_is_used_again() -> None:
    pool = ArrayPool()
    place = pool.take(SHAPE).ctypes.data
    assert pool.take(SHAPE).ctypes.data == place
    array = pool.take(SHAPE)
    other = pool.take(SHAPE)
    assert array.ctypes.data == place
    assert other is not array
    del array
    assert pool.take(SHAPE).ctypes.data == place


def test_memory_that_a_view_or_a_tensor_holds_is_left_alone() -> None:
    pool = ArrayPool()
    row, tensor = pool.take(SHAPE)[1], torch.from_numpy(pool.take(SHAPE))
    row[:], tensor[:] = 1, 2
    pool.take(SHAPE)[:] = 3
    assert (row == 1).all()
    assert (tensor == 2).all()


def test_kinds_are_kept_apart() -> None:
    pool = ArrayPool()
    assert pool.take(SHAPE).dtype == np.float32
    assert pool.take(SHAPE, np.uint8).dtype == np.uint8
    assert pool.take((4, 3)).shape == (4, 3)


def test_it_keeps_a_bounded_number_of_arrays() -> None:
    pool = ArrayPool()
    arrays = [pool.take(SHAPE) for _ in range(3 * ARRAYS_MAX)]
    for index, array in enumerate(arrays):
        array[:] = index
    assert [float(array[0, 0]) for array in arrays] == list(range(len(arrays)))
    addresses = {pool.address(array) for array in arrays}
    assert addresses == {array.ctypes.data for array in arrays}
    assert len(pool._addresses) == ARRAYS_MAX


def test_a_missing_kernel_is_looked_for_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    paths: list[Path] = []

    def load(path: Path) -> ctypes.CDLL:
        paths.append(path)
        raise BackendMissing("the kernel was not built")

    for _ in range(2):
        assert kernels.library_or_none(load, tmp_path) is None
    assert paths == [tmp_path]
