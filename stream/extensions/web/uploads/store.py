"""Pictures that were decoded, kept for a while under keys."""

from __future__ import annotations

import hashlib
import io
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

KEPT = 12
"""Pictures that are kept; the one unused for longest goes."""

QUALITY = 90

Rgb = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class KeptPicture:
    """A picture under its key: `rgb` uint8 [H, W, 3], and the same as JPEG."""

    key: str
    rgb: Rgb
    jpeg: bytes


class PictureStore:
    """The pictures that were used last. Belongs to one thread."""

    def __init__(self) -> None:
        self._pictures: OrderedDict[str, KeptPicture] = OrderedDict()

    def keep(self, picture: KeptPicture) -> None:
        """Keep a picture, in place of the one unused for longest."""
        self._pictures[picture.key] = picture
        self._pictures.move_to_end(picture.key)
        while len(self._pictures) > KEPT:
            self._pictures.popitem(last=False)

    def get(self, key: str) -> KeptPicture | None:
        """Return the picture of a key; None if it is not kept any more."""
        if key in self._pictures:
            self._pictures.move_to_end(key)
        return self._pictures.get(key)


def keyed(rgb: Rgb) -> KeptPicture:
    """Return a picture uint8 [H, W, 3] with a key that its pixels give."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(rgb).save(buffer, "JPEG", quality=QUALITY)
    digest = hashlib.blake2b(rgb.tobytes(), digest_size=12, key=str(rgb.shape).encode())
    return KeptPicture(digest.hexdigest(), rgb, buffer.getvalue())
