"""Which texture stores a test can use here."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, Literal, cast
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.backends.gl.buffers import MappedBuffer
from arr_coc.backends.gl.device import GlDevice, find_device, open_device
from arr_coc.backends.registry import open_store, probe_backend
from arr_coc.errors import DeviceLost, StoreError
from arr_coc.texture.kernels import SETTING
from arr_coc.texture.store.base import Backend, CpuStore, TexelReader, TextureStore
from arr_coc.texture.store.native import kernel_path, load_kernel
from arr_coc.texture.store.planes import Plane, PlaneFormat
from arr_coc.types import FramePlanes
from arr_coc.video import texture_updater as updater

BACKENDS: tuple[Backend, ...] = ("cpu", "gl", "cuda")

Kind = Literal["compiled", "reference", "gl", "cuda"]

KINDS: tuple[Kind, ...] = ("compiled", "reference", "gl", "cuda")
"""Stores with separate code: host memory comes with the compiled kernel and without."""

MUST_WORK_IN_CI = ("cpu", "compiled", "reference", "gl")


def open_kind(fmt: PlaneFormat, kind: Kind, **options: Any) -> TextureStore:
    """Opens a store of that kind."""
    if kind in ("gl", "cuda"):
        return open_store(fmt, cast(Backend, kind), **options)
    with mock.patch.dict(os.environ, {SETTING: kind}):
        return open_store(fmt, "cpu", **options)


def require(backend: Backend | Kind) -> None:
    """Skips the test if the store cannot run here, with what to install; fails it if continuous integration must have
    it."""
    problem = _problem(backend)
    if problem is None:
        return
    if os.environ.get("CI") == "true" and backend in MUST_WORK_IN_CI:
        pytest.fail(f"the {backend} store must work in CI: {problem}")
    pytest.skip(f"no {backend} store here: {problem}")


def working() -> tuple[Kind, ...]:
    """Those that work here."""
    return tuple(kind for kind in KINDS if _problem(kind) is None)


@lru_cache(None)
def _problem(backend: Backend | Kind) -> str | None:
    try:
        if backend == "compiled":
            load_kernel(kernel_path())
        elif backend != "reference":
            probe_backend(backend)
    except StoreError as error:
        return str(error)
    return None


def prepare(backend: Backend | Kind, request: pytest.FixtureRequest) -> None:
    """As `require`; but without a CUDA device, its store runs on one that the tests make of the CPU."""
    if backend == "cuda":
        request.getfixturevalue("cuda")
    else:
        require(backend)


GONE = "the GPU has fallen off the bus"


class FailingStore(CpuStore):
    """Fails at its write number `fails_writing` (counted from 0), or its read number `fails_reading`."""

    def __init__(
        self,
        fmt: PlaneFormat,
        backend: str = "cuda",
        *,
        fails_writing: int | None = None,
        fails_reading: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(fmt, options["thresholds"], options["lease_timeout_ms"])
        self.backend = backend
        self.closed = 0
        self._writes_left = fails_writing
        self.reads_left = fails_reading

    def _update_levels(self, planes: FramePlanes, dirty: npt.NDArray[np.bool_]) -> None:
        super()._update_levels(planes, dirty)
        if self._writes_left is not None:
            self._writes_left -= 1
            if self._writes_left < 0:
                raise DeviceLost(GONE)

    def _texels(self) -> TexelReader:  # type: ignore[override]
        return FailingTexels(self, super()._texels())

    def close(self) -> None:
        super().close()
        self.closed += 1


class FailingTexels:
    def __init__(self, store: FailingStore, texels: TexelReader) -> None:
        self._store, self._texels = store, texels

    def read(self, level: int) -> Plane:
        self._count()
        return self._texels.read(level)

    def gather(self, regions: npt.NDArray[np.int64]) -> Plane:
        self._count()
        return self._texels.gather(regions)

    def _count(self) -> None:
        if self._store.reads_left is not None:
            self._store.reads_left -= 1
            if self._store.reads_left < 0:
                raise DeviceLost(GONE)


def use_failing_stores(monkeypatch: pytest.MonkeyPatch, **fails: int) -> list[TextureStore]:
    """Every store but the CPU's gives up like that; returns those that get opened."""
    opened: list[TextureStore] = []

    def open_one(fmt: PlaneFormat, backend: str, **options: Any) -> TextureStore:
        name = "cuda" if backend == "auto" else backend
        store = open_store(fmt, "cpu", **options) if name == "cpu" else FailingStore(fmt, name, **fails, **options)
        opened.append(store)
        return store

    monkeypatch.setattr(updater, "open_store", open_one)
    return opened


def shared_device() -> GlDevice:
    """The device that stores use. Skips the test if there is none."""
    require("gl")
    return open_device()


def read_on_device(device: GlDevice, buffer: MappedBuffer) -> npt.NDArray[np.uint8]:
    """A buffer as the device sees it. Its context must be current."""
    content = np.empty_like(buffer.memory)
    device.library.gl.glGetNamedBufferSubData(buffer.name, 0, content.nbytes, content)
    return content


def own_device() -> GlDevice:
    """One that a test may lose."""
    require("gl")
    return find_device()
