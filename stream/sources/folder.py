"""Source of pictures in a folder: natural order, EXIF rotation, transparency over white."""

from __future__ import annotations

import struct
import warnings
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from arr_coc.types import NS_PER_S, FramePlanes
from stream.clock import Clock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.media import SkippedItem, Source, SourceFrame, SourceInfo, never_stop
from stream.sources.checks import TimeRange, pictures_of, root_of
from stream.sources.fit import CHROMA_PX, FrameFitter, FrameFormat
from stream.sources.heif import is_heif
from stream.sources.planes import rgb_of
from stream.sources.tiled import read_heif
from stream.sources.timing import DEFAULT_RATE

DAMAGED = (
    OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, AttributeError, OverflowError,
    RuntimeError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
"""Errors of Pillow for damaged files and for files that are no pictures."""


class PictureError(Exception):
    """File without a readable picture; the message is the reason only."""


UNMIXED = {"PNG", "BMP", "GIF"}
"""Formats, by Pillow's names, whose pixels hold nothing of others. The rest may have chroma for several pixels each."""


def read_picture(path: Path, max_pixels: int) -> tuple[npt.NDArray[np.uint8], int]:
    """Read a picture, or the first one of an animation: uint8 RGB [H, W, 3], and `FramePlanes.reach_px`.

    Raises PictureError; for a picture of more than `max_pixels`, before it is decoded.
    """
    try:
        if is_heif(path):
            config = CaptureConfig(max_pixels=max_pixels)
            return rgb_of(read_heif(path, config)), CHROMA_PX
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about irrelevant tags
            with Image.open(path) as image:
                if image.width * image.height > max_pixels:
                    raise PictureError(
                        f"it has {image.width}x{image.height} pixels, more than capture.max_pixels = {max_pixels}"
                    )
                image.load()
                rgb = np.asarray(over_white(ImageOps.exif_transpose(_eight_bits(image))), np.uint8)
                return rgb, 0 if image.format in UNMIXED else CHROMA_PX
    except UnidentifiedImageError as error:
        raise PictureError("it is not a picture of a known kind") from error
    except SourceError as error:
        raise PictureError(f"it {str(error).removeprefix(f'{path} ')}") from error
    except DAMAGED as error:
        raise PictureError(reason_of_damage(error)) from error


def reason_of_damage(error: BaseException) -> str:
    """Return a short text of an error in DAMAGED."""
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    else:
        reason = str(error)
    return " ".join(reason.split()) or type(error).__name__


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale a picture with one channel of 16 bits to 8 bits; Pillow's conversion would clip at 255."""
    if not image.mode.startswith("I"):
        return image
    samples = np.asarray(image, np.float32)
    scaled = Image.fromarray(np.clip(samples / 257 + 0.5, 0, 255).astype(np.uint8))
    scaled.info = dict(image.info)
    scaled.getexif().update(image.getexif())
    return scaled


def over_white(image: Image.Image) -> Image.Image:
    """Return the picture as RGB, over white if it is transparent."""
    if "A" not in image.mode and "a" not in image.mode and "transparency" not in image.info:
        return image.convert("RGB")
    coloured = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", coloured.size, (255, 255, 255, 255)), coloured).convert("RGB")


class FolderSource(Source):
    """Pictures in natural order, one every 1 / `capture.fps` seconds (default: 25 per second)."""

    def __init__(self, address: str, config: CaptureConfig, clock: Clock) -> None:
        """Raise SourceNotFound, SourceError, or ConfigError for a `capture.size` that is too large."""
        self._fit = FrameFitter.of(config)
        if config.fps is None:
            self._fps = DEFAULT_RATE
        else:
            self._fps = Fraction(str(config.fps))
        self._max_frames = config.max_frames
        self._max_pixels = config.max_pixels
        self._clock = clock
        self._name = address
        self._paths = pictures_of(address)
        self._root = root_of(address).resolve()
        self._trailing: tuple[SkippedItem, ...] = ()
        part = TimeRange.of(config)
        places = range(len(self._paths))
        begin = bisect_left(places, part.start_ns, key=self._media_ns)
        if part.end_ns is not None:
            self._paths = self._paths[: bisect_left(places, part.end_ns, key=self._media_ns)]
        if begin >= len(self._paths):
            raise part.empty(address, self._media_ns(len(places)))
        first = next(self._read(begin, never_stop), None)
        if first is None:
            raise SourceError(f"no picture of {address} can be read ({self._first_loss()}); check the files")
        self._first = first

    def describe(self) -> SourceInfo:
        """Return the size and format of the first picture, and the number of pictures."""
        height, width, _ = self._first.rgb.shape
        return SourceInfo(
            name=self._name,
            width_px=width,
            height_px=height,
            fps=float(self._fps),
            duration_ns=self._media_ns(len(self._paths)),
            frames=len(self._paths),
            live=False,
            codec=self._first.path.suffix[1:].casefold(),
            pixel_format="rgb24",
        )

    def frames(self, should_stop: Callable[[], bool] = never_stop) -> Iterator[SourceFrame]:
        """Yield the readable pictures, each at the time of its place; to be called once."""
        rest = self._read(self._first.place + 1, should_stop)
        previous: FrameFormat | None = None
        for index, picture in enumerate(chain([self._first], rest)):
            native_planes = FramePlanes("rgb", (picture.rgb,), reach_px=picture.reach_px)
            capture_ns = self._clock.now_ns()
            planes = self._fit.apply(native_planes, partial(native_planes.planes.__getitem__, 0))
            frame_format = FrameFormat.of((native_planes.height_px, native_planes.width_px), planes)
            discontinuity = frame_format.change_since(previous)
            duration_ns = self._media_ns(picture.place + 1) - picture.media_ns
            yield SourceFrame(index, picture.media_ns, capture_ns, planes, discontinuity, picture.losses, duration_ns)
            previous = frame_format
            if index + 1 == self._max_frames:
                return

    def trailing_skipped(self) -> tuple[SkippedItem, ...]:
        """Return the pictures after the last readable one; none if `max_frames` ended the run."""
        return self._trailing

    def _read(self, begin: int, should_stop: Callable[[], bool]) -> Iterator[_FolderPicture]:
        """Yield each readable picture from place `begin` on, with the unreadable ones before it; record the unreadable
        ones at the end as `_trailing`."""
        losses: list[SkippedItem] = []
        for place, path in enumerate(self._paths[begin:], begin):
            if should_stop():
                return
            try:
                # a folder's name grants access to the files in it, not to targets of links
                if not path.resolve().is_relative_to(self._root):
                    raise PictureError(f"it is a link that leads out of {self._root}; copy its target there")
                rgb, reach_px = read_picture(path, self._max_pixels)
            except PictureError as error:
                losses.append(SkippedItem(str(path), str(error), self._media_ns(place)))
                continue
            yield _FolderPicture(place, path, rgb, reach_px, self._media_ns(place), _summary(losses))
            losses = []
        self._trailing = _summary(losses)

    def _first_loss(self) -> str:
        loss = self._trailing[0]
        return f"{loss.what}: {loss.reason}"

    def _media_ns(self, place: int) -> int:
        return int(place * NS_PER_S / self._fps)


@dataclass(frozen=True, slots=True)
class _FolderPicture:
    place: int
    path: Path
    rgb: npt.NDArray[np.uint8]
    reach_px: int
    media_ns: int
    losses: tuple[SkippedItem, ...]


def _summary(losses: Sequence[SkippedItem]) -> tuple[SkippedItem, ...]:
    """Return up to three items unchanged, more as one item."""
    if len(losses) <= 3:
        return tuple(losses)
    first = losses[0]
    last = losses[-1]
    return (SkippedItem(f"{first.what} to {last.what}", first.reason, first.media_ns, len(losses)),)
