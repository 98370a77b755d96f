"""What every store does the same way: it compares, keeps versions, and gives leases. Only texels differ."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from arr_coc.errors import DeviceLost, ShapeError, StoreError
from arr_coc.ops.difference import Difference, FrameDifference, Thresholds
from arr_coc.ops.leases import Leases
from arr_coc.ops.planes import Plane, PlaneCopy, PlaneFormat, Rectangle
from arr_coc.ops.rectangles import cover
from arr_coc.ops.store import TextureStore
from arr_coc.ops.view import Texels, TextureView
from arr_coc.types import FramePlanes, FrameStamp, TileChange, TileVersions


class StoreBase(TextureStore):
    """A store that compares frames with its own copy of the planes, in ordinary memory."""

    def __init__(self, fmt: PlaneFormat, thresholds: Thresholds, lease_timeout_ms: int, planes: PlaneCopy) -> None:
        """`planes` is the copy that `_repaint` keeps up to date."""
        self.format = fmt
        self.grid = fmt.grid
        self._lease_timeout_ms = lease_timeout_ms
        self._held: tuple[Plane, ...] = tuple(
            padded[: -(-fmt.height_px // down), : -(-fmt.width_px // across)]
            for padded, (down, across) in zip(planes.padded, fmt.steps(), strict=True)
        )
        self._samples = [(plane.shape, plane.dtype) for plane in self._held]
        self._difference = FrameDifference(fmt, self._held, thresholds)
        self._leases = Leases()
        self._versions = TileVersions(0, np.full(self.grid.shape, -1, np.int64))
        self._stamp: FrameStamp | None = None
        self._lost: StoreError | None = None
        self._users, self._counting = 0, threading.Lock()
        self._closed = False

    @abstractmethod
    def _repaint(self, planes: FramePlanes, rectangles: tuple[Rectangle, ...]) -> None:
        """Takes the rectangles from `planes` and brings their texels up to date, on all levels. Nobody reads meanwhile.

        Raises DeviceLost where the hardware gave up.
        """

    @abstractmethod
    def _texels(self) -> Texels:
        """The texels for a reader's thread."""

    def _free(self) -> None:
        """Gives the hardware's memory back, once the store is closed and nobody uses it. May be called twice."""

    def accepts(self, planes: FramePlanes) -> bool:
        return (
            planes.layout == self.format.layout
            and [(plane.shape, plane.dtype) for plane in planes.planes] == self._samples
            and planes.colour == self.format.colour
        )

    @property
    def held(self) -> FramePlanes:
        return FramePlanes(self.format.layout, self._held, self.format.colour)

    def compare(self, planes: FramePlanes) -> Difference:
        self._check(planes)
        if self._stamp is None:
            return Difference.everywhere(self.grid)
        return self._difference.of(planes)

    def write(self, planes: FramePlanes, difference: Difference, stamp: FrameStamp) -> TileChange:
        self._check(planes)
        dirty = np.ones(self.grid.shape, bool) if self._begins(stamp) else difference.dirty
        rectangles = cover(dirty)
        with self._writing():
            if rectangles:
                self._repaint(planes, rectangles)
            self._note(dirty, stamp)
        return TileChange(stamp, dirty, rectangles)

    @contextmanager
    def lease(self, timeout_ms: int | None = None) -> Iterator[TextureView]:
        limit_ms = self._lease_timeout_ms if timeout_ms is None else timeout_ms
        with self._using(), self._leases.reading(limit_ms):
            if self._stamp is None:
                raise StoreError("the texture holds no frame yet; write one before reading")
            if self._lost is not None:
                raise DeviceLost(str(self._lost)) from self._lost
            view = TextureView(self._stamp, self.grid, self._versions, self._texels())
            try:
                yield view
            finally:
                view.release()

    def close(self) -> None:
        self._closed = True
        self._free_if_idle()

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Keeps the hardware's memory meanwhile, whoever closes the store. Raises StoreError where that was done."""
        with self._counting:
            if self._closed:
                raise StoreError("the texture store is closed")
            self._users += 1
        try:
            yield
        finally:
            with self._counting:
                self._users -= 1
            self._free_if_idle()

    def _free_if_idle(self) -> None:
        with self._counting:
            idle = self._closed and not self._users
        if idle:
            self._free()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Without readers. A write that fails halfway leaves texels of two frames, which nobody may read."""
        with self._using(), self._leases.writing(self._lease_timeout_ms):
            try:
                yield
            except StoreError as error:
                self._lost = error
                raise

    def _begins(self, stamp: FrameStamp) -> bool:
        """Whether a frame begins an epoch, and so is written whole."""
        return self._stamp is None or stamp.epoch != self._versions.epoch

    def _note(self, dirty: npt.NDArray[np.bool_], stamp: FrameStamp) -> None:
        """What was written: versions move where tiles were dirty."""
        if dirty.any():
            frame = np.where(dirty, stamp.frame_index, self._versions.frame)
            self._versions = _frozen(TileVersions(stamp.epoch, frame))
        self._stamp = stamp

    def _check(self, planes: FramePlanes) -> None:
        if not self.accepts(planes):
            raise ShapeError(f"the store was opened for {self.format}, got a frame of {PlaneFormat.of(planes)}")


def _frozen(versions: TileVersions) -> TileVersions:
    versions.frame.flags.writeable = False
    return versions
