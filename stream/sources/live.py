"""Live sources: cameras and streams from a network, brought back when they are lost."""

from __future__ import annotations

import time

import av

from stream.clock import Clock
from stream.config import CaptureConfig
from stream.sources.connection import Target, cannot, opened_within
from stream.sources.part import refuse_part
from stream.sources.reconnect import LiveReader
from stream.sources.threaded import ThreadedSource


class LiveSource(ThreadedSource):
    """A source that never ends by itself, and comes in its own time.

    A thread (`LiveReader`) opens, reads and decodes, because FFmpeg may block; it stamps each frame as it leaves the
    decoder and hands it over through a bounded queue that drops its oldest frame, counted, when nobody takes them. A
    loss is told as a `SourceOutage`, and the source is tried again until it is back; its frames go on counting, and
    media time goes on by the time that has passed.
    """

    def __init__(
        self,
        target: Target,
        config: CaptureConfig,
        clock: Clock,
        container: av.container.InputContainer | None = None,
        took_s: float = 0.0,
    ) -> None:
        """Opens the target, unless that was done before, in `took_s`, and waits for its first picture.

        Raises SourceError where there is none within `capture.open_timeout_s`, or ConfigError for a `capture.size`
        beyond measure or a `capture.start_s`.
        """
        refuse_part(config, target.name)
        if container is None:
            start_s = time.monotonic()
            container = opened_within(target, config.open_timeout_s)
            took_s = time.monotonic() - start_s
        super().__init__(
            LiveReader(target, container, took_s, config, clock),
            max(config.open_timeout_s - took_s, 0),
            lambda: cannot(target.name, target.too_slow(config.open_timeout_s)),
        )
