"""Scene cuts of a picture of which a part is masked.

What is masked is black before and after a cut: it would count as a part that stays. So cuts are judged in rectangles
of tiles that nothing masks, each by a detector that sees nothing else. Without a mask, that is the whole picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from arr_coc.texture.store.planes import SUBSAMPLING
from arr_coc.types import TILE_PX, FramePlanes, TileGrid
from arr_coc.video.cuts import CutVerdict, SceneCutDetector
from arr_coc.video.motion import Thumbnail
from arr_coc.video.picture_mask import PictureMask

BUSY_SHARE = 0.25
"""Share of dirty tiles from which a frame may be a cut; below it nothing more is computed. A dark shot's cut may leave
most of the frame black."""

COVERED_SHARE = 0.6
"""Share of the tiles without a mask that the rectangles cover at least: less of the picture says too little of it, and
a mask across the middle leaves two halves."""

PARTS_MAX = 4
"""Most rectangles: around a mask in the middle there are four."""

Tiles = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TileBox:
    """Rows `top` to `bottom` and columns `left` to `right` of tiles; the ends are not in it."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def area(self) -> int:
        """Number of its tiles."""
        return (self.bottom - self.top) * (self.right - self.left)

    def cut_out(self, planes: FramePlanes) -> FramePlanes:
        """Return its part of a frame, as views."""
        parts = []
        for plane in planes.planes:
            sizes = (planes.height_px, plane.shape[0]), (planes.width_px, plane.shape[1])
            down, across = (next(step for step in SUBSAMPLING if -(-full // step) == size) for full, size in sizes)
            rows = TILE_PX // down
            cols = TILE_PX // across
            parts.append(plane[self.top * rows : self.bottom * rows, self.left * cols : self.right * cols])
        return replace(planes, planes=tuple(parts), coded_motion=None)


@dataclass(frozen=True, slots=True)
class ThumbnailPair:
    """One part of the frame before, and of the frame."""

    before: Thumbnail
    after: Thumbnail


class _Part:
    """One part of the picture, and the thumbnail of the frame in the texture, if there is one."""

    def __init__(self, box: TileBox | None) -> None:
        self.box = box
        self.detector = SceneCutDetector()
        self.last: Thumbnail | None = None

    def cut_out(self, planes: FramePlanes) -> FramePlanes:
        if self.box is None:
            return planes
        return self.box.cut_out(planes)


class VisibleCutDetector:
    """Detector of new shots in what no mask covers: `judge` checks a frame, `advance` goes on to the next one."""

    def __init__(self, mask: PictureMask | None = None) -> None:
        self._mask = mask
        self._grid: TileGrid | None = None
        self._visible: Tiles | None = None
        self._parts: list[_Part] = [_Part(None)]

    def judge(
        self, read_held: Callable[[], FramePlanes], planes: FramePlanes, dirty: Tiles, grid: TileGrid
    ) -> tuple[CutVerdict, tuple[ThumbnailPair, ...]]:
        """Return the verdict for a frame, and its thumbnails if it changed much.

        Args:
            read_held: Gives the frame before, at a cost.
            planes: The frame.
            dirty: Which tiles changed, bool [rows, cols].
            grid: Tiles of both frames.
        """
        if self._mask is not None and grid != self._grid:  # other parts for frames of another size
            self._grid = grid
            visible = ~self._mask.tiles(grid)
            self._visible = visible
            self._parts = [_Part(box) for box in visible_boxes(visible)]
        if self._visible is None:
            visible_dirty = dirty
        else:
            visible_dirty = dirty[self._visible]
        if visible_dirty.size:
            share = float(np.count_nonzero(visible_dirty) / visible_dirty.size)
        else:
            share = 0.0
        if share < BUSY_SHARE or not self._parts:
            return CutVerdict(dirty_share=share), ()
        held_planes = read_held()
        verdicts = []
        pairs = []
        for part in self._parts:
            before = part.cut_out(held_planes)
            after = part.cut_out(planes)
            pair = ThumbnailPair(part.last or Thumbnail.of(before), Thumbnail.of(after))
            pairs.append(pair)
            verdicts.append(part.detector.judge(pair.before, pair.after, share, (before, after)))
        # A cut replaces all parts: the one that says least decides. A part that was replaced by something plain, as a
        # sky or a wall, says neither: a cut is seen in the others.
        voting = [verdict for verdict in verdicts if not verdict.became_plain] or verdicts
        return min(voting, key=lambda verdict: (verdict.is_cut, verdict.score)), tuple(pairs)

    def advance(self, pairs: tuple[ThumbnailPair, ...], *, changed: bool, camera_moved: bool) -> None:
        """Remember a frame that was written: its thumbnails if it `changed` much, or that a frame has passed.

        `camera_moved`: one shift of the whole picture explains the change.
        """
        for index, part in enumerate(self._parts):
            if index < len(pairs):
                pair = pairs[index]
                part.last = pair.after
                part.detector.advance(pair.before, pair.after, camera_moved)
            else:
                part.last = None if changed else part.last
                part.detector.advance()

    def forget(self) -> None:
        """Forget earlier frames, because the next frame cannot be compared with them."""
        for part in self._parts:
            part.last = None
            part.detector.forget()


def visible_boxes(visible: Tiles) -> list[TileBox]:
    """Return rectangles without a masked tile that together cover enough of the visible ones, the largest first.

    `visible`: bool [rows, cols].
    """
    rest = visible.copy()
    boxes = list[TileBox]()
    total = int(np.count_nonzero(visible))
    while len(boxes) < PARTS_MAX and sum(box.area for box in boxes) < COVERED_SHARE * total:
        box = _largest_box(rest)
        boxes.append(box)
        rest[box.top : box.bottom, box.left : box.right] = False
    return boxes


def _largest_box(free: Tiles) -> TileBox:
    """Return the largest rectangle of free tiles [rows, cols], of which there is one at least."""
    rows = len(free)
    best = TileBox(0, 0, 0, 0)
    for top in range(rows):
        open_cols = free[top].copy()
        for bottom in range(top + 1, rows + 1):
            open_cols &= free[bottom - 1]
            edges = np.flatnonzero(np.diff(np.concatenate([[False], open_cols, [False]])))
            if not len(edges):
                break
            longest = int((edges[1::2] - edges[::2]).argmax())
            box = TileBox(top, bottom, int(edges[2 * longest]), int(edges[2 * longest + 1]))
            best = max(best, box, key=lambda candidate: candidate.area)
    return best
