"""Conversion of decoded frames to upright planes of 8 bits."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import av
import cv2
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace

from arr_coc.types import Colour, FramePlanes, Matrix
from stream.errors import SourceError
from stream.sources.aspect import PixelAspect
from stream.sources.fit import CHROMA_PX, FrameFitter
from stream.sources.motion_vectors import DecodedVectors, vectors_of
from stream.sources.orientation import Orientation
from stream.sources.samples import interleaved_samples_of, may_be_transparent, samples_of
from stream.sources.tonemap import becomes_sdr, to_sdr

Plane = npt.NDArray[np.uint8]

_MATRICES: dict[int, Matrix] = {1: "bt709", 4: "fcc", 7: "smpte240m", 9: "bt2020", 10: "bt2020"}
"""AVColorSpace → matrix. swscale reads all others, including "unspecified", as BT.601, at every picture size."""

_SWSCALE_MATRICES = frozenset({0, 1, 2, 4, 5, 6, 7, 9})
"""AVColorSpace values that swscale supports; a frame with another value is converted as the nearest of them."""

_TRANSFERS = {
    1: "bt709", 4: "gamma22", 5: "gamma28", 6: "smpte170m", 7: "smpte240m", 8: "linear",
    13: "srgb", 14: "bt2020-10", 15: "bt2020-12", 16: "pq", 18: "hlg",
}  # fmt: skip
"""AVColorTransferCharacteristic → name."""

_PLANAR_YUV = frozenset(
    f"{family}{sampling}p" for family in ("yuv", "yuvj") for sampling in ("420", "422", "444", "440", "411", "410")
)
_SEMI_PLANAR_YUV = {"nv12": (0, 1), "nv16": (0, 1), "nv24": (0, 1), "nv21": (1, 0), "nv42": (1, 0)}
"""Formats with interleaved chroma → positions of u and v in a pair."""

_DEEP_PLANAR = re.compile(r"(yuv4\d\dp|gray)(9|10|12|14|16)le")
"""Planar formats of more than 8 bits, in this machine's byte order → layout and bits per sample."""

_SAMPLINGS = {(1, 1): "444", (2, 1): "422", (2, 2): "420", (1, 2): "440", (4, 1): "411", (4, 4): "410"}
"""Luma samples that share a chroma sample (across, down) → the sampling's name."""


def colour_of(frame: av.VideoFrame) -> Colour:
    """Return the colour encoding of the frame's samples, with swscale's defaults.

    An unspecified range means limited, except for gray and the `yuvj` formats, which are full.
    """
    name = frame.format.name
    full = name.startswith(("yuvj", "gray")) or int(frame.color_range) == int(ColorRange.JPEG)
    matrix = _MATRICES.get(int(frame.colorspace), "bt601")
    return Colour(matrix, full, _TRANSFERS.get(int(frame.color_trc), "unspecified"))


def planes_of(frame: av.VideoFrame, orientation: Orientation | None = None) -> FramePlanes:
    """Return the frame's planes, upright, 8 bits per sample.

    Planar and semi-planar 8-bit YUV and gray are read-only views on the decoder's buffer. YUV of another depth or
    packing becomes planar 8-bit YUV of the same sampling, matrix and range; other formats become RGB. A format
    with alpha or a palette becomes RGB over white, like in a player on a white page. PQ and HLG become SDR of
    BT.709; other transfers are named, not applied. A rotated or mirrored frame is copied into its upright form. The
    shape of pixels stays as coded. `orientation` is the frame's own by default.
    """
    orientation = orientation or Orientation.of(frame)
    picture, sdr_reach_px = _as_sdr(frame)
    planes = _coded_planes(picture)
    reach_px = planes.reach_px + sdr_reach_px
    if not orientation.changes:
        return replace(planes, reach_px=reach_px)
    if _chroma_would_shift(planes, orientation):
        return FramePlanes("rgb", (rgb_of(picture, orientation),), reach_px=reach_px + CHROMA_PX)
    upright_planes = tuple(map(orientation.upright, planes.planes))
    return FramePlanes(planes.layout, upright_planes, planes.colour, reach_px=reach_px)


def rgb_of(frame: av.VideoFrame, orientation: Orientation | None = None) -> Plane:
    """Return the frame as converted by swscale, upright: uint8 [H, W, 3]."""
    orientation = orientation or Orientation.of(frame)
    return orientation.upright(_coded_rgb(_as_sdr(frame)[0]))


def _coded_planes(frame: av.VideoFrame) -> FramePlanes:
    if may_be_transparent(frame.format):
        return _convert(frame)
    colour = colour_of(frame)
    name = frame.format.name
    if name in _PLANAR_YUV:
        views = tuple(_read_only(samples_of(plane)) for plane in frame.planes[:3])
        return FramePlanes("yuv", views, colour, owner=frame)
    if name in _SEMI_PLANAR_YUV:
        luma, chroma = frame.planes
        pairs = _read_only(interleaved_samples_of(chroma, 2))
        u, v = (pairs[..., place] for place in _SEMI_PLANAR_YUV[name])
        return FramePlanes("yuv", (_read_only(samples_of(luma)), u, v), colour, owner=frame)
    if name == "gray":
        return FramePlanes("gray", (_read_only(samples_of(frame.planes[0])),), colour, owner=frame)
    if deep := _DEEP_PLANAR.fullmatch(name):
        return _round_to_8_bits(frame, int(deep[2]), colour)
    if name.startswith("gray"):
        return _coded_planes(frame.reformat(format="gray", threads=1))
    sampling = _sampling(frame.format)
    if sampling is None:
        return _convert(frame)
    eight_bit = same_colour(frame, f"yuv{sampling}p", colour)
    return FramePlanes("yuv", _coded_planes(eight_bit).planes, colour, owner=eight_bit)


def _as_sdr(frame: av.VideoFrame) -> tuple[av.VideoFrame, int]:
    """Return an HDR frame as SDR, without side data, and from how far away that mixes something into a sample.

    Other frames are returned as they are.
    """
    if not becomes_sdr(frame):
        return frame, 0
    sampling = _sampling(frame.format)
    if sampling is None:
        sampling = "444"
        frame = frame.reformat(
            format="yuv444p10le", dst_colorspace=Colorspace.BT2020, dst_color_range=ColorRange.MPEG, threads=1
        )
        frame.colorspace = Colorspace.BT2020
        frame.color_range = ColorRange.MPEG
    elif frame.format.name not in _PLANAR_YUV and not _DEEP_PLANAR.fullmatch(frame.format.name):
        matrix = frame.colorspace
        frame = same_colour(frame, f"yuv{sampling}p10le", colour_of(frame))
        frame.colorspace = matrix
    return to_sdr(frame, sampling), CHROMA_PX


def _convert(frame: av.VideoFrame) -> FramePlanes:
    return FramePlanes("rgb", (_coded_rgb(frame),), reach_px=0 if frame.format.is_rgb else CHROMA_PX)


def _coded_rgb(frame: av.VideoFrame) -> Plane:
    stand_in = None
    if int(frame.colorspace) not in _SWSCALE_MATRICES:
        if colour_of(frame).matrix == "bt2020":
            stand_in = Colorspace.BT2020
        else:
            stand_in = Colorspace.ITU601
    channels, name = (4, "rgba") if may_be_transparent(frame.format) else (3, "rgb24")
    rgb = frame.reformat(format=name, src_colorspace=stand_in, dst_colorspace=stand_in, threads=1)
    samples = _read_only(interleaved_samples_of(rgb.planes[0], channels))
    return samples if channels == 3 else _over_white(samples)


def _over_white(rgba: Plane) -> Plane:
    """Blend straight alpha over white, uint8 [H, W, 4] → [H, W, 3], rounded."""
    alpha = rgba[..., 3:]
    if alpha.min() == 255:
        return np.ascontiguousarray(rgba[..., :3])
    weight = alpha.astype(np.uint16)
    return np.asarray((rgba[..., :3] * weight + 255 * (255 - weight) + 127) // 255, np.uint8)


def _round_to_8_bits(frame: av.VideoFrame, bits: int, colour: Colour) -> FramePlanes:
    """Round planar samples of more than 8 bits to 8: full-range luma by its maximum, others by powers of two.

    swscale would dither instead, which is slower and adds noise to still pictures.
    """
    gray = frame.format.name.startswith("gray")
    planes = []
    for index, plane in enumerate(frame.planes[: 1 if gray else 3]):
        by_maximum = colour.full_range and index == 0
        if by_maximum:
            scale = 255 / (2**bits - 1)
        else:
            scale = 1 / 2 ** (bits - 8)
        planes.append(np.asarray(cv2.convertScaleAbs(samples_of(plane, bits), alpha=scale), np.uint8))
    return FramePlanes("gray" if gray else "yuv", tuple(planes), colour)


def _sampling(pixel_format: av.VideoFormat) -> str | None:
    """Return the chroma sampling of a YUV format, such as "420"; None for other formats."""
    other = pixel_format.is_rgb or pixel_format.is_bayer
    if other or len(pixel_format.components) < 3 or pixel_format.name.startswith("xyz"):
        return None
    across = 64 // pixel_format.chroma_width(64)
    down = 64 // pixel_format.chroma_height(64)
    return _SAMPLINGS.get((across, down))


def same_colour(frame: av.VideoFrame, format_name: str, colour: Colour) -> av.VideoFrame:
    """Convert the frame to another YUV format, with its matrix and range unchanged: both sides name the same."""
    if colour.full_range:
        color_range = ColorRange.JPEG
    else:
        color_range = ColorRange.MPEG
    return frame.reformat(
        format=format_name,
        src_colorspace=Colorspace.ITU601,
        dst_colorspace=Colorspace.ITU601,
        src_color_range=color_range,
        dst_color_range=color_range,
        threads=1,
    )


def _chroma_would_shift(planes: FramePlanes, orientation: Orientation) -> bool:
    """Return True if the orientation mirrors an odd number of luma samples that share chroma, which shifts chroma by
    half a sample."""
    if planes.layout != "yuv":
        return False
    luma, chroma = planes.planes[:2]
    return any(luma.shape[axis] % 2 and chroma.shape[axis] < luma.shape[axis] for axis in orientation.mirrored_axes)


def shown_size(frame: av.VideoFrame, aspect: PixelAspect, orientation: Orientation | None = None) -> tuple[int, int]:
    """Return the (height, width) of a frame as it is shown: upright, in square pixels."""
    swaps_sides = (orientation or Orientation.of(frame)).swaps_sides
    if swaps_sides:
        sides = (frame.width, frame.height)
    else:
        sides = (frame.height, frame.width)
    return aspect.shown_size(*sides, swaps_sides=swaps_sides)


def _read_only(samples: Plane) -> Plane:
    samples.flags.writeable = False
    return samples


def to_planes(
    frame: av.VideoFrame, fit: FrameFitter, name: str, aspect: PixelAspect | None = None, reach_px: int = 0
) -> FramePlanes:
    """Return a frame's planes at the processing resolution, in square pixels, with its motion vectors, if any.

    Args:
        frame: Decoded frame.
        fit: Scaling to the processing resolution.
        name: Name of the source in errors.
        aspect: Shape of the frame's pixels; squares by default.
        reach_px: From how far away the decoded frame mixes something into a sample, as a deinterlaced one does.

    Raises:
        SourceError: If format or shape cannot be converted.
    """
    try:
        orientation = Orientation.of(frame)
        picture, sdr_reach_px = _as_sdr(frame)  # once, for its planes and its RGB
        planes = planes_of(picture, orientation)
        reach_px += sdr_reach_px
        if reach_px:
            planes = replace(planes, reach_px=planes.reach_px + reach_px)
        if aspect is None:
            display_px = None
        else:
            display_px = shown_size(frame, aspect, orientation)
        planes = fit.apply(planes, partial(rgb_of, picture, orientation), display_px)
    except av.FFmpegError as error:
        raise SourceError(
            f"{name} has pictures of the format {frame.format.name}, which FFmpeg cannot convert ({error.strerror}); "
            "convert them to yuv420p"
        ) from error
    side_data = vectors_of(frame)
    if side_data is None:
        return planes
    vectors = DecodedVectors(side_data, (frame.height, frame.width), orientation, planes.height_px, planes.width_px)
    return replace(planes, coded_motion=vectors)
