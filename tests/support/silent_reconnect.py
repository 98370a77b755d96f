"""A program that opens an MJPEG camera again and again while earlier attempts still read; a fault may end it.

The camera is silent in the connections from the third to the fifth. All attempts to open these take too long, and go on
reading in their threads.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources.connection import opened_within
from stream.sources.mjpeg import close_container
from stream.sources.network import network_target
from tests.support.mjpeg_cameras import CAMERAS, MjpegCamera
from tests.support.network import LIMIT_S, until
from tests.support.senders import Handler, Server, jpegs
from tests.support.video import moving_square

SILENT = range(3, 6)


def main() -> None:
    camera = CAMERAS["motion"].serve(jpegs(list(moving_square(10))))
    silence = MjpegCamera(count=0, then_silent=True).serve([])

    def serve(handler: Handler) -> None:
        (silence if len(handler.server.requests) in SILENT else camera)(handler)

    with Server(Path(tempfile.gettempdir()), {"video": serve}) as web:
        target = network_target(f"{web.url}/video", CaptureConfig(stall_s=LIMIT_S))
        close_container(opened_within(target, LIMIT_S))
        for count in SILENT:
            try:
                close_container(opened_within(target, 0.1))
            except SourceError as error:
                print(error)
            until(lambda count=count: len(web.requests) == count)
        container = opened_within(target, LIMIT_S)
        pictures = container.decode(video=0)
        sys.exit(f"{next(pictures).width} pixels wide after {len(web.requests)} requests")


if __name__ == "__main__":
    main()
