"""Motion of each tile between what the texture holds and a new frame, with a confidence.

Guesses are tried from cheap to dear, on luma at level 2 or 3, and only on tiles that changed: no motion, the camera's
with the frame before, the codec's motion vectors, one shift (phase correlation). Each is judged by the picture: it
explains a tile if the old picture, moved so, looks like the new one. Dense inverse search then runs around those
tiles only that no guess explains, backward, from the new picture to the old one; a tile takes its median
(`motion_search`). One step of registration does the rest.

A tile's confidence is whether it has structure in two directions (the smaller eigenvalue of its structure tensor; Shi
and Tomasi, Good Features to Track, 1994), and how well its motion explains it. If that says little (a plain wall,
repeated lines), a tile moves as the camera does (`camera_motion`) if that explains the picture, else not at all. Tiles
that did not change did not move, whatever moves around them; plain ones go with a camera that moves, because they look
like their neighbours.

Two estimators do the same: the reference here, and one with a compiled kernel (`compiled_motion`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import LEAST_CONFIDENCE, LEAST_MOTION_PX, TILE_PX, FramePlanes, Layout, TileGrid, TileMotion
from arr_coc.video.camera_motion import LEAST_SUPPORT, CameraMotion, fit_camera
from arr_coc.video.motion import halve_plane
from arr_coc.video.motion_search import Box, FlowSearch, boxes_around, one_shift, texels_in
from arr_coc.video.tile_patches import LEAST_TEXELS, NOISE, MovedTiles, TilePair, moved_texels

Luma = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

WIDTH_TEXELS = 480
"""Luma is halved until it is at most this wide, but a tile has at least this many texels each way."""

CODED_SHARE = 0.1
SHIFT_SHARE = 0.25
"""Share of changed tiles that must be left without an explanation for the codec's motion vectors to be read, and for
one shift of all of them to be looked for."""

LEAST_TOGETHER = 3
"""If a guess explains the rest, fewer tiles together that it does not explain lie at the border of what moves: they
show both sides, and flow finds nothing there."""

CODED_FRAMES = 1, 2, 3
"""Numbers of frames that a codec's motion may span: to the frame before, or past one or two frames of kind B."""

CODED_SAMPLES = 48
"""Tiles on which the number of frames is chosen."""

GUESS_LEAVES = 0.9
"""Flow begins from one motion of the whole part if that leaves less than this share of the mean difference."""

SAME_PX = 0.5
"""Motions of the camera this near to each other explain the same."""

BETTER = 0.8
"""The camera's motion replaces a tile's own if it leaves less than this share of the difference."""

EXPLAINS = 1.2
"""And it fills a tile in if it leaves at most this share of the smallest difference that anything leaves."""

FILLED = 0.5
"""Most confidence of a motion that was filled in."""

MOVING_SHARE = 0.5
"""Share of visible tiles that move with the camera from which it counts as moving."""


@dataclass(frozen=True, slots=True)
class MotionEstimate:
    """Result for one frame: `motion`, None if nothing moved; `camera_moved`: most visible tiles move, as one."""

    motion: TileMotion | None
    camera_moved: bool


class TileMotionEstimator(ABC):
    """Estimates motion of the tiles of frames of one size, of one layout. `estimate` changes nothing that the next one
    depends on; `keep` goes on to the frame.

    Tiles of `masked` bool [rows, cols] are black in all frames: they do not move, whatever moves around them.
    """

    def __init__(self, grid: TileGrid, layout: Layout, masked: Mask | None = None) -> None:
        self.grid = grid
        self.layout = layout
        self._masked = masked if masked is not None and masked.any() else None
        self.texel_px = 1
        while grid.width_px > WIDTH_TEXELS * self.texel_px and self.texel_px < TILE_PX // LEAST_TEXELS:
            self.texel_px *= 2
        self.texels = TILE_PX // self.texel_px

    @abstractmethod
    def estimate(self, old_planes: FramePlanes, planes: FramePlanes, dirty: Mask) -> MotionEstimate:
        """Return the motion of tiles from one frame to the next.

        Args:
            old_planes: The frame in the texture.
            planes: The next frame. Its `coded_motion` is since the frame in the texture, or a few frames more.
            dirty: Tiles that differ, bool [rows, cols].
        """

    @abstractmethod
    def keep(self, has_estimate: bool) -> None:
        """The texture holds the frame estimated last; False: it holds one that was not compared."""

    def _without_masked(self, motion: TileMotion, masked: Mask) -> tuple[TileMotion, int, int]:
        """Return the motion in which masked tiles stand still, the number of tiles that move, and that of the visible
        ones, at least 1."""
        dy, dx = (np.where(masked, np.float32(0), way) for way in (motion.dy_px, motion.dx_px))
        motion = TileMotion(dy, dx, np.where(masked, np.float32(1), motion.confidence))
        visible = max(1, self.grid.tiles - int(np.count_nonzero(masked)))
        return motion, int(np.count_nonzero(_moves(motion))), visible


@dataclass(frozen=True, slots=True)
class _Past:
    """State of a frame: small luma, not blurred and blurred; motion; that of the camera, seen in all of it."""

    halved: Luma
    luma: Luma
    motion: TileMotion | None
    camera: CameraMotion | None


class ReferenceMotion(TileMotionEstimator):
    """By NumPy and OpenCV."""

    def __init__(self, grid: TileGrid, layout: Layout, masked: Mask | None = None) -> None:
        super().__init__(grid, layout, masked)
        self._last: _Past | None = None
        self._next: _Past | None = None
        self._flow = FlowSearch(self.texels)

    def keep(self, has_estimate: bool) -> None:
        self._last = self._next if has_estimate else None
        self._next = None

    def estimate(self, old_planes: FramePlanes, planes: FramePlanes, dirty: Mask) -> MotionEstimate:
        boxes = boxes_around(dirty)
        last = self._last or self._read(old_planes, [(slice(0, self.grid.rows), slice(0, self.grid.cols))], None)
        new = self._read(planes, boxes, last)
        dy, dx = np.zeros((2, *dirty.shape), np.float32)
        confidence = np.where(dirty, np.float32(0), np.float32(1))
        camera = None
        for box in boxes:
            part = _Part(last, new.luma, dirty, box, self.texels)
            part_motion, camera = part.motion(self._flow, _Coded(planes, self.grid))
            dy[box], dx[box], confidence[box] = (
                values[box] for values in (part_motion.dy_px, part_motion.dx_px, part_motion.confidence)
            )
        if dirty[boxes[0]].size < dirty.size:
            camera = None
        motion = TileMotion(dy, dx, confidence)
        moves = _moves(motion)
        self._next = replace(new, motion=motion if moves.any() else None, camera=camera)
        moving = int(np.count_nonzero(moves))
        visible = self.grid.tiles
        if self._masked is not None:
            motion, moving, visible = self._without_masked(motion, self._masked)
        camera_moved = camera is not None and moving >= MOVING_SHARE * visible
        return MotionEstimate(motion if moving else None, camera_moved)

    def _read(self, planes: FramePlanes, boxes: list[Box], last: _Past | None) -> _Past:
        """Small luma with what is new in boxes of tiles, and elsewhere as it was; blurred, then padded to whole
        tiles."""
        texel_px = self.texel_px
        grid = self.grid
        rows = grid.height_px // texel_px
        cols = grid.width_px // texel_px
        small = np.zeros((rows, cols), np.uint8)
        blurred = np.zeros((grid.rows * self.texels, grid.cols * self.texels), np.uint8)
        if small.size:
            texel = halve_plane(planes.planes[0][: rows * texel_px, : cols * texel_px], texel_px)
            if self.layout == "rgb":
                luma = cv2.cvtColor(texel, cv2.COLOR_RGB2GRAY)
            else:
                luma = texel
            small = small if last is None else last.halved.copy()
            for box in boxes:
                window = texels_in(box, self.texels)
                small[window] = luma[window]
            soft = cv2.GaussianBlur(small, (3, 3), 0, borderType=cv2.BORDER_REPLICATE)
            below = blurred.shape[0] - rows
            right = blurred.shape[1] - cols
            blurred = np.asarray(cv2.copyMakeBorder(soft, 0, below, 0, right, cv2.BORDER_REPLICATE), np.uint8)
        return _Past(small, blurred, None, None)


def _moves(motion: TileMotion) -> Mask:
    return np.maximum(np.abs(motion.dy_px), np.abs(motion.dx_px)) >= LEAST_MOTION_PX


@dataclass(frozen=True, slots=True)
class _Guess:
    """One motion of a whole part, and what it explains."""

    camera: CameraMotion
    explained: MovedTiles


@dataclass(frozen=True, slots=True)
class _Coded:
    """Motion of a frame's codec, read on demand."""

    planes: FramePlanes
    grid: TileGrid

    def of(self, tiles: npt.NDArray[np.intp]) -> tuple[Floats, Floats] | None:
        """(dy_px, dx_px) of some tiles, NaN for tiles without motion vectors: float32 [n] each."""
        if self.planes.coded_motion is None:
            motion = None
        else:
            motion = self.planes.coded_motion.over(self.grid)
        if motion is None:
            return None
        return (motion[0].ravel()[tiles], motion[1].ravel()[tiles])


class _Part:
    """A part of a frame, compared in its dirty tiles; in all of them if it is the whole frame."""

    def __init__(self, last: _Past, new: Luma, dirty: Mask, box: Box, texels: int) -> None:
        self._last = last
        self._new = new
        self._box = box
        self._shape = dirty.shape
        self._is_full_frame = dirty[box].size == dirty.size
        mask = np.zeros_like(dirty)
        mask[box] = True
        tiles = np.flatnonzero(mask & (dirty | self._is_full_frame))
        self._dirty = dirty.ravel()[tiles]
        self._pair = TilePair(last.luma, new, texels, tiles)
        self._structure, self._zero_motion = self._pair.structure(), self._pair.without_motion()

    def motion(self, flow: FlowSearch, coded: _Coded) -> tuple[TileMotion, CameraMotion | None]:
        """Return motion float32 [rows, cols], of the part's tiles, and the camera's if most of them agree on one."""
        best, guess = self._guessed(coded)
        best = self._flowed(flow, best, guess)
        # the motion that each dirty tile shows by itself: the best one, and the rest by registration
        rest_dy, rest_dx = self._pair.rest(best.patches)
        dy, dx = np.where(self._dirty, [best.dy_px + rest_dy, best.dx_px + rest_dx], np.float32(0))
        confidence = np.where(self._dirty, self._structure * self._pair.fit(best.residual), np.float32(0))
        weights = np.where(confidence >= np.float32(LEAST_CONFIDENCE), confidence, np.float32(0))
        weak = self._dirty & (weights == 0)
        camera = None
        if self._is_full_frame or weak.any():
            camera, of_camera = self._camera(dy, dx, weights, guess)
            if camera is not None and of_camera is not None:
                (dy, dx, confidence), weak = self._with_camera(
                    (dy, dx, confidence), best.residual, weak, camera.support, of_camera
                )
        dy, dx = np.where(weak, np.float32(0), [dy, dx])
        moves = np.maximum(np.abs(dy), np.abs(dx)) >= LEAST_MOTION_PX
        confidence = np.where(self._dirty | moves, confidence, np.float32(1))
        return TileMotion(self._over_all(dy), self._over_all(dx), self._over_all(confidence, 1)), camera

    def _over_all(self, values: Floats, fill: float = 0) -> Floats:
        """Return the values of tiles [n] in the frame: float32 [rows, cols]."""
        frame = np.full(self._shape, fill, np.float32)
        frame.ravel()[self._pair.tiles] = values
        return frame

    def _expected(self) -> CameraMotion | None:
        """Return the motion expected to go on: the camera's, or that of most moving tiles in this part of the frame."""
        motion = self._last.motion
        if self._is_full_frame or motion is None:
            return self._last.camera if self._is_full_frame else None
        movers = (_moves(motion) & (motion.confidence >= LEAST_CONFIDENCE))[self._box]
        if not movers.any():
            return None
        ways = np.sort(np.stack([motion.dy_px[self._box][movers], motion.dx_px[self._box][movers]]), axis=1)
        return CameraMotion.shift(*ways[:, ways.shape[1] // 2].tolist())

    def _camera(
        self, dy: Floats, dx: Floats, weights: Floats, guess: _Guess | None
    ) -> tuple[CameraMotion | None, MovedTiles | None]:
        """Return the motion that most tiles which are sure agree on, and what it explains. It is the guess, if they do,
        which needs no fit."""
        if guess is not None:
            explained = guess.explained
            agreement = (np.abs(dy - explained.dy_px) <= SAME_PX) & (np.abs(dx - explained.dx_px) <= SAME_PX)
            support = float(weights[agreement].sum(dtype=np.float64)) / max(float(weights.sum(dtype=np.float64)), 1e-6)
            if support >= LEAST_SUPPORT:
                return CameraMotion(guess.camera.matrix, support), explained
        camera = fit_camera(*(self._over_all(values) for values in (dy, dx, weights)))
        return camera, None if camera is None else self._pair.with_camera(camera)

    def _guessed(self, coded: _Coded) -> tuple[MovedTiles, _Guess | None]:
        """Return the motion of each tile as far as it can be guessed, and the guess about all of them that leaves
        least, if one leaves less than no motion does. Flow begins there, so that it does not take one line of text for
        the next."""
        best, guess = self._tried(self._expected(), self._zero_motion, None)
        if self._more(CODED_SHARE, self._open(best)) and (vectors := coded.of(self._pair.tiles)) is not None:
            best = self._as_coded(best, *vectors)
        if self._more(SHIFT_SHARE, self._open(best)):
            window = texels_in(self._box, self._pair.texels)
            shift = one_shift(self._last.luma[window], self._new[window])
            if shift is None:
                by_px = None
            else:
                by_px = CameraMotion.shift(*(self._pair.texel_px * way for way in shift))
            best, guess = self._tried(by_px, best, guess)
        return best, guess

    def _tried(
        self, camera: CameraMotion | None, best: MovedTiles, guess: _Guess | None
    ) -> tuple[MovedTiles, _Guess | None]:
        """Return the same with one more guess about all tiles, if given and better than any before."""
        if camera is None:
            return best, guess
        explained = self._pair.with_camera(camera)
        if guess is None:
            least = GUESS_LEAVES * self._sad(self._zero_motion)
        else:
            least = self._sad(guess.explained)
        if self._sad(explained) >= least:
            return best, guess
        return best.or_better(explained), _Guess(camera, explained)

    def _as_coded(self, best: MovedTiles, dy: Floats, dx: Floats) -> MovedTiles:
        """Return the same, with the codec's motion for tiles that nothing explains yet and that it explains better.

        How many frames it spans is what explains some of those tiles best.
        """
        candidates = self._open(best) & np.isfinite(dy) & (np.maximum(np.abs(dy), np.abs(dx)) >= LEAST_MOTION_PX)
        if not candidates.any():
            return best
        sample = np.zeros_like(candidates)
        indices = np.flatnonzero(candidates)
        sample[indices[:: -(-len(indices) // CODED_SAMPLES)]] = True
        ways = [(dy * np.float32(1 / frames), dx * np.float32(1 / frames)) for frames in CODED_FRAMES]
        sums = [int(self._pair.with_motions(*way, sample).sad[sample].sum()) for way in ways]
        return best.or_better(self._pair.with_motions(*ways[int(np.argmin(sums))], candidates))

    def _more(self, share: float, tiles: Mask) -> bool:
        """Return True if these are more than this share of the dirty tiles."""
        return bool(np.count_nonzero(tiles) > share * np.count_nonzero(self._dirty))

    def _sad(self, tiles: MovedTiles) -> int:
        """Return the sum of absolute differences over dirty tiles."""
        return int(tiles.sad[self._dirty].sum())

    def _open(self, best: MovedTiles) -> Mask:
        """Dirty tiles that are not explained yet: bool [n]."""
        return self._dirty & ~self._pair.explained_tiles(best.residual, self._zero_motion.residual)

    def _flowed(self, flow: FlowSearch, best: MovedTiles, guess: _Guess | None) -> MovedTiles:
        """Return the same, with dense flow from the guess on for visible tiles that nothing explains."""
        targets = np.zeros(self._shape, bool)
        targets.ravel()[self._pair.tiles] = self._open(best)
        camera = CameraMotion.shift(0, 0)
        if guess is not None:
            _, groups, stats, _ = cv2.connectedComponentsWithStats(targets.view(np.uint8), connectivity=8)
            targets = np.asarray(targets & (stats[:, cv2.CC_STAT_AREA] >= LEAST_TOGETHER)[groups])
            camera = guess.camera
        dy, dx = camera.over(*self._shape)
        if self._is_full_frame:
            # tiles that were in view before they moved so, but for a pixel: bool [rows, cols]
            rows, cols = dy.shape
            down, right = (np.arange(size, dtype=np.float32) * TILE_PX for size in (rows, cols))
            top = down[:, None] - dy
            left = right - dx
            targets &= (top >= -1) & (top <= down[-1] + 1) & (left >= -1) & (left <= right[-1] + 1)
        if not targets.any():
            return best
        flow.add(targets, self._new, lambda box: self._moved(box, camera), dy, dx)
        tiles = self._pair.tiles
        return best.or_better(self._pair.with_motions(dy.ravel()[tiles], dx.ravel()[tiles], targets.ravel()[tiles]))

    def _moved(self, box: Box, camera: CameraMotion) -> Luma:
        """Return a box of the old picture, moved as a camera does."""
        places = np.mgrid[texels_in(box, self._pair.texels)]
        return moved_texels(self._last.luma, camera, self._pair.texels, *places)

    def _with_camera(
        self, motion: tuple[Floats, Floats, Floats], residual: Floats, weak: Mask, support: float, camera: MovedTiles
    ) -> tuple[tuple[Floats, Floats, Floats], Mask]:
        """Let tiles whose motion says little, or leaves more than the camera's does, move with the camera; return the
        weak ones that it does not explain."""
        dy, dx, confidence = motion
        camera_residual = camera.residual
        fills = weak & (camera_residual <= np.float32(EXPLAINS) * residual + np.float32(NOISE))
        fills |= self._dirty & (camera_residual < np.float32(BETTER) * residual)
        fills |= (
            ~self._dirty & (self._structure < np.float32(LEAST_CONFIDENCE)) & (camera_residual <= np.float32(NOISE))
        )
        trust = np.float32(support) * self._pair.fit(camera_residual) * np.maximum(self._structure, np.float32(FILLED))
        dy = np.where(fills, camera.dy_px, dy)
        dx = np.where(fills, camera.dx_px, dx)
        return (dy, dx, np.where(fills, np.maximum(trust, confidence), confidence)), weak & ~fills
