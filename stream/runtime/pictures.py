"""Thread of the frame process that encodes live pictures on request."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from dataclasses import replace

import cv2
import numpy as np

from arr_coc.allocation.allocator import StreamAllocator
from arr_coc.errors import ArrCocError
from arr_coc.types import FramePlanes, FrameStamp
from arr_coc.video.texture_updater import TextureOptions, TextureUpdater
from stream.control import describe
from stream.errors import TransportError
from stream.protocol.inspection import (
    InspectedFrame,
    PictureToInspect,
    crop_level,
    inspected_frame,
    known_levels,
    pack_failure,
    pack_inspection,
)
from stream.protocol.picture_files import encode_jpeg, encode_png
from stream.protocol.pictures import INSPECTION, PictureExchange, ViewedFrame, pack_picture
from stream.transport import Transport

FINE_QUALITY = 90
"""JPEG quality of pictures for close inspection."""

EXACT_LEVEL = 3
"""From this mipmap level on texels are seen one by one, so pictures are PNG."""

WAIT_MS = 50
"""Longest single wait for a request."""

FRAME_WAIT_S = 0.02
"""Longest single wait for the frame that was asked for, before newer requests are looked at."""

STOP_LIMIT_S = 5.0

log = logging.getLogger(__name__)


class PictureThread:
    """Encodes and sends the frames that the allocate stage leaves in `exchange`, to the viewers at `endpoint`.

    `first_frame`: number of frames before those of this process. The socket belongs to the thread.
    """

    def __init__(self, transport: Transport, endpoint: str, first_frame: int = 0) -> None:
        self.exchange = PictureExchange()
        self._transport = transport
        self._endpoint = endpoint
        self._first_frame = first_frame
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pictures", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and close its socket."""
        self._stop.set()
        self._thread.join(STOP_LIMIT_S)

    def _run(self) -> None:
        has_request = False
        with closing(self._transport.picture_sender(self._endpoint)) as sender:
            while not self._stop.is_set():
                try:
                    request = sender.receive(0 if has_request else WAIT_MS)
                    if request is not None and request.inspect is not None and request.inspect.picture is not None:
                        picture = request.inspect.picture
                        sender.send([(-picture.number, self._inspected(picture, request.inspect.levels))])
                    elif request is not None:
                        self.exchange.want(request)
                        has_request = True
                    if has_request:
                        frame = self.exchange.take(FRAME_WAIT_S)
                    else:
                        frame = None
                    if frame is not None:
                        has_request = False
                        sender.send(self._encoded(frame))
                        self.exchange.give_back(frame)
                except (TransportError, cv2.error) as error:
                    log.warning("a picture for viewers failed: %s", error)

    def _encoded(self, frame: ViewedFrame) -> list[tuple[int, bytes]]:
        """Return the picture message for each width, of which two of one level share theirs; and the inspection."""
        unix_ns = frame.capture_ns + time.time_ns() - time.monotonic_ns()
        packed = {
            level: pack_picture(frame, level, encode_jpeg(frame.images[level]), unix_ns, self._first_frame)
            for level in set(frame.levels.values())
        }
        pictures = [(width, packed[level]) for width, level in frame.levels.items()]
        if frame.inspected is not None:
            pictures.append((INSPECTION, encode_inspection(frame.inspected, unix_ns, self._first_frame)))
        return pictures

    def _inspected(self, picture: PictureToInspect, levels: tuple[int, ...]) -> bytes:
        """Return the inspection of a picture that is no frame, or why there is none."""
        if self.exchange.make_allocator is None:
            return pack_failure("the model is still loading; try again in a moment")
        try:
            return encode_inspection(inspect_picture(self.exchange.make_allocator(), picture, levels))
        except (ArrCocError, ValueError, cv2.error) as error:
            log.debug("a picture could not be inspected", exc_info=True)
            return pack_failure(f"the picture cannot be inspected: {describe(error)}")


def inspect_picture(allocator: StreamAllocator, picture: PictureToInspect, levels: tuple[int, ...]) -> InspectedFrame:
    """Return everything the microscope shows of a picture's allocation.

    Args:
        allocator: A fresh allocator, which has seen no frame.
        picture: Pixels uint8 [height, width, 3] in RGB, as bytes.
        levels: Levels of the images to return; unknown ones are left out.

    Raises:
        ArrCocError: The allocation failed.
        ValueError: The bytes are not those of such a picture.
    """
    pixels = np.frombuffer(picture.pixels, np.uint8).reshape(picture.height, picture.width, 3)
    stamp = FrameStamp(0, 0, 0)
    with closing(TextureUpdater(TextureOptions(backend="cpu"))) as texture:
        texture.process(FramePlanes("rgb", (pixels,)), stamp)
        with texture.lease() as view:
            frame = allocator.allocate(view)
            images = {level: crop_level(view, level).copy() for level in known_levels(levels)}
            return inspected_frame(view, frame, images, allocator)


def encode_inspection(frame: InspectedFrame, unix_ns: int = 0, first_frame: int = 0) -> bytes:
    """Return the message of an inspection.

    Args:
        frame: The inspected frame, its images uint8 [H, W, 3] in RGB.
        unix_ns: Unix time of its capture; 0 for a picture that is no frame.
        first_frame: Number of the first frame of this process among those of the run.
    """
    pictures = {
        level: ("image/jpeg", encode_jpeg(image, FINE_QUALITY))
        if level < EXACT_LEVEL
        else ("image/png", encode_png(image))
        for level, image in frame.images.items()
    }
    if unix_ns:
        times = {"capture_unix_ms": unix_ns / 1e6, "media_s": frame.media_ns / 1e9}
    else:
        times = {}
    return pack_inspection(replace(frame, frame_index=frame.frame_index + first_frame), pictures, **times)
