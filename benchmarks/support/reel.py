"""Endless drawn reel; the stages in one thread.

What is asked of one thousand frames is asked of every other one, so their accuracies compare without chance.
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass

import numpy as np

from arr_coc.types import FramePlanes
from stream.scenes.catalogue import MOSS, SAND, SLATE
from stream.scenes.drawing import RGB, GroundTruth, Movement, SceneObject, gradient
from stream.scenes.scene import Actor, Backdrop, Scene, Shot
from training.clips.demo_worlds import DemoQuestion, Kind, ask, random_facts

WIDTH_PX, HEIGHT_PX, FPS = 256, 160, 25
REEL_FRAMES = 1000
QUESTION_FRAMES = 40
"""Time that a question holds."""

SHOT_FRAMES = (*[QUESTION_FRAMES] * 14, 440)
"""Short shots, and a long one in which things hardly move, before a camera with sensor noise."""

NOISE_SIGMA = 3.0
TRAVEL_PX = 14.0
"""Distance that a moving thing covers over its shot: little, so that statements about it stay true."""

KINDS: tuple[Kind, ...] = ("colour", "shape", "count", "exists")
"""Questions that one frame answers as several do. Not the movement: of several frames that is the way between them,
which is short here."""

GROUNDS = (SLATE, SAND, MOSS)
"""In turns; the last shot's is not the first one's, so that the reel's beginning is a cut like the others."""

STEPS: dict[Movement, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


@dataclass(frozen=True)
class Reel:
    """`scenes` of one shot each, and the question of each stretch of frames, `REEL_FRAMES` in all."""

    scenes: tuple[Scene, ...]
    questions: tuple[DemoQuestion, ...]

    @classmethod
    def random(cls, seed: int = 0) -> Reel:
        """The same seed gives the same reel."""
        rng = np.random.default_rng(seed)
        scenes, questions = [], []
        for number, frames in enumerate(SHOT_FRAMES):
            facts = _facts(rng)
            scenes.append(_scene(facts, number, frames))
            for _ in range(frames // QUESTION_FRAMES):
                questions.append(ask(rng, facts, KINDS[len(questions) % len(KINDS)]))
        return cls(tuple(scenes), tuple(questions))

    def planes(self, index: int) -> FramePlanes:
        """The picture of any frame, however late."""
        scene, frame = self._place(index)
        return scene.planes(frame)

    def facts(self, index: int) -> GroundTruth:
        """Facts about it."""
        scene, frame = self._place(index)
        return scene.facts(frame)

    def question(self, index: int) -> DemoQuestion:
        """Question about it, and the right answer."""
        return self.questions[index % REEL_FRAMES // QUESTION_FRAMES]

    def _place(self, index: int) -> tuple[Scene, int]:
        starts = (0, *itertools.accumulate(SHOT_FRAMES))
        number = bisect.bisect_right(starts, index % REEL_FRAMES) - 1
        return self.scenes[number], index % REEL_FRAMES - starts[number]


def _facts(rng: np.random.Generator) -> GroundTruth:
    """A world of one to three things, none of them a number."""
    while not (facts := random_facts(rng, (WIDTH_PX, HEIGHT_PX), number_share=0.0)).things:
        pass
    return facts


def _scene(facts: GroundTruth, number: int, frames: int) -> Scene:
    seconds = frames / FPS
    actors = tuple(_actor(thing, seconds) for thing in facts.things)
    shot = Shot(seconds, _backdrop(GROUNDS[number % len(GROUNDS)]), actors)
    noise = NOISE_SIGMA if frames > QUESTION_FRAMES else 0.0
    return Scene(f"reel-{number}", WIDTH_PX, HEIGHT_PX, FPS, (shot,), noise)


def _actor(thing: SceneObject, seconds: float) -> Actor:
    """The thing, at its drawn place when half of the shot is over."""
    right, down = STEPS.get(thing.movement, (0, 0))
    path = tuple(
        (
            at_s,
            (thing.x_px + right * TRAVEL_PX * along) / WIDTH_PX,
            (thing.y_px + down * TRAVEL_PX * along) / HEIGHT_PX,
        )
        for at_s, along in ((0.0, -0.5), (seconds, 0.5))
    )
    return Actor(thing.shape, thing.colour, thing.size_px / HEIGHT_PX, path)


def _backdrop(colours: tuple[RGB, RGB]) -> Backdrop:
    return lambda width_px, height_px: gradient(width_px, height_px, *colours)
