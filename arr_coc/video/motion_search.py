"""Searches for motion between two small pictures, by OpenCV: one shift of all, and dense flow around some tiles.

The shift is found by phase correlation (Kuglin and Hines, 1975), flow by dense inverse search (Kroeger et al., Fast
Optical Flow using Dense Inverse Search, 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import TILE_PX
from arr_coc.video.motion import correlate

Luma = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Box = tuple[slice, slice]

REACH_TILES = 2
"""Distance from tiles within which the flow looks for their origins."""

BOXES_MAX = 6
WHOLE_SHARE = 0.5
"""More boxes, or boxes that cover more of the frame, are done as one."""

FLOW_TEXELS = 32
"""Least side of pictures that OpenCV's flow takes, whatever their other side is."""

SAMPLES = 3
"""The flow of a tile is the median of this many samples each way."""

_AROUND = np.ones((2 * REACH_TILES + 1, 2 * REACH_TILES + 1), np.uint8)


def boxes_around(tiles: Mask) -> list[Box]:
    """Parts of the grid that hold these tiles, each with what is around it; disjoint."""
    full_grid = [(slice(0, tiles.shape[0]), slice(0, tiles.shape[1]))]
    if np.count_nonzero(tiles) > WHOLE_SHARE * tiles.size:
        return full_grid
    boxes = list(_bounds(cv2.dilate(tiles.view(np.uint8), _AROUND)))
    area = sum((rows.stop - rows.start) * (cols.stop - cols.start) for rows, cols in boxes)
    if area > WHOLE_SHARE * tiles.size:
        return full_grid
    return boxes


def _bounds(mask: Luma) -> Iterator[Box]:
    """Bounding boxes of a mask's connected parts, joined if they overlap; of all of it, if there are many."""
    count, _, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
    boxes = [(y, x, y + h, x + w) for x, y, w, h, _ in stats[1:count].tolist()]
    if len(boxes) > BOXES_MAX:
        boxes = [tuple(f(side) for f, side in zip((min, min, max, max), zip(*boxes, strict=True), strict=True))]
    while (pair := _overlapping(boxes)) is not None:
        first = boxes.pop(pair[1])
        second = boxes.pop(pair[0])
        boxes.append(
            (min(first[0], second[0]), min(first[1], second[1]), max(first[2], second[2]), max(first[3], second[3]))
        )
    for top, left, bottom, right in boxes:
        yield slice(top, bottom), slice(left, right)


def _overlapping(boxes: list[tuple[int, int, int, int]]) -> tuple[int, int] | None:
    for first, box in enumerate(boxes):
        for second in range(first + 1, len(boxes)):
            other = boxes[second]
            if box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]:
                return first, second
    return None


def texels_in(box: Box, texels: int) -> Box:
    """Return the part of a picture that shows a box of tiles, with `texels` texels each way."""
    rows, cols = (slice(side.start * texels, side.stop * texels) for side in box)
    return rows, cols


def one_shift(old: Luma, new: Luma) -> tuple[float, float] | None:
    """Return the motion of all of a picture uint8 [h, w] since `old`, in texels down and right; None if it is not
    clear."""
    half = new.shape[1] // 2, new.shape[0] // 2
    before, after = (cv2.resize(luma, half, interpolation=cv2.INTER_AREA).astype(np.float32) for luma in (old, new))
    dy, dx, _ = correlate(before, after)
    if abs(dy) > half[1] / 2 or abs(dx) > half[0] / 2:
        return None
    return (float(np.float32(2 * dy)), float(np.float32(2 * dx)))


class FlowSearch:
    """Dense flow of tiles with `texels` texels each way."""

    def __init__(self, texels: int) -> None:
        self._texels = texels
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)

    def add(self, tiles: Mask, new: Luma, base: Callable[[Box], Luma], dy_px: Floats, dx_px: Floats) -> None:
        """Add the flow in boxes around tiles to these tiles' motion.

        Args:
            tiles: The tiles, bool [rows, cols].
            new: Luma of the new picture, uint8 [rows * texels, cols * texels].
            base: Function that gives a box of the picture before, moved by the motion so far.
            dy_px: Motion down so far, float32 [rows, cols], which is changed in place.
            dx_px: Motion to the right so far, float32 [rows, cols], which is changed in place.
        """
        for box in boxes_around(tiles):
            backward = self._backward(new[texels_in(box, self._texels)], base(box))
            row, col = np.nonzero(tiles[box])
            rest_dy, rest_dx = self._tile_flow(backward, row, col)
            dy_px[box][row, col] += rest_dy
            dx_px[box][row, col] += rest_dx

    def _backward(self, new: Luma, base: Luma) -> Floats:
        """Return the earlier place of each texel of a picture in `base`: float32 [h, w, 2] (across, down)."""
        rows, cols = base.shape
        edges = 0, max(0, FLOW_TEXELS - rows), 0, max(0, FLOW_TEXELS - cols)
        if any(edges):
            new, base = (cv2.copyMakeBorder(luma, *edges, cv2.BORDER_REPLICATE) for luma in (new, base))
        return np.asarray(self._flow.calc(np.ascontiguousarray(new), base, None)[:rows, :cols], np.float32)

    def _tile_flow(
        self, backward: Floats, row: npt.NDArray[np.intp], col: npt.NDArray[np.intp]
    ) -> tuple[Floats, Floats]:
        """Medians of the flow of n tiles, in pixels, turned round to motion: float32 [n] each."""
        texels = self._texels
        places = (2 * np.arange(SAMPLES) + 1) * texels // (2 * SAMPLES)
        down, across = (tile[:, None] * texels + places for tile in (row, col))
        samples = backward[down[:, :, None], across[:, None, :]].reshape(len(row), SAMPLES * SAMPLES, 2)
        middle = np.sort(samples, axis=1)[:, SAMPLES * SAMPLES // 2] * np.float32(-TILE_PX / texels)
        return middle[:, 1], middle[:, 0]
