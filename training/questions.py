"""Questions about clips, in several wordings, and their answers.

A thing is only ever called by a name that fits it alone, and asked about only what holds in every frame of the clip;
where a clip gives no such question, there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from stream.scenes.shapes import SHAPE_NAMES
from stream.scenes.world import PLACES
from training.casting import COLOUR_NAMES, one
from training.fonts import Split
from training.patterns import PATTERNS
from training.stories import TEXTS, Names, Story, article, middle, stories
from training.truth import Box, Clip, Kind, Sample
from training.words import random_word

COUNT_WORDS = ("none", "one", "two", "three", "four", "five", "six")

_ABSENT_SHARE = 0.08
_PLACE_MARGIN = 0.05
_APART = 0.1
"""How much further left or higher something must be, of the picture's side, to be called so."""

_AREAS = {
    "top left": (0.0, 0.0, 0.5, 0.5),
    "top right": (0.5, 0.0, 1.0, 0.5),
    "bottom left": (0.0, 0.5, 0.5, 1.0),
    "bottom right": (0.5, 0.5, 1.0, 1.0),
    "centre": (0.25, 0.25, 0.75, 0.75),
}
"""Place → the part of the picture of which one might say so, as shares; "left" might be said of far too much."""

_MOST_DESCRIBED = 4
_SIDES = {"left": (0, -1), "right": (0, 1), "above": (1, -1), "below": (1, 1)}
"""Side → axis (x, y) and sign."""


@dataclass(frozen=True)
class Asked:
    """A question, its answer, and the things that it is about."""

    question: str
    answer: str
    about: Sequence[Story] = ()
    facts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asking:
    """What an asker may use."""

    rng: np.random.Generator
    clip: Clip
    split: Split
    told: list[Story] = field(default_factory=list)

    @cached_property
    def names(self) -> Names:
        return Names(self.told)

    @cached_property
    def steady(self) -> list[Story]:
        return [story for story in self.told if story.steady]

    @cached_property
    def shuffled(self) -> list[Story]:
        """The steady things in random order."""
        return [self.steady[i] for i in self.rng.permutation(len(self.steady))]

    def word(self, wordings: Sequence[str], *parts: str) -> str:
        """One of the wordings, filled in."""
        return one(self.rng, wordings).format(*parts)

    def name(self, story: Story, colour: bool = True, text: bool = True) -> str:
        """One of the names that fit this story alone; "" if there is none."""
        names = self.names.of(story, colour, text)
        return one(self.rng, names) if names else ""

    def absent(self) -> str:
        """A name that fits nothing in the clip: of another shape, colour or word."""
        for _ in range(20):
            shape, colour = one(self.rng, SHAPE_NAMES), one(self.rng, COLOUR_NAMES)
            if self.told and self.rng.random() < 0.6:
                here = one(self.rng, self.told)
                shape = here.what if self.rng.random() < 0.5 else shape
                colour = (here.colour or colour) if self.rng.random() < 0.5 else colour
            name = shape if self.rng.random() < 0.4 else f"{colour} {shape}"
            if "faint" not in name and shape not in PATTERNS and not self.names.fitting(name):
                return name
        return ""


def ask(rng: np.random.Generator, clip: Clip, kind: Kind, split: Split) -> Sample | None:
    """A question of a kind about a clip; None if the clip gives none whose answer is beyond doubt."""
    asked = _ASKERS[kind](Asking(rng, clip, split, stories(clip)))
    if asked is None:
        return None
    question = asked.question
    if rng.random() < 0.1 and question == question.capitalize():
        question = question.lower().rstrip("?.")
    return Sample(clip, kind, question, asked.answer, _boxes(asked.about, len(clip.frames)), asked.facts)


def _boxes(about: Sequence[Story], frames: int) -> tuple[tuple[Box, ...], ...]:
    return tuple(tuple(box for story in about for box in story.boxes[frame]) for frame in range(frames))


def _colour(asking: Asking) -> Asked | None:
    for story in asking.shuffled:
        if story.what in PATTERNS:
            question = asking.word(
                ("What colour is the picture?", "What is the main colour?", "Which colour do you see most?")
            )
            return Asked(question, f"{story.colour}.", [story])
        name = asking.name(story, colour=False)
        if name and story.colour in COLOUR_NAMES:
            wordings = (
                *("What colour is the {}?", "What color is the {}?"),
                *("Which colour is the {}?", "What is the colour of the {}?"),
            )
            return Asked(asking.word(wordings, name), f"{story.colour}.", [story])
    return None


def _shape(asking: Asking) -> Asked | None:
    for story in asking.shuffled:
        if story.what in PATTERNS:
            wordings: tuple[str, ...] = ("What pattern is this?", "Which pattern do you see?", "What is the pattern?")
            return Asked(asking.word(wordings), f"{story.what}.", [story])
        if story.what in TEXTS:
            continue
        found: list[str] = []
        same = [other for other in asking.told if any(seen.colour == story.colour for seen in other.shown)]
        if same == [story]:
            wordings = ("What is the {} thing?", "What shape is {}?", "Which thing is {}?", "What is {}?")
            found.append(asking.word(wordings, story.colour))
        place = _place(asking.clip, story)
        if place in _AREAS and [other for other in asking.told if _may_be_in(asking.clip, other, place)] == [story]:
            wordings = ("What shape is in the {}?", "What do you see in the {}?", "What is in the {}?")
            found.append(asking.word(wordings, place))
        if found:
            return Asked(one(asking.rng, found), f"{article(story.what)}.", [story])
    return None


def _shares(clip: Clip, box: Box) -> tuple[float, float]:
    """The middle of a box, as shares of width and height."""
    x, y = middle(box)
    return x / clip.size_px[0], y / clip.size_px[1]


def _third(share: float, margin: float = 0.0) -> int:
    """Which third; -1 within a margin of a border between two."""
    if min(abs(share - 1 / 3), abs(share - 2 / 3)) < margin:
        return -1
    return min(2, max(0, int(3 * share)))


def _place(clip: Clip, story: Story) -> str:
    """Which ninth of the picture it is plainly in, all the time; "" if it changes or is close to a border."""
    places = set()
    for seen in story.shown:
        col, row = (_third(share, _PLACE_MARGIN) for share in _shares(clip, seen.box_px))
        places.add("" if -1 in (row, col) else PLACES[3 * row + col])
    return places.pop() if len(places) == 1 else ""


def _may_be_in(clip: Clip, story: Story, place: str) -> bool:
    """Whether any part of it is ever where somebody could say that it is in that place, one of `_AREAS`."""
    width, height = clip.size_px
    area = [share * side for share, side in zip(_AREAS[place], (width, height, width, height), strict=True)]
    boxes = [seen.box_px for seen in story.shown]
    return any(b[0] < area[2] and b[2] > area[0] and b[1] < area[3] and b[3] > area[1] for b in boxes)


def _where(asking: Asking) -> Asked | None:
    for story in asking.shuffled:
        place, name = _place(asking.clip, story), asking.name(story)
        if place and name and story.movement == "still" and story.what not in PATTERNS:
            wordings = ("Where is the {}?", "Where do you see the {}?", "In which place is the {}?")
            return Asked(asking.word(wordings, name), f"{place}.", [story])
    return None


def _word(asking: Asking) -> Asked | None:
    plain = (
        "What word is shown?",
        "What word is it?",
        "Read the word.",
        "What does the word say?",
        "Which word is it?",
    )
    return _text(asking, "word", plain)


def _number(asking: Asking) -> Asked | None:
    plain = ("What number is shown?", "Which number is it?", "What is the number?", "Read the number.")
    return _text(asking, "number", plain)


def _text(asking: Asking, what: str, plain: Sequence[str]) -> Asked | None:
    """Reading: the only one of its kind, or the one of a colour, or the one on a side."""
    here = [story for story in asking.told if story.what == what]
    if not here:
        if asking.told and asking.rng.random() < _ABSENT_SHARE:
            return Asked(asking.word(plain), f"there is no {what}.")
        return None
    for story in asking.shuffled:
        if story.what != what:
            continue
        found: list[str] = []
        if len(here) == 1:
            found.append(asking.word(plain))
        if asking.names.fitting(f"{story.colour} {what}") == [story] and story.colour in COLOUR_NAMES:
            wordings = (f"What {what} is {{}}?", f"Which {what} is {{}}?", f"Read the {{}} {what}.")
            found.append(asking.word(wordings, story.colour))
        if len(here) > 1 and all(other.steady for other in here):
            others = [other for other in here if other is not story]
            sides = (side for side in _SIDES if all(_is(asking.clip, story, side, other) for other in others))
            found += [f"What {what} is {_FURTHEST[side]}?" for side in sides]
        if found:
            return Asked(one(asking.rng, found), f"{story.text}.", [story])
    return None


_FURTHEST = {"left": "on the left", "right": "on the right", "above": "at the top", "below": "at the bottom"}


def _is(clip: Clip, story: Story, side: str, other: Story) -> bool:
    """Whether it is plainly on that side of the other in every frame in which both are, and both are in some."""
    axis, sign = _SIDES[side]
    both = [(a, b) for a, b in zip(story.seen, other.seen, strict=True) if a and b]
    gaps = [sign * (_shares(clip, a.box_px)[axis] - _shares(clip, b.box_px)[axis]) for a, b in both]
    return bool(gaps) and min(gaps) >= _APART


def _count(asking: Asking) -> Asked | None:
    """How many there are of a shape, a colour or of all; the same number in every frame."""
    told = [story for story in asking.told if story.what not in PATTERNS]
    if not told or any(not story.steady for story in told):
        return None
    groups: list[tuple[str, list[Story]]] = [("things", told)]
    for key in {story.what for story in told}:
        groups.append((_plural(key), [story for story in told if story.what == key]))
    for key in sorted({story.colour for story in told} & set(COLOUR_NAMES)):
        groups.append((f"{key} things", [story for story in told if story.colour == key]))
    groups.sort(key=lambda group: group[0])
    if asking.rng.random() < _ABSENT_SHARE and (absent := asking.absent()):
        groups = [(_plural(absent), [])]
    several = [group for group in groups if len(group[1]) > 1]
    if several and asking.rng.random() < 0.3:
        several = [max(several, key=lambda group: len(group[1]))]
    name, counted = one(asking.rng, several if several and asking.rng.random() < 0.75 else groups)
    if len(counted) >= len(COUNT_WORDS):
        return None
    wordings = ("How many {} are there?", "How many {} do you see?", "Count the {}.")
    return Asked(asking.word(wordings, name), f"{COUNT_WORDS[len(counted)]}.", counted)


def _plural(name: str) -> str:
    return f"{name}es" if name.endswith("s") else f"{name}s"


def _movement(asking: Asking) -> Asked | None:
    if len(asking.clip.frames) < 2:
        return None
    movers = [story for story in asking.told if story.movement != "still"]
    if movers and asking.rng.random() < 0.2:
        way = one(asking.rng, movers).movement
        same = [story for story in movers if story.movement == way]
        if len(same) == 1 and not same[0].turns:
            return Asked(asking.word(("What moves {}?", "Which thing moves {}?"), way), f"{same[0].phrase}.", same)
    order = [story for story in asking.told if len(story.shown) > 1 and story.what not in PATTERNS]
    order.sort(key=lambda story: (story.movement == "still") - 2 * asking.rng.random())
    for story in order:
        if name := asking.name(story):
            wordings = (
                *("Which way does the {} move?", "Where does the {} move?", "Where does the {} go?"),
                "In which direction does the {} move?",
            )
            answer = "nowhere." if story.movement == "still" else f"{story.movement}."
            return Asked(asking.word(wordings, name), answer, [story])
    return None


def _event(asking: Asking) -> Asked | None:
    """What appeared, left or changed its colour."""
    if len(asking.clip.frames) < 2 or not asking.told:
        return None
    events = [story for story in asking.told if story.appears or story.leaves or story.turns]
    still = all(story.movement == "still" for story in asking.told)
    if len(events) > 1 or any(story.appears + story.leaves + story.turns > 1 for story in events):
        return None
    if not events:
        if still and asking.rng.random() < 0.3:
            return Asked(asking.word(("What happened?", "What changed?")), "nothing.")
        if asking.rng.random() < 0.15:
            return Asked(one(asking.rng, ("What appeared?", "What left?", "What changed colour?")), "nothing.")
        return None
    story = events[0]
    happened = _happened(story)
    found: list[tuple[str, str]] = []
    if still:
        found.append((asking.word(("What happened?", "What changed?")), f"{_subject(story)} {happened}."))
    if name := asking.name(story):
        found.append((asking.word(("What happened to the {}?", "What did the {} do?"), name), f"it {happened}."))
    if story.turns:
        found.append(("What changed colour?", f"{article(story.noun)}."))
    else:
        found.append(("What appeared?" if story.appears else "What left?", f"{_subject(story)}."))
    question, answer = one(asking.rng, found)
    return Asked(question, answer, [story])


def _subject(story: Story) -> str:
    """Its phrase; of what changes its colour, with the colour that it had first."""
    if not story.turns:
        return story.phrase
    return article(f"{story.shown[0].colour} {story.noun}")


def _happened(story: Story) -> str:
    if story.appears:
        return "appeared"
    return "left" if story.leaves else f"turned {story.last.colour}"


def _exists(asking: Asking) -> Asked | None:
    """Whether there is such a thing, or whether it has this attribute."""
    told = [story for story in asking.shuffled if story.what not in PATTERNS]
    yes = asking.rng.random() < 0.5
    if told and asking.rng.random() < 0.4:
        for story in told:
            name = asking.name(story, colour=False)
            if name and story.colour in COLOUR_NAMES:
                others = tuple(colour for colour in COLOUR_NAMES if colour != story.colour)
                colour = story.colour if yes else one(asking.rng, others)
                return Asked(f"Is the {name} {colour}?", "yes." if yes else "no.", [story])
    wordings = ("Is there {}?", "Do you see {}?")
    if not yes:
        texts = [story for story in asking.told if story.what == "word"]
        if texts and asking.rng.random() < 0.3:
            word = random_word(asking.rng, asking.split)
            if all(story.text != word for story in texts):
                return Asked(asking.word(wordings, f"a word {word}"), "no.", texts)
        name = asking.absent()
        return Asked(asking.word(wordings, article(name)), "no.") if name else None
    for story in told:
        choices = [story.what, story.noun]
        if story.colour in COLOUR_NAMES:
            choices += [f"{story.colour} {story.what}"] * 2
        name = one(asking.rng, choices)
        return Asked(asking.word(wordings, article(name)), "yes.", asking.names.fitting(name))
    return None


def _relation(asking: Asking) -> Asked | None:
    """How two things lie to each other."""
    named = [(story, name) for story in asking.shuffled if (name := asking.name(story)) and story.what not in PATTERNS]
    clip = asking.clip
    for (story, name), (other, other_name) in pairwise(named):
        sides = [side for side in _SIDES if _is(clip, story, side, other)]
        if not sides:
            continue
        side = one(asking.rng, sides)
        kind = asking.rng.random()
        alone = [third for third in asking.told if third is not other and not _is(clip, other, side, third)]
        if kind < 0.4 and alone == [story]:
            return Asked(f"What is {_TO[side]} the {other_name}?", f"{story.phrase}.", [story, other])
        if kind < 0.8 and len(sides) == 1:
            wordings = ("Where is the {} from the {}?", "On which side of the {1} is the {0}?")
            return Asked(asking.word(wordings, name, other_name), f"{side}.", [story, other])
        yes = asking.rng.random() < 0.5
        side = side if yes else _OPPOSITE[side]
        return Asked(f"Is the {name} {_TO[side]} the {other_name}?", "yes." if yes else "no.", [story, other])
    return None


_TO = {"left": "left of", "right": "right of", "above": "above", "below": "below"}
_OPPOSITE = {"left": "right", "right": "left", "above": "below", "below": "above"}


def _describe(asking: Asking) -> Asked | None:
    """Every thing with a phrase, from left to right as they are first seen."""
    told = [story for story in asking.told if story.what not in PATTERNS]
    if not 1 <= len(told) <= _MOST_DESCRIBED:
        return None
    told.sort(key=lambda story: middle(story.shown[0].box_px))
    moving = len(asking.clip.frames) > 1
    phrases = [_told(story) if moving else story.phrase for story in told]
    *first, last = phrases
    answer = f"{', '.join(first)} and {last}" if first else last
    fit = ("Say what happens.", "Describe what happens.") if moving else ("What do you see?", "Caption this.")
    wordings = (*fit, "Describe the scene.", "Describe this image.", "What is in the picture?", "Say what happens.")
    facts = tuple(phrase.split(" ", 1)[1] for phrase in phrases)
    return Asked(asking.word(wordings), f"{answer}.", told, facts)


def _told(story: Story) -> str:
    """What a thing is and does: one phrase."""
    parts = ["appears"] if story.appears else []
    parts += [f"moves {story.movement}"] if story.movement != "still" else []
    parts += ["leaves"] if story.leaves else []
    parts += [f"turns {story.last.colour}"] if story.turns else []
    return f"{_subject(story)} {' and '.join(parts) or 'stays still'}"


_ASKERS: dict[Kind, Callable[[Asking], Asked | None]] = {
    "colour": _colour,
    "shape": _shape,
    "where": _where,
    "word": _word,
    "number": _number,
    "count": _count,
    "movement": _movement,
    "event": _event,
    "exists": _exists,
    "relation": _relation,
    "describe": _describe,
}
