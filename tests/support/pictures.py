"""Picture messages, read as a page reads them."""

from __future__ import annotations

from typing import Any

from stream.events import FrameMap
from stream.protocol.pictures import HEADER, KIND


def picture_fields(message: bytes) -> dict[str, Any]:
    """Return the fields of a picture message, by name."""
    kind, codec, level, camera, index, unix_ms, media_s, *rest = HEADER.unpack_from(message)
    width, height, rows, cols, tokens, overview, *lengths = rest
    assert kind == KIND
    assert HEADER.size + sum(lengths) == len(message)
    parts, at = [], HEADER.size
    for length in lengths:
        parts.append(message[at : at + length])
        at += length
    frame_map = FrameMap(rows=rows, cols=cols, relevance=parts[0], regions=parts[1], overview=overview)
    return {
        "codec": codec,
        "level": level,
        "camera": camera,
        "frame_index": index,
        "capture_unix_ms": unix_ms,
        "media_s": media_s,
        "width": width,
        "height": height,
        "tokens": tokens,
        "map": frame_map,
        "picture": parts[2],
    }
