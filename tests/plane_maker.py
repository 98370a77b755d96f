"""Planes made in code, and the plain way to compute what a texture store computes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_coc.ops.colour import rgb_matrix
from arr_coc.types import Colour, FramePlanes, FrameStamp, Layout

SUBSAMPLINGS = {"420": (2, 2), "422": (1, 2), "444": (1, 1), "440": (2, 1), "411": (1, 4), "410": (4, 4)}
"""Name → (down, across)."""

Bytes = npt.NDArray[np.uint8]


def stamp(frame_index: int, epoch: int = 0) -> FrameStamp:
    return FrameStamp(frame_index, frame_index * 40_000_000, 0, epoch)


def random_planes(
    rng: np.random.Generator,
    height: int,
    width: int,
    *,
    layout: Layout = "yuv",
    sampling: str = "420",
    colour: Colour | None = None,
) -> FramePlanes:
    """Noise in every plane."""
    down, across = SUBSAMPLINGS[sampling]
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "yuv": ((height, width), *[(-(-height // down), -(-width // across))] * 2),
        "gray": ((height, width),),
        "rgb": ((height, width, 3),),
    }
    planes = tuple(rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes[layout])
    return FramePlanes(layout, planes, colour or Colour())


def flat_planes(height: int, width: int, values: tuple[int, int, int] = (100, 128, 128)) -> FramePlanes:
    """4:2:0 planes of one colour (y, u, v)."""
    shapes = ((height, width), *[(-(-height // 2), -(-width // 2))] * 2)
    return FramePlanes(
        "yuv", tuple(np.full(shape, value, np.uint8) for shape, value in zip(shapes, values, strict=True))
    )


def copied(planes: FramePlanes) -> FramePlanes:
    """The same picture in arrays of its own."""
    return FramePlanes(planes.layout, tuple(plane.copy() for plane in planes.planes), planes.colour)


def with_tiles_of(planes: FramePlanes, other: FramePlanes, tiles: npt.NDArray[np.bool_]) -> FramePlanes:
    """`planes`, with the tiles where `tiles` bool [rows, cols] is True taken from `other`."""
    mixed = copied(planes)
    for target, source in zip(mixed.planes, other.planes, strict=True):
        down = -(-planes.height_px // target.shape[0])
        across = -(-planes.width_px // target.shape[1])
        mask = tiles.repeat(32 // down, axis=0).repeat(32 // across, axis=1)[: target.shape[0], : target.shape[1]]
        target[mask] = source[mask]
    return mixed


def expected_level0(planes: FramePlanes) -> Bytes:
    """Level 0 in floating point: replicated chroma, the colour matrix, then edge replication to whole tiles."""
    height, width = planes.height_px, planes.width_px
    if planes.layout == "rgb":
        picture = planes.planes[0].astype(float)
    elif planes.layout == "gray":
        picture = planes.planes[0].astype(float)[..., None].repeat(3, axis=2)
    else:
        full = [
            plane.repeat(-(-height // plane.shape[0]), axis=0).repeat(-(-width // plane.shape[1]), axis=1)[
                :height, :width
            ]
            for plane in planes.planes
        ]
        matrix = rgb_matrix(planes.colour)
        picture = np.stack(full, axis=2) @ matrix[:, :3].T + matrix[:, 3]
    padding = ((0, -height % 32), (0, -width % 32), (0, 0))
    return np.pad(np.clip(np.rint(picture), 0, 255).astype(np.uint8), padding, mode="edge")


def expected_levels(level0: Bytes) -> list[Bytes]:
    """The whole box pyramid of a level 0, in integer arithmetic."""
    levels = [level0]
    for _ in range(5):
        fine = levels[-1].astype(np.uint16)
        total = fine[0::2, 0::2] + fine[1::2, 0::2] + fine[0::2, 1::2] + fine[1::2, 1::2]
        levels.append(((total + 2) >> 2).astype(np.uint8))
    return levels
