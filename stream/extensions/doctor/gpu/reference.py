"""Pictures, planes and regions for comparisons with the CPU; and the comparisons, which raise CheckFailed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_coc.texture.store.base import TextureStore
from arr_coc.types import LEVELS, REGION_SHAPES, Colour, FramePlanes, FrameStamp, Layout, TileGrid
from stream.extensions.doctor.gpu.checks import CheckFailed

Picture = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.floating]

SUBSAMPLINGS = {"420": (2, 2), "422": (1, 2), "444": (1, 1), "440": (2, 1), "411": (1, 4), "410": (4, 4)}
"""Name → (down, across)."""


def stamp(frame_index: int, epoch: int = 0) -> FrameStamp:
    """Return the stamp of a frame of a stream with 25 frames a second."""
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
    """Return noise in every plane.

    Args:
        rng: Source of the noise.
        height: Height of the frame, in pixels.
        width: Width of the frame, in pixels.
        layout: Layout of the planes.
        sampling: Chroma subsampling of `yuv` planes, a key of `SUBSAMPLINGS`.
        colour: Colour description; the default one if None.
    """
    down, across = SUBSAMPLINGS[sampling]
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "yuv": ((height, width), *[(-(-height // down), -(-width // across))] * 2),
        "gray": ((height, width),),
        "rgb": ((height, width, 3),),
    }
    planes = tuple(rng.integers(0, 256, shape, dtype=np.uint8) for shape in shapes[layout])
    return FramePlanes(layout, planes, colour or Colour())


def rgb_planes(picture: Picture) -> FramePlanes:
    """Return a picture uint8 [H, W, 3] as the planes of a frame."""
    return FramePlanes("rgb", (picture,))


def copy_planes(planes: FramePlanes) -> FramePlanes:
    """Return the same picture in separate arrays."""
    return FramePlanes(planes.layout, tuple(plane.copy() for plane in planes.planes), planes.colour)


def with_tiles_of(planes: FramePlanes, other: FramePlanes, tiles: npt.NDArray[np.bool_]) -> FramePlanes:
    """Return a copy of a frame in which some tiles are those of another one.

    Args:
        planes: Frame whose other tiles stay.
        other: Frame of the same size and layout that the tiles are taken from.
        tiles: bool [rows, cols], True for the tiles to take.
    """
    result = copy_planes(planes)
    for target, source in zip(result.planes, other.planes, strict=True):
        down = -(-planes.height_px // target.shape[0])
        across = -(-planes.width_px // target.shape[1])
        mask = tiles.repeat(32 // down, axis=0).repeat(32 // across, axis=1)[: target.shape[0], : target.shape[1]]
        target[mask] = source[mask]
    return result


def regions_of(grid: TileGrid, rng: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """Return random regions [K, 3] of all shapes, with those at the far edges among them."""
    shapes = rng.integers(0, len(REGION_SHAPES), count)
    rows, cols = (-(-size >> log2) for size, log2 in zip(grid.shape, np.array(REGION_SHAPES)[shapes].T, strict=True))
    edge_mask = rng.random((2, count)) < 0.2
    places = [
        np.where(at_edge, sizes - 1, rng.integers(0, sizes))
        for at_edge, sizes in zip(edge_mask, (rows, cols), strict=True)
    ]
    return np.stack([shapes, *places], axis=1)


def random_picture(rng: np.random.Generator, height: int, width: int, kind: str = "noise") -> Picture:
    """Return a picture, uint8 RGB [height, width, 3].

    Args:
        rng: Source of the picture.
        height: Height, in pixels.
        width: Width, in pixels.
        kind: `noise`, or any other word for large soft shapes with flat parts and hard edges.
    """
    if kind == "noise":
        return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    rows, cols = np.mgrid[:height, :width]
    waves = [np.sin(rows / rng.uniform(5, 60)) + np.cos(cols / rng.uniform(5, 60)) for _ in range(3)]
    soft = np.stack([(wave + 2) / 4 * 255 for wave in waves], axis=2)
    soft[height // 3 :, : width // 2] = rng.integers(0, 256, 3)
    return soft.astype(np.uint8)


def smooth_picture() -> Picture:
    """Return waves and ramps, of a size that needs padding."""
    y, x = np.mgrid[0:120, 0:150]
    waves = 127 + 100 * np.sin(x / 17) * np.cos(y / 23)
    return np.stack([waves, x * 1.5, y * 1.9], -1).astype(np.uint8)


def bilinear(level: Floats, x: Floats, y: Floats) -> Floats:
    """Interpolate a level at points; edges are repeated.

    Args:
        level: Texels, float [H, W, 3]; their centres lie at .5.
        x: Columns of the points, float [n].
        y: Rows of the points, float [n].

    Returns:
        Colours, float [n, 3].
    """
    left = np.floor(x - 0.5).astype(int)
    top = np.floor(y - 0.5).astype(int)
    right_share = (x - 0.5 - left)[:, None]
    below_share = (y - 0.5 - top)[:, None]

    def texel(row: npt.NDArray[np.intp], col: npt.NDArray[np.intp]) -> Floats:
        return level[np.clip(row, 0, len(level) - 1), np.clip(col, 0, level.shape[1] - 1)]

    above = texel(top, left) * (1 - right_share) + texel(top, left + 1) * right_share
    below = texel(top + 1, left) * (1 - right_share) + texel(top + 1, left + 1) * right_share
    return above * (1 - below_share) + below * below_share


def trilinear(levels: Sequence[Floats], points: Floats) -> Floats:
    """Interpolate six levels at points [n, 3] (x, y, level): [n, 3]."""
    fine = np.floor(points[:, 2]).astype(int)
    share = (points[:, 2] - fine)[:, None]
    samples = []
    for index in (fine, np.minimum(fine + 1, LEVELS - 1)):
        parts = np.empty((len(points), 3))
        for level in range(LEVELS):
            mask = index == level
            parts[mask] = bilinear(levels[level], points[mask, 0] / 2**level, points[mask, 1] / 2**level)
        samples.append(parts)
    return samples[0] * (1 - share) + samples[1] * share


def require_equal(actual: Any, expected: Any, label: str) -> None:
    """Compare two arrays or tensors in host memory, value by value.

    Args:
        actual: Values to check.
        expected: Values of the reference.
        label: Name of the values in the message.

    Raises:
        CheckFailed: The shapes or the values differ.
    """
    require_close(actual, expected, label, 0)


def require_close(actual: Any, expected: Any, label: str, tolerance: float) -> None:
    """Compare two arrays or tensors in host memory.

    Args:
        actual: Values to check.
        expected: Values of the reference, of the same shape.
        label: Name of the values in the message.
        tolerance: Largest difference that is allowed; a NaN is never.

    Raises:
        CheckFailed: The shapes differ, or values by more than `tolerance`.
    """
    actual = np.asarray(actual)
    expected = np.asarray(expected)
    if actual.shape != expected.shape:
        raise CheckFailed(f"{label}: the shape is {list(actual.shape)} and should be {list(expected.shape)}")
    if tolerance == 0:
        wrong = actual != expected
    else:
        wrong = ~(np.abs(actual.astype(np.float64) - expected.astype(np.float64)) <= tolerance)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        raise CheckFailed(
            f"{label}: {np.count_nonzero(wrong)} of {wrong.size} values differ, first {actual[place]} "
            f"at {list(place)}, where the CPU has {expected[place]}"
        )


def require_same_texture(
    store: TextureStore, reference: TextureStore, order: Sequence[int] = tuple(range(LEVELS))
) -> None:
    """Compare all levels of two stores, read in this order, and their versions."""
    with store.lease() as view, reference.lease() as reference_view:
        require_equal(view.versions.frame, reference_view.versions.frame, "versions of tiles")
        for level in order:
            require_equal(view.read(level), reference_view.read(level), f"level {level}")
