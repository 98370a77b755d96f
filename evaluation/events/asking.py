"""Questions at the answer points of a clip, and the errors of an answer: ghosts, misses and inventions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from evaluation.events.clips import EVENTS, EventClip, name_of
from evaluation.scoring import normalise
from stream.scenes.drawing import SHAPE_NAMES
from training.clips.cast import COLOUR_NAMES
from training.clips.truth import Box, Seen
from training.questions.kinds import COUNT_WORDS
from training.questions.stories import TEXTS, article

Asks = Literal["describe", "count", "still", "read"]

TURNS: tuple[Asks, ...] = ("describe", "count", "describe", "still")
"""What the clips of a kind ask, in turn."""

TEXT_TURNS: tuple[Asks, ...] = ("read", "count", "describe", "read")
"""The same of a sign: whether a word is still there is nothing that the model was taught well."""

DESCRIBE, COUNT = ("Say what happens.", "What is in the picture?"), "How many things are there?"


@dataclass(frozen=True, slots=True)
class Point:
    """One answer point. `names`: those of the things in the picture, or in the zone; `past_names`: of those that were
    there earlier in the clip and are not now; `is_after`: the event has begun."""

    frame: int
    question: str
    asks: Asks
    subject: str
    names: tuple[str, ...]
    past_names: tuple[str, ...]
    is_after: bool

    @property
    def answer(self) -> str:
        """The right answer; of a description, one of the right ones."""
        if self.asks == "count":
            return COUNT_WORDS[len(self.names)]
        if self.asks == "still":
            return "yes" if self.subject in self.names else "no"
        if self.asks == "read":
            return next(name.split()[-1] for name in self.names if _is_text(name))
        return " and ".join(article(name) for name in self.names)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Errors of an answer. `ghosts`: it names what is not there any more, or one thing twice, counts more things than
    there are, or says that what left is there; `misses`: it does not name what is there, counts fewer, or denies what
    is there; `inventions`: it names what never was there, or is no answer to the question."""

    ghosts: int = 0
    misses: int = 0
    inventions: int = 0

    @property
    def is_right(self) -> bool:
        return not (self.ghosts or self.misses or self.inventions)


def points(clip: EventClip, number: int, zone_px: Box | None = None) -> list[Point]:
    """Return the answer points of a kind's clip of a number, about the whole picture or a zone of it.

    Args:
        clip: The clip.
        number: Its number among those of its kind, which gives the question.
        zone_px: The zone; no thing may lie across its border.
    """
    turns = TEXT_TURNS if clip.kind == "text" else TURNS
    asks = turns[number % len(turns)]
    subject = _subject(clip, number // len(turns)) if asks == "still" else ""
    question = _question(clip, number, asks, subject)
    result, earlier_names = [], dict.fromkeys((subject,) if subject == clip.actor else ())
    for index, frame in enumerate(clip.schedule.answers):
        names = tuple(name_of(thing) for thing in clip.there(frame) if zone_px is None or _is_in(thing, zone_px))
        past_names = tuple(name for name in earlier_names if name not in names)
        result.append(Point(frame, question, asks, subject, names, past_names, index >= clip.schedule.at))
        earlier_names |= dict.fromkeys(names)
    return result


def _question(clip: EventClip, number: int, asks: Asks, subject: str) -> str:
    if asks == "describe":
        return DESCRIBE[number // 2 % 2]
    if asks == "count":
        return COUNT
    if asks == "still":
        return f"Is there {article(subject)}?"
    return f"What {clip.actor.split()[-2]} is shown?"


def _subject(clip: EventClip, turn: int) -> str:
    """Return the thing that is asked for: with odd turns what is there after the event, with even ones what is not.

    Kinds alternate, so that each answer is right as often. If the event takes nothing away, what is not there is
    something that never was.
    """
    is_there = (turn + EVENTS.index(clip.kind)) % 2 == 0
    if is_there:
        return clip.after or clip.others[0]
    return clip.actor if clip.actor and clip.actor != clip.after else _absent(clip)


def _absent(clip: EventClip) -> str:
    """Return the name of a thing that never is in a clip, of another shape and colour than any that is."""
    names = " ".join((clip.actor, clip.after, *clip.others)).split()
    shape = next(shape for shape in SHAPE_NAMES if shape not in names)
    colour = next(colour for colour in COLOUR_NAMES if colour not in names)
    return f"{colour} {shape}"


def _is_text(name: str) -> bool:
    return name.split()[-2] in TEXTS


def _is_in(thing: Seen, zone_px: Box) -> bool:
    x, y = (thing.box_px[0] + thing.box_px[2]) / 2, (thing.box_px[1] + thing.box_px[3]) / 2
    return zone_px[0] <= x < zone_px[2] and zone_px[1] <= y < zone_px[3]


def zone_of(clip: EventClip, tile_px: int) -> Box | None:
    """Return a half of the picture, in whole tiles, that shows something at every answer point, and across whose border
    nothing lies at any; None if there is none. A half that the event changes is preferred."""
    width, height = clip.plan.size_px
    x, y = width // tile_px // 2 * tile_px, height // tile_px // 2 * tile_px
    halves: tuple[Box, ...] = ((0, 0, x, height), (x, 0, width, height), (0, 0, width, y), (0, y, width, height))
    frames_things = [clip.there(frame) for frame in clip.schedule.answers]
    zones = [half for half in halves if all(_suits(things, half) for things in frames_things)]
    return max(zones, key=lambda half: _changes(frames_things, half), default=None)


def _suits(things: Sequence[Seen], zone_px: Box) -> bool:
    return any(_is_in(thing, zone_px) for thing in things) and not any(
        _is_cut(thing.box_px, zone_px) for thing in things
    )


def _is_cut(box: Box, zone_px: Box) -> bool:
    meets = all(box[i] < zone_px[i + 2] and box[i + 2] > zone_px[i] for i in (0, 1))
    return meets and not all(box[i] >= zone_px[i] and box[i + 2] <= zone_px[i + 2] for i in (0, 1))


def _changes(frames_things: Sequence[Sequence[Seen]], zone_px: Box) -> int:
    """Return how many different sets of things a zone shows."""
    return len(
        {
            frozenset((thing.colour, thing.kind, thing.box_px) for thing in things if _is_in(thing, zone_px))
            for things in frames_things
        }
    )


def judge(point: Point, text: str) -> Verdict:
    """Return the errors of an answer."""
    if point.asks == "describe":
        return _judge_names(point, named(text))
    answer = normalise(text)
    if point.asks == "read":
        past_texts = [normalise(name.split()[-1]) for name in point.past_names if _is_text(name)]
        is_right = answer == normalise(point.answer)
        return Verdict(int(answer in past_texts), int(not is_right), int(not is_right and answer not in past_texts))
    if point.asks == "count":
        right, counted = len(point.names), {normalise(word): number for number, word in enumerate(COUNT_WORDS)}
        if answer not in counted:
            return Verdict(inventions=1)
        return Verdict(ghosts=int(counted[answer] > right), misses=int(counted[answer] < right))
    if answer not in ("yes", "no"):
        return Verdict(inventions=1)
    if answer == point.answer:
        return Verdict()
    if answer == "no":
        return Verdict(misses=1)
    return Verdict(ghosts=1) if point.subject in point.past_names else Verdict(inventions=1)


def _judge_names(point: Point, said_names: Iterable[str]) -> Verdict:
    said_counts, right_counts = Counter(said_names), Counter(point.names)
    extra = said_counts - right_counts
    clip_names = {*point.names, *point.past_names}
    ghosts = sum(count for name, count in extra.items() if name in clip_names)
    return Verdict(ghosts, (right_counts - said_counts).total(), extra.total() - ghosts)


_PHRASES = re.compile(r",\s*|\band\b\s+(?=an?\s)")
_NAME = re.compile(
    rf"\b(?:(?P<colour>{'|'.join(COLOUR_NAMES)})\s+)?(?P<noun>{'|'.join(SHAPE_NAMES)}|(?:number|word)\s+\w+)\b",
    re.IGNORECASE,
)
_TURNS = re.compile(rf"\bturns\s+({'|'.join(COLOUR_NAMES)})\b")


def named(text: str) -> list[str]:
    """Return the names of the things that a description says are there, each as often as it says so: "red circle".

    What it says leaves is not there; what turns another colour has that one.
    """
    names = []
    for phrase in _PHRASES.split(text):
        match = _NAME.search(phrase)
        if match is None or re.search(r"\bleaves\b", phrase):
            continue
        turned = _TURNS.search(phrase)
        colour = turned[1] if turned else match["colour"] or ""
        kind, *characters = match["noun"].split()
        names.append(" ".join([colour.lower(), kind.lower(), *(part.upper() for part in characters)]).strip())
    return names
