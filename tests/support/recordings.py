"""Events of a run with pictures, made by hand, and the messages of recordings read back."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from mcap.reader import make_reader
from mcap_protobuf.decoder import DecoderFactory as Protobuf
from mcap_ros2.decoder import DecoderFactory as Ros2

from stream.events import AskedPicture, FrameMap

ROWS, COLS = 4, 6


def picture(
    frame_index: int, pts_s: float, *, level: int = 0, overview: int = 0, is_asked: bool = True, shift: int = 0
) -> AskedPicture:
    """A frame of 190x120 pixels at level 0, with four regions: of one tile, 2x2, 1x2 and 2x1."""
    image = np.full((120 >> level, 190 >> level, 3), 128, np.uint8)
    relevance = ((np.arange(ROWS * COLS) * 10 + shift) % 256).astype(np.uint8)
    regions = np.array([[0, 1, 2], [1, 1, 2], [6, 0, 1], [10, 0, 0]], "<i2")
    frame_map = FrameMap(
        rows=ROWS, cols=COLS, relevance=relevance.tobytes(), regions=regions.tobytes(), overview=overview
    )
    jpeg = cv2.imencode(".jpg", image)[1].tobytes()
    return AskedPicture(frame_index=frame_index, pts_s=pts_s, jpeg=jpeg, level=level, map=frame_map, asked=is_asked)


class Recorded(NamedTuple):
    """A message of a recording: its topic, the name of its schema, its time, its bytes and their meaning."""

    topic: str
    schema: str
    time_ns: int
    data: bytes
    value: Any


def read_mcap(path: str | Path | bytes, topic: str | None = None) -> list[Recorded]:
    """The messages of an MCAP file, all or those of one topic, as they were written."""
    file = io.BytesIO(path if isinstance(path, bytes) else Path(path).read_bytes())
    reader = make_reader(file, validate_crcs=True, decoder_factories=[Protobuf(), Ros2()])
    messages = []
    for schema, channel, message in reader.iter_messages(topic, log_time_order=False):
        assert schema is not None
        assert message.publish_time == message.log_time
        make = Ros2() if schema.encoding == "ros2msg" else Protobuf()
        decode = make.decoder_for(channel.message_encoding, schema)
        value = None if decode is None else decode(message.data)
        messages.append(Recorded(channel.topic, schema.name, message.log_time, message.data, value))
    return messages
