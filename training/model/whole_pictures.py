"""Lessons as a stock Qwen-VL learns: whole pictures on ordinary grids, of any size, alone, several, or as clips.

A picture has any resolution, as Qwen-VL's dynamic resolution gives it: every lesson is drawn at its own size and then
scaled. Several pictures in one prompt are an album, each asked about by its number, or one picture with enlarged
parts of it, as Qwen3-VL's zoom tool hands them in. No token is coarse, wide or left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
import torch

from arr_coc.qwen.preprocess import grid_regions, to_tiles
from arr_coc.types import TILE_PX, TileGrid
from training.clips.cast import one
from training.clips.truth import Box, Clip, Image, Seen
from training.model.lessons import BatchPlan, Lesson, Teacher
from training.model.views import Showing, TokenView, token_targets

Size = tuple[int, int]
"""(width, height) in pixels, whole tiles."""

SCALES = (0.3, 1.25)
"""Of the sides of a picture, drawn evenly, if it is not shown at its own size."""

READ_SCALES = (0.6, 1.25)
"""Of pictures whose text is asked for: smaller letters cannot be read."""

OWN_SIZE_SHARES = ((0.4, 0.8), (1.0, 0.4))
"""Until which share of training how many pictures are shown at their own size: what is small is learned last."""

SEVERAL_FROM = 0.25
"""Share of training from which there are prompts of several pictures."""

ALBUM_SHARE, ZOOM_SHARE = 0.12, 0.15
"""Of the batches that ask about single pictures: those of several pictures, and of a picture with parts of it."""

LEAST_TILES, MOST_TILES = 12, 1024
ALBUM_PICTURES = (2, 2, 3)
ALBUM_QUESTIONS = 3
"""About each picture of an album."""

PARTS = (1, 1, 2, 3)
PART_TILES = (2, 7)
"""Sides of an enlarged part, from and below."""

WHOLE_SCALES, PART_SCALES = (0.3, 0.7), (0.8, 1.2)
"""Of a picture whose parts are enlarged, and of these."""

_AIMED_SHARE = 0.6
"""Of the enlarged parts: those that show something asked about."""


@dataclass(frozen=True, slots=True)
class WholePlan(BatchPlan):
    """A plan whose pictures are shown whole: at `shown_px`, or of several pictures, each at its size in there.

    `parts`: all but the first picture are enlarged parts of it. `budget` is the number of tiles of the largest one.
    """

    shown_px: tuple[Size, ...] = ()
    parts: bool = False

    @property
    def album(self) -> bool:
        """Several pictures that have nothing to do with each other."""
        return len(self.shown_px) > 1 and not self.parts


class WholePictures:
    """Teacher and viewer at once of lessons about whole pictures."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._teacher = Teacher(rng)

    def plan(self, progress: float) -> WholePlan:
        """Settings of the next batch; `progress` in [0, 1] as for `Teacher`."""
        rng = self._rng
        plan = self._teacher.plan(progress)
        own_size = next(share for until, share in OWN_SIZE_SHARES if progress <= until)
        may_be_several = plan.asks and plan.frames == 1 and not plan.reads and progress >= SEVERAL_FROM
        several = rng.random() if may_be_several else 1.0
        if several < ALBUM_SHARE:
            sizes = tuple(self._shown(plan, own_size) for _ in range(one(rng, ALBUM_PICTURES)))
            return _whole(replace(plan, describes=False), sizes)
        if several < ALBUM_SHARE + ZOOM_SHARE:
            whole = _scaled_size(plan.size_px, float(rng.uniform(*WHOLE_SCALES)))
            parts = tuple(self._part(plan.size_px) for _ in range(one(rng, PARTS)))
            return _whole(plan, (whole, *parts), parts=True)
        return _whole(plan, (self._shown(plan, own_size),))

    def _shown(self, plan: BatchPlan, own_size: float) -> Size:
        if self._rng.random() < own_size:
            return _scaled_size(plan.size_px, 1.0)
        return _scaled_size(plan.size_px, float(self._rng.uniform(*(READ_SCALES if plan.reads else SCALES))))

    def _part(self, size_px: Size) -> Size:
        sides = (int(side) for side in self._rng.integers(*PART_TILES, 2))
        wide, high = (min(side, of_px // TILE_PX) * TILE_PX for side, of_px in zip(sides, size_px, strict=True))
        return wide, high

    def lesson(self, plan: WholePlan) -> Lesson:
        """A clip scaled to the plan's sizes, an album, or a picture with parts of it."""
        if plan.album:
            return _album([self._of_one(plan, size) for size in plan.shown_px])
        lesson = self._teacher.lesson(plan)
        return self._zoomed(lesson, plan.shown_px) if plan.parts else _scaled(lesson, plan.shown_px[0])

    def _of_one(self, plan: WholePlan, size: Size) -> Lesson:
        lesson = _scaled(self._teacher.lesson(plan), size)
        return replace(lesson, questions=lesson.questions[:ALBUM_QUESTIONS], about=lesson.about[:ALBUM_QUESTIONS])

    def _zoomed(self, lesson: Lesson, shown_px: tuple[Size, ...]) -> Lesson:
        rng, (image,), (things,) = self._rng, lesson.clip.frames, lesson.clip.things
        asked = lesson.asked_in(0)
        small = _scaled(lesson, shown_px[0])
        frames, seen = [small.clip.frames[0]], [small.clip.things[0]]
        for part_px in shown_px[1:]:
            scale = float(rng.uniform(*PART_SCALES))
            wide, high = (min(side, edge / scale) for side, edge in zip(lesson.clip.size_px, part_px, strict=True))
            aim = one(rng, asked) if asked and rng.random() < _AIMED_SHARE else (0.0, 0.0, *lesson.clip.size_px)
            x, y = (float(rng.uniform(aim[axis], aim[axis + 2])) for axis in (0, 1))
            left = int(np.clip(x - wide * rng.uniform(0.2, 0.8), 0, lesson.clip.size_px[0] - wide))
            top = int(np.clip(y - high * rng.uniform(0.2, 0.8), 0, lesson.clip.size_px[1] - high))
            window = image[top : top + int(high), left : left + int(wide)]
            placed = [_placed(thing, (left, top), _ratio(window, part_px)) for thing in things]
            frames.append(_resized(window, part_px))
            seen.append(tuple(thing for thing in placed if _touches(thing.box_px, part_px)))
        about = tuple((boxes[0],) * len(frames) if boxes else () for boxes in small.about)
        return Lesson(Clip(tuple(frames), (0.0,) * len(frames), tuple(seen)), small.questions, about, timed=False)

    def look(self, image: Image, things: Sequence[Seen], showing: Showing, about: Sequence[Box] = ()) -> TokenView:
        """All tiles of a picture uint8 [H, W, 3] of whole tiles, whatever `showing` and `about` say."""
        grid = TileGrid.of(*image.shape[:2])
        regions = grid_regions(grid).numpy().astype(np.int64)
        pixels = to_tiles(torch.from_numpy(image), TILE_PX).numpy()
        return TokenView(grid, regions, pixels, token_targets(things, image.shape[:2], regions))


def _whole(plan: BatchPlan, shown_px: tuple[Size, ...], *, parts: bool = False) -> WholePlan:
    tiles = max(TileGrid.of(high, wide).tiles for wide, high in shown_px)
    return WholePlan(
        plan.asks,
        plan.reads,
        plan.describes,
        plan.demo,
        plan.frames,
        plan.size_px,
        tiles,
        "grid",
        plan.compares,
        shown_px=shown_px,
        parts=parts,
    )


def _scaled_size(size_px: Size, scale: float) -> Size:
    """Nearest size of whole tiles; of `LEAST_TILES` to `MOST_TILES` if the picture itself has as many."""
    tiles = size_px[0] * size_px[1] / TILE_PX**2
    scale = min(max(scale, min(1.0, (LEAST_TILES / tiles) ** 0.5)), (MOST_TILES / tiles) ** 0.5)
    wide, high = (max(1, round(side * scale / TILE_PX)) * TILE_PX for side in size_px)
    return wide, high


def _scaled(lesson: Lesson, shown_px: Size) -> Lesson:
    """The lesson with its frames and all boxes scaled."""
    clip = lesson.clip
    if clip.size_px == shown_px:
        return lesson
    ratio = _ratio(clip.frames[0], shown_px)
    frames = tuple(_resized(frame, shown_px) for frame in clip.frames)
    things = tuple(tuple(_placed(thing, (0, 0), ratio) for thing in seen) for seen in clip.things)
    about = tuple(
        tuple(tuple(_moved(box, (0, 0), ratio) for box in boxes) for boxes in of_question)
        for of_question in lesson.about
    )
    return replace(lesson, clip=Clip(frames, clip.times_s, things), about=about)


def _album(lessons: list[Lesson]) -> Lesson:
    """Lessons about single pictures as one, whose questions name the picture's number.

    Boxes asked about are scaled to the first picture: places are learned as shares of the picture that is asked about.
    """
    clips = [lesson.clip for lesson in lessons]
    questions, about = [], []
    for number, lesson in enumerate(lessons, 1):
        ratio = _ratio(lesson.clip.frames[0], clips[0].size_px)
        for index, (question, answer) in enumerate(lesson.questions):
            questions.append((f"picture {number}: {question}", answer))
            boxes = lesson.about[index] if lesson.about else ()
            about.append(tuple(tuple(_moved(box, (0, 0), ratio) for box in boxes[0]) for _ in clips) if boxes else ())
    frames, things = tuple(clip.frames[0] for clip in clips), tuple(clip.things[0] for clip in clips)
    return Lesson(Clip(frames, (0.0,) * len(clips), things), tuple(questions), tuple(about), timed=False)


def _ratio(image: Image, shown_px: Size) -> tuple[float, float]:
    return shown_px[0] / image.shape[1], shown_px[1] / image.shape[0]


def _resized(image: Image, shown_px: Size) -> Image:
    smaller = shown_px[0] * shown_px[1] < image.shape[0] * image.shape[1]
    resized = cv2.resize(image, shown_px, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_CUBIC)
    return np.ascontiguousarray(resized, dtype=np.uint8)


def _placed(thing: Seen, corner_px: tuple[int, int], ratio: tuple[float, float]) -> Seen:
    letters = tuple(_moved(box, corner_px, ratio) for box in thing.letters)
    return replace(thing, box_px=_moved(thing.box_px, corner_px, ratio), letters=letters)


def _moved(box_px: Box, corner_px: tuple[int, int], ratio: tuple[float, float]) -> Box:
    left, top, right, bottom = box_px
    (x, y), (across, down) = corner_px, ratio
    return (left - x) * across, (top - y) * down, (right - x) * across, (bottom - y) * down


def _touches(box_px: Box, shown_px: Size) -> bool:
    left, top, right, bottom = box_px
    return right > 0 and bottom > 0 and left < shown_px[0] and top < shown_px[1]
