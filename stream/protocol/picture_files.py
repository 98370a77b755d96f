"""Encoders of pictures as JPEG and PNG, for viewers of a run."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

QUALITY = 75
"""JPEG quality: text of 12 pixels stays readable, and a frame of 720p has about 75 kB."""

SMALL_QUALITY = 70


def encode_jpeg(image: npt.NDArray[np.uint8], quality: int = QUALITY) -> bytes:
    """Return uint8 RGB [H, W, 3] as JPEG. Raises cv2.error if it cannot be encoded."""
    return _encode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])


def smaller_jpeg(jpeg: bytes, width_px: int) -> bytes | None:
    """Return a JPEG of at most this width, of the same shape; None if `jpeg` cannot be decoded."""
    try:
        image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            return None
        height, width = image.shape[:2]
        if width <= width_px:
            return jpeg
        size = width_px, max(1, round(height * width_px / width))
        smaller = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        return encode_jpeg(cv2.cvtColor(smaller, cv2.COLOR_BGR2RGB), SMALL_QUALITY)
    except cv2.error:
        return None


def encode_png(image: npt.NDArray[np.uint8]) -> bytes:
    """Return uint8 RGB [H, W, 3] as PNG. Raises cv2.error if it cannot be encoded."""
    return _encode(".png", image, [])


def _encode(suffix: str, image: npt.NDArray[np.uint8], options: Sequence[int]) -> bytes:
    works, data = cv2.imencode(suffix, cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)
    if not works:
        raise cv2.error(f"no encoder for {suffix}")
    return data.tobytes()
