"""The texture of one stream: its store, its epochs, its cuts and its camera motion."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from arr_coc.cuts import NO_CUT, CutVerdict, SceneCutDetector
from arr_coc.errors import StoreError
from arr_coc.motion import NO_SHIFT, Shift, estimate_shift
from arr_coc.ops.difference import Difference, Thresholds
from arr_coc.ops.planes import PlaneFormat
from arr_coc.ops.store import LEASE_TIMEOUT_MS, Backend, TextureStore, open_store
from arr_coc.ops.view import TextureView
from arr_coc.thumbnail import Thumbnail
from arr_coc.types import FramePlanes, FrameStamp, TileChange, new_epoch

BUSY_SHARE = 0.25
"""Share of dirty tiles from which a frame may be a cut; below it nothing more is computed. A dark shot's cut may leave
most of the frame black."""

MOVING_SHARE = 0.5
"""Share of dirty tiles from which the camera may have moved: most of them."""


@dataclass(frozen=True, slots=True)
class TextureOptions:
    """How the texture follows the frames. `cuts`: whether a scene cut begins an epoch."""

    backend: Backend = "auto"
    thresholds: Thresholds = field(default_factory=Thresholds)
    lease_timeout_ms: int = LEASE_TIMEOUT_MS
    cuts: bool = True


@dataclass(frozen=True, slots=True)
class PendingUpdate:
    """A frame compared with the texture and not yet written.

    `epoch_reason` is why an epoch begins with it, None where it goes on. `before` and `after` are there for busy
    frames only.
    """

    planes: FramePlanes
    format: PlaneFormat
    difference: Difference
    epoch_reason: str | None = None
    cut: CutVerdict = NO_CUT
    shift: Shift = NO_SHIFT
    before: Thumbnail | None = None
    after: Thumbnail | None = None


@dataclass(frozen=True, slots=True)
class TextureUpdate:
    """What one frame did to the texture.

    `change.stamp.epoch` is the epoch that the frame belongs to. `epoch_reason` is None where it goes on, else
    "start", "size", "cut" or the discontinuity's name.
    """

    change: TileChange
    cut: CutVerdict
    shift: Shift
    epoch_reason: str | None

    @property
    def epoch(self) -> int:
        return self.change.stamp.epoch


class TextureUpdater:
    """Keeps the texture of one stream up to date. One thread calls `prepare` and `commit`; any thread may lease."""

    def __init__(self, options: TextureOptions | None = None) -> None:
        self._options = options or TextureOptions()
        self._store: TextureStore | None = None
        self._swap = threading.Lock()
        self._closed = False
        self._epoch = 0
        self._cuts = SceneCutDetector()
        self._last: Thumbnail | None = None

    def prepare(self, planes: FramePlanes, discontinuity: str | None = None) -> PendingUpdate:
        """Compares a frame with the texture, while readers go on.

        The pending update fits the texture as it is now: commit it, or drop it, before the next one is prepared.
        Raises ShapeError where the planes do not belong together, StoreError once closed.
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
        if (share := difference.dirty_share) < BUSY_SHARE:
            return PendingUpdate(planes, store.format, difference, cut=CutVerdict(dirty_share=share))
        return self._looked_at(PendingUpdate(planes, store.format, difference), store)

    def commit(self, pending: PendingUpdate, stamp: FrameStamp) -> TextureUpdate:
        """Writes a prepared frame. The stamp's epoch is filled in here.

        Raises LeaseTimeout, with everything as it was, where readers keep their leases too long; StoreError once
        closed.
        """
        if self._closed:
            raise StoreError("the texture is closed")
        reason = pending.epoch_reason
        epoch = self._epoch if reason is None else new_epoch()
        store = self._store_for(pending.format)
        change = store.write(pending.planes, pending.difference, replace(stamp, epoch=epoch))
        self._epoch = epoch
        self._last = pending.after or (None if change.dirty.any() else self._last)
        if reason not in (None, "cut"):
            self._cuts.forget()
        self._cuts.advance(pending.before, pending.after)
        if store is not self._store:
            self._swap_to(store)
        return TextureUpdate(change, pending.cut, pending.shift, reason)

    def process(self, planes: FramePlanes, stamp: FrameStamp, discontinuity: str | None = None) -> TextureUpdate:
        """Prepares and commits."""
        return self.commit(self.prepare(planes, discontinuity), stamp)

    @contextmanager
    def lease(self, timeout_ms: int | None = None) -> Iterator[TextureView]:
        """A view of the current texture; one that was given stays valid when the stream changes its size meanwhile.

        Raises StoreError before the first frame and after `close`, LeaseTimeout where the writer takes too long.
        """
        with self._swap:
            store = self._store
        if store is None:
            raise StoreError("the texture is closed" if self._closed else "the texture holds no frame yet")
        with store.lease(timeout_ms) as view:
            yield view

    def close(self) -> None:
        """Refuses new leases. May be called twice."""
        self._closed = True
        self._swap_to(None)

    def _looked_at(self, pending: PendingUpdate, store: TextureStore) -> PendingUpdate:
        """Adds what only a busy frame needs: whether it is a cut, and how the camera moved."""
        before, after = self._last or Thumbnail.of(store.held), Thumbnail.of(pending.planes)
        share = pending.difference.dirty_share
        cut = self._cuts.judge(before, after, share)
        if cut.is_cut and self._options.cuts:
            return replace(pending, before=before, after=after, cut=cut, epoch_reason="cut")
        shift = estimate_shift(before, after) if share >= MOVING_SHARE else NO_SHIFT
        return replace(pending, before=before, after=after, cut=cut, shift=shift)

    def _store_for(self, fmt: PlaneFormat) -> TextureStore:
        if self._store is not None and self._store.format == fmt:
            return self._store
        options = self._options
        return open_store(
            fmt,
            options.backend,
            thresholds=options.thresholds,
            lease_timeout_ms=options.lease_timeout_ms,
        )

    def _swap_to(self, store: TextureStore | None) -> None:
        with self._swap:
            old, self._store = self._store, store
        if old is not None:
            old.close()
