"""Shape of pixels: the sample aspect ratio of a stream, and the size of its pictures in square pixels."""

from __future__ import annotations

import logging
from fractions import Fraction

import av

log = logging.getLogger(__name__)

WIDEST = 4
"""Largest ratio of a pixel's sides that is believed. Half of a picture's columns or rows is the most that systems leave
out, in pixels of up to 1.5: those of anamorphic 352x576 are 32:11."""

UNSEEN = Fraction(1, 100)
"""Difference from a square that is left as it is: encoders write it to make up for a rounded size, as 1280:1281 for
854x480."""


class PixelAspect:
    """Shape of the pixels of one stream, by its own statement or by `capture.aspect`.

    A statement of the container counts first, as in FFmpeg. Without one, that of the coded pictures counts, which may
    change in mid-stream.
    """

    def __init__(
        self,
        setting: str,
        stream: av.video.stream.VideoStream,
        context: av.video.codeccontext.VideoCodecContext,
        max_pixels: int,
    ) -> None:
        """Read the statements of an opened stream, which `context` decodes."""
        self._context = context
        self._max_pixels = max_pixels
        self._warned = False
        self._displayed: Fraction | None = None
        self._fixed: Fraction | None = None
        name = stream.container.format.name
        # viewers show photos by their pixels: what JPEG, PNG and GIF call an aspect is a density for printing
        if setting == "off" or (setting == "auto" and (name.endswith("_pipe") or name in ("image2", "gif"))):
            self._fixed = Fraction(1)
        elif setting != "auto":
            width, height = (int(side) for side in setting.split(":"))
            self._displayed = Fraction(width, height)
        elif stream.sample_aspect_ratio != context.sample_aspect_ratio:
            self._fixed = stream.sample_aspect_ratio

    def shown_size(self, height_px: int, width_px: int, *, swaps_sides: bool) -> tuple[int, int]:
        """Return the (height, width) of an upright picture in square pixels.

        One side is enlarged, so that no detail is lost; the other is reduced if the picture would have more than
        `max_pixels`. `swaps_sides`: the coded picture lies on its side.
        """
        aspect = self._sample_aspect(height_px, width_px, swaps_sides)
        if abs(aspect - 1) < UNSEEN:
            return height_px, width_px
        widens = (aspect > 1) == (height_px * width_px * max(aspect, 1 / aspect) <= self._max_pixels)
        if widens:
            return height_px, _even(width_px * aspect)
        return _even(height_px / aspect), width_px

    def _sample_aspect(self, height_px: int, width_px: int, swaps_sides: bool) -> Fraction:
        """Return width / height of a pixel of an upright picture; 1 if it is not stated, or not believed."""
        if self._displayed is not None:
            aspect = self._displayed * height_px / width_px
        else:
            aspect = (self._context.sample_aspect_ratio if self._fixed is None else self._fixed) or Fraction(1)
            if swaps_sides:
                aspect = 1 / aspect
        if 1 <= max(aspect, 1 / aspect) <= WIDEST:
            return aspect
        if not self._warned:
            self._warned = True
            log.warning(
                "pixels of the shape %d:%d are shown as squares; capture.aspect sets the shape of the picture, such as "
                "16:9",
                aspect.numerator,
                aspect.denominator,
            )
        return Fraction(1)


def _even(side_px: Fraction) -> int:
    """Round a side to an even number, which video with shared chroma needs."""
    return max(2, 2 * round(side_px / 2))
