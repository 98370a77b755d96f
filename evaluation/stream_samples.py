"""Answer points of a stream: still scenes, what moves or changes, signs, pans, cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Literal

import numpy as np

from arr_coc.errors import OptionError
from evaluation.special_samples import place_apart
from stream.scenes.drawing import SHAPE_NAMES
from training.clips.cast import (
    COLOUR_NAMES,
    MARGIN_PX,
    ClipOptions,
    Player,
    meets,
    one,
    random_cast,
    shape_player,
    text_player,
    tinted,
)
from training.clips.fonts import random_number, random_word
from training.clips.scenes import ClipPlan, page
from training.clips.truth import KINDS, Box, Clip, Kind, Sample, Seen
from training.questions.samples import ask
from training.questions.stories import Names, Story, article, place_of, stories

Planned = tuple[ClipPlan, Sample]

ANSWERS = (8, 16)
"""Answer points of a clip."""

EVERY_S = (5, 8)
"""Seconds from one to the next, the same through a clip: 35 to 120 seconds in all."""

ASKED: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind not in ("movement", "event", "describe"))
"""Questions that one frame answers in a word or a few."""

STILL_THINGS = (2, 4)
"""Shapes beside what a clip is about."""

DETAILS = 3
_DETAIL_PX, _DETAIL_CAPITALS_PX, _LARGE_PX = (24.0, 32.0), (15, 20), (50.0, 62.0)

STAYS_SHARE = 0.3
"""Share of answers at which the moving thing is in the same place as at the answer before."""

UNCHANGED = (3, 5)
"""Answers between two changes of a sign."""

TEXTS: tuple[Kind, ...] = ("word", "number")

LOOKS_BACK = {0: "before", 2: "before", 3: "long before", 5: "long before"}
"""Answers since an event at which it is asked what happened; four frames reach back to what was before it, or not."""

_TRIES = 300
_SEEDS = 2**62


def clip_samples(
    rng: np.random.Generator, size_px: tuple[int, int], number: int, options: ClipOptions
) -> Iterator[Planned]:
    """One clip, a sample for each answer point; the parts take turns.

    `stale` are the answers that were right for the same question earlier in the clip, and no longer are.

    Args:
        rng: Source of the draws.
        size_px: (width, height) of a frame.
        number: Number of the clip, which gives its part and its group.
        options: Number and kinds of things.

    Raises:
        OptionError: No draw had room for its questions.
    """
    part = _PARTS[number % len(_PARTS)]
    for _ in range(_TRIES):
        answers, every_s = (int(rng.integers(low, high + 1)) for low, high in (ANSWERS, EVERY_S))
        if samples := part(rng, size_px, tuple(float(every_s * index) for index in range(answers)), options):
            break
    else:
        raise OptionError(f"no clip of {size_px[0]}x{size_px[1]} pixels had room for its questions in {_TRIES} tries")
    right: dict[str, list[str]] = {}
    for plan, sample in samples:
        previous = right.setdefault(sample.question, [])
        stale = tuple(dict.fromkeys(answer for answer in previous if answer != sample.answer))
        previous.append(sample.answer)
        yield plan, replace(sample, group=f"stream-{number:02d}", stale=stale)


Part = Callable[[np.random.Generator, tuple[int, int], tuple[float, ...], ClipOptions], list[Planned]]
"""(generator, size, times, options) → a sample for each time, with the plan that draws its frame; none if the things
that were drawn by lot have no room or give no question."""

Suits = Callable[[tuple[Box, ...]], bool]
"""True if a question about what stands in these boxes suits."""


def _watch(
    rng: np.random.Generator, size_px: tuple[int, int], times_s: tuple[float, ...], options: ClipOptions
) -> list[Planned]:
    """A still scene: the same question about its largest thing, and three times another one about a small one."""
    small = replace(options, sizes_px=_DETAIL_PX, capitals_px=_DETAIL_CAPITALS_PX)
    large = _shapes(rng, replace(options, sizes_px=_LARGE_PX))[0]
    cast = place_apart(
        rng, [large, _text(rng, "word", small), _text(rng, "number", small), *_shapes(rng, small)], size_px
    )
    if not cast:
        return []
    plan, box = _plan(rng, size_px, times_s, cast, options), cast[0].box_px(0)
    large_sample = _new_sample(
        rng, _frame(plan, 0), "still", ("colour", "shape", "where"), lambda boxes: boxes == (box,)
    )
    details: dict[int, Sample] = {}
    for number in range(1, DETAILS + 1):
        questions, at = [sample.question for sample in details.values()], len(times_s) * number // DETAILS - 1
        facts = _frame(plan, at)
        detail = _new_sample(rng, facts, "detail", ASKED, lambda boxes: bool(boxes) and box not in boxes, questions)
        if large_sample is None or detail is None:
            return []
        details[at] = detail
    assert large_sample is not None
    return [(plan, details.get(at) or replace(large_sample, clip=_frame(plan, at))) for at in range(len(times_s))]


def _move(
    rng: np.random.Generator, size_px: tuple[int, int], times_s: tuple[float, ...], options: ClipOptions
) -> list[Planned]:
    """One thing is in another ninth of the picture at most answers, and all others are still. Where is it?"""
    mover, *others = _shapes(rng, options)
    others = place_apart(rng, others, size_px)
    if not others:
        return []
    obstacles = np.array([player.swept_px(1, MARGIN_PX) for player in others])
    placement, place = mover, ""
    ways: list[Player] = []
    samples: list[tuple[str, Box]] = []
    for at in range(len(times_s)):
        if not at or rng.random() >= STAYS_SHARE:
            placement, place = _relocate(rng, mover, place, obstacles, size_px)
        if not place:
            return []
        ways.append(replace(placement, enters=at, leaves=at + 1))
        samples.append((place, placement.box_px(0)))
    plan = _plan(rng, size_px, times_s, [*others, *ways], options)
    question = f"Where is the {one(rng, (mover.kind, f'{mover.colour} {mover.kind}'))}?"
    return [
        (plan, _sample(plan, at, "moving", "where", question, place, (box,))) for at, (place, box) in enumerate(samples)
    ]


def _relocate(
    rng: np.random.Generator, mover: Player, place: str, obstacles: np.ndarray, size_px: tuple[int, int]
) -> tuple[Player, str]:
    """The mover in another ninth than `place`, clear of the `obstacles`, and the ninth's name; "" if it has no room."""
    for _ in range(_TRIES):
        placement = mover.placed(*(float(rng.uniform(0, side)) for side in size_px))
        sighting = placement.seen(0, size_px)
        if sighting is not None and not meets(np.array(placement.swept_px(1, MARGIN_PX)), obstacles):
            other = place_of(_blank(size_px, 0.0, (sighting,)), Story((sighting,)))
            if other not in ("", place):
                return placement, other
    return mover, ""


def _sign(
    rng: np.random.Generator, size_px: tuple[int, int], times_s: tuple[float, ...], options: ClipOptions
) -> list[Planned]:
    """A word or a number in whose place another one stands after some answers. What does it say?"""
    text_kind, changes = one(rng, TEXTS), [0]
    while changes[-1] < len(times_s):
        changes.append(changes[-1] + int(rng.integers(UNCHANGED[0], UNCHANGED[1] + 1)))
    first = _text(rng, text_kind, options)
    signs = [first] + [
        replace(
            _text(rng, text_kind, options), colour=first.colour, rgb=first.rgb, plate=first.plate, backing=first.backing
        )
        for _ in changes[2:]
    ]
    widest = max(signs, key=lambda sign: sign.box_px(0)[2] - sign.box_px(0)[0])
    cast = place_apart(rng, [widest, *_shapes(rng, options)], size_px)
    if not cast:
        return []
    obstacles = np.array([player.swept_px(1, MARGIN_PX) for player in cast[1:]])
    signs = [
        replace(sign.placed(cast[0].x_px, cast[0].y_px), enters=enters, leaves=leaves)
        for sign, enters, leaves in zip(signs, changes[:-1], changes[1:], strict=True)
    ]
    same = any(sign.text == other.text for sign, other in pairwise(signs))
    if same or any(sign.seen(sign.enters, size_px) is None for sign in signs):
        return []
    if any(meets(np.array(sign.swept_px(1, MARGIN_PX)), obstacles) for sign in signs):
        return []
    plan = _plan(rng, size_px, times_s, [*signs, *cast[1:]], options)
    visible_signs = [next(sign for sign in signs if sign.there(at)) for at in range(len(times_s))]
    question = f"What {text_kind} is shown?"
    return [
        (plan, _sample(plan, at, "sign", text_kind, question, sign.text, (sign.box_px(at),)))
        for at, sign in enumerate(visible_signs)
    ]


def _event(
    rng: np.random.Generator,
    size_px: tuple[int, int],
    times_s: tuple[float, ...],
    options: ClipOptions,
    happens: Literal["appeared", "left", "turned"],
) -> list[Planned]:
    """One thing appears, leaves or changes its colour. The same is asked all the time, and after it what happened."""
    at = int(rng.integers(2, len(times_s) - max(LOOKS_BACK)))
    actor, *others = _shapes(rng, options)
    colour = one(rng, tuple(name for name in COLOUR_NAMES if name != actor.colour))
    happened, now = f"it {happens}", ("no", "yes")
    if happens == "appeared":
        actor = replace(actor, enters=at)
    elif happens == "left":
        actor, now = replace(actor, leaves=at), ("yes", "no")
    else:
        happened, now = f"it turned {colour}", (actor.colour, colour)
        actor = replace(actor, turns_at=at, second=(colour, tinted(rng, colour)))
    cast = place_apart(rng, [actor, *others], size_px)
    if not cast:
        return []
    plan = _plan(rng, size_px, times_s, cast, options)
    kind: Kind = "colour" if actor.second[0] else "exists"
    question = f"What colour is the {actor.kind}?" if kind == "colour" else f"Is there {article(actor.kind)}?"
    samples: list[Planned] = []
    for index in range(len(times_s)):
        boxes = (cast[0].box_px(index),) if cast[0].there(index) else ()
        if part := LOOKS_BACK.get(index - at):
            sample = _sample(plan, index, part, "event", f"What happened to the {actor.kind}?", happened, boxes)
        else:
            sample = _sample(plan, index, "event", kind, question, now[index >= at], boxes)
        samples.append((plan, sample))
    return samples


def _pan(
    rng: np.random.Generator, size_px: tuple[int, int], times_s: tuple[float, ...], options: ClipOptions
) -> list[Planned]:
    """A slow pan over a page; another question about what is in the picture at each answer."""
    plan = replace(page(rng, size_px, len(times_s), replace(options, things=(10, 16)), "test"), times_s=times_s)
    picture = (0.0, 0.0, float(size_px[0]), float(size_px[1]))
    facts = []
    for at, at_s in enumerate(times_s):
        # What the border cuts is not asked about, but it may not fit the name of what is, nor be left out of a count.
        boxes = [(player, player.box_px(at, plan.camera_px(at))) for player in plan.cast]
        visible = (
            Seen(player.kind, player.colour, box, text=player.text)
            for player, box in boxes
            if meets(np.array(box), np.array([picture]))
        )
        facts.append(_blank(size_px, at_s, tuple(visible)))

    def is_inside(boxes: tuple[Box, ...]) -> bool:
        return all(min(box[0], box[1], size_px[0] - box[2], size_px[1] - box[3]) >= 0 for box in boxes)

    return _new_questions(rng, plan, facts, "pan", is_inside)


def _questions(
    rng: np.random.Generator, size_px: tuple[int, int], times_s: tuple[float, ...], options: ClipOptions
) -> list[Planned]:
    """A still scene; another question at each answer."""
    cast = random_cast(rng, size_px, 1, "test", replace(options, things=(4, 6)))
    plan = _plan(rng, size_px, times_s, cast, options)
    return _new_questions(rng, plan, [_frame(plan, at) for at in range(len(times_s))], "questions", bool)


def _new_questions(
    rng: np.random.Generator, plan: ClipPlan, facts: Sequence[Clip], part: str, suits: Suits
) -> list[Planned]:
    """About each of a plan's frames a question that was not asked before."""
    samples: list[Planned] = []
    for clip in facts:
        sample = _new_sample(rng, clip, part, ASKED, suits, [previous.question for _, previous in samples])
        if sample is None:
            return []
        samples.append((plan, sample))
    return samples


def _cut(
    rng: np.random.Generator, size_px: tuple[int, int], times_s: tuple[float, ...], options: ClipOptions
) -> list[Planned]:
    """Another scene in the second half: its text, and the presence of something of the first one."""
    middle, text_kind = len(times_s) // 2, one(rng, TEXTS)
    scenes = []
    for times in (times_s[:middle], times_s[middle:]):
        cast = place_apart(rng, [_text(rng, text_kind, options), *_shapes(rng, options)], size_px)
        if not cast:
            return []
        scenes.append(_plan(rng, size_px, times, cast, options))
    (text, thing, *_), (other, *_) = scenes[0].cast, scenes[1].cast
    name = f"{thing.colour} {thing.kind}"
    if text.text == other.text or Names(stories(_frame(scenes[1], 0))).fitting(name):
        return []
    samples: list[Planned] = []
    for plan, part, is_present in ((scenes[0], "cut", True), (scenes[1], "after the cut", False)):
        for at in range(len(plan.times_s)):
            if at % 3 == 2:
                part_asked, boxes = (part, (thing.box_px(0),)) if is_present else ("gone", ())
                question, answer = f"Is there {article(name)}?", "yes" if is_present else "no"
                sample = _sample(plan, at, part_asked, "exists", question, answer, boxes)
            else:
                box = plan.cast[0].box_px(0)
                sample = _sample(plan, at, part, text_kind, f"What {text_kind} is shown?", plan.cast[0].text, (box,))
            samples.append((plan, sample))
    return samples


_PARTS: tuple[Part, ...] = tuple(
    part
    for happens in ("turned", "left", "appeared")
    for part in (_watch, _move, _sign, partial(_event, happens=happens), _pan, _cut, _questions)
)


def _shapes(rng: np.random.Generator, options: ClipOptions) -> list[Player]:
    """Three to five shapes, no two of one kind."""
    names = rng.permutation(SHAPE_NAMES)[: 1 + int(rng.integers(STILL_THINGS[0], STILL_THINGS[1] + 1))]
    return [shape_player(rng, str(name), one(rng, COLOUR_NAMES), options) for name in names]


def _text(rng: np.random.Generator, kind: str, options: ClipOptions) -> Player:
    text = random_word(rng, "test") if kind == "word" else random_number(rng, "test")
    return text_player(rng, text, one(rng, COLOUR_NAMES), "test", options)


def _plan(
    rng: np.random.Generator,
    size_px: tuple[int, int],
    times_s: tuple[float, ...],
    cast: Sequence[Player],
    options: ClipOptions,
) -> ClipPlan:
    return ClipPlan(size_px, times_s, tuple(cast), options, None, (0, 0), int(rng.integers(_SEEDS)))


def _blank(size_px: tuple[int, int], at_s: float, things: tuple[Seen, ...]) -> Clip:
    return Clip((np.broadcast_to(np.uint8(0), (size_px[1], size_px[0], 3)),), (at_s,), (things,))


def _frame(plan: ClipPlan, at: int) -> Clip:
    """Facts of one frame of a plan."""
    return _blank(plan.size_px, plan.times_s[at], plan.things[at])


def _sample(
    plan: ClipPlan, at: int, part: str, kind: Kind, question: str, answer: str, boxes: tuple[Box, ...]
) -> Sample:
    return Sample(_frame(plan, at), kind, question, f"{answer}.", (boxes,), part=part)


def _new_sample(
    rng: np.random.Generator, facts: Clip, part: str, kinds: Sequence[Kind], suits: Suits, questions: Sequence[str] = ()
) -> Sample | None:
    """A new question about one frame, with boxes that suit; None if chance gives none."""
    for _ in range(_TRIES // 10):
        sample = ask(rng, facts, one(rng, kinds), "test")
        if sample is not None and sample.question not in questions and suits(sample.boxes[0]):
            return replace(sample, part=part)
    return None
