"""The texture store on OpenGL 4.5: a GPU's, or in software."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from arr_coc.errors import DeviceLost
from arr_coc.ops.bookkeeping import StoreBase
from arr_coc.ops.difference import Thresholds
from arr_coc.ops.gl.device import open_device
from arr_coc.ops.gl.plan import Way, plan_upload
from arr_coc.ops.gl.texels import GlTexels
from arr_coc.ops.gl.texture import TileTexture
from arr_coc.ops.planes import PlaneFormat, Rectangle
from arr_coc.ops.repaint import Repainter
from arr_coc.types import FramePlanes


class GlStore(StoreBase):
    """A texture on a graphics device, with the same bytes as the CPU store's.

    Frames are converted on the host, whose level 0 stays there for its readers. Each thread that writes, or reads more
    than level 0, gets a context of its own, which ends with the thread. `way` fixes how dirty tiles are uploaded, for
    measuring; `last_way` says which way the last frame took.
    """

    backend = "gl"

    def __init__(
        self, fmt: PlaneFormat, thresholds: Thresholds, lease_timeout_ms: int, cuda_device: int | None = None
    ) -> None:
        """`cuda_device`: the number of the CUDA device to draw on.

        Raises BackendMissing where nothing here gives OpenGL 4.5, DeviceLost where its memory does not suffice.
        """
        self.way: Way | None = None
        self.last_way: Way | None = None
        self.device = open_device(cuda_device)
        self._painter = Repainter(fmt, levels=1)
        self._texture = TileTexture(self.device, *fmt.grid.shape)
        self._reader = GlTexels(self._texture, self._painter.levels[0])
        super().__init__(fmt, thresholds, lease_timeout_ms, self._painter.planes)

    @property
    def hardware(self) -> str:
        major, minor = self.device.version
        return f"OpenGL {major}.{minor}, {self.device.renderer}{' (software)' if self.device.software else ''}"

    @contextmanager
    def texels(self, timeout_ms: int | None = None) -> Iterator[GlTexels]:
        """What only this store offers to readers, under a lease. Raises what `lease` raises."""
        with self.lease(timeout_ms):
            yield self._reader

    def _repaint(self, planes: FramePlanes, rectangles: tuple[Rectangle, ...]) -> None:
        plan = plan_upload(rectangles, self.grid.shape, self.way)
        self._painter.repaint(planes, rectangles)
        self._texture.paint(self._painter.levels[0], plan)
        self._reader.changed(rectangles)
        self.last_way = plan.way

    def _texels(self) -> GlTexels:
        return self._reader

    def _free(self) -> None:
        self._texture.release()
        with suppress(DeviceLost):  # then the memory went with the device
            self.device.clear()
