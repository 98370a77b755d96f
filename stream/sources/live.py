"""Live source: a camera or an address that FFmpeg reads, reopened when it is lost."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import av

from arr_coc.types import NS_PER_S
from stream.clock import Clock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.media import SkippedItem, SourceFrame
from stream.sources.aspect import PixelAspect
from stream.sources.checks import refuse_time_range
from stream.sources.connection import (
    LiveTarget,
    cannot,
    decoder_options,
    decoding_failure,
    has_times,
    no_key_frame,
    opened_within,
    reading_failure,
    silent,
)
from stream.sources.decoder import (
    ONE_THREAD_MAX_PX,
    LossTracker,
    decoding_context,
    rate_of,
    source_info,
)
from stream.sources.deinterlace import Deinterlacer
from stream.sources.fit import FrameFormat
from stream.sources.mjpeg import close_container
from stream.sources.motion_vectors import EXPORT_VECTORS
from stream.sources.planes import shown_size, to_planes
from stream.sources.segments import SegmentRecorder
from stream.sources.threaded import ReaderThread, ThreadedSource
from stream.sources.timing import Backoff, Pacer
from stream.sources.variants import chosen_stream

log = logging.getLogger(__name__)


class ConnectionLost(Exception):
    """Error of a live source that delivers no more frames; its text is the reason."""


KEY_FRAME_WAIT_S = 60.0
"""Longest wait for the first key frame of a connection whose packets arrive. A peer that is joined between two key
frames sends the next one within its key-frame distance, which may be longer than `capture.open_timeout_s`."""


class LiveDecoder:
    """Decoder of one connection. Failed packets are recorded and skipped; `skipped` returns them."""

    def __init__(
        self,
        container: av.container.InputContainer,
        stream: av.video.stream.VideoStream,
        config: CaptureConfig,
        clock: Clock,
        stop: threading.Event,
        take: Callable[[av.Packet], None] | None = None,
    ) -> None:
        """`take` receives each packet after it has been decoded."""
        self._take = take
        self._container = container
        self._stream = stream
        self._stall_s = config.stall_s
        self._max_pixels = config.max_pixels
        self._clock = clock
        self._stop = stop
        self._packets = 0
        self._waited_ns = 0
        self._usual_wait_ns = 0
        self._read_limit_s = container.read_timeout or math.inf
        self._packet_ns = 0
        self._key_frame_seen = False
        self._losses = LossTracker()
        self._context = context = decoding_context(stream)
        self.deinterlacer = Deinterlacer(config.deinterlace, context.codec.canonical_name)
        self.aspect = PixelAspect(config.aspect, stream, context, config.max_pixels)
        context.options = {**decoder_options(config.max_pixels), **EXPORT_VECTORS}
        context.thread_type = "SLICE"
        one_thread = context.is_hwaccel or context.width * context.height <= ONE_THREAD_MAX_PX
        # threads for pictures above 1920x1088: slices, because frame threads would delay each frame until the next one
        context.thread_count = 1 if one_thread else 4

    def frames(self, first_within_s: float) -> Iterator[av.VideoFrame]:
        """Yield pictures as they arrive, until `stop` is set.

        Raises ConnectionLost if the connection ends, breaks, or delivers no picture for `stall_s` (`first_within_s`
        before the first one, up to KEY_FRAME_WAIT_S while it awaits its key frame).
        """
        limit_s = first_within_s
        since_ns = self._clock.now_ns()
        try:
            while not self._stop.is_set():
                for packet in self._waiting_packets():
                    for frame in self._decode(packet):
                        yield from self.deinterlacer.put(frame)
                        limit_s = self._stall_s
                        since_ns = self._clock.now_ns() - self.held_back_ns
                    if self._stop.is_set():
                        return
                    self._check(since_ns, limit_s)
                self._check(since_ns, limit_s)
                self._stop.wait(0.002)  # time between two requests for the next picture of a camera that does not block
        except ConnectionLost:
            yield from self.deinterlacer.rest()
            raise

    def skipped(self) -> tuple[SkippedItem, ...]:
        """Remove and return the losses since the last call."""
        return self._losses.rest()

    @property
    def held_back_ns(self) -> int:
        """Time that FFmpeg held the newest picture back because no other followed: it gives it at the end of a read
        that times out, and that picture is no sign of life."""
        if self._waited_ns >= self._read_limit_s * NS_PER_S:
            return self._waited_ns
        return 0

    @property
    def late_ns(self) -> int:
        """Time by which FFmpeg gave the newest picture later than usual: each waits for the beginning of the next."""
        return max(self.held_back_ns - self._usual_wait_ns, 0)

    def awaits_key_frame(self) -> bool:
        """Return True while packets arrive, but no key frame was among them."""
        silence_ns = self._clock.now_ns() - self._packet_ns
        return self._packets > 0 and not self._key_frame_seen and silence_ns < self._stall_s * NS_PER_S

    def _check(self, since_ns: int, limit_s: float) -> None:
        if self.awaits_key_frame():
            limit_s = max(limit_s, KEY_FRAME_WAIT_S)
        if self._clock.now_ns() - since_ns >= limit_s * NS_PER_S:
            raise ConnectionLost(silent(limit_s))

    def _waiting_packets(self) -> Iterator[av.Packet]:
        """Yield packets until none is available.

        A read that times out may still return the last picture, followed by an end: such an end counts as silence.
        """
        packets = self._container.demux(self._stream)
        asked_ns = self._clock.now_ns()
        try:
            while (packet := next(packets, None)) is not None:
                if packet.size:
                    self._packet_ns = self._clock.now_ns()
                    self._waited_ns = self._packet_ns - asked_ns
                    if self.held_back_ns == 0:
                        self._usual_wait_ns = self._waited_ns
                    self._packets += 1
                    self._key_frame_seen = self._key_frame_seen or packet.is_keyframe
                    yield packet
                    asked_ns = self._clock.now_ns()
        except av.error.BlockingIOError:
            return
        except (av.error.ExitError, av.error.TimeoutError):
            self._waited_ns = self._clock.now_ns() - asked_ns
            return
        except av.FFmpegError as error:
            raise ConnectionLost(reading_failure(error)) from error
        # an end after a wait of this share of `stall_s` is a timeout, not the peer's close
        silence = self._waited_ns >= 0.9 * self._stall_s * NS_PER_S
        raise ConnectionLost(silent(self._stall_s) if silence else "the other end closed the stream")

    def _decode(self, packet: av.Packet) -> list[av.VideoFrame]:
        try:
            return self._context.decode(packet)
        except av.FFmpegError as error:
            self._losses.lost(self._packets, decoding_failure(error, self._max_pixels), None, None)
            return []
        finally:
            if self._take is not None:
                self._take(packet)


RETRY_S = 3.0
"""Time limit of an attempt to reopen a lost source, or twice the time of the first opening if that is longer: an
attempt begun while the peer is unreachable may hang, and must not delay the next one."""


class ReconnectingReader(ReaderThread):
    """Reader of a live source that begins with an open container, and reopens the source when it is lost.

    FFmpeg waits only in this thread, under PyAV's time limits, so the thread ends by itself and need not be joined.
    Every connection is closed in this thread.
    """

    def __init__(
        self,
        target: LiveTarget,
        container: av.container.InputContainer,
        opening_s: float,
        config: CaptureConfig,
        clock: Clock,
        segments: SegmentRecorder | None = None,
    ) -> None:
        super().__init__(target.name, config, clock)
        self._segments = segments
        self._target = target
        self._container: av.container.InputContainer | None = container
        self._retry_s = min(config.open_timeout_s, max(RETRY_S, 2 * opening_s))
        self._first_within_s = max(config.open_timeout_s - opening_s, 1.0)
        self._backoff = Backoff()
        self._pacer = Pacer() if target.paced else None
        self._decoder: LiveDecoder | None = None

    def read(self) -> None:
        while self._container is not None:
            try:
                reason = self._follow(self._container)
            finally:
                close_container(self._container)
                self._container = None
            if reason is None:
                return
            if self.info is None:
                raise SourceError(f"{self._target.name} gives no picture: {reason}; check that something sends there")
            if self._outage is None:
                self._begin_outage(reason)
            self._container = self._reopen()

    def no_frame_error(self) -> SourceError:
        limit_s = self._config.open_timeout_s
        decoder = self._decoder
        if decoder is not None and decoder.awaits_key_frame():
            return cannot(self._target.name, no_key_frame(limit_s))
        return cannot(self._target.name, self._target.too_slow(limit_s))

    def _follow(self, container: av.container.InputContainer) -> str | None:
        """Read one connection to its end; return why it was lost, or None if reading is to stop."""
        begin_ns = self._clock.now_ns()
        try:
            stream = chosen_stream(container, self._target.name, self._config, reports=self.info is None)
        except SourceError as error:
            if self.info is None:
                raise
            return str(error)
        timed = has_times(container)
        # a source at its own pace is read as fast as it is shown, so its arrival says nothing about its clock
        self.timeline.connected(stream.time_base, rate_of(stream), has_times=timed, checks_rate=not self._target.paced)
        hardware = self._target.hardware
        if hardware is None:
            device = None
        else:
            device = hardware.device_of(stream)
        take = None
        if self._segments is not None:
            self._segments.connect(stream, timed=timed)
            take = self._record
        try:
            decoder = LiveDecoder(container, stream, self._config, self._clock, self._stopping, take)
            self._decoder = decoder
            for frame in decoder.frames(self._first_within_s):
                if self.info is None:
                    self.info = source_info(
                        self._target.name, stream, frame, shown_size(frame, decoder.aspect), live=True, device=device
                    )
                    if not timed:
                        self.info = replace(self.info, fps=None)
                    self._first_within_s = max(self._config.stall_s, self._config.open_timeout_s)
                    self.ready.set()
                self._hand_over(frame, decoder)
                if self._stopping.is_set() or self._index + 1 == self._config.max_frames:
                    return None
        except ConnectionLost as error:
            # a connection of this length resets the waits
            if self._clock.now_ns() - begin_ns >= 5 * NS_PER_S:
                self._backoff.reset()
            return str(error)
        return None

    def _record(self, packet: av.Packet) -> None:
        """Pass a packet to the recorded video; before `begin`, discard all packets before the newest key frame."""
        assert self._segments is not None
        if not self._begin_event.is_set() and packet.is_keyframe:
            self._segments.restart()
        self._segments.packet(packet)

    def _hand_over(self, frame: av.VideoFrame, decoder: LiveDecoder) -> None:
        """Timestamp a frame and put it into the queue; the first frame after an outage ends the outage."""
        now_ns = self._clock.now_ns() - decoder.late_ns
        losses = decoder.skipped()
        self.timeline.arrived(frame.pts, now_ns)
        if not self._begin_event.is_set():
            if self._outage is None:
                self._seen_ns = now_ns
            return
        if self._index < 0 or self._outage is not None:
            losses = ()
        was_off = self.timeline.is_rate_off
        media_ns = self.timeline.media_ns(frame.pts, now_ns)
        if self.timeline.is_rate_off and not was_off:
            log.warning("the clock of %s runs at a wrong rate: media time follows its arrival", self._target.name)
            if self._segments is not None:
                self._segments.stop_copying("their times run at a wrong rate")
        if self._segments is not None:
            self._segments.shown(frame, media_ns)
        if self._pacer is not None:  # the source is bursty
            due_ns = self._pacer.due_ns(media_ns, now_ns)
            if due_ns > now_ns:
                self._stopping.wait((due_ns - now_ns) / NS_PER_S)
                now_ns = self._clock.now_ns()
        planes = to_planes(frame, self._fitter, self._target.name, decoder.aspect, decoder.deinterlacer.reach_px)
        frame_format = FrameFormat.of((frame.height, frame.width), planes)
        discontinuity = self._end_outage(frame_format.change_since(self._format), now_ns)
        self._format = frame_format
        self._seen_ns = now_ns
        self._media_ns = media_ns
        self._index += 1
        self.queue.put(SourceFrame(self._index, media_ns, now_ns, planes, discontinuity, losses))

    def _reopen(self) -> av.container.InputContainer | None:
        """Reopen the source with growing waits between attempts; return None if the thread is to stop."""
        assert self._outage is not None
        while not self._stopping.wait(self._backoff.next_s()):
            self._outage = replace(self._outage, attempts=self._outage.attempts + 1)
            try:
                return opened_within(self._target, self._retry_s)
            except SourceError as error:
                log.debug("attempt %d: %s", self._outage.attempts, error)
        return None


class LiveSource(ThreadedSource):
    """Source that never ends by itself and delivers frames in real time.

    A thread (`ReconnectingReader`) opens, reads and decodes, because FFmpeg may block. It timestamps each frame as it
    leaves the decoder and puts it into a bounded queue; if frames are not consumed in time, the oldest is dropped and
    counted. A loss is reported as a `SourceOutage`, and the source is reopened until it is back; frame numbers then
    continue, and media time advances by the elapsed time.
    """

    def __init__(
        self,
        target: LiveTarget,
        config: CaptureConfig,
        clock: Clock,
        container: av.container.InputContainer | None = None,
        took_s: float = 0.0,
        segments: SegmentRecorder | None = None,
    ) -> None:
        """Open the target, unless `container` is given, opened in `took_s`; wait for its first picture. `segments`
        receives its packets.

        Raises SourceError if no picture arrives within `capture.open_timeout_s`, or ConfigError for a `capture.size`
        that is too large or a `capture.start_s`.
        """
        refuse_time_range(config, target.name)
        if container is None:
            start_s = time.monotonic()
            container = opened_within(target, config.open_timeout_s)
            took_s = time.monotonic() - start_s
        super().__init__(
            ReconnectingReader(target, container, took_s, config, clock, segments),
            max(config.open_timeout_s - took_s, 0),
        )
