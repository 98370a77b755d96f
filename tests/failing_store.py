"""A store on hardware that gives up when the test says so; up to then it is the CPU store."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from arr_coc import updater
from arr_coc.errors import DeviceLost
from arr_coc.ops.backends import open_store
from arr_coc.ops.cpu import CpuStore
from arr_coc.ops.planes import Plane, PlaneFormat, Rectangle
from arr_coc.ops.store import TextureStore
from arr_coc.ops.view import Texels
from arr_coc.types import FramePlanes

GONE = "the GPU has fallen off the bus"


class FailingStore(CpuStore):
    """Gives up with its write number `fails_writing` (counted from 0), or its read number `fails_reading`."""

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

    def _repaint(self, planes: FramePlanes, rectangles: tuple[Rectangle, ...]) -> None:
        super()._repaint(planes, rectangles)
        if self._writes_left is not None:
            self._writes_left -= 1
            if self._writes_left < 0:
                raise DeviceLost(GONE)

    def _texels(self) -> Texels:  # type: ignore[override]
        return FailingTexels(self, super()._texels())

    def close(self) -> None:
        super().close()
        self.closed += 1


class FailingTexels:
    def __init__(self, store: FailingStore, texels: Texels) -> None:
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
        chosen = "cuda" if backend == "auto" else backend
        store = open_store(fmt, "cpu", **options) if chosen == "cpu" else FailingStore(fmt, chosen, **fails, **options)
        opened.append(store)
        return store

    monkeypatch.setattr(updater, "open_store", open_one)
    return opened
