"""Where things are in the picture, and on which side of each other."""

from __future__ import annotations

from stream.scenes.drawing import PLACES
from training.stories import Story, middle
from training.truth import Box, Clip

_PLACE_MARGIN = 0.05
"""What is closer to a border between two places, of the picture's side, is plainly in neither."""

_APART = 0.1
"""How much further left or higher something must be, of the picture's side, to be called so."""

AREAS = {
    "top left": (0.0, 0.0, 0.5, 0.5),
    "top right": (0.5, 0.0, 1.0, 0.5),
    "bottom left": (0.0, 0.5, 0.5, 1.0),
    "bottom right": (0.5, 0.5, 1.0, 1.0),
    "centre": (0.25, 0.25, 0.75, 0.75),
}
"""Place → the part of the picture of which one might say so, as shares; "left" might be said of far too much."""

SIDES = {"left": (0, -1), "right": (0, 1), "above": (1, -1), "below": (1, 1)}
"""Side → axis (x, y) and sign."""


def shares(clip: Clip, box: Box) -> tuple[float, float]:
    """The middle of a box, as shares of width and height."""
    x, y = middle(box)
    return x / clip.size_px[0], y / clip.size_px[1]


def _third(share: float, margin: float = 0.0) -> int:
    """Which third; -1 within a margin of a border between two."""
    if min(abs(share - 1 / 3), abs(share - 2 / 3)) < margin:
        return -1
    return min(2, max(0, int(3 * share)))


def place_of(clip: Clip, story: Story) -> str:
    """Which ninth of the picture it is plainly in, all the time; "" if it changes or is close to a border."""
    places = set()
    for seen in story.shown:
        col, row = (_third(share, _PLACE_MARGIN) for share in shares(clip, seen.box_px))
        places.add("" if -1 in (row, col) else PLACES[3 * row + col])
    return places.pop() if len(places) == 1 else ""


def may_be_in(clip: Clip, story: Story, place: str) -> bool:
    """Whether any part of it is ever where somebody could say that it is in that place, one of `AREAS`."""
    width, height = clip.size_px
    area = [share * side for share, side in zip(AREAS[place], (width, height, width, height), strict=True)]
    boxes = [seen.box_px for seen in story.shown]
    return any(b[0] < area[2] and b[2] > area[0] and b[1] < area[3] and b[3] > area[1] for b in boxes)


def is_beside(clip: Clip, story: Story, side: str, other: Story) -> bool:
    """Whether it is plainly on that side of the other in every frame in which both are, and both are in some."""
    axis, sign = SIDES[side]
    both = [(a, b) for a, b in zip(story.seen, other.seen, strict=True) if a and b]
    gaps = [sign * (shares(clip, a.box_px)[axis] - shares(clip, b.box_px)[axis]) for a, b in both]
    return bool(gaps) and min(gaps) >= _APART
