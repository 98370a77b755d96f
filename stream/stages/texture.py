"""Texture: compares each frame with the texture, writes what changed, and tells the allocate stage."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass

from msgspec.structs import replace

from arr_coc.types import FramePlanes, FrameStamp
from arr_coc.video.texture_updater import PendingUpdate, TextureUpdater
from stream.control import WAIT_MS, RunControl
from stream.protocol.buffers import Mailbox, Slots
from stream.protocol.messages import Credit, Discontinuity, End, FrameCaptured, SourceLost, TextureUpdated
from stream.stages.base import CAPTURE_TEXTURE, TEXTURE_ALLOCATE
from stream.transport import Link, Transport, Waiter

LOSSLESS_CREDITS = 2
"""Frames on their way from capture: one that waits here while the next one is being decoded."""

NS_PER_MS = 1_000_000

_DISCONTINUITIES: dict[str, Discontinuity] = {
    "resolution": "resolution", "size": "resolution", "format": "format", "reconnect": "reconnect",
}  # fmt: skip
"""Why an epoch begins → what is told of it; its beginning, a cut and another store are told in other ways."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A frame that has been compared with the texture, and may be written once the allocate stage wants it."""

    frame: FrameCaptured
    pending: PendingUpdate
    prepare_ns: int


class TextureStage:
    """The texture's only writer. It writes a frame only for a credit, so readers never wait for long.

    With `newest`, a frame that waits for its credit is replaced by a newer one, which is compared anew.
    """

    name = "texture"

    def __init__(
        self,
        updater: TextureUpdater,
        planes: Slots[FramePlanes],
        transport: Transport,
        control: RunControl,
        *,
        newest: bool,
    ) -> None:
        self._updater = updater
        self._planes = planes
        self._transport = transport
        self._control = control
        self._newest = newest
        self._outbox: Mailbox[Prepared] = Mailbox()
        self._end: End | None = None

    @property
    def drops(self) -> dict[str, int]:
        """Frames that were replaced before they were written, and stores that the CPU store took over from."""
        return {"texture.replaced": self._outbox.replaced, "texture.fallbacks": self._updater.fallbacks}

    def run(self) -> None:
        link, check = self._transport.link, self._control.check
        with (
            closing(link(CAPTURE_TEXTURE, check=check)) as capture,
            closing(link(TEXTURE_ALLOCATE, bind=True, check=check)) as allocate,
        ):
            self._follow(capture, allocate)

    def _follow(self, capture: Link, allocate: Link) -> None:
        """Takes frames from the first credit to the last frame."""
        while not self._granted(allocate, WAIT_MS):
            self._control.check()
        either = Waiter(capture, allocate)
        capture.offer(Credit(count=1 if self._newest else LOSSLESS_CREDITS))
        while self._end is None or self._outbox.full:
            self._control.check()
            self._step(capture, allocate, either)
        allocate.send(self._end)

    def _step(self, capture: Link, allocate: Link, either: Waiter) -> None:
        """Waits for what may come next, and does what it allows."""
        if self._outbox.full and (self._end or not self._newest):
            self._granted(allocate, WAIT_MS)
        else:
            either.wait(WAIT_MS)
            self._granted(allocate, 0)
            self._hear_capture(capture, allocate)
        if self._outbox.ready:
            allocate.send(self._write(self._outbox.take()))
            if not self._newest:
                capture.offer(Credit())

    def _granted(self, allocate: Link, timeout_ms: int) -> bool:
        """Takes the allocate stage's credits; whether any came."""
        granted = False
        received = allocate.receive(timeout_ms)
        while received is not None:
            if isinstance(received.message, Credit):
                self._outbox.grant(received.message.count)
                granted = True
            received = allocate.receive()
        return granted

    def _hear_capture(self, capture: Link, allocate: Link) -> None:
        received = capture.receive()
        if received is None:
            return
        if isinstance(received.message, End):
            self._end = received.message
        elif isinstance(received.message, SourceLost):
            allocate.send(received.message)
        elif isinstance(received.message, FrameCaptured):
            self._prepare(received.message)
            if self._newest:
                capture.offer(Credit())

    def _prepare(self, frame: FrameCaptured) -> None:
        """Compares the frame with the texture; it takes the place of the one that may be waiting."""
        start_ns = time.monotonic_ns()
        if (older := self._outbox.waiting) is not None:
            frame = replace(
                frame,
                discontinuity=frame.discontinuity or older.frame.discontinuity,
                skipped=older.frame.skipped + frame.skipped,
            )
        planes = self._planes.take(frame.slot)
        pending = self._updater.prepare(planes, frame.discontinuity)
        self._outbox.put(Prepared(frame, pending, time.monotonic_ns() - start_ns))

    def _write(self, prepared: Prepared) -> TextureUpdated:
        start_ns = time.monotonic_ns()
        frame = prepared.frame
        stamp = FrameStamp(frame.frame_index, frame.media_ns, frame.capture_ns)
        update = self._updater.commit(prepared.pending, stamp)
        texture_ns = prepared.prepare_ns + time.monotonic_ns() - start_ns
        return TextureUpdated(
            stamp=update.change.stamp,
            texture_ms=texture_ns / NS_PER_MS,
            dirty_share=update.change.dirty_share,
            shift=update.shift,
            cut_score=update.cut.score if update.cut.is_cut else None,
            discontinuity=_DISCONTINUITIES.get(update.epoch_reason or ""),
            fallback=update.fallback,
            skipped=frame.skipped,
            duration_ns=frame.duration_ns,
        )
