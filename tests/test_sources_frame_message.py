"""Messages with frames: every format, and every way in which they can be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from arr_coc.types import FramePlanes
from stream.sources.frame_message import FrameHeader, FrameReader, MessageError

WIDTH, HEIGHT = 32, 16


def head(**fields: Any) -> memoryview:
    whole = {"v": 1, "width": WIDTH, "height": HEIGHT, "format": "rgb24", **fields}
    return memoryview(msgspec.msgpack.encode({name: value for name, value in whole.items() if value is not None}))


def picture() -> npt.NDArray[np.uint8]:
    rows, cols = np.mgrid[0:HEIGHT, 0:WIDTH]
    return np.stack([100 + 2 * rows, 80 + cols, 60 + rows], axis=-1).astype(np.uint8)


def read(parts: Sequence[memoryview]) -> tuple[FrameHeader, FramePlanes, npt.NDArray[np.uint8]]:
    header, planes, rgb = FrameReader().read(parts)
    return header, planes, rgb()


def jpeg(image: npt.NDArray[np.uint8]) -> bytes:
    file = BytesIO()
    Image.fromarray(image).save(file, "jpeg", quality=95)
    return file.getvalue()


def test_rgb_is_a_view_on_the_message() -> None:
    data = picture().tobytes()
    header, planes, rgb = read([head(t_ns=5, seq=7), memoryview(data)])
    assert (header.t_ns, header.seq) == (5, 7)
    assert np.array_equal(planes.planes[0], picture())
    assert np.array_equal(rgb, picture())
    assert np.shares_memory(planes.planes[0], np.frombuffer(data, np.uint8))


def test_bgr_is_turned() -> None:
    _, planes, rgb = read([head(format="bgr24"), memoryview(picture()[..., ::-1].tobytes())])
    assert np.array_equal(planes.planes[0], picture())
    assert np.array_equal(rgb, picture())


def test_gray_is_of_full_range() -> None:
    gray = picture()[..., 0]
    _, planes, rgb = read([head(format="gray"), memoryview(gray.tobytes())])
    assert planes.layout == "gray"
    assert planes.colour.full_range
    assert np.array_equal(rgb, np.repeat(gray[..., None], 3, -1))


def test_yuv_has_its_planes_one_after_the_other() -> None:
    luma = np.full((HEIGHT, WIDTH), 81, np.uint8)
    u, v = np.full((8, 16), 90, np.uint8), np.full((8, 16), 240, np.uint8)
    data = b"".join(plane.tobytes() for plane in (luma, u, v))
    _, planes, rgb = read([head(format="yuv420p"), memoryview(data)])
    assert [plane.shape for plane in planes.planes] == [(16, 32), (8, 16), (8, 16)]
    assert all(np.array_equal(a, b) for a, b in zip(planes.planes, (luma, u, v), strict=True))
    assert np.abs(rgb[4, 4].astype(int) - (255, 0, 0)).max() <= 3


def test_jpeg_is_decoded() -> None:
    _, planes, rgb = read([head(format="jpeg"), memoryview(jpeg(picture()))])
    assert planes.layout == "yuv"
    assert np.abs(rgb.astype(int) - picture()).max() <= 12


def test_unknown_fields_are_left_to_later_versions() -> None:
    header, _, _ = read([head(camera={"name": "left"}), memoryview(picture().tobytes())])
    assert header.width == WIDTH


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], r"a frame has 2 parts, header and bytes; this has 0"),
        ([head()], r"this has 1"),
        ([head(), b"", b""], r"this has 3"),
        ([b"\xc1", b""], r"its header is wrong"),
        ([b"", b""], r"its header is wrong"),
        ([msgspec.msgpack.encode([1, 2]), b""], r"its header is wrong"),
        ([b"\x91" * 100_000, b""], r"its header is wrong"),
        ([b"\x81\xa1x" + b"\x91" * 100_000, b""], r"its header is wrong"),
        ([b"\x81\xa2\xff\xfe\x01", b""], r"its header is wrong"),
        ([head(width=None), b""], r"its header is wrong: .*width"),
        ([head(width="32"), b""], r"its header is wrong: .*width"),
        ([head(width=0), b""], r"its header is wrong: .*>= 1"),
        ([head(height=10**9), b""], r"its header is wrong: .*<= 16384"),
        ([head(format="nv12"), b""], r"its header is wrong: .*nv12"),
        ([head(t_ns=1.5), b""], r"its header is wrong: .*t_ns"),
        ([head(v=2), b""], r"version 2; this program reads version 1"),
        ([head(), b"123"], r"rgb24 of 32x16 has 1536 bytes, got 3"),
        ([head(format="gray"), b"1" * 513], r"gray of 32x16 has 512 bytes, got 513"),
        ([head(format="yuv420p"), b"1" * 512], r"yuv420p of 32x16 has 768 bytes, got 512"),
        ([head(format="yuv420p", width=31), b""], r"yuv420p needs even sides, got 31x16"),
        ([head(format="jpeg"), b""], r"it holds no JPEG"),
        ([head(format="jpeg"), b"no jpeg at all"], r"its JPEG cannot be decoded"),
        ([head(format="jpeg", width=64), jpeg(picture())], r"its JPEG has 32x16 pixels, its header says 64x16"),
    ],
)
def test_what_is_wrong_is_said(parts: Sequence[bytes], why: str) -> None:
    with pytest.raises(MessageError, match=why):
        FrameReader().read([memoryview(part) for part in parts])


def test_a_bad_jpeg_does_not_spoil_the_next() -> None:
    reader = FrameReader()
    for _ in range(3):
        with pytest.raises(MessageError):
            reader.read([head(format="jpeg"), memoryview(b"\xff\xd8\xff\xe0 nothing")])
        _, planes, _ = reader.read([head(format="jpeg"), memoryview(jpeg(picture()))])
        assert (planes.width_px, planes.height_px) == (WIDTH, HEIGHT)


def test_damage_never_raises_anything_else() -> None:
    random = np.random.default_rng(3)
    reader = FrameReader()
    good = [bytes(head(format="jpeg", t_ns=1, seq=2)), jpeg(picture())]
    refused = 0
    for _ in range(500):
        parts = [bytearray(part) for part in good]
        for part in parts:
            for place in random.integers(0, len(part), 2):
                part[place] = random.integers(0, 256)
        try:
            reader.read([memoryview(bytes(part)) for part in parts])
        except MessageError:
            refused += 1
    assert refused > 100
