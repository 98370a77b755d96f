"""Pictures for an agent: a JPEG with the tokens drawn, and pictures that are invalid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from stream.errors import TransportError
from stream.extensions.mcp import pictures
from stream.extensions.mcp.pictures import with_tokens
from stream.protocol.picture_files import encode_jpeg
from stream.protocol.pictures import ReceivedPicture, pack_picture, unpack_picture
from tests.support.web import sampled


@pytest.fixture
def picture() -> ReceivedPicture:
    frame = sampled()
    (level,) = frame.images
    return unpack_picture(pack_picture(frame, level, encode_jpeg(frame.images[level]), 0))


def test_tokens_are_drawn_over_the_whole_frame(picture: ReceivedPicture) -> None:
    assert with_tokens(picture).startswith(b"\xff\xd8\xff")


@pytest.mark.parametrize(
    "changes",
    [
        {"jpeg": b"no picture"},
        {"level": 200},
        {"jpeg": encode_jpeg(np.zeros((64, 4096, 3), np.uint8))},
    ],
)
def test_invalid_pictures_are_refused(picture: ReceivedPicture, changes: dict[str, object]) -> None:
    with pytest.raises(TransportError):
        with_tokens(replace(picture, **changes))  # type: ignore[arg-type]


def test_a_picture_is_measured_before_it_is_decoded(picture: ReceivedPicture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures.cv2, "imdecode", None)
    with pytest.raises(TransportError, match="larger than its map"):
        with_tokens(replace(picture, jpeg=encode_jpeg(np.zeros((64, 4096, 3), np.uint8))))
    side = 1024
    large = structs.replace(picture.map, rows=side, cols=side, relevance=bytes(side * side), regions=b"")
    with pytest.raises(TransportError, match="at most 65536 are drawn"):
        with_tokens(replace(picture, map=large))


@pytest.mark.parametrize("changes", [{"relevance": b""}, {"regions": b"odd"}, {"regions": b"\x7f" * 6}, {"rows": 9}])
def test_invalid_maps_are_refused(picture: ReceivedPicture, changes: dict[str, object]) -> None:
    with pytest.raises(TransportError, match="invalid map"):
        with_tokens(replace(picture, map=structs.replace(picture.map, **changes)))


def test_bytes_that_are_no_picture_message_are_refused(picture: ReceivedPicture) -> None:
    message = pack_picture(frame := sampled(), 0, encode_jpeg(frame.images[0]), 0)
    for wrong in (b"", b"P", message[:-1], message + b"x", b"Q" + message[1:]):
        with pytest.raises(TransportError, match="picture message"):
            unpack_picture(wrong)
