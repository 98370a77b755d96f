"""Texture stage: compares each frame with the texture, writes the changed tiles and notifies the allocate stage."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass

from msgspec.structs import replace

from arr_coc.types import NS_PER_MS, FramePlanes, FrameStamp, TileMotion
from arr_coc.video.texture_updater import PendingUpdate, TextureUpdater
from stream.control import WAIT_MS, RunControl
from stream.protocol.buffers import Mailbox, SlotTable
from stream.protocol.messages import Credit, Discontinuity, End, FrameCaptured, SourceLost, TextureUpdated
from stream.stages.base import CAPTURE_TEXTURE, TEXTURE_ALLOCATE
from stream.transport import Link, LinkPoller, Transport

LOSSLESS_CREDITS = 2
"""Frames on their way from capture: one that waits here while the next one is being decoded."""


_DISCONTINUITIES: dict[str, Discontinuity] = {
    "resolution": "resolution", "size": "resolution", "format": "format", "reconnect": "reconnect",
}  # fmt: skip
"""Reason of an epoch → discontinuity that is reported; the first epoch, cuts and another store have other reports."""


@dataclass(frozen=True, slots=True)
class ComparedFrame:
    """A frame that was compared with the texture, and may be written once the allocate stage grants a credit."""

    frame: FrameCaptured
    pending: PendingUpdate
    prepare_ns: int


class TextureStage:
    """Stage that writes the texture, alone. It writes a frame only for a credit, so readers never wait for long.

    With `drop_frames`, a frame that waits for its credit is replaced by a newer one, which is compared anew.
    """

    name = "texture"

    def __init__(
        self,
        updater: TextureUpdater,
        planes: SlotTable[FramePlanes],
        motions: SlotTable[TileMotion],
        transport: Transport,
        control: RunControl,
        *,
        drop_frames: bool,
    ) -> None:
        self._updater = updater
        self._planes = planes
        self._motions = motions
        self._transport = transport
        self._control = control
        self._drop_frames = drop_frames
        self._outbox: Mailbox[ComparedFrame] = Mailbox()
        self._end: End | None = None

    @property
    def drops(self) -> dict[str, int]:
        """Frames that were replaced before they were written, and the number of times that the CPU store took over."""
        return {"texture.replaced": self._outbox.replaced_count, "texture.fallbacks": self._updater.fallbacks}

    def run(self) -> None:
        """Writes frames until the capture stage has sent End, and passes that on."""
        link = self._transport.link
        check = self._control.check
        with (
            closing(link(CAPTURE_TEXTURE, check=check)) as capture,
            closing(link(TEXTURE_ALLOCATE, bind=True, check=check)) as allocate,
        ):
            self._serve(capture, allocate)

    def _serve(self, capture: Link, allocate: Link) -> None:
        """Serves both links, from the first credit to the last frame."""
        while not self._process_credits(allocate, WAIT_MS):
            self._control.check()
        poller = LinkPoller(capture, allocate)
        capture.offer(Credit(count=1 if self._drop_frames else LOSSLESS_CREDITS))
        while self._end is None or self._outbox.full:
            self._control.check()
            self._step(capture, allocate, poller)
        allocate.send(self._end)

    def _step(self, capture: Link, allocate: Link, poller: LinkPoller) -> None:
        """Waits for a frame, or for the credit that a compared one needs, and writes the frame that it allows."""
        if not self._outbox.full:
            self._receive_frame(capture, allocate, WAIT_MS)  # a credit without a frame need not wake this thread
            self._process_credits(allocate, 0)
        elif self._end or not self._drop_frames:
            self._process_credits(allocate, WAIT_MS)
        else:
            poller.wait(WAIT_MS)
            if poller.has_message(allocate):
                self._process_credits(allocate, 0)
            if poller.has_message(capture):
                self._receive_frame(capture, allocate, 0)
        if self._outbox.ready:
            allocate.send(self._write(self._outbox.take()))
            if not self._drop_frames:
                capture.offer(Credit())

    def _process_credits(self, allocate: Link, timeout_ms: int) -> bool:
        """Receives a credit of the allocate stage; returns whether one came."""
        envelope = allocate.receive(timeout_ms)
        if envelope is None or not isinstance(envelope.message, Credit):
            return False
        self._outbox.grant(envelope.message.count)
        return True

    def _receive_frame(self, capture: Link, allocate: Link, timeout_ms: int) -> None:
        envelope = capture.receive(timeout_ms)
        if envelope is None:
            return
        if isinstance(envelope.message, End):
            self._end = envelope.message
        elif isinstance(envelope.message, SourceLost):
            allocate.send(envelope.message)
        elif isinstance(envelope.message, FrameCaptured):
            self._compare(envelope.message)
            if self._drop_frames:
                capture.offer(Credit())

    def _compare(self, frame: FrameCaptured) -> None:
        """Compares the frame with the texture; it replaces a frame that still waits."""
        start_ns = time.monotonic_ns()
        if (older := self._outbox.waiting) is not None:
            frame = replace(
                frame,
                discontinuity=frame.discontinuity or older.frame.discontinuity,
                skipped=older.frame.skipped + frame.skipped,
                segments=older.frame.segments + frame.segments,
            )
        planes = self._planes.take(frame.slot)
        pending = self._updater.prepare(planes, frame.discontinuity, frame.frame_index)
        self._outbox.put(ComparedFrame(frame, pending, time.monotonic_ns() - start_ns))

    def _write(self, comparison: ComparedFrame) -> TextureUpdated:
        """Writes the frame; returns the message about it."""
        start_ns = time.monotonic_ns()
        frame = comparison.frame
        stamp = FrameStamp(frame.frame_index, frame.media_ns, frame.capture_ns)
        update = self._updater.commit(comparison.pending, stamp)
        texture_ns = comparison.prepare_ns + time.monotonic_ns() - start_ns
        is_cut = update.cut.is_cut and update.epoch_reason is not None  # texture.cut.enabled = false begins no shot
        slot: int | None = None
        while update.motion is not None and (slot := self._motions.put(update.motion, WAIT_MS / 1000)) is None:
            self._control.check()
        return TextureUpdated(
            stamp=update.change.stamp,
            texture_ms=texture_ns / NS_PER_MS,
            dirty_share=update.change.dirty_share,
            cut_score=update.cut.score if is_cut else None,
            discontinuity=_DISCONTINUITIES.get(update.epoch_reason or ""),
            fallback=update.fallback,
            skipped=frame.skipped,
            segments=frame.segments,
            duration_ns=frame.duration_ns,
            motion_slot=slot,
        )
