"""`VideoStream`: a texture that follows a video, without stream or model."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.backends.registry import open_store
from arr_coc.budget import DEFAULT_BUDGET, Budget
from arr_coc.errors import ShapeError, StoreError
from arr_coc.ops.texture import Foveation, FoveationOptions
from arr_coc.texture.pictures import Picture, to_rgb
from arr_coc.texture.store.base import LEASE_TIMEOUT_MS, Backend, TextureStore, TextureView
from arr_coc.texture.store.planes import Difference, PlaneFormat, Thresholds
from arr_coc.types import Colour, FramePlanes, FrameStamp, TileChange, TileGrid, new_epoch


@runtime_checkable
class TensorStore(Protocol):
    """A store that takes frames that are tensors, on the device `place`."""

    format: PlaneFormat

    @property
    def place(self) -> torch.device: ...

    def compare_tensor(self, frame: torch.Tensor) -> Difference: ...

    def write_tensor(self, frame: torch.Tensor, difference: Difference, stamp: FrameStamp) -> TileChange: ...


@runtime_checkable
class PatchView(Protocol):
    """A view that gathers pixels on its device."""

    def patches(self, regions: npt.NDArray[np.int64]) -> torch.Tensor: ...


class VideoStream:
    """One texture that follows a video's frames, on any backend; unchanged tiles cost only a comparison.

        with VideoStream((1080, 1920)) as video:
            for frame in frames:
                video.update(frame)
                video.update_mipmaps()
                tokens = video.sample_foveated((0.5, 0.5))

    One thread calls `update`, `update_mipmaps`, `sample_foveated` and `close`; any thread may `lease`.
    """

    def __init__(
        self,
        resolution: int | tuple[int, int],
        backend: Backend = "auto",
        *,
        thresholds: Thresholds | None = None,
        lease_timeout_ms: int = LEASE_TIMEOUT_MS,
    ) -> None:
        """`resolution` is (height, width) of every frame, in pixels, or the side of square ones. The texture is made
        with the first frame, whose layout it takes. Raises ShapeError for a resolution below 1×1.
        """
        sides = (resolution, resolution) if isinstance(resolution, int) else resolution
        height_px, width_px = (operator.index(side) for side in sides)
        if height_px < 1 or width_px < 1:
            raise ShapeError(f"resolution is (height, width), at least 1x1 pixels, got {tuple(sides)}")
        self.grid = TileGrid.of(height_px, width_px)
        self._backend = backend
        self._thresholds = thresholds
        self._lease_timeout_ms = lease_timeout_ms
        self._epoch = new_epoch()
        self._frames = 0
        self._store: TextureStore | None = None
        self._pending: tuple[FramePlanes | torch.Tensor, Difference] | None = None
        self._shows_tensor = False
        self._closed = False

    def update(self, frame: Picture | FramePlanes, delta_only: bool = True) -> Difference:
        """Compare a frame with the texture and return the tiles that changed: `dirty` bool [rows, cols],
        `dirty_share`. With `delta_only=False` all tiles count as changed.

        `frame`: NumPy uint8 [H, W, 3] RGB, or a decoder's planes; others than arrays are converted as
        `arr_coc.texture.pictures.to_rgb` does, but for a tensor uint8 [H, W, 3] or [3, H, W] on the texture's own
        device: that is compared and taken there. It must stay as it is until `update_mipmaps` takes
        the changed tiles out of it; a frame that is replaced by a newer one before that is left out. Readers are not
        waited for. Raises ShapeError if the frame has not the stream's size and layout, StoreError once closed, and
        with the first frame BackendMissing if the backend cannot run here.
        """
        if isinstance(frame, torch.Tensor) and (on_device := self._store_of(frame)) is not None:
            if delta_only:
                difference = on_device.compare_tensor(frame)
            else:
                difference = Difference.everywhere(self.grid)
            self._pending = frame, difference
            return difference
        if not isinstance(frame, (FramePlanes, np.ndarray)):
            frame = to_rgb(frame)
        if isinstance(frame, FramePlanes):
            planes = frame
        else:
            planes = FramePlanes("rgb", (frame,))
        store = self._store_for(PlaneFormat.of(planes))
        if delta_only:
            difference = store.compare(planes)
        else:
            difference = Difference.everywhere(self.grid)
        self._pending = planes, difference
        return difference

    def update_mipmaps(self) -> TileChange | None:
        """Update the changed tiles of the last frame, on all levels; only these are converted and uploaded.

        One pass does upload and levels together. Returns the change, None if there was no new frame since the
        last call. Raises LeaseTimeout, with everything as it was, if readers keep their leases too long; DeviceLost.
        """
        if self._pending is None:
            return None
        frame, difference = self._pending
        store = self._opened()
        stamp = FrameStamp(self._frames, 0, 0, self._epoch)
        if isinstance(frame, FramePlanes):
            change = store.write(frame, difference, stamp)
        else:
            assert isinstance(store, TensorStore)
            change = store.write_tensor(frame, difference, stamp)
        self._shows_tensor = not isinstance(frame, FramePlanes)
        self._pending = None
        self._frames += 1
        return change

    def sample_foveated(
        self,
        fixation: Sequence[float],
        budget: Budget = DEFAULT_BUDGET,
        M0: float | None = None,  # noqa: N803
        e0: float | None = None,
    ) -> Foveation:
        """Return the newest frame in at most `budget` tokens, fine at the fixation: see `Texture.sample_foveated`.

        Calls `update_mipmaps` if that has not been done.

        Args:
            fixation: As `Texture.sample_foveated`.
            budget: As `Texture.sample_foveated`.
            M0: As `Texture.sample_foveated`.
            e0: As `Texture.sample_foveated`.

        Returns:
            Regions with `pixels` uint8 [K, 3, 32, 32], on the CPU, or on the frame's device if that was a tensor.

        Raises:
            BudgetError, OptionError: As `Texture.sample_foveated`.
            StoreError: Before the first frame.
            LeaseTimeout, DeviceLost: As `update_mipmaps`.
        """
        regions, actual_m0, offset = FoveationOptions.of(self.grid, fixation, budget, M0, e0).cover(self.grid.shape)
        self.update_mipmaps()
        with self.lease() as view:
            if self._shows_tensor and isinstance(view, PatchView):
                pixels = view.patches(regions)
            else:
                pixels = torch.from_numpy(view.gather(regions))
        return Foveation(torch.from_numpy(regions), pixels, actual_m0, offset)

    def lease(self, timeout_ms: int | None = None) -> AbstractContextManager[TextureView]:
        """Return the texture for reading, as `TextureStore.lease`: levels, regions, versions, undisturbed while it
        lasts.

        Raises StoreError before the first frame and once closed, LeaseTimeout.
        """
        return self._opened().lease(timeout_ms)

    def close(self) -> None:
        """Close the texture store. May be called twice."""
        self._closed = True
        self._pending = None
        if self._store is not None:
            self._store.close()

    def __enter__(self) -> VideoStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> TextureStore:
        if self._store is None or self._closed:
            raise StoreError("the video is closed" if self._closed else "the video has no frame yet; update it first")
        return self._store

    def _store_of(self, frame: torch.Tensor) -> TensorStore | None:
        """Return the store, if it takes this tensor on its device; None if the tensor has to be copied to the host."""
        height_px = self.grid.height_px
        width_px = self.grid.width_px
        if frame.dtype != torch.uint8 or tuple(frame.shape) not in ((height_px, width_px, 3), (3, height_px, width_px)):
            return None
        store = self._store_for(PlaneFormat("rgb", height_px, width_px, (1, 1), Colour()))
        if isinstance(store, TensorStore) and store.format.layout == "rgb" and store.place == frame.device:
            return store
        return None

    def _store_for(self, fmt: PlaneFormat) -> TextureStore:
        if self._closed:
            raise StoreError("the video is closed")
        if (fmt.height_px, fmt.width_px) != (self.grid.height_px, self.grid.width_px):
            raise ShapeError(
                f"this video has frames of {self.grid.height_px} rows and {self.grid.width_px} columns, "
                f"got {fmt.height_px} and {fmt.width_px}; open another VideoStream for another size"
            )
        if self._store is None:
            self._store = open_store(
                fmt, self._backend, thresholds=self._thresholds, lease_timeout_ms=self._lease_timeout_ms
            )
        return self._store
