"""Pictures of viewers: what is taken, what is refused in one line, and how many are kept."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from stream.web import uploads
from stream.web.uploads import KEPT, PictureRefused, PictureStore, Rgb, keyed

LONGEST_PX = 1024


def read_picture(data: bytes) -> Rgb:
    return uploads.read_picture(data, LONGEST_PX)


def written(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def of_size(width: int, height: int) -> bytes:
    """A PNG that claims that size, and has hardly any pixels."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_usual_formats_are_read(form: str) -> None:
    rgb = read_picture(written(Image.new("RGB", (64, 32), (200, 40, 40)), form))
    assert rgb.shape == (32, 64, 3)
    assert rgb.dtype == np.uint8
    assert np.abs(rgb.astype(int) - (200, 40, 40)).max() < 8


def test_a_large_picture_is_shrunk_and_a_small_one_is_not() -> None:
    assert read_picture(written(Image.new("L", (4000, 1000)))).shape == (LONGEST_PX // 4, LONGEST_PX, 3)
    assert read_picture(written(Image.new("1", (7, 5)))).shape == (5, 7, 3)


def test_a_phone_s_picture_is_upright_and_transparency_is_white() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    assert read_picture(written(Image.new("RGB", (64, 32)), "JPEG", exif=exif)).shape == (64, 32, 3)
    assert (read_picture(written(Image.new("RGBA", (8, 8), (0, 0, 0, 0)))) == 255).all()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no picture"),
        (written(Image.effect_noise((64, 64), 90))[:2000], "damaged"),
        (of_size(20_000, 100), "20000×100 pixels; a side has at most 16384"),
        (of_size(12_000, 12_000), "50 million"),
        (of_size(60_000, 60_000), "50 million"),
        (of_size(5_000, 4), "too narrow"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_anything_else_is_refused_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(PictureRefused, match=message) as refused:
        read_picture(data)
    assert "\n" not in str(refused.value)


def test_the_picture_unused_for_longest_goes() -> None:
    store = PictureStore()
    pictures = [keyed(np.full((4, 4, 3), grey, np.uint8)) for grey in range(KEPT + 1)]
    for picture in pictures[:KEPT]:
        store.keep(picture)
    assert store.get(pictures[0].key) is pictures[0]
    store.keep(pictures[KEPT])
    assert store.get(pictures[0].key) is not None
    assert store.get(pictures[1].key) is None
    assert keyed(pictures[3].rgb).key == pictures[3].key
    assert keyed(pictures[3].rgb.reshape(2, 8, 3)).key != pictures[3].key
