"""Samples of decoded frames: their form."""

from __future__ import annotations

import av


def may_be_transparent(pixel_format: av.VideoFormat) -> bool:
    """Return True for a format with alpha or a palette."""
    return pixel_format.has_palette or any(component.is_alpha for component in pixel_format.components)
