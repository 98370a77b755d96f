"""Motion of each tile between what the texture holds and a new frame, with a confidence.

Dense inverse search (Kroeger et al., Fast Optical Flow using Dense Inverse Search, 2016; OpenCV's) runs backward, from
the new picture to the old one, on luma at level 2 or 3, around tiles that changed; the rest of the frame costs nothing.
A tile takes the flow's median. Its confidence says whether the tile has structure in two directions (the smaller
eigenvalue of its structure tensor; Shi and Tomasi, Good Features to Track, 1994), and whether the old picture, moved
so, looks like the new one.

Where that tells little (a plain wall, repeated lines), a tile moves as the camera does (`camera_motion`), else as its
neighbours, else not at all: whichever explains the picture. Tiles that did not change did not move, whatever moves
around them; plain ones go with a camera that moves, because they cannot be told from their neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import TILE_PX, FramePlanes, TileGrid, TileMotion
from arr_coc.video.camera_motion import CameraMotion, fit_camera
from arr_coc.video.motion import correlate

Luma = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Box = tuple[slice, slice]

WIDTH_TEXELS = 480
LEAST_TEXELS = 4
"""Luma is halved until it is at most this wide, but a tile has at least so many texels each way."""

REACH_TILES = 2
"""How far around changed tiles the flow looks for where they came from."""

BOXES_MAX = 6
WHOLE_SHARE = 0.5
"""More boxes, or boxes that cover more of the frame, are done as one."""

STRUCTURE = 1.0
"""Square root of the smaller eigenvalue of a tile's structure tensor, in grey levels a texel, that gives half of the
confidence: twice what noise of σ = 2 leaves after the area mean and the blur."""

FITS, MISFITS = 0.45, 0.95
"""Mean difference after motion, over the tile's own standard deviation, that is as good as none, and that unrelated
content has. Texture of single pixels that moved by half a texel has 0.47."""

NOISE = 2.0
"""Grey levels of difference that say nothing."""

TRUSTED = 0.25
"""Confidence from which a tile's own flow counts."""

BETTER = 0.8
"""The camera's motion replaces a tile's own where it leaves less than this share of the difference."""

EXPLAINS = 1.2
"""And it fills a tile in where it leaves at most this share of the smallest difference that anything leaves."""

FILLED = 0.5
"""Most confidence of a motion that was filled in."""

GUESS_LEAVES = 0.9
"""Flow begins from one motion of the whole part where that leaves less than this share of the mean difference."""

STILL_PX = 0.25
"""Motion below this is none."""

REST_TEXELS = 1.0
LEAST_SLOPE = 0.1
"""A registration step goes at most so far, and nowhere where the squared slope is below this."""

MOVING_SHARE = 0.5
"""Share of tiles that move with the camera from which it counts as moving."""

FLOW_TEXELS = 32
"""Least side of pictures that OpenCV's flow takes, whatever their other side is."""

SAMPLES = 3
"""The flow of a tile is the median of so many samples each way."""


@dataclass(frozen=True, slots=True)
class MotionEstimate:
    """Result for one frame: `motion`, None where nothing moved; `camera_moved`: most that could tell moved as one;
    what is kept for the next frame, once this one is in the texture: `camera`, and the small picture `luma`."""

    motion: TileMotion | None
    camera_moved: bool
    camera: CameraMotion | None
    luma: Luma


class TileMotionEstimator:
    """Estimates motion of the tiles of frames of one size. `estimate` changes nothing; `keep` goes on to the frame."""

    def __init__(self, grid: TileGrid) -> None:
        self.grid = grid
        self._texel_px = 1
        while grid.width_px > WIDTH_TEXELS * self._texel_px and self._texel_px < TILE_PX // LEAST_TEXELS:
            self._texel_px *= 2
        self._texels = TILE_PX // self._texel_px
        self._luma: Luma | None = None
        self._camera: CameraMotion | None = None
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)

    def keep(self, estimate: MotionEstimate | None) -> None:
        """The texture holds this frame now; None: it holds one that was not compared."""
        self._luma = None if estimate is None else estimate.luma
        self._camera = None if estimate is None else estimate.camera

    def estimate(self, held: FramePlanes, planes: FramePlanes, dirty: Mask) -> MotionEstimate:
        """Return the motion from `held`, the planes in the texture, to `planes`, of which `dirty` tiles differ."""
        old = self._luma if self._luma is not None else self._read(held, np.ones(self.grid.shape, bool), None)
        new = self._read(planes, dirty, old)
        rows, cols = self.grid.shape
        dy, dx = np.zeros((rows, cols), np.float32), np.zeros((rows, cols), np.float32)
        confidence = np.where(dirty, np.float32(0), np.float32(1))
        whole = None
        for box in self._boxes(dirty):
            is_whole = dirty[box].shape == dirty.shape
            pair = self._texels_of(old, box), self._texels_of(new, box)
            part = _Comparison(*pair, dirty[box], self._texels, whole=is_whole)
            found, camera = part.motion(self._flow, self._camera if is_whole else None)
            dy[box], dx[box] = found.dy_px, found.dx_px
            confidence[box] = np.where(dirty[box] | _moves(found), found.confidence, 1)
            whole = camera if is_whole else None
        motion = TileMotion(dy, dx, confidence)
        moves = _moves(motion)
        camera_moved = whole is not None and float(moves.mean()) >= MOVING_SHARE
        return MotionEstimate(motion if moves.any() else None, camera_moved, whole, new)

    def _read(self, planes: FramePlanes, dirty: Mask, old: Luma | None) -> Luma:
        """Luma [rows · texels, cols · texels], blurred, with what is new in `dirty` tiles only."""
        texels = self._texels
        small = np.zeros((self.grid.rows * texels, self.grid.cols * texels), np.uint8) if old is None else old.copy()
        for rows, cols in _bounds(dirty):
            part = planes.planes[0][
                rows.start * TILE_PX : rows.stop * TILE_PX, cols.start * TILE_PX : cols.stop * TILE_PX
            ]
            size = (cols.stop - cols.start) * texels, (rows.stop - rows.start) * texels
            whole = min(size[0], part.shape[1] // self._texel_px), min(size[1], part.shape[0] // self._texel_px)
            if not min(whole):
                continue
            crop = part[: whole[1] * self._texel_px, : whole[0] * self._texel_px]
            texel = cv2.resize(crop, whole, interpolation=cv2.INTER_AREA)
            luma = cv2.cvtColor(texel, cv2.COLOR_RGB2GRAY) if planes.layout == "rgb" else texel
            edges = 0, size[1] - whole[1], 0, size[0] - whole[0]
            padded = cv2.copyMakeBorder(luma, *edges, cv2.BORDER_REPLICATE)
            softened = cv2.GaussianBlur(padded, (3, 3), 0, borderType=cv2.BORDER_REPLICATE)
            small[rows.start * texels : rows.stop * texels, cols.start * texels : cols.stop * texels] = softened
        return small

    def _boxes(self, dirty: Mask) -> Iterator[Box]:
        """Parts of the grid that hold the dirty tiles, each with what is around it; disjoint."""
        around = 2 * REACH_TILES + 1
        near = cv2.dilate(dirty.astype(np.uint8), np.ones((around, around), np.uint8)) > 0
        boxes = list(_bounds(near))
        covered = sum((rows.stop - rows.start) * (cols.stop - cols.start) for rows, cols in boxes)
        if covered > WHOLE_SHARE * dirty.size:
            yield slice(0, dirty.shape[0]), slice(0, dirty.shape[1])
        else:
            yield from boxes

    def _texels_of(self, luma: Luma, box: Box) -> Luma:
        rows, cols = (slice(part.start * self._texels, part.stop * self._texels) for part in box)
        return np.ascontiguousarray(luma[rows, cols])


def _bounds(mask: Mask) -> Iterator[Box]:
    """Bounding boxes of a mask's connected parts, joined where they overlap; of all of it, where there are many."""
    count, _, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)
    boxes = [(int(y), int(x), int(y + h), int(x + w)) for x, y, w, h, _ in stats[1:count]]
    if len(boxes) > BOXES_MAX:
        boxes = [tuple(f(side) for f, side in zip((min, min, max, max), zip(*boxes, strict=True), strict=True))]
    while (pair := _overlapping(boxes)) is not None:
        one, other = boxes.pop(pair[1]), boxes.pop(pair[0])
        boxes.append((min(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3])))
    for top, left, bottom, right in boxes:
        yield slice(top, bottom), slice(left, right)


def _overlapping(boxes: list[tuple[int, int, int, int]]) -> tuple[int, int] | None:
    for first, one in enumerate(boxes):
        for second in range(first + 1, len(boxes)):
            other = boxes[second]
            if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]:
                return first, second
    return None


def _moves(motion: TileMotion) -> Mask:
    return np.maximum(np.abs(motion.dy_px), np.abs(motion.dx_px)) >= STILL_PX


@lru_cache(maxsize=8)
def _texel_places(rows: int, cols: int) -> tuple[Floats, Floats]:
    """Column and row of each texel, float32 [rows, cols] each."""
    across, down = np.meshgrid(np.arange(cols, dtype=np.float32), np.arange(rows, dtype=np.float32))
    return across, down


class _Comparison:
    """Two small pictures of the same part of a frame: uint8 [rows · texels, cols · texels], and its dirty tiles."""

    def __init__(self, old: Luma, new: Luma, dirty: Mask, texels: int, *, whole: bool) -> None:
        """`whole`: they show the whole frame."""
        self._old, self._new, self._dirty, self._texels, self._whole = old, new, dirty, texels, whole
        self._texel_px = TILE_PX // texels
        self._spread = self._tile_spread()
        down, across = (cv2.Sobel(new, cv2.CV_32F, *order, scale=1 / 8) for order in ((0, 1), (1, 0)))
        self._slopes = down, across
        self._products = tuple(self._tile_means(of) for of in (down * down, across * across, down * across))
        self._structure = self._tile_structure()
        self._still = self._difference(old)

    def motion(self, flow: cv2.DISOpticalFlow, expected: CameraMotion | None) -> tuple[TileMotion, CameraMotion | None]:
        """Return the motion of the part's tiles, and the camera's where most of them agree on one.

        `expected` is the camera's motion with the frame before, which mostly goes on.
        """
        found, left = self._own_motion(flow, *self._guess(expected))
        sure = np.where(found.confidence >= TRUSTED, found.confidence, np.float32(0))
        camera = fit_camera(found.dy_px, found.dx_px, sure)
        weak = self._dirty & (sure == 0)
        if camera is not None:
            found, weak = self._with_camera(found, left, weak, camera)
        return (self._like_neighbours(found, left, weak, sure) if weak.any() else found), camera

    def _guess(self, expected: CameraMotion | None) -> tuple[CameraMotion, Luma]:
        """One motion of the whole part that explains some of its change, and the old picture moved so: the expected
        one, or a shift by phase correlation (Kuglin and Hines, 1975), or none. Flow begins there, so that it does not
        take one line of text for the next."""
        changed = float(self._still[self._dirty].mean())
        for make in (lambda: expected, self._shift):
            guess = make()
            if guess is not None:
                moved = self._moved_by_camera(guess)
                if float(self._difference(moved)[self._dirty].mean()) < GUESS_LEAVES * changed:
                    return guess, moved
        return CameraMotion.shift(0, 0), self._old

    def _shift(self) -> CameraMotion | None:
        half = self._new.shape[1] // 2, self._new.shape[0] // 2
        old, new = (
            cv2.resize(luma, half, interpolation=cv2.INTER_AREA).astype(np.float32) for luma in (self._old, self._new)
        )
        dy, dx, _ = correlate(old, new)
        if abs(dy) > half[1] / 2 or abs(dx) > half[0] / 2:
            return None
        return CameraMotion.shift(2 * dy * self._texel_px, 2 * dx * self._texel_px)

    def _own_motion(self, flow: cv2.DISOpticalFlow, guess: CameraMotion, base: Luma) -> tuple[TileMotion, Floats]:
        """The motion that each dirty tile shows by itself, and the mean difference that it leaves.

        It is that of the flow, of the guess, or none, whichever explains the tile best, and the rest by registration.
        """
        guess_dy, guess_dx = guess.over(*self._dirty.shape)
        rest_dy, rest_dx = self._tile_flow(self._dense_flow(flow, base))
        flow_dy, flow_dx = guess_dy + rest_dy, guess_dx + rest_dx
        moved = self._moved_by_tiles(flow_dy, flow_dx)
        of_flow, of_guess = self._difference(moved), self._difference(base)
        left = np.minimum(np.minimum(of_flow, of_guess), self._still)
        stays, guessed = ~self._dirty | (self._still <= left), of_guess <= left
        picture = self._chosen(stays, self._old, self._chosen(guessed, base, moved))
        polish_dy, polish_dx = self._rest(picture)
        dy = np.where(stays, 0, np.where(guessed, guess_dy, flow_dy)) + polish_dy
        dx = np.where(stays, 0, np.where(guessed, guess_dx, flow_dx)) + polish_dx
        confidence = self._structure * np.where(self._dirty, self._fit(left), np.float32(1))
        dy, dx = (np.where(self._dirty, part, np.float32(0)) for part in (dy, dx))
        return TileMotion(dy, dx, confidence), left

    def _with_camera(
        self, found: TileMotion, left: Floats, weak: Mask, camera: CameraMotion
    ) -> tuple[TileMotion, Mask]:
        """Tiles whose motion says little, or leaves more than the camera's does, move with the camera; the weak ones
        that it does not explain are returned."""
        after = self._difference(self._moved_by_camera(camera))
        fills = weak & (after <= EXPLAINS * left + NOISE)
        fills |= self._dirty & (after < BETTER * left)
        if self._whole:
            fills |= ~self._dirty & (self._structure < TRUSTED) & (after <= NOISE)
        trust = camera.support * self._fit(after) * np.maximum(self._structure, np.float32(FILLED))
        dy, dx = camera.over(*self._dirty.shape)
        confidence = np.where(fills, np.maximum(trust, found.confidence), found.confidence).astype(np.float32)
        merged = TileMotion(np.where(fills, dy, found.dy_px), np.where(fills, dx, found.dx_px), confidence)
        return merged, weak & ~fills

    def _like_neighbours(self, found: TileMotion, left: Floats, weak: Mask, sure: Floats) -> TileMotion:
        """Weak tiles move as those around them that are sure, where that explains them, or not at all."""
        around = cv2.GaussianBlur(sure, (5, 5), 0)
        dy, dx = (
            cv2.GaussianBlur(part * sure, (5, 5), 0) / np.maximum(around, np.float32(1e-6))
            for part in (found.dy_px, found.dx_px)
        )
        after = self._difference(self._moved_by_tiles(dy, dx))
        fills = weak & (around > 0) & (after <= EXPLAINS * left + NOISE)
        filled = FILLED * np.minimum(around, 1) * self._fit(after)
        return TileMotion(
            np.where(weak, np.where(fills, dy, np.float32(0)), found.dy_px),
            np.where(weak, np.where(fills, dx, np.float32(0)), found.dx_px),
            np.where(fills, filled, found.confidence).astype(np.float32),
        )

    def _rest(self, base: Luma) -> tuple[Floats, Floats]:
        """How far the tiles of a picture are still from where they are now, in pixels: one step of Lucas and Kanade's
        registration (1981), for what is within a texel."""
        change = self._new.astype(np.float32) - base
        by, bx = (self._tile_means(slope * change) for slope in self._slopes)
        yy, xx, xy = self._products
        determinant = yy * xx - xy * xy + (LEAST_SLOPE * (yy + xx)) + LEAST_SLOPE**2
        dy, dx = (xy * bx - (xx + LEAST_SLOPE) * by) / determinant, (xy * by - (yy + LEAST_SLOPE) * bx) / determinant
        return tuple(np.clip(step, -REST_TEXELS, REST_TEXELS) * self._texel_px for step in (dy, dx))

    def _dense_flow(self, flow: cv2.DISOpticalFlow, base: Luma) -> Floats:
        """Where each texel was in `base`: float32 [h, w, 2] (across, down)."""
        rows, cols = base.shape
        edges = 0, max(0, FLOW_TEXELS - rows), 0, max(0, FLOW_TEXELS - cols)
        if not any(edges):
            return np.asarray(flow.calc(self._new, base, None), np.float32)
        new, old = (cv2.copyMakeBorder(luma, *edges, cv2.BORDER_REPLICATE) for luma in (self._new, base))
        return np.ascontiguousarray(flow.calc(new, old, None)[:rows, :cols], np.float32)

    def _tile_flow(self, backward: Floats) -> tuple[Floats, Floats]:
        """Medians of the tiles' flow, in pixels, turned round to motion."""
        texels = self._texels
        places = [((2 * sample + 1) * texels) // (2 * SAMPLES) for sample in range(SAMPLES)]
        samples = np.stack([backward[row::texels, col::texels] for row in places for col in places])
        middle = np.sort(samples, axis=0)[len(samples) // 2]
        return -middle[..., 1] * self._texel_px, -middle[..., 0] * self._texel_px

    def _tile_means(self, values: Floats | Luma) -> Floats:
        rows, cols = self._dirty.shape
        return np.asarray(cv2.resize(values, (cols, rows), interpolation=cv2.INTER_AREA), np.float32)

    def _difference(self, moved: Luma) -> Floats:
        return self._tile_means(cv2.absdiff(moved, self._new).astype(np.float32))

    def _fit(self, difference: Floats) -> Floats:
        """How well the tiles are explained by what leaves this mean difference, in [0, 1]."""
        share = np.maximum(difference - NOISE, 0) / np.maximum(self._spread, NOISE)
        return np.clip((MISFITS - share) / (MISFITS - FITS), 0, 1).astype(np.float32)

    def _tile_spread(self) -> Floats:
        picture = self._new.astype(np.float32)
        mean = self._tile_means(picture)
        return np.sqrt(np.maximum(self._tile_means(picture * picture) - mean * mean, 0))

    def _tile_structure(self) -> Floats:
        """Share in [0, 1]: whether a tile has structure in two directions."""
        yy, xx, xy = self._products
        least = np.maximum((yy + xx) / 2 - np.sqrt(((yy - xx) / 2) ** 2 + xy * xy), 0)
        return np.asarray(least / (least + STRUCTURE**2), np.float32)

    def _moved(self, old: Luma, backward: Floats) -> Luma:
        """A picture, brought to where the flow float32 [h, w, 2] (across, down) says that it is now."""
        across, down = _texel_places(*old.shape)
        places = across + backward[..., 0], down + backward[..., 1]
        return np.asarray(cv2.remap(old, *places, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE), np.uint8)

    def _chosen(self, tiles: Mask, one: Luma, other: Luma) -> Luma:
        """`one` in the given tiles and `other` elsewhere."""
        mask = cv2.resize(tiles.astype(np.uint8), one.shape[::-1], interpolation=cv2.INTER_NEAREST)
        return np.asarray(cv2.copyTo(one, mask, other.copy()), np.uint8)

    def _moved_by_tiles(self, dy_px: Floats, dx_px: Floats) -> Luma:
        rows, cols = self._new.shape
        flow = np.stack([-dx_px, -dy_px], axis=-1) / self._texel_px
        return self._moved(self._old, cv2.resize(flow, (cols, rows), interpolation=cv2.INTER_NEAREST))

    def _moved_by_camera(self, camera: CameraMotion) -> Luma:
        size, flags = self._new.shape[::-1], cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        matrix = camera.warp(self._texels)
        return np.asarray(cv2.warpAffine(self._old, matrix, size, flags=flags, borderMode=cv2.BORDER_REPLICATE))
