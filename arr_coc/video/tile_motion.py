"""Motion of each tile between what the texture holds and a new frame, with a confidence.

Guesses are tried from cheap to dear, on luma at level 2 or 3, and only on tiles that changed: no motion, the camera's
with the frame before, the codec's motion vectors, one shift (phase correlation; Kuglin and Hines, 1975). Each is judged
by the picture: it explains a tile where the old picture, moved so, looks like the new one. Dense inverse search
(Kroeger et al., Fast Optical Flow using Dense Inverse Search, 2016; OpenCV's) then runs around those tiles only that no
guess explains, backward, from the new picture to the old one; a tile takes its median. One step of registration does
the rest.

A tile's confidence says whether it has structure in two directions (the smaller eigenvalue of its structure tensor; Shi
and Tomasi, Good Features to Track, 1994), and how well its motion explains it. Where that tells little (a plain wall,
repeated lines), a tile moves as the camera does (`camera_motion`), else as its neighbours, else not at all: whichever
explains the picture. Tiles that did not change did not move, whatever moves around them; plain ones go with a camera
that moves, because they cannot be told from their neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import LEAST_CONFIDENCE, LEAST_MOTION_PX, TILE_PX, FramePlanes, TileGrid, TileMotion
from arr_coc.video.camera_motion import LEAST_SUPPORT, CameraMotion, fit_camera
from arr_coc.video.motion import Thumbnail, correlate, halved
from arr_coc.video.tile_patches import LEAST_TEXELS, NOISE, MovedTiles, TilePair

Luma = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Box = tuple[slice, slice]

WIDTH_TEXELS = 480
"""Luma is halved until it is at most this wide, but a tile has at least so many texels each way."""

REACH_TILES = 2
"""How far around tiles the flow looks for where they came from."""

_AROUND = np.ones((2 * REACH_TILES + 1, 2 * REACH_TILES + 1), np.uint8)

BOXES_MAX = 6
WHOLE_SHARE = 0.5
"""More boxes, or boxes that cover more of the frame, are done as one."""

CODED_SHARE, SHIFT_SHARE = 0.1, 0.25
"""Share of changed tiles that must be left without an explanation for the codec's motion vectors to be read, and for
one shift of all of them to be looked for."""

LEAST_TOGETHER = 3
"""Where a guess explains the rest, fewer tiles together that it does not explain lie at the border of what moves: they
show both sides, and flow finds nothing there."""

CODED_FRAMES = 1, 2, 3
"""How many frames a codec's motion may span: that to the frame before, or past one or two frames of kind B."""

CODED_SAMPLES = 48
"""Tiles on which the number of frames is chosen."""

GUESS_LEAVES = 0.9
"""Flow begins from one motion of the whole part where that leaves less than this share of the mean difference."""

SAME_PX = 0.5
"""Motions of the camera this near to each other explain the same."""

BETTER = 0.8
"""The camera's motion replaces a tile's own where it leaves less than this share of the difference."""

EXPLAINS = 1.2
"""And it fills a tile in where it leaves at most this share of the smallest difference that anything leaves."""

FILLED = 0.5
"""Most confidence of a motion that was filled in."""

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
        self._last: MotionEstimate | None = None
        self._flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)

    def keep(self, estimate: MotionEstimate | None) -> None:
        """The texture holds this frame now; None: it holds one that was not compared."""
        self._last = estimate

    def estimate(
        self, held: FramePlanes, planes: FramePlanes, dirty: Mask, thumbnail: Thumbnail | None = None
    ) -> MotionEstimate:
        """Return the motion from `held`, the planes in the texture, to `planes`, of which `dirty` tiles differ.

        `planes.coded_motion` is since the frame that the texture holds, or a few frames more.

        `thumbnail` of `planes`, if there is one, saves reading them again.
        """
        boxes = _boxes(dirty)
        old = self._read(held, [_all_of(dirty)]) if self._last is None else self._last.luma
        new = self._read(planes, boxes, old, thumbnail)
        dy, dx = np.zeros(dirty.shape, np.float32), np.zeros(dirty.shape, np.float32)
        confidence = np.where(dirty, np.float32(0), np.float32(1))
        camera = None
        for box in boxes:
            is_whole = dirty[box].shape == dirty.shape
            pair = self._texels_of(old, box), self._texels_of(new, box)
            part = _Part(*pair, dirty[box], self._texels, whole=is_whole)
            found, together = part.motion(
                self._flow, self._expected(box, whole=is_whole), _Coded(planes, self.grid, box)
            )
            dy[box], dx[box] = found.dy_px, found.dx_px
            confidence[box] = np.where(dirty[box] | _moves(found), found.confidence, 1)
            camera = together if is_whole else None
        motion = TileMotion(dy, dx, confidence)
        moves = _moves(motion)
        camera_moved = camera is not None and float(moves.mean()) >= MOVING_SHARE
        return MotionEstimate(motion if moves.any() else None, camera_moved, camera, new)

    def _expected(self, box: Box, *, whole: bool) -> CameraMotion | None:
        """What moved goes on as it did: the camera, or most of what moved in this part of the frame."""
        if self._last is None or whole:
            return None if self._last is None else self._last.camera
        motion = self._last.motion
        if motion is None:
            return None
        moved = _moves(motion)[box] & (motion.confidence[box] >= LEAST_CONFIDENCE)
        if not moved.any():
            return None
        ways = np.sort(np.stack([motion.dy_px[box][moved], motion.dx_px[box][moved]]), axis=1)
        return CameraMotion.shift(*ways[:, ways.shape[1] // 2].tolist())

    def _read(
        self, planes: FramePlanes, boxes: list[Box], old: Luma | None = None, thumbnail: Thumbnail | None = None
    ) -> Luma:
        """Luma [rows · texels, cols · texels], blurred, with what is new in boxes of tiles, and elsewhere as it was."""
        texels = self._texels
        small = np.zeros((self.grid.rows * texels, self.grid.cols * texels), np.uint8) if old is None else old.copy()
        for box in boxes:
            part = _texels(small, box, texels)
            shown = self._halved(planes, box, thumbnail if part.size == small.size else None)
            if min(shown.shape):
                edges = 0, part.shape[0] - shown.shape[0], 0, part.shape[1] - shown.shape[1]
                padded = cv2.copyMakeBorder(shown, *edges, cv2.BORDER_REPLICATE) if any(edges) else shown
                part[:] = cv2.GaussianBlur(padded, (3, 3), 0, borderType=cv2.BORDER_REPLICATE)
        return small

    def _halved(self, planes: FramePlanes, box: Box, thumbnail: Thumbnail | None) -> Luma:
        """Luma of the texels of a box that lie wholly in the frame. `thumbnail`: of the frame, if the box is all."""
        level = self._texel_px.bit_length() - 1
        if thumbnail is not None and 0 < level <= len(thumbnail.halvings):
            texel = thumbnail.halvings[level - 1]
        else:
            part = _texels(planes.planes[0], box, TILE_PX)
            height, width = (size // self._texel_px for size in part.shape[:2])
            if not (height and width):
                return np.empty((0, 0), np.uint8)
            texel = halved(part[: height * self._texel_px, : width * self._texel_px], self._texel_px)
        return cv2.cvtColor(texel, cv2.COLOR_RGB2GRAY) if planes.layout == "rgb" else texel

    def _texels_of(self, luma: Luma, box: Box) -> Luma:
        return np.ascontiguousarray(_texels(luma, box, self._texels))


def _texels(luma: npt.NDArray[np.uint8], box: Box, texels: int) -> Luma:
    """The part of a picture that shows a box of tiles."""
    rows, cols = (slice(part.start * texels, part.stop * texels) for part in box)
    return luma[rows, cols]


def _boxes(tiles: Mask) -> list[Box]:
    """Parts of the grid that hold these tiles, each with what is around it; disjoint."""
    if np.count_nonzero(tiles) > WHOLE_SHARE * tiles.size:
        return [_all_of(tiles)]
    boxes = list(_bounds(cv2.dilate(tiles.view(np.uint8), _AROUND)))
    covered = sum((rows.stop - rows.start) * (cols.stop - cols.start) for rows, cols in boxes)
    if covered > WHOLE_SHARE * tiles.size:
        return [_all_of(tiles)]
    return boxes


def _all_of(tiles: Mask) -> Box:
    return slice(0, tiles.shape[0]), slice(0, tiles.shape[1])


def _bounds(mask: npt.NDArray[np.uint8]) -> Iterator[Box]:
    """Bounding boxes of a mask's connected parts, joined where they overlap; of all of it, where there are many."""
    count, _, stats, _ = cv2.connectedComponentsWithStats(mask, connectivity=8)
    boxes = [(y, x, y + h, x + w) for x, y, w, h, _ in stats[1:count].tolist()]
    if len(boxes) > BOXES_MAX:
        boxes = [tuple(f(side) for f, side in zip((min, min, max, max), zip(*boxes, strict=True), strict=True))]
    while (pair := _overlapping(boxes)) is not None:
        one, other = boxes.pop(pair[1]), boxes.pop(pair[0])
        boxes.append((min(one[0], other[0]), min(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3])))
    for top, left, bottom, right in boxes:
        yield slice(top, bottom), slice(left, right)


def _together(tiles: Mask, least: int) -> Mask:
    """Those of the tiles of which at least so many lie together."""
    _, groups, stats, _ = cv2.connectedComponentsWithStats(tiles.view(np.uint8), connectivity=8)
    enough = stats[:, cv2.CC_STAT_AREA] >= least
    return np.asarray(tiles & enough[groups])


def _overlapping(boxes: list[tuple[int, int, int, int]]) -> tuple[int, int] | None:
    for first, one in enumerate(boxes):
        for second in range(first + 1, len(boxes)):
            other = boxes[second]
            if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]:
                return first, second
    return None


def _moves(motion: TileMotion) -> Mask:
    return np.maximum(np.abs(motion.dy_px), np.abs(motion.dx_px)) >= LEAST_MOTION_PX


@dataclass(frozen=True, slots=True)
class _Guess:
    """One motion of a whole part, what it explains, and the old picture moved so."""

    camera: CameraMotion
    explained: MovedTiles
    picture: Luma


@dataclass(frozen=True, slots=True)
class _Coded:
    """What a frame's codec says of the motion of a box of tiles, read when it is asked for."""

    planes: FramePlanes
    grid: TileGrid
    box: Box

    def motion(self) -> tuple[Floats, Floats] | None:
        """(dy_px, dx_px), NaN where it says nothing: float32 [rows, cols] each."""
        motion = None if self.planes.coded_motion is None else self.planes.coded_motion.over(self.grid)
        return None if motion is None else (motion[0][self.box], motion[1][self.box])


class _Part:
    """Two small pictures of the same part of a frame: uint8 [rows · texels, cols · texels], and its dirty tiles."""

    def __init__(self, old: Luma, new: Luma, dirty: Mask, texels: int, *, whole: bool) -> None:
        """`whole`: they show the whole frame. Plain tiles then go with the camera, also where they did not change."""
        self._old, self._new, self._dirty, self._whole = old, new, dirty, whole
        self._dirty_count = int(np.count_nonzero(dirty))
        self._pair = TilePair(old, new, texels)
        self._structure, self._still = self._pair.structure(), self._pair.still()

    def motion(
        self, flow: cv2.DISOpticalFlow, expected: CameraMotion | None, coded: _Coded
    ) -> tuple[TileMotion, CameraMotion | None]:
        """Return the motion of the part's tiles, and the camera's where most of them agree on one.

        `expected` is how it moved with the frame before, which mostly goes on.
        """
        best, guess = self._guessed(expected, coded)
        best = self._flowed(flow, best, guess)
        found = self._own_motion(best)
        sure = np.where(found.confidence >= LEAST_CONFIDENCE, found.confidence, np.float32(0))
        weak = self._dirty & (sure == 0)
        camera = None
        if self._whole or weak.any():
            camera, of_camera = self._camera(found, sure, guess)
            if camera is not None and of_camera is not None:
                found, weak = self._with_camera(found, best.left, weak, camera.support, of_camera)
        return (self._like_neighbours(found, best.left, weak, sure) if weak.any() else found), camera

    def _camera(
        self, found: TileMotion, sure: Floats, guess: _Guess | None
    ) -> tuple[CameraMotion | None, MovedTiles | None]:
        """The motion that most tiles which are sure agree on, and what it explains. It is the guess, if they do, which
        needs no fit."""
        if guess is not None:
            near, support = guess.explained, 0.0
            agree = (np.abs(found.dy_px - near.dy_px) <= SAME_PX) & (np.abs(found.dx_px - near.dx_px) <= SAME_PX)
            support = float(sure[agree].sum()) / max(float(sure.sum()), 1e-6)
            if support >= LEAST_SUPPORT:
                return CameraMotion(guess.camera.matrix, support), near
        camera = fit_camera(found.dy_px, found.dx_px, sure)
        return camera, None if camera is None else self._pair.with_camera(camera)[0]

    def _guessed(self, expected: CameraMotion | None, coded: _Coded) -> tuple[MovedTiles, _Guess | None]:
        """The motion of each tile as far as it can be guessed, and the guess about all of them that leaves least, if
        one leaves less than no motion does. Flow begins there, so that it does not take one line of text for the
        next."""
        best, guess = self._tried(expected, self._still, None)
        if self._more(CODED_SHARE, self._open(best)) and (vectors := coded.motion()) is not None:
            best = self._as_coded(best, *vectors)
        if self._more(SHIFT_SHARE, self._open(best)):
            best, guess = self._tried(self._shift(), best, guess)
        return best, guess

    def _tried(
        self, camera: CameraMotion | None, best: MovedTiles, guess: _Guess | None
    ) -> tuple[MovedTiles, _Guess | None]:
        """The same with one more guess about all tiles, if there is one and it leaves less than any before."""
        if camera is None:
            return best, guess
        explained, picture = self._pair.with_camera(camera)
        least = GUESS_LEAVES * self._mean(self._still.left) if guess is None else self._mean(guess.explained.left)
        if self._mean(explained.left) >= least:
            return best, guess
        return best.or_better(explained), _Guess(camera, explained, picture)

    def _as_coded(self, best: MovedTiles, dy: Floats, dx: Floats) -> MovedTiles:
        """The same, with the codec's motion where nothing explains a tile yet and that does better.

        How many frames it spans is what explains some of those tiles best.
        """
        wanted = self._open(best) & np.isfinite(dy) & (np.maximum(np.abs(dy), np.abs(dx)) >= LEAST_MOTION_PX)
        if not wanted.any():
            return best
        some = np.zeros_like(wanted)
        at = np.flatnonzero(wanted)
        some.ravel()[at[:: -(-len(at) // CODED_SAMPLES)]] = True
        ways = [(dy * np.float32(1 / frames), dx * np.float32(1 / frames)) for frames in CODED_FRAMES]
        left = [float(self._pair.each(*way, some).left[some].mean()) for way in ways]
        return best.or_better(self._pair.each(*ways[int(np.argmin(left))], wanted))

    def _more(self, share: float, tiles: Mask) -> bool:
        """Whether these are more than this share of the dirty tiles."""
        return bool(np.count_nonzero(tiles) > share * self._dirty_count)

    def _mean(self, left: Floats) -> float:
        """Mean over dirty tiles."""
        return float(np.vdot(left, self._dirty.astype(np.float32))) / self._dirty_count

    def _open(self, best: MovedTiles) -> Mask:
        """Dirty tiles that are not explained yet: bool [rows, cols]."""
        return self._dirty & ~self._pair.explained(best.left, self._still.left)

    def _shift(self) -> CameraMotion | None:
        half = self._new.shape[1] // 2, self._new.shape[0] // 2
        old, new = (
            cv2.resize(luma, half, interpolation=cv2.INTER_AREA).astype(np.float32) for luma in (self._old, self._new)
        )
        dy, dx, _ = correlate(old, new)
        if abs(dy) > half[1] / 2 or abs(dx) > half[0] / 2:
            return None
        return CameraMotion.shift(2 * dy * self._pair.texel_px, 2 * dx * self._pair.texel_px)

    def _flowed(self, flow: cv2.DISOpticalFlow, best: MovedTiles, guess: _Guess | None) -> MovedTiles:
        """The same, with dense flow from the guess on where nothing explains a tile that was in view."""
        wanted = self._open(best)
        if guess is not None:
            wanted = _together(wanted, LEAST_TOGETHER)
        if not wanted.any():
            return best
        camera, base = (CameraMotion.shift(0, 0), self._old) if guess is None else (guess.camera, guess.picture)
        dy, dx = camera.over(*self._pair.shape)
        if self._whole:
            wanted &= _in_view(dy, dx)
        if not wanted.any():
            return best
        texels = self._pair.texels
        for box in _boxes(wanted):
            backward = _dense_flow(flow, _texels(self._new, box, texels), _texels(base, box, texels))
            rest_dy, rest_dx = _tile_flow(backward, texels)
            dy[box] += rest_dy
            dx[box] += rest_dx
        return best.or_better(self._pair.each(dy, dx, wanted))

    def _own_motion(self, best: MovedTiles) -> TileMotion:
        """The motion that each dirty tile shows by itself: the best one, and the rest by registration."""
        rest_dy, rest_dx = self._pair.rest(best.patches)
        dirty = self._dirty.astype(np.float32)
        confidence = self._structure * (self._pair.fit(best.left) * dirty)
        return TileMotion((best.dy_px + rest_dy) * dirty, (best.dx_px + rest_dx) * dirty, confidence)

    def _with_camera(
        self, found: TileMotion, left: Floats, weak: Mask, support: float, camera: MovedTiles
    ) -> tuple[TileMotion, Mask]:
        """Tiles whose motion says little, or leaves more than the camera's does, move with the camera; the weak ones
        that it does not explain are returned."""
        after = camera.left
        fills = weak & (after <= EXPLAINS * left + NOISE)
        fills |= self._dirty & (after < BETTER * left)
        if self._whole:
            fills |= ~self._dirty & (self._structure < LEAST_CONFIDENCE) & (after <= NOISE)
        if not fills.any():
            return found, weak
        trust = np.float32(support) * self._pair.fit(after) * np.maximum(self._structure, np.float32(FILLED))
        merged = TileMotion(
            np.where(fills, camera.dy_px, found.dy_px),
            np.where(fills, camera.dx_px, found.dx_px),
            np.where(fills, np.maximum(trust, found.confidence), found.confidence),
        )
        return merged, weak & ~fills

    def _like_neighbours(self, found: TileMotion, left: Floats, weak: Mask, sure: Floats) -> TileMotion:
        """Weak tiles move as those around them that are sure, where that explains them, or not at all."""
        around = cv2.GaussianBlur(sure, (5, 5), 0)
        dy, dx = (
            cv2.GaussianBlur(part * sure, (5, 5), 0) / np.maximum(around, np.float32(1e-6))
            for part in (found.dy_px, found.dx_px)
        )
        near = weak & (around > 0)
        after = self._pair.each(dy, dx, near).left
        fills = near & (after <= EXPLAINS * left + NOISE)
        filled = np.float32(FILLED) * np.minimum(around, 1) * self._pair.fit(after)
        return TileMotion(
            np.where(weak, np.where(fills, dy, np.float32(0)), found.dy_px),
            np.where(weak, np.where(fills, dx, np.float32(0)), found.dx_px),
            np.where(fills, filled, found.confidence),
        )


def _in_view(dy_px: Floats, dx_px: Floats) -> Mask:
    """Tiles that were in view before they moved so, but for a pixel: bool [rows, cols]."""
    rows, cols = dy_px.shape
    down, right = (np.arange(size, dtype=np.float32) * TILE_PX for size in (rows, cols))
    top, left = down[:, None] - dy_px, right - dx_px
    return (top >= -1) & (top <= down[-1] + 1) & (left >= -1) & (left <= right[-1] + 1)


def _dense_flow(flow: cv2.DISOpticalFlow, new: Luma, base: Luma) -> Floats:
    """Where each texel of a picture was in `base`: float32 [h, w, 2] (across, down)."""
    rows, cols = base.shape
    edges = 0, max(0, FLOW_TEXELS - rows), 0, max(0, FLOW_TEXELS - cols)
    if any(edges):
        new, base = (cv2.copyMakeBorder(luma, *edges, cv2.BORDER_REPLICATE) for luma in (new, base))
    backward = flow.calc(np.ascontiguousarray(new), np.ascontiguousarray(base), None)
    return np.asarray(backward[:rows, :cols], np.float32)


def _tile_flow(backward: Floats, texels: int) -> tuple[Floats, Floats]:
    """Medians of the tiles' flow, in pixels, turned round to motion."""
    places = [((2 * sample + 1) * texels) // (2 * SAMPLES) for sample in range(SAMPLES)]
    samples = np.stack([backward[row::texels, col::texels] for row in places for col in places])
    middle = np.sort(samples, axis=0)[len(samples) // 2] * np.float32(-TILE_PX / texels)
    return middle[..., 1], middle[..., 0]
