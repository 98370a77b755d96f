"""Packets of something live into pictures, until it is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import av

from arr_coc.types import NS_PER_S
from stream.clock import Clock
from stream.config import CaptureConfig
from stream.sources.base import SkippedItem
from stream.sources.decoder import ONE_THREAD_MAX_PX
from stream.sources.failures import reading_failure, silent
from stream.sources.limits import decoder_options, decoding_failure
from stream.sources.losses import LossLedger

CAMERA_POLL_S = 0.002
"""How often a camera that does not block is asked for its next picture."""

LARGE_PICTURE_THREADS = 4
"""Threads for pictures above 1920x1088: slices, because whole frames in parallel would each wait for the next."""

SILENCE = 0.9
"""Of `stall_s`: an end that follows a wait as long as this is not the other end's doing."""


class LostError(Exception):
    """A live source gives nothing any more; its text says why."""


class LiveDecoder:
    """Decodes one connection. What fails on the way is noted and skipped; `skipped` takes it out."""

    def __init__(
        self,
        container: av.container.InputContainer,
        stream: av.video.stream.VideoStream,
        config: CaptureConfig,
        clock: Clock,
        stop: threading.Event,
    ) -> None:
        self._container = container
        self._stream = stream
        self._stall_s = config.stall_s
        self._max_pixels = config.max_pixels
        self._clock = clock
        self._stop = stop
        self._packets = 0
        self._waited_ns = 0
        self._losses = LossLedger()
        context = stream.codec_context
        context.options = decoder_options(config.max_pixels)
        context.thread_type = "SLICE"
        context.thread_count = 1 if context.width * context.height <= ONE_THREAD_MAX_PX else LARGE_PICTURE_THREADS

    def frames(self, first_within_s: float) -> Iterator[av.VideoFrame]:
        """Pictures as they come; ends when `stop` is set.

        Raises LostError where the connection ends, breaks, or gives no picture for `stall_s` (before the first one:
        for `first_within_s`).
        """
        limit_s, since_ns = first_within_s, self._clock.now_ns()
        while not self._stop.is_set():
            for packet in self._waiting_packets():
                for frame in self._decode(packet):
                    yield frame
                    limit_s, since_ns = self._stall_s, self._clock.now_ns()
                if self._stop.is_set():
                    return
                self._check(since_ns, limit_s)
            self._check(since_ns, limit_s)
            self._stop.wait(CAMERA_POLL_S)

    def skipped(self) -> tuple[SkippedItem, ...]:
        """Takes out what could not be used since the last call."""
        return self._losses.rest()

    def _check(self, since_ns: int, limit_s: float) -> None:
        if self._clock.now_ns() - since_ns > limit_s * NS_PER_S:
            raise LostError(silent(limit_s))

    def _waiting_packets(self) -> Iterator[av.Packet]:
        """Packets until there are none at the moment.

        A read that times out may still give the last picture, and then only an end: such an end is a silence, too.
        """
        packets = self._container.demux(self._stream)
        asked_ns = self._clock.now_ns()
        try:
            while (packet := next(packets, None)) is not None:
                if packet.size:
                    self._waited_ns = self._clock.now_ns() - asked_ns
                    self._packets += 1
                    yield packet
                    asked_ns = self._clock.now_ns()
        except av.error.BlockingIOError:
            return
        except (av.error.ExitError, av.error.TimeoutError):
            self._waited_ns = self._clock.now_ns() - asked_ns
            return
        except av.FFmpegError as error:
            raise LostError(reading_failure(error)) from error
        silence = self._waited_ns >= SILENCE * self._stall_s * NS_PER_S
        raise LostError(silent(self._stall_s) if silence else "the other end closed the stream")

    def _decode(self, packet: av.Packet) -> list[av.VideoFrame]:
        try:
            return self._stream.codec_context.decode(packet)
        except av.FFmpegError as error:
            self._losses.lost(self._packets, decoding_failure(error, self._max_pixels), None, None)
            return []
