"""A picture with its heat map over it, for people to look at."""

from __future__ import annotations

import io

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

LONGEST_PX = 1024
"""A larger picture is shown smaller."""

OPACITY = 0.6
"""Of the colour where relevance is 1; where it is 0, the picture shows as it is."""

Rgb = npt.NDArray[np.uint8]


def heat_picture(picture: Rgb, heatmap: npt.NDArray[np.float32]) -> Rgb:
    """The picture uint8 [H, W, 3] with colours over it where `heatmap` [gh, gw], in [0, 1], is high.

    The map is spread over the whole picture, however it is divided. At most 1024 pixels a side; memory of its own.
    """
    height_px, width_px = picture.shape[:2]
    shrink = min(1.0, LONGEST_PX / max(height_px, width_px))
    size = max(1, round(width_px * shrink)), max(1, round(height_px * shrink))
    shown = cv2.resize(picture, size, interpolation=cv2.INTER_AREA).astype(np.float32)
    heat = cv2.resize(heatmap.clip(0, 1).astype(np.float32), size, interpolation=cv2.INTER_LINEAR)
    colours = cv2.applyColorMap(np.rint(heat * 255).astype(np.uint8), cv2.COLORMAP_TURBO)[..., ::-1]
    share = OPACITY * heat[..., None]
    return np.asarray(np.rint(shown * (1 - share) + colours * share), np.uint8)


def png(image: Rgb) -> bytes:
    """An image uint8 [H, W, 3] as the bytes of a PNG file."""
    written = io.BytesIO()
    Image.fromarray(image).save(written, "PNG")
    return written.getvalue()
