"""The thread that reads a live source and brings it back when it is lost."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

import av

from arr_coc.types import NS_PER_S
from stream.clock import Clock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources.base import SourceFrame, SourceInfo, SourceOutage
from stream.sources.connection import Target, opened_within
from stream.sources.container import rate_of, video_stream
from stream.sources.fit import Fit
from stream.sources.form import Form, prepared
from stream.sources.handover import Handover
from stream.sources.live_decoder import LiveDecoder, LostError
from stream.sources.live_time import LiveTimeline, Pace, Waits
from stream.sources.planes import quarter_turns

RETRY_S = 3.0
"""Longest attempt to reach a lost source again, or twice what the first opening took: an attempt that was begun while
the other end was still away may hang, and shall not be what keeps it away."""

STEADY_NS = 5 * NS_PER_S
"""After so long a connection the waits begin short again."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Outage:
    reason: str
    since_ns: int
    attempts: int = 0


class LiveReader(threading.Thread):
    """Reads a live source, from an open container on, into `handover`, until `stop` is set.

    All that FFmpeg waits for happens in this thread, under PyAV's time limits, so it ends by itself; nobody has to wait
    for it. Frames are discarded until `begin` is called, so that the first one that is handed over is fresh; `ready` is
    set once the first one was decoded, and `info` describes it. Every connection is closed where it was used.
    """

    def __init__(
        self,
        target: Target,
        container: av.container.InputContainer,
        opening_s: float,
        config: CaptureConfig,
        clock: Clock,
    ) -> None:
        super().__init__(name=f"read {target.name}", daemon=True)
        self.handover = Handover()
        self.timeline = LiveTimeline()
        self.ready = threading.Event()
        self.info: SourceInfo | None = None
        self.failure: Exception | None = None
        self._target = target
        self._container: av.container.InputContainer | None = container
        self._config = config
        self._clock = clock
        self._fit = Fit.of(config)
        self._retry_s = min(config.open_timeout_s, max(RETRY_S, 2 * opening_s))
        self._first_within_s = max(config.open_timeout_s - opening_s, 1.0)
        self._stopping = threading.Event()
        self._begun = False
        self._waits = Waits()
        self._pace = Pace() if target.paced else None
        self._outage: _Outage | None = None
        self._form: Form | None = None
        self._index = -1
        self._media_ns = 0
        self._seen_ns: int | None = None

    def begin(self) -> None:
        """From here on frames are handed over."""
        self._begun = True

    def stop(self) -> None:
        """Ends the thread, as soon as FFmpeg lets go of it."""
        self._stopping.set()

    def run(self) -> None:
        error: Exception | None = None
        try:
            self._keep()
        except Exception as caught:
            log.debug("reading %s failed", self._target.name, exc_info=True)
            error = caught
        self.failure = error
        self.handover.finish(error)
        self.ready.set()

    def _keep(self) -> None:
        while self._container is not None:
            try:
                reason = self._follow(self._container)
            finally:
                self._container.close()
                self._container = None
            if reason is None:
                return
            if self.info is None:
                raise SourceError(f"{self._target.name} gives no picture: {reason}; check that something sends there")
            if not self._config.reconnect:
                raise SourceError(f"{self._target.name} is lost: {reason}; capture.reconnect would try it again")
            self._note_outage(reason)
            self._container = self._reopened()

    def _follow(self, container: av.container.InputContainer) -> str | None:
        """Reads one connection to its end; why it was lost, None where no more is wanted."""
        begin_ns = self._clock.now_ns()
        try:
            stream = video_stream(container, self._target.name, self._config.stream)
        except SourceError as error:
            if self.info is None:
                raise
            return str(error)
        self.timeline.connected(stream.time_base, rate_of(stream))
        try:
            decoder = LiveDecoder(container, stream, self._config, self._clock, self._stopping)
            for frame in decoder.frames(self._first_within_s):
                if self.info is None:
                    self._describe(stream, frame)
                self._hand_over(frame, decoder)
                if self._stopping.is_set() or self._index + 1 == self._config.max_frames:
                    return None
        except LostError as lost:
            if self._clock.now_ns() - begin_ns >= STEADY_NS:
                self._waits.reset()
            return str(lost)
        return None

    def _describe(self, stream: av.video.stream.VideoStream, first: av.VideoFrame) -> None:
        rate = rate_of(stream)
        turned = quarter_turns(first.rotation) % 2 == 1
        self.info = SourceInfo(
            name=self._target.name,
            width_px=first.height if turned else first.width,
            height_px=first.width if turned else first.height,
            fps=float(rate) if rate else None,
            duration_ns=None,
            frames=None,
            live=True,
            codec=stream.codec_context.name,
            pixel_format=first.format.name,
            rotation=first.rotation,
        )
        self._first_within_s = max(self._config.stall_s, self._config.open_timeout_s)
        self.ready.set()

    def _hand_over(self, frame: av.VideoFrame, decoder: LiveDecoder) -> None:
        """Stamps a frame and hands it over; the first one after an outage ends that."""
        now_ns = self._clock.now_ns()
        skipped = decoder.skipped()
        if not self._begun:
            return
        if self._seen_ns is None or self._outage is not None:
            skipped = ()
        media_ns = self.timeline.media_ns(frame.pts, now_ns)
        now_ns = self._wait_until_due(media_ns, now_ns)
        planes = prepared(frame, self._fit, self._target.name)
        form = Form.of(frame, planes)
        discontinuity = form.change_since(self._form)
        if self._outage is not None:
            self._tell_return(self._outage, now_ns)
            discontinuity = discontinuity or "reconnect"
            self._outage = None
        self._form, self._seen_ns, self._media_ns = form, now_ns, media_ns
        self._index += 1
        self.handover.put(SourceFrame(self._index, media_ns, now_ns, planes, discontinuity, skipped))

    def _wait_until_due(self, media_ns: int, now_ns: int) -> int:
        """Holds a frame of a source that comes in bursts until its time; the time then."""
        if self._pace is None:
            return now_ns
        due_ns = self._pace.due_ns(media_ns, now_ns)
        if due_ns > now_ns:
            self._stopping.wait((due_ns - now_ns) / NS_PER_S)
            return self._clock.now_ns()
        return now_ns

    def _note_outage(self, reason: str) -> None:
        """The first loss of a connection begins an outage; attempts that fail are part of it."""
        if self._outage is None:
            now_ns = self._clock.now_ns()
            self._outage = _Outage(reason, self._seen_ns or now_ns)
            self.handover.put(SourceOutage(max(self._index, 0), self._media_ns, reason))

    def _tell_return(self, outage: _Outage, now_ns: int) -> None:
        lasted_s = (now_ns - outage.since_ns) / NS_PER_S
        self.handover.put(SourceOutage(max(self._index, 0), self._media_ns, outage.reason, lasted_s, outage.attempts))

    def _reopened(self) -> av.container.InputContainer | None:
        """Tries again with growing waits until it works; None where no more is wanted."""
        assert self._outage is not None
        while not self._stopping.wait(self._waits.next_s()):
            self._outage.attempts += 1
            try:
                return opened_within(self._target, self._retry_s)
            except SourceError as error:
                log.debug("attempt %d: %s", self._outage.attempts, error)
        return None
