"""Samples of decoded frames: views on those of a plane, and whether some may be transparent."""

from __future__ import annotations

from typing import Any

import av
import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[Any]
"""Samples of a plane, of 8 or 16 bits each."""


def samples_of(plane: av.video.plane.VideoPlane, bits: int = 8) -> Samples:
    """Return a view on a plane's samples of up to 16 `bits`, [height, width]; a negative stride means rows stored
    bottom up."""
    return interleaved_samples_of(plane, 1, bits)[..., 0]


def interleaved_samples_of(plane: av.video.plane.VideoPlane, channels: int, bits: int = 8) -> Samples:
    """Return a view on the samples of a plane that holds several channels, [height, width, channels]."""
    dtype = np.dtype(np.uint16 if bits > 8 else np.uint8)
    stride = plane.line_size
    offset = 0 if stride > 0 else (plane.height - 1) * -stride
    shape = plane.height, plane.width, channels
    strides = stride, channels * dtype.itemsize, dtype.itemsize
    return np.ndarray(shape, dtype, buffer=plane, offset=offset, strides=strides)


def may_be_transparent(pixel_format: av.VideoFormat) -> bool:
    """Return True for a format with alpha or a palette."""
    return pixel_format.has_palette or any(component.is_alpha for component in pixel_format.components)
