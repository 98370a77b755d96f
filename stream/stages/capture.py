"""Capture stage: reads frames from the source, at its pace or at the pipeline's, and hands their planes on."""

from __future__ import annotations

import dataclasses
import logging
import time
from contextlib import closing

from arr_coc.types import NS_PER_MS, NS_PER_S, FramePlanes
from arr_coc.video.picture_mask import PictureMask
from stream.clock import Clock, clock_text
from stream.control import WAIT_MS, RunControl
from stream.media import PollableSource, Source, SourceFrame, SourceOutage, VideoSegments, merge_metadata
from stream.protocol.buffers import Mailbox, SlotTable
from stream.protocol.messages import Credit, End, FrameCaptured, SourceLost
from stream.sources.timing import PAUSE_MAX_NS
from stream.stages.base import CAPTURE_TEXTURE
from stream.transport import Link, LinkPoller, Transport

log = logging.getLogger(__name__)


class CaptureStage:
    """Stage that reads the source, one frame ahead of the credits that the texture stage has granted.

    A pollable source is waited for together with the texture stage's credits, so that a waiting frame is sent as soon
    as its credit comes, whether or not another frame does.

    With `drop_frames`, a frame that the texture stage has no time for is replaced by the next one; else capture waits.
    With `realtime`, frames are released at the pace of their media time, as a camera would; a pause of more than a
    minute is left out and reported. `segments` records the video of the source for an output, and its segments travel
    with the frames. `mask` blackens parts of each frame before anything else has it.
    """

    name = "capture"

    def __init__(
        self,
        source: Source,
        planes: SlotTable[FramePlanes],
        transport: Transport,
        control: RunControl,
        clock: Clock,
        *,
        drop_frames: bool = False,
        realtime: bool = False,
        segments: VideoSegments | None = None,
        mask: PictureMask | None = None,
    ) -> None:
        self._source = source
        self._mask = mask
        self._segments = segments
        self._planes = planes
        self._transport = transport
        self._control = control
        self._clock = clock
        self._drop_frames = drop_frames
        self._realtime = realtime
        self._outbox: Mailbox[SourceFrame] = Mailbox(merge_metadata)
        self._start_ns: int | None = None

    @property
    def drops(self) -> dict[str, int]:
        """Frames that were replaced before the texture stage took them, that this stage took too late, and that are
        missing in the recorded video."""
        if isinstance(self._source, PollableSource):
            late = {"capture.late": self._source.dropped_frames}
        else:
            late = {}
        missing = {}
        if self._segments is not None:
            missing = {
                "capture.unencoded": self._segments.dropped_frames,
                "capture.fragments": self._segments.dropped_fragments,
            }
        return {"capture.replaced": self._outbox.replaced_count, **late, **missing}

    def run(self) -> None:
        """Reads the source to its end, or until the run ends, and sends End."""
        link = self._transport.link
        with closing(self._source), closing(link(CAPTURE_TEXTURE, bind=True, check=self._control.check)) as texture:
            self._await_first_credit(texture)
            self._read(texture)
            self._flush(texture)
            texture.send(self._end_message())

    def _end_message(self) -> End:
        missing, clamped = self._source.repaired_pts()
        return End(
            reason="interrupted" if self._control.ending else "finished",
            skipped=self._source.trailing_skipped(),
            segments=() if self._segments is None else self._segments.finish(),
            made_pts=missing,
            clamped_pts=clamped,
        )

    def _await_first_credit(self, link: Link) -> None:
        """Waits until the later stages are ready: the source is not read before, so that waiting drops nothing."""
        while not self._control.ending and not self._process_credits(link, WAIT_MS):
            self._control.check()

    def _read(self, link: Link) -> None:
        if self._control.ending:
            return
        if isinstance(self._source, PollableSource):
            self._read_pollable(self._source, link)
            return
        for item in self._source.frames(lambda: self._control.ending):
            if self._control.ending:
                return
            self._enqueue(item, link)
            self._process_credits(link, 0)

    def _read_pollable(self, source: PollableSource, link: Link) -> None:
        """Reads a pollable source: waits for frames and for credits, whichever comes first."""
        poller = LinkPoller(link, descriptors=[source.fileno()])
        while not self._control.ending and (items := source.poll()) is not None:
            for item in items:
                self._enqueue(item, link)
            self._process_credits(link, 0)
            poller.wait(WAIT_MS)

    def _enqueue(self, item: SourceFrame | SourceOutage, link: Link) -> None:
        """Sends a frame to the outbox once it is due; reports an outage at once."""
        if isinstance(item, SourceOutage):
            self._report_outage(item, link)
            return
        if self._realtime:
            item = self._wait_until_due(item, link)
        if self._mask is not None:
            item = dataclasses.replace(item, planes=self._mask.apply(item.planes))
        if self._segments is not None:
            item = self._segments.attach(item, wait=not self._drop_frames)
        if not self._drop_frames:
            self._flush(link)
        self._outbox.put(item)

    def _report_outage(self, outage: SourceOutage, link: Link) -> None:
        """Reports that the source was lost, or is back, past the outbox."""
        link.send(
            SourceLost(
                frame_index=outage.frame_index,
                media_ns=outage.media_ns,
                reason=outage.reason,
                lasted_s=outage.lasted_s,
                attempts=outage.attempts,
            )
        )

    def _wait_until_due(self, frame: SourceFrame, link: Link) -> SourceFrame:
        """Waits until the frame's media time has come, which becomes its capture time."""
        now_ns = self._clock.now_ns()
        if self._start_ns is None:
            self._start_ns = now_ns - frame.media_ns
        due_ns = self._start_ns + frame.media_ns
        if due_ns - now_ns > PAUSE_MAX_NS:
            at = clock_text(frame.media_ns / NS_PER_S)
            log.warning("the next frame is at %s, more than a minute later; the pause is left out", at)
            self._start_ns = now_ns - frame.media_ns
            due_ns = now_ns
        while now_ns < due_ns and not self._control.ending:
            wait_ms, rest_ns = divmod(due_ns - now_ns, NS_PER_MS)
            self._process_credits(link, min(WAIT_MS, wait_ms))
            if not wait_ms:
                time.sleep(rest_ns / NS_PER_S)  # a socket's wait counts whole milliseconds, which would be jitter
            now_ns = self._clock.now_ns()
        return dataclasses.replace(frame, capture_ns=now_ns)

    def _flush(self, link: Link) -> None:
        """Waits until the frame in the outbox has been sent."""
        while self._outbox.full:
            self._control.check()
            self._process_credits(link, WAIT_MS)

    def _process_credits(self, link: Link, timeout_ms: int) -> bool:
        """Receives a credit of the texture stage and sends the frame that it allows; returns whether one came."""
        envelope = link.receive(timeout_ms)
        if envelope is not None and isinstance(envelope.message, Credit):
            self._outbox.grant(envelope.message.count)
        if self._outbox.ready:
            self._send(self._outbox.take(), link)
        return envelope is not None

    def _send(self, frame: SourceFrame, link: Link) -> None:
        while (slot := self._planes.put(frame.planes, WAIT_MS / 1000)) is None:
            self._control.check()
        link.send(
            FrameCaptured(
                slot=slot,
                frame_index=frame.frame_index,
                media_ns=frame.media_ns,
                capture_ns=frame.capture_ns,
                discontinuity=frame.discontinuity,
                skipped=frame.skipped,
                segments=frame.segments,
                duration_ns=frame.duration_ns,
            )
        )
