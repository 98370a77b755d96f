"""Pictures of viewers: checked before they are decoded, shrunk, and kept for a while under keys."""

from __future__ import annotations

import asyncio
import hashlib
import io
import struct
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from starlette.requests import ClientDisconnect, Request

from stream.untrusted import MIB

UPLOAD_BYTES_MAX = 16 * MIB
"""Largest file of a picture; a phone's have some 5 MB."""

SIDE_PX_MAX = 16_384

PIXELS_MAX = 50_000_000
"""Width times height, above what most phones take: 150 MB once it is decoded."""

ARRIVAL_LIMIT_S = 60.0
"""Time that a picture may take to arrive."""

ASPECT_MAX = 200
"""Most times that a picture may be as long as wide; the model's own processor takes no more."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")

KEPT = 12
"""Pictures that are kept; the one unused for longest goes."""

QUALITY = 90

Rgb = npt.NDArray[np.uint8]


class PictureRefused(Exception):
    """A picture that cannot be taken; says why in one line."""


@dataclass(frozen=True, slots=True)
class KeptPicture:
    """A picture under its key: `rgb` uint8 [H, W, 3], and the same as JPEG."""

    key: str
    rgb: Rgb
    jpeg: bytes


async def receive_picture(request: Request, longest_px: int) -> Rgb:
    """Return the picture that is a request's body, as `read_picture` does. Raises PictureRefused.

    A body that is too large, or too slow, is not read to its end.
    """
    try:
        data = await asyncio.wait_for(_body_of(request), ARRIVAL_LIMIT_S)
    except asyncio.TimeoutError as error:
        raise PictureRefused(f"the picture did not arrive within {ARRIVAL_LIMIT_S:.0f} s; save it smaller") from error
    except ClientDisconnect as error:
        raise PictureRefused("the picture did not arrive whole; send it again") from error
    return await asyncio.to_thread(read_picture, data, longest_px)


async def _body_of(request: Request) -> bytes:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > UPLOAD_BYTES_MAX:
            raise PictureRefused(f"a picture has at most {UPLOAD_BYTES_MAX // MIB} MiB; save it smaller")
    return bytes(data)


def read_picture(data: bytes, longest_px: int) -> Rgb:
    """Return an uploaded picture as uint8 [H, W, 3], upright, on white where it is transparent, shrunk to `longest_px`.

    Its size is read from its header, and checked before memory is taken for its pixels. Raises PictureRefused.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError  # only a page that takes pictures needs it

    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check_size(*image.size)
        image.draft("RGB", (2 * longest_px, 2 * longest_px))
        upright = ImageOps.exif_transpose(image)
        upright.thumbnail((longest_px, longest_px), Image.Resampling.BOX)
        rgba = upright.convert("RGBA")
        ground = Image.new("RGBA", rgba.size, "white")
        return np.asarray(Image.alpha_composite(ground, rgba).convert("RGB"), np.uint8)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PictureRefused(
            f"the picture has more than {PIXELS_MAX // 10**6} million pixels; save it smaller"
        ) from error
    except UnidentifiedImageError as error:
        raise PictureRefused(f"that is no picture; give {', '.join(FORMATS[:-1])} or {FORMATS[-1]}") from error
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error, MemoryError) as error:
        raise PictureRefused(f"the picture is damaged: {error}") from error


def _check_size(width: int, height: int) -> None:
    if max(width, height) > SIDE_PX_MAX or width * height > PIXELS_MAX:
        raise PictureRefused(
            f"the picture has {width}×{height} pixels; a side has at most {SIDE_PX_MAX}, all together "
            f"{PIXELS_MAX // 10**6} million; save it smaller"
        )
    if max(width, height) > ASPECT_MAX * min(width, height):
        raise PictureRefused(f"a picture of {width}×{height} pixels is too narrow; cut it to its middle part")


class PictureStore:
    """The pictures that were used last. Belongs to one thread."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, KeptPicture] = OrderedDict()

    def keep(self, picture: KeptPicture) -> None:
        """Keep a picture, in place of the one unused for longest."""
        self._kept[picture.key] = picture
        self._kept.move_to_end(picture.key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def get(self, key: str) -> KeptPicture | None:
        """Return the picture of a key; None where it is not kept any more."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)


def keyed(rgb: Rgb) -> KeptPicture:
    """Return a picture uint8 [H, W, 3] with a key that its pixels give."""
    from PIL import Image

    written = io.BytesIO()
    Image.fromarray(rgb).save(written, "JPEG", quality=QUALITY)
    digest = hashlib.blake2b(rgb.tobytes(), digest_size=12, key=str(rgb.shape).encode())
    return KeptPicture(digest.hexdigest(), rgb, written.getvalue())
