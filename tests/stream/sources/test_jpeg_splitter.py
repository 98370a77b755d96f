"""JPEG pictures among other bytes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from stream.sources import jpeg_splitter
from stream.sources.jpeg_splitter import JpegSplitter

BOUNDARY = b"\r\n--frame\r\nContent-Type: image/jpg\r\n\r\n"


def jpeg(value: int, **options: object) -> bytes:
    pixels = np.random.default_rng(value).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    output = io.BytesIO()
    Image.fromarray(pixels).save(output, "JPEG", **options)
    return output.getvalue()


def with_thumbnail(picture: bytes, thumbnail: bytes) -> bytes:
    """The same with a second picture in its APP1 segment, as cameras add it."""
    segment = b"Exif\0\0" + thumbnail
    return picture[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + picture[2:]


PICTURES = [
    jpeg(1),
    jpeg(2, progressive=True),
    jpeg(3, restart_marker_rows=1),
    with_thumbnail(jpeg(4), jpeg(5)),
    jpeg(6, comment=b"\xff\xd8\xff\xd9" * 9),
    jpeg(7)[:2] + b"\xff\xff" + jpeg(7)[2:],
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000, 1 << 20])
@pytest.mark.parametrize("between", [b"", BOUNDARY, b"\xff\xd8 no picture \xff"])
def test_pictures_are_found_however_the_bytes_are_cut(size: int, between: bytes) -> None:
    data = between + between.join(PICTURES) + between
    splitter = JpegSplitter()
    pictures = [picture for at in range(0, len(data), size) for picture in splitter.feed(data[at : at + size])]
    assert pictures == PICTURES


def test_one_is_complete_with_its_last_byte() -> None:
    splitter = JpegSplitter()
    assert splitter.feed(PICTURES[0][:-1]) == []
    assert splitter.feed(PICTURES[0][-1:]) == [PICTURES[0]]


def test_one_that_breaks_off_ends_where_the_next_begins() -> None:
    cut = PICTURES[0][:-50] + BOUNDARY
    assert JpegSplitter().feed(cut + PICTURES[1]) == [cut, PICTURES[1]]


def test_damage_between_segments_discards_one_picture() -> None:
    damaged = PICTURES[0][:2] + b"\xff\xe0\x00\x04ab" + b"damage" + PICTURES[0][2:]
    assert JpegSplitter().feed(damaged + PICTURES[1]) == [PICTURES[1]]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg_splitter, "PICTURE_BYTES_MAX", 10_000)
    splitter = JpegSplitter()
    assert splitter.feed(PICTURES[0][:-50] + b"a" * 20_000) == []
    assert len(splitter._buffer) == 0
    assert splitter.feed(b"a" * 500 + PICTURES[1]) == [PICTURES[1]]
    splitter.feed(b"a" * 500)
    assert len(splitter._buffer) == 2


def test_it_knows_whether_anything_may_be_a_picture() -> None:
    splitter = JpegSplitter()
    splitter.feed(b"text")
    assert not splitter.found_picture
    splitter.feed(PICTURES[0][:20])
    assert splitter.found_picture
