"""The reference store: NumPy arrays in this process, OpenCV for the box pyramid."""

from __future__ import annotations

from arr_coc.ops.bookkeeping import StoreBase
from arr_coc.ops.difference import Thresholds
from arr_coc.ops.gather import Gatherer
from arr_coc.ops.planes import PlaneFormat, Rectangle
from arr_coc.ops.repaint import Repainter
from arr_coc.ops.view import MemoryTexels
from arr_coc.types import FramePlanes


class CpuStore(StoreBase):
    """A texture in ordinary memory; nothing of it outlives the process."""

    backend = "cpu"

    def __init__(self, fmt: PlaneFormat, thresholds: Thresholds, lease_timeout_ms: int) -> None:
        self._painter = Repainter(fmt)
        self._gatherer = Gatherer()
        super().__init__(fmt, thresholds, lease_timeout_ms, self._painter.planes)

    @property
    def hardware(self) -> str:
        return "ordinary memory"

    def _repaint(self, planes: FramePlanes, rectangles: tuple[Rectangle, ...]) -> None:
        self._painter.repaint(planes, rectangles)

    def _texels(self) -> MemoryTexels:
        return MemoryTexels(self._painter.levels, self._gatherer)
