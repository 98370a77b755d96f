"""Drawn clips in which one thing happens: frames, light, and what is there at each answer point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from arr_coc.errors import OptionError
from evaluation.special_samples import place_apart
from stream.scenes.drawing import RGB, gradient
from training.clips.cast import COLOUR_NAMES, ClipOptions, Player, one, shape_player, text_player
from training.clips.fonts import random_number, random_word
from training.clips.grounds import Degradation
from training.clips.scenes import ClipPlan
from training.clips.truth import Box, Image, Seen

EventKind = Literal["moves", "leaves", "comes", "replaced", "hidden", "text", "swap", "light"]
EVENTS: tuple[EventKind, ...] = ("moves", "leaves", "comes", "replaced", "hidden", "text", "swap", "light")

FRAMES_A_SECOND = 4
POINTS = (6, 10)
"""Answer points of a clip."""

EVERY_FRAMES = (4, 8)
"""Frames from one answer point to the next, the same through a clip: one to two seconds."""

SIZES_PX = ((384, 256), (512, 320))
STILL_THINGS = (1, 2)
"""Things beside those that the event is about; with these, a description has at most four."""

EVENT_SHAPES = ("circle", "square", "triangle", "star", "cross", "ring")
SCENE = ClipOptions(sizes_px=(42.0, 80.0), capitals_px=(18, 24), clutter=0.0, worn=False)
"""Plain scenes, like `scene:demo`, that the bundled model describes from a snapshot with hardly an error: the suite
tests a memory, not the model. On the other suites' grounds it often names one thing twice."""

GRAINS = (0.0, 3.0)
"""Noise of the sensor, in levels of 255."""

_HIDDEN_PX, _COVER_PX = (32.0, 36.0), (62.0, 64.0)
_COVERS = ("square", "circle")
"""Shapes without a hole or a notch: one of 62 pixels covers any shape of 36."""

MOST_THINGS, APART = 3, 0.08
"""Most things at an answer point, and least distance of their middles as a share of the picture's width: as in the
scenes that the bundled model was trained on."""

GAINS = (0.2, 0.4)
"""Least and largest change of the light."""

_TRIES = 600
_SEEDS = 2**62


@dataclass(frozen=True, slots=True)
class Schedule:
    """Frames of a clip: `answers` are asked about; the event takes those after `answers[at - 1]`, and is over at
    `answers[at]`. What is hidden comes back before `answers[back]`."""

    answers: tuple[int, ...]
    at: int
    back: int

    @classmethod
    def random(cls, rng: np.random.Generator) -> Schedule:
        points = int(rng.integers(POINTS[0], POINTS[1] + 1))
        interval_frames = int(rng.integers(EVERY_FRAMES[0], EVERY_FRAMES[1] + 1))
        return cls(tuple(interval_frames * index for index in range(points)), points // 2 - 1, points // 2 + 1)

    @property
    def frames(self) -> int:
        """Number of frames."""
        return self.answers[-1] + 1

    def during(self, at: int) -> range:
        """Return the frames between an answer point and the one before it."""
        return range(self.answers[at - 1] + 1, self.answers[at])


@dataclass(frozen=True, slots=True)
class EventClip:
    """A clip before it is drawn. `actor`: name of the thing that the event is about, before it; `after`: of what it is
    about afterwards, another thing if it is replaced; `others`: names of those that stay. `gains` [frames]: light.
    """

    kind: EventKind
    plan: ClipPlan
    schedule: Schedule
    actor: str
    after: str
    others: tuple[str, ...]
    gains: tuple[float, ...]

    def there(self, frame: int) -> tuple[Seen, ...]:
        """Return the things in a frame."""
        return self.plan.things[frame]

    def draw(self) -> list[Image]:
        """Return the frames, uint8 RGB [H, W, 3]: a sensor's noise differs from frame to frame."""
        rng = np.random.default_rng(self.plan.seed)
        width, height = self.plan.size_px
        ground = gradient(width, height, _grey(rng), _grey(rng), float(rng.uniform(0, 360)))
        wear = Degradation(grain=float(rng.uniform(*GRAINS)))
        frames = []
        for frame, gain in enumerate(self.gains):
            image = ground.copy()
            for player in self.plan.cast:
                player.draw(image, frame)
            frames.append(wear.of(rng, np.clip(image * gain, 0, 255).astype(np.uint8)))
        return frames


def _grey(rng: np.random.Generator) -> RGB:
    """Return a dull colour of middle brightness, from which every named colour stands out."""
    level = int(rng.integers(95, 185))
    red, green, blue = (level + int(rng.integers(-22, 23)) for _ in range(3))
    return red, green, blue


@dataclass(frozen=True, slots=True)
class _Roles:
    """Players of a clip in the order in which they are drawn, and the names of `EventClip`."""

    cast: list[Player]
    actor: str
    after: str
    others: tuple[str, ...]


_Stage = Callable[[np.random.Generator, tuple[int, int], Schedule], _Roles | None]
"""(generator, size, schedule) → players; None if the things that were drawn by lot have no room."""


def event_clip(rng: np.random.Generator, kind: EventKind) -> EventClip:
    """Return a clip of a kind. Raises OptionError if no draw had room for its things."""
    for _ in range(_TRIES):
        size_px, schedule = one(rng, SIZES_PX), Schedule.random(rng)
        roles = _STAGES[kind](rng, size_px, schedule)
        if roles is None:
            continue
        times_s = tuple(frame / FRAMES_A_SECOND for frame in range(schedule.frames))
        plan = ClipPlan(size_px, times_s, tuple(roles.cast), SCENE, None, (0, 0), int(rng.integers(_SEEDS)))
        gains = _gains(rng, schedule) if kind == "light" else (1.0,) * schedule.frames
        clip = EventClip(kind, plan, schedule, roles.actor, roles.after, roles.others, gains)
        if _is_plain(clip):
            return clip
    raise OptionError(f"no clip in which something {kind} had room for its things in {_TRIES} tries")


def name_of(thing: Seen | Player) -> str:
    """Return a thing's name as a description has it: "red circle", "blue word EXIT"."""
    return f"{thing.colour} {thing.kind} {thing.text}".strip()


def _is_plain(clip: EventClip) -> bool:
    """Return whether each answer point shows a few things of different names, whole and in plain order from left to
    right."""
    for frame in clip.schedule.answers:
        if any(player.there(frame) and player.seen(frame, clip.plan.size_px) is None for player in clip.plan.cast):
            return False
        things = clip.there(frame)
        middles = sorted((thing.box_px[0] + thing.box_px[2]) / 2 for thing in things)
        if not 1 <= len({name_of(thing) for thing in things}) == len(things) <= MOST_THINGS:
            return False
        if any(right - left < APART * clip.plan.size_px[0] for left, right in pairwise(middles)):
            return False
    return True


def _gains(rng: np.random.Generator, schedule: Schedule) -> tuple[float, ...]:
    """Return the light of each frame: as it was, then within the event's frames to a darker or a lighter one."""
    target = 1 + one(rng, (-1, 1)) * float(rng.uniform(*GAINS))
    during = schedule.during(schedule.at)
    gains = np.interp(np.arange(schedule.frames), (during.start - 1, during.stop), (1.0, target))
    return tuple(float(gain) for gain in gains)


def _shapes(rng: np.random.Generator, count: int) -> list[Player]:
    """Return shapes, no two of one kind or of one colour."""
    kinds, colours = rng.permutation(EVENT_SHAPES)[:count], rng.permutation(COLOUR_NAMES)[:count]
    return [shape_player(rng, str(kind), str(colour), SCENE) for kind, colour in zip(kinds, colours, strict=True)]


def _still_count(rng: np.random.Generator) -> int:
    return int(rng.integers(STILL_THINGS[0], STILL_THINGS[1] + 1))


def _path(player: Player, target_px: tuple[float, float], frames: range, stays_until: int) -> list[Player]:
    """Return a thing that goes to another place within some frames and stays there: one player for each place.

    Args:
        player: The thing at its first place, from the frame that it enters on.
        target_px: Middle (x, y) of its last place.
        frames: Frames in which it is on its way.
        stays_until: Frame before which it is there.
    """
    steps = len(frames) + 1
    ways = [replace(player, leaves=frames.start)]
    for number, frame in enumerate(frames, 1):
        x, y = (
            begin + (end - begin) * number / steps
            for begin, end in zip((player.x_px, player.y_px), target_px, strict=True)
        )
        ways.append(replace(player.placed(x, y), enters=frame, leaves=frame + 1))
    ways.append(replace(player.placed(*target_px), enters=frames.stop, leaves=stays_until))
    return ways


def _outside_px(player: Player, size_px: tuple[int, int]) -> tuple[float, float]:
    """Return the middle of a thing that has just left the picture over the nearest side."""
    left, top, right, bottom = player.box_px(0)
    ways = {
        right: (-right, 0.0),
        size_px[0] - left: (size_px[0] - left, 0.0),
        bottom: (0.0, -bottom),
        size_px[1] - top: (0.0, size_px[1] - top),
    }
    dx, dy = ways[min(ways)]
    return player.x_px + dx, player.y_px + dy


def _names(players: list[Player]) -> tuple[str, ...]:
    return tuple(name_of(player) for player in players)


def _moves(rng: np.random.Generator, size_px: tuple[int, int], schedule: Schedule) -> _Roles | None:
    """One thing goes to another place before each answer from the event on, round three places."""
    mover, *others = _shapes(rng, 1 + _still_count(rng))
    cast = place_apart(rng, [mover, mover, mover, *others], size_px)
    if not cast:
        return None
    places, others = cast[:3], cast[3:]
    ways = [places[0]]
    for number, at in enumerate(range(schedule.at, len(schedule.answers)), 1):
        target = places[number % len(places)]
        resting = ways.pop()
        ways += _path(resting, (target.x_px, target.y_px), schedule.during(at), schedule.frames)
    name = name_of(mover)
    return _Roles([*others, *ways], name, name, _names(others))


def _leaves(rng: np.random.Generator, size_px: tuple[int, int], schedule: Schedule) -> _Roles | None:
    """One thing vanishes, or goes out of the picture."""
    cast = place_apart(rng, _shapes(rng, 2 + _still_count(rng) // 2), size_px)
    if not cast:
        return None
    actor, *others = cast
    during = schedule.during(schedule.at)
    ways = [replace(actor, leaves=during.start)]
    if rng.random() < 0.5:
        ways = _path(actor, _outside_px(actor, size_px), during, during.stop)
    return _Roles([*others, *ways], name_of(actor), "", _names(others))


def _comes(rng: np.random.Generator, size_px: tuple[int, int], schedule: Schedule) -> _Roles | None:
    """One thing appears, or comes into the picture."""
    cast = place_apart(rng, _shapes(rng, 1 + _still_count(rng)), size_px)
    if not cast:
        return None
    actor, *others = cast
    during = schedule.during(schedule.at)
    ways = [replace(actor, enters=during.stop)]
    if rng.random() < 0.5:
        outside = actor.placed(*_outside_px(actor, size_px))
        ways = _path(outside, (actor.x_px, actor.y_px), during, schedule.frames)[1:]
    return _Roles([*others, *ways], "", name_of(actor), _names(others))


def _replaced(rng: np.random.Generator, size_px: tuple[int, int], schedule: Schedule) -> _Roles | None:
    """Another thing stands in the place of one."""
    old, new, *others = _shapes(rng, 2 + _still_count(rng))
    cast = place_apart(rng, [max(old, new, key=_height_px), *others], size_px)
    return _in_its_place(old, new, cast, schedule)


def _in_its_place(old: Player, new: Player, cast: Sequence[Player], schedule: Schedule) -> _Roles | None:
    """At the event, `new` stands where `old` stood: in the place of the first of the cast. None without a cast."""
    if not cast:
        return None
    place, *others = cast
    frame = schedule.during(schedule.at).start
    old = replace(old.placed(place.x_px, place.y_px), leaves=frame)
    new = replace(new.placed(place.x_px, place.y_px), enters=frame)
    return _Roles([*others, old, new], name_of(old), name_of(new), _names(others))


def _height_px(player: Player) -> float:
    box = player.box_px(0)
    return box[3] - box[1]


def _hidden(rng: np.random.Generator, size_px: tuple[int, int], schedule: Schedule) -> _Roles | None:
    """A large thing goes in front of a small one, and later goes back."""
    small, other = _shapes(rng, 2)
    small = shape_player(rng, small.kind, small.colour, replace(SCENE, sizes_px=_HIDDEN_PX))
    cover_kind = one(rng, tuple(kind for kind in _COVERS if kind not in (small.kind, other.kind)) or _COVERS)
    cover_colour = one(rng, tuple(name for name in COLOUR_NAMES if name not in (small.colour, other.colour)))
    cover = shape_player(rng, cover_kind, cover_colour, replace(SCENE, sizes_px=_COVER_PX))
    cast = place_apart(rng, [small, cover, other], size_px)
    if not cast:
        return None
    small, cover, other = cast
    left, top, right, bottom = small.box_px(0)
    hiding, showing = schedule.during(schedule.at), schedule.during(schedule.back)
    ways = _path(cover, ((left + right) / 2, (top + bottom) / 2), hiding, schedule.frames)
    resting = ways.pop()
    ways += _path(resting, (cover.x_px, cover.y_px), showing, schedule.frames)
    parts = [replace(small, leaves=hiding.stop), replace(small, enters=showing.start)]
    name = name_of(small)
    return _Roles([other, *parts, *ways], name, name, _names([other, cover]))


def _text(rng: np.random.Generator, size_px: tuple[int, int], schedule: Schedule) -> _Roles | None:
    """A sign says another word, or another number."""
    random_text = one(rng, (random_word, random_number))
    others = _shapes(rng, _still_count(rng))
    colour = one(rng, tuple(name for name in COLOUR_NAMES if name not in {other.colour for other in others}))
    old, new = (text_player(rng, random_text(rng, "test"), colour, "test", SCENE) for _ in range(2))
    if old.text == new.text or max(len(old.text), len(new.text)) > 4 or min(len(old.text), len(new.text)) < 2:
        return None
    new = replace(new, rgb=old.rgb, plate=old.plate, backing=old.backing)
    cast = place_apart(rng, [max(old, new, key=_width_px), *others], size_px)
    return _in_its_place(old, new, cast, schedule)


def _width_px(player: Player) -> float:
    box: Box = player.box_px(0)
    return box[2] - box[0]


def _swap(rng: np.random.Generator, size_px: tuple[int, int], schedule: Schedule) -> _Roles | None:
    """Two things take each other's place, at once or on their ways past each other."""
    pair = _shapes(rng, 2 + _still_count(rng) // 2)
    cast = place_apart(rng, pair, size_px)
    if not cast:
        return None
    first, second, *others = cast
    during = schedule.during(schedule.at)
    if rng.random() < 0.5:
        during = range(during.start, during.start)
    ways = [
        *_path(first, (second.x_px, second.y_px), during, schedule.frames),
        *_path(second, (first.x_px, first.y_px), during, schedule.frames),
    ]
    return _Roles([*others, *ways], name_of(first), name_of(first), _names([second, *others]))


def _light(rng: np.random.Generator, size_px: tuple[int, int], schedule: Schedule) -> _Roles | None:
    """All things stay in place."""
    cast = place_apart(rng, _shapes(rng, 1 + _still_count(rng)), size_px)
    return _Roles(cast, name_of(cast[0]), name_of(cast[0]), _names(cast[1:])) if cast else None


_STAGES: dict[EventKind, _Stage] = {
    "moves": _moves,
    "leaves": _leaves,
    "comes": _comes,
    "replaced": _replaced,
    "hidden": _hidden,
    "text": _text,
    "swap": _swap,
    "light": _light,
}
