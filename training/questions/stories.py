"""Things followed through frames; places and relations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from stream.scenes.drawing import PLACES
from training.clips.truth import Box, Clip, Seen

TEXTS = ("number", "word")


@dataclass(frozen=True)
class Story:
    """One thing through the frames of a clip; None if it is not to be seen."""

    appearances: tuple[Seen | None, ...]

    @cached_property
    def shown(self) -> tuple[Seen, ...]:
        return tuple(appearance for appearance in self.appearances if appearance is not None)

    @property
    def last(self) -> Seen:
        return self.shown[-1]

    @property
    def kind(self) -> str:
        return self.last.kind

    @property
    def text(self) -> str:
        return self.last.text

    @property
    def colour(self) -> str:
        """Its one colour, or "" if it changes."""
        return "" if self.turns else self.last.colour

    @property
    def movement(self) -> str:
        return self.last.movement

    @property
    def turns(self) -> bool:
        """True if it changes its colour."""
        return len({appearance.colour for appearance in self.shown}) > 1

    @property
    def appears(self) -> bool:
        return self.appearances[0] is None

    @property
    def leaves(self) -> bool:
        return self.appearances[-1] is None

    @property
    def steady(self) -> bool:
        """True if it is in every frame, in one colour."""
        return None not in self.appearances and not self.turns

    @property
    def boxes(self) -> tuple[tuple[Box, ...], ...]:
        """Frame by frame, its box or nothing."""
        return tuple(() if appearance is None else (appearance.box_px,) for appearance in self.appearances)

    @property
    def noun(self) -> str:
        """ "circle", "number 42", "word EXIT"."""
        return f"{self.kind} {self.text}" if self.kind in TEXTS else self.kind

    @property
    def phrase(self) -> str:
        """ "a red circle", "a number 42" if no one colour can be named."""
        colour = "" if self.colour == "faint" else self.colour
        return article(f"{colour} {self.noun}".strip())


def article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def middle(box: Box) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def stories(clip: Clip) -> list[Story]:
    """The clip's things, each followed through the frames.

    Things are the same if they are of one kind, text and movement, and the nearest such pair from frame to
    frame; one of another colour counts as the same only without another of the same colour.
    """
    tracks: list[list[Seen | None]] = []
    for frame, things in enumerate(clip.things):
        pairs = sorted(
            (
                (cost, t, s)
                for t, track in enumerate(tracks)
                for s, thing in enumerate(things)
                if (cost := _cost(track, thing)) is not None
            ),
        )
        matched_things: set[int] = set()
        matched_tracks: set[int] = set()
        for _, t, s in pairs:
            if t not in matched_tracks and s not in matched_things:
                tracks[t].append(things[s])
                matched_tracks.add(t)
                matched_things.add(s)
        for t, track in enumerate(tracks):
            if t not in matched_tracks:
                track.append(None)
        tracks.extend([None] * frame + [thing] for s, thing in enumerate(things) if s not in matched_things)
    return [Story(tuple(track)) for track in tracks]


def _cost(track: Sequence[Seen | None], thing: Seen) -> float | None:
    """Cost of continuing the track with this; None if it cannot continue."""
    before = track[-1]
    if before is None or (before.kind, before.text, before.movement) != (thing.kind, thing.text, thing.movement):
        return None
    (x0, y0), (x1, y1) = middle(before.box_px), middle(thing.box_px)
    other_size = abs((thing.box_px[2] - thing.box_px[0]) - (before.box_px[2] - before.box_px[0]))
    if other_size > 3:
        return None
    return abs(x1 - x0) + abs(y1 - y0) + 10_000 * (before.colour != thing.colour)


class Names:
    """Names that fit one of the stories alone."""

    def __init__(self, stories: Sequence[Story]) -> None:
        self._stories = stories

    def of(self, story: Story, colour: bool = True) -> list[str]:
        """Every name that fits this story alone, with or without its text, and its colour if that may be used."""
        candidates = [story.kind]
        if story.kind in TEXTS:
            candidates.append(story.noun)
        if colour and story.colour not in ("", "faint"):
            candidates += [f"{story.colour} {name}" for name in candidates]
        return [name for name in candidates if self.fitting(name) == [story]]

    def fitting(self, name: str) -> list[Story]:
        """The stories that a name fits at some time."""
        return [story for story in self._stories if any(_fits(name, appearance) for appearance in story.shown)]


def _fits(name: str, thing: Seen) -> bool:
    parts = name.split()
    if parts[0] == thing.colour:
        parts = parts[1:]
    noun = [thing.kind, thing.text] if thing.text else [thing.kind]
    return parts in ([thing.kind], noun)


_PLACE_MARGIN = 0.05
"""Distance to a border between two places, of the picture's side, below which a thing is plainly in neither."""

_APART = 0.1
"""Least distance, of the picture's side, for one thing to count as left of or above another."""

AREAS = {
    "top left": (0.0, 0.0, 0.5, 0.5),
    "top right": (0.5, 0.0, 1.0, 0.5),
    "bottom left": (0.0, 0.5, 0.5, 1.0),
    "bottom right": (0.5, 0.5, 1.0, 1.0),
    "centre": (0.25, 0.25, 0.75, 0.75),
}
"""Place → the part of the picture that fits it, as shares; "left" may fit far too much."""

SIDES = {"left": (0, -1), "right": (0, 1), "above": (1, -1), "below": (1, 1)}
"""Side → axis (x, y) and sign."""


def shares(clip: Clip, box: Box) -> tuple[float, float]:
    """The middle of a box, as shares of width and height."""
    x, y = middle(box)
    return x / clip.size_px[0], y / clip.size_px[1]


def _third(share: float, margin: float = 0.0) -> int:
    """The third that holds it; -1 within a margin of a border between two."""
    if min(abs(share - 1 / 3), abs(share - 2 / 3)) < margin:
        return -1
    return min(2, max(0, int(3 * share)))


def place_of(clip: Clip, story: Story) -> str:
    """The ninth of the picture that plainly holds it all the time; "" if that changes or it is close to a border."""
    places = set()
    for appearance in story.shown:
        col, row = (_third(share, _PLACE_MARGIN) for share in shares(clip, appearance.box_px))
        places.add("" if -1 in (row, col) else PLACES[3 * row + col])
    return places.pop() if len(places) == 1 else ""


def may_be_in(clip: Clip, story: Story, place: str) -> bool:
    """True if any part of it is ever in a place, one of `AREAS`, by a generous reading of the place."""
    width, height = clip.size_px
    area = [share * side for share, side in zip(AREAS[place], (width, height, width, height), strict=True)]
    boxes = [appearance.box_px for appearance in story.shown]
    return any(b[0] < area[2] and b[2] > area[0] and b[1] < area[3] and b[3] > area[1] for b in boxes)


def is_beside(clip: Clip, story: Story, side: str, other: Story) -> bool:
    """Return whether a thing is plainly on a side of another one.

    Args:
        clip: Clip of both.
        story: Story of the thing.
        side: Side of the other thing, one of `SIDES`.
        other: Story of the other thing.

    Returns:
        True if it is so in every frame that shows both, and there is such a frame.
    """
    axis, sign = SIDES[side]
    pairs = [(a, b) for a, b in zip(story.appearances, other.appearances, strict=True) if a and b]
    gaps = [sign * (shares(clip, a.box_px)[axis] - shares(clip, b.box_px)[axis]) for a, b in pairs]
    return bool(gaps) and min(gaps) >= _APART
