"""Decoder of one uploaded picture, run as a program in a separate process. It imports nothing of the product.

    decoder.py LONGEST_PX PATH… < FILE > PIXELS

PATHs are those of `sys.path`. Exit status 0: width and height, u32 little-endian each, and RGB [height, width, 3] on
stdout. Exit status `REFUSED`: one line on stdout with the reason.
"""

from __future__ import annotations

import io
import os
import resource
import struct
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

SIDE_PX_MAX = 16_384

PIXELS_MAX = 50_000_000
"""Width times height, above that of most phones: 150 MB once it is decoded."""

ASPECT_MAX = 200
"""Largest ratio of a picture's sides; the model's own processor accepts no more."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")

MEMORY_BYTES_MAX = 1 << 30
"""Address space of the process. A WebP of `PIXELS_MAX` pixels takes 810 MB of it, a PNG with transparency 520 MB."""

CPU_S_MAX = 20
"""CPU time of the process; `PIXELS_MAX` pixels take 1 to 3 s."""

NICENESS = 5
"""Of the process: a run beside it goes first."""

REFUSED = 3
"""Exit status of a file that is refused."""

SIZE = struct.Struct("<II")


class PictureRefused(Exception):
    """Refusal of a picture, in one line. `status` is that of the HTTP reply."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


def read_picture(data: bytes, longest_px: int) -> Picture:
    """Return an uploaded picture in mode RGB, upright, on white if it is transparent, shrunk to `longest_px`.

    Its size is read from its header, and checked before memory is taken for its pixels. Raises PictureRefused.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check_size(*image.size)
        image.draft("RGB", (2 * longest_px, 2 * longest_px))
        image.thumbnail((longest_px, longest_px), Image.Resampling.BOX)
        rgba = ImageOps.exif_transpose(image).convert("RGBA")
        ground = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(ground, rgba).convert("RGB")
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PictureRefused(
            f"the picture has more than {PIXELS_MAX // 10**6} million pixels; save it smaller"
        ) from error
    except UnidentifiedImageError as error:
        raise PictureRefused(f"that is no picture; give {', '.join(FORMATS[:-1])} or {FORMATS[-1]}") from error
    except MemoryError as error:
        raise PictureRefused("the picture takes too much memory to read; save it smaller, as JPEG") from error
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error) as error:
        raise PictureRefused(f"the picture is damaged: {error}") from error


def _check_size(width: int, height: int) -> None:
    if max(width, height) > SIDE_PX_MAX or width * height > PIXELS_MAX:
        raise PictureRefused(
            f"the picture has {width}×{height} pixels; a side has at most {SIDE_PX_MAX}, all together "
            f"{PIXELS_MAX // 10**6} million; save it smaller"
        )
    if max(width, height) > ASPECT_MAX * min(width, height):
        raise PictureRefused(f"a picture of {width}×{height} pixels is too narrow; cut it to its middle part")


def main() -> int:
    """Decode the file on stdin within the limits of this process; return the exit status."""
    longest_px, *paths = sys.argv[1:]
    sys.path[:] = paths
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    try:
        picture = read_picture(sys.stdin.buffer.read(), int(longest_px))
    except PictureRefused as refusal:
        sys.stdout.buffer.write(str(refusal).encode(errors="replace"))
        return REFUSED
    sys.stdout.buffer.write(SIZE.pack(*picture.size) + picture.tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main())
