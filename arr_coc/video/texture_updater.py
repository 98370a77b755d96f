"""`TextureUpdater`: store, epochs, cuts, motion, CPU fallback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from arr_coc.backends.registry import open_gl_device, open_store
from arr_coc.errors import DeviceLost, StoreError, StoreReplaced
from arr_coc.texture.polygons import Polygon
from arr_coc.texture.store.base import LEASE_TIMEOUT_MS, Backend, DrawnTexture, TextureStore, TextureView
from arr_coc.texture.store.planes import Difference, PlaneFormat, Thresholds
from arr_coc.types import FramePlanes, FrameStamp, TileChange, TileMotion, new_epoch
from arr_coc.video.compiled_motion import motion_estimator
from arr_coc.video.cuts import NO_CUT, CutVerdict
from arr_coc.video.picture_mask import PictureMask
from arr_coc.video.tile_motion import MotionEstimate, TileMotionEstimator
from arr_coc.video.visible_cuts import ThumbnailPair, VisibleCutDetector


@dataclass(frozen=True, slots=True)
class TextureOptions:
    """Options of the texture. `interop`: the number of the CUDA device that shares a texture of OpenGL; None for none.
    `cuts`: whether a scene cut begins an epoch. `motion`: whether the motion of tiles is estimated. `masks`: polygons
    that are black in all frames, as `PictureMask` has them; they take no part in cuts and motion.

    If hardware fails, the texture goes on in the CPU store if `backend` is "auto"; one that was asked for by name
    ends with the error.
    """

    backend: Backend = "auto"
    thresholds: Thresholds = field(default_factory=Thresholds)
    lease_timeout_ms: int = LEASE_TIMEOUT_MS
    interop: int | None = None
    cuts: bool = True
    motion: bool = True
    masks: tuple[Polygon, ...] = ()


@dataclass(frozen=True, slots=True)
class PendingUpdate:
    """A frame compared with the texture and not yet written.

    `epoch_reason` is why an epoch begins with it, None if it goes on. `thumbnails` are kept for busy frames only,
    `motion` for frames that go on and differ.
    """

    planes: FramePlanes
    format: PlaneFormat
    difference: Difference
    epoch_reason: str | None = None
    cut: CutVerdict = NO_CUT
    motion: MotionEstimate | None = None
    thumbnails: tuple[ThumbnailPair, ...] = ()


@dataclass(frozen=True, slots=True)
class TextureUpdate:
    """Result of writing one frame to the texture. `motion` is None if nothing moved, and if an epoch begins.

    `change.stamp.epoch` is the epoch that the frame belongs to. `epoch_reason` is None if it goes on, else
    "start", "size", "cut", "store" or the discontinuity's name. `fallback` is why the CPU store took over with this
    frame, None if it did not.
    """

    change: TileChange
    cut: CutVerdict
    motion: TileMotion | None
    epoch_reason: str | None
    fallback: str | None = None

    @property
    def epoch(self) -> int:
        return self.change.stamp.epoch


class TextureUpdater:
    """Updater of one stream's texture. One thread calls `prepare` and `commit`; any thread may lease."""

    def __init__(self, options: TextureOptions | None = None) -> None:
        self._options = options or TextureOptions()
        self._backend: Backend = self._options.backend
        self._store: TextureStore | None = None
        self._retired: list[TextureStore] = []
        self._write_lock = threading.Lock()
        self._swap = threading.Lock()
        self._closed = False
        self._epoch = 0
        self._stamp = FrameStamp(0, 0, 0)
        self._fallbacks = 0
        masks = self._options.masks
        self._mask = PictureMask(masks) if masks else None
        self._cuts = VisibleCutDetector(self._mask)
        self._motion: TileMotionEstimator | None = None

    @property
    def fallbacks(self) -> int:
        """Number of times the CPU store took over from failed hardware: at most one."""
        return self._fallbacks

    def prepare(
        self, planes: FramePlanes, discontinuity: str | None = None, frame_index: int | None = None
    ) -> PendingUpdate:
        """Compare a frame with the texture, while readers go on.

        Its coded motion counts only if by `frame_index` the frame follows the frame in the texture.

        The pending update fits the texture as it is now: commit it, or drop it, before the next one is prepared.
        Raises ShapeError if the planes do not belong together, StoreError once closed.
        """
        if self._closed:
            raise StoreError("the texture is closed")
        store = self._store
        if store is None or not store.accepts(planes):
            fmt = PlaneFormat.of(planes)
            reason = discontinuity or ("start" if store is None else "size")
            return PendingUpdate(planes, fmt, Difference.everywhere(fmt.grid), reason)
        if discontinuity is not None:
            return PendingUpdate(planes, store.format, Difference.everywhere(store.grid), discontinuity)
        difference = store.compare(planes)
        if not difference.dirty_share:
            return PendingUpdate(planes, store.format, difference)
        cut, thumbnails = self._cuts.judge(lambda: store.held_planes, planes, difference.dirty, store.grid)
        epoch_reason = "cut" if cut.is_cut and self._options.cuts else None
        pending = PendingUpdate(planes, store.format, difference, epoch_reason, cut, thumbnails=thumbnails)
        if epoch_reason is not None or not self._options.motion:
            return pending
        follows = frame_index == self._stamp.frame_index + 1
        if follows:
            coded = planes
        else:
            coded = replace(planes, coded_motion=None)
        key = (store.grid, store.format.layout)
        if self._motion is None or (self._motion.grid, self._motion.layout) != key:
            self._motion = motion_estimator(*key, None if self._mask is None else self._mask.tiles(store.grid))
        motion = self._motion.estimate(store.held_planes, coded, difference.dirty)
        return replace(pending, motion=motion)

    def commit(self, pending: PendingUpdate, stamp: FrameStamp) -> TextureUpdate:
        """Write a prepared frame. The stamp's epoch is filled in here.

        Raises LeaseTimeout, with everything as it was, if readers keep their leases too long; StoreError once
        closed; BackendMissing and DeviceLost if a store that was asked for by name cannot be opened or failed.
        """
        with self._write_lock:
            if self._closed:
                raise StoreError("the texture is closed")
            try:
                update = self._write(pending, stamp)
            except DeviceLost as error:
                self._backend = self._stand_in(error)
                full_update = replace(
                    pending, difference=Difference.everywhere(pending.format.grid), epoch_reason="store"
                )
                update = replace(self._write(full_update, stamp), fallback=str(error))
            self._epoch = update.epoch
            self._stamp = update.change.stamp
            changed = update.change.dirty_share > 0
            if pending.epoch_reason not in (None, "cut"):
                self._cuts.forget()
            camera_moved = pending.motion is not None and pending.motion.camera_moved
            self._cuts.advance(pending.thumbnails, changed=changed, camera_moved=camera_moved)
            if self._motion is not None and changed:
                self._motion.keep(pending.motion is not None and update.epoch_reason is None)
            return update

    def process(self, planes: FramePlanes, stamp: FrameStamp, discontinuity: str | None = None) -> TextureUpdate:
        """Prepare and commit."""
        return self.commit(self.prepare(planes, discontinuity, stamp.frame_index), stamp)

    @contextmanager
    def lease(self, timeout_ms: int | None = None) -> Iterator[TextureView]:
        """A view of the current texture; one that was given stays valid when the stream changes its size meanwhile.

        Raises StoreError before the first frame and after `close`, LeaseTimeout if the writer takes too long,
        DeviceLost if hardware failed while the view was read; StoreReplaced if the CPU store could take over:
        another lease shows the same frame, in a new epoch.
        """
        store = self._shown_store()
        try:
            with store.lease(timeout_ms) as view:
                yield view
        except DeviceLost as error:
            self._replace(store, error)
            raise StoreReplaced(str(error)) from error

    @contextmanager
    def drawing(self, timeout_ms: int | None = None) -> Iterator[DrawnTexture]:
        """The current texture for OpenGL's commands inside, given in a context that shares objects with `gl_device`.

        The frame stays while the block lasts; the next one is written after what was drawn. Its name and size are
        another frame's once the stream has changed its size. Raises as `TextureStore.drawing`.
        """
        with self._shown_store().drawing(timeout_ms) as texture:
            yield texture

    @property
    def gl_device(self) -> Any:
        """OpenGL's device, with which a context for `drawing` shares its objects (`GlDevice.make_context` of
        `arr_coc.backends.gl.device`).

        Raises StoreError if the texture is none of OpenGL, BackendMissing if OpenGL does not work here.
        """
        if self._options.backend != "gl":
            raise StoreError(f"OpenGL draws from a texture with texture.backend = gl, not {self._options.backend}")
        return open_gl_device(self._options.interop)

    def close(self) -> None:
        """Refuse new leases. May be called twice."""
        self._closed = True
        self._show(None)
        self._close_retired()

    def _shown_store(self) -> TextureStore:
        """Return the store that readers lease from. Raises StoreError before the first frame and after `close`."""
        with self._swap:
            store = self._store
        if store is None:
            raise StoreError("the texture is closed" if self._closed else "the texture holds no frame yet")
        return store

    def _write(self, pending: PendingUpdate, stamp: FrameStamp) -> TextureUpdate:
        """Write into the store that fits, and show it to readers."""
        if pending.epoch_reason is None:
            epoch = self._epoch
        else:
            epoch = new_epoch()
        current = self._store
        fits = current is not None and current.format == pending.format and self._backend in ("auto", current.backend)
        if current is not None and fits:
            store = current
        else:
            store = self._open(pending.format)
        try:
            epoch_stamp = FrameStamp(stamp.frame_index, stamp.media_ns, stamp.capture_ns, epoch)
            change = store.write(pending.planes, pending.difference, epoch_stamp)
        except StoreError:
            if store is not current:
                store.close()
            raise
        self._close_retired()
        if store is not current:
            self._show(store)
        if pending.motion is None or pending.epoch_reason:
            motion = None
        else:
            motion = pending.motion.motion
        return TextureUpdate(change, pending.cut, motion, pending.epoch_reason)

    def _open(self, fmt: PlaneFormat) -> TextureStore:
        options = self._options
        return open_store(
            fmt,
            self._backend,
            thresholds=options.thresholds,
            lease_timeout_ms=options.lease_timeout_ms,
            interop=options.interop,
        )

    def _stand_in(self, error: DeviceLost) -> Backend:
        """Return the backend that takes over. Raises DeviceLost if the one that failed was asked for by name."""
        if self._backend != "auto":
            raise DeviceLost(f'{error}; with texture.backend = "auto" the CPU store would take over') from error
        self._fallbacks += 1
        return "cpu"

    def _replace(self, lost_store: TextureStore, error: DeviceLost) -> None:
        """For a reader: puts a CPU store that holds the same frame in the place of the one that was lost."""
        with self._write_lock:
            if self._store is not lost_store:
                return
            self._backend = self._stand_in(error)
            store = self._open(lost_store.format)
            self._epoch = new_epoch()
            self._stamp = replace(self._stamp, epoch=self._epoch)
            store.write(lost_store.held_planes, Difference.everywhere(lost_store.grid), self._stamp)
            self._show(store)

    def _show(self, store: TextureStore | None) -> None:
        """Let readers lease from this store from now on.

        The writing thread closes the one before with its next write: a reader that is about to lease it still can.
        """
        with self._swap:
            old = self._store
            self._store = store
            if old is not None and old is not store:
                self._retired.append(old)

    def _close_retired(self) -> None:
        with self._swap:
            stores = self._retired
            self._retired = []
        for store in stores:
            store.close()
