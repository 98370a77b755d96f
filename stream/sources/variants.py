"""Choice of one variant of HLS or DASH, which offer the same video in several sizes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import av
from av.stream import Discard

from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources.connection import OVER_HTTP
from stream.sources.decoder import video_stream, video_streams
from stream.sources.fit import FrameFitter

log = logging.getLogger(__name__)

ENOUGH = 0.95
"""Share of the most pixels that a run could use from which a variant is as good: sizes of one video are rounded to
other multiples."""

_BIT_RATE = "variant_bitrate"
"""Entry of a stream's metadata with its declared bits a second."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Video stream of a playlist, by its number from 0."""

    index: int
    width_px: int
    height_px: int
    bit_rate: int = 0

    def __str__(self) -> str:
        if self.bit_rate:
            rate = f" at {self.bit_rate / 1e6:.1f} Mbit/s"
        else:
            rate = ""
        return f"{self.index}: {self.width_px}x{self.height_px}{rate}"


def chosen_stream(
    container: av.container.InputContainer, name: str, config: CaptureConfig, *, reports: bool = True
) -> av.video.stream.VideoStream:
    """Return the video stream to read: `capture.stream`, else the container's own choice, or the best variant.

    Of DASH, and of HLS without sizes in its playlist, FFmpeg then fetches that variant alone.

    Args:
        container: Open container, of which nothing was read.
        name: Name of the source in messages.
        config: Options of the capture.
        reports: One line names the variants that are left out.

    Raises:
        SourceError: If there is no such stream.
    """
    if container.format.name not in OVER_HTTP:
        return video_stream(container, name, config.stream)
    streams = video_streams(container)
    variants = []
    for number, stream in enumerate(streams):
        context = stream.codec_context
        if context is not None:
            bit_rate = stream.metadata.get(_BIT_RATE, "")
            bits = int(bit_rate) if bit_rate.isdecimal() else 0
            variants.append(Variant(number, context.width, context.height, bits))
    index = config.stream
    if index is None and variants:
        index = best_variant(variants, config).index
    stream = video_stream(container, name, index)
    for other in container.streams:
        if other is not stream:
            other.discard = Discard.all
    if reports and config.stream is None and len(variants) > 1:
        number = streams.index(stream)
        report(name, variants, next(variant for variant in variants if variant.index == number))
    return stream


def best_variant(variants: Sequence[Variant], config: CaptureConfig) -> Variant:
    """Return the smallest variant that has all pixels that the run can use; of equal sizes the one with the most bits.

    A run uses no more pixels than its processing resolution has. Larger pictures than `capture.max_pixels` are not
    decoded.
    """
    fitter = FrameFitter.of(config)
    decodable = [variant for variant in variants if _pixels(variant) <= config.max_pixels] or variants
    pixels = {variant.index: _used_pixels(variant, fitter) for variant in decodable}
    least = ENOUGH * max(pixels.values())
    candidates = [variant for variant in decodable if pixels[variant.index] >= least]
    return min(candidates, key=lambda variant: (_pixels(variant), -variant.bit_rate, variant.index))


def _pixels(variant: Variant) -> int:
    return variant.width_px * variant.height_px


def _used_pixels(variant: Variant, fitter: FrameFitter) -> int:
    """Return the pixels of a variant's frame that processing keeps; 0 if its size is unknown, or one that processing
    refuses."""
    if not _pixels(variant):
        return 0
    try:
        height_px, width_px = fitter.processing_resolution(variant.height_px, variant.width_px)
    except SourceError:
        return 0
    return min(height_px, variant.height_px) * min(width_px, variant.width_px)


def report(name: str, variants: Sequence[Variant], selection: Variant) -> None:
    """Name the variant that is read, and the others, in one line of the log."""
    others = ", ".join(str(variant) for variant in variants if variant is not selection)
    log.warning("%s has %d variants; reading %s, not %s (--stream)", name, len(variants), selection, others)
