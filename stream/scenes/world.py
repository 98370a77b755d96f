"""What a drawn world is made of, and the words that describe it.

A world is one to three things on a background. A thing has a shape (or is a two-digit number), a colour, a place and
a movement, and all four can be seen in a single frame: what moves draws a fading streak behind it, as a long
exposure would show it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Shape = Literal["circle", "square", "triangle", "star", "cross", "ring", "number"]
Movement = Literal["still", "left", "right", "up", "down"]

SHAPES: tuple[Shape, ...] = ("circle", "square", "triangle", "star", "cross", "ring", "number")
MOVEMENTS: tuple[Movement, ...] = ("still", "left", "right", "up", "down")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 32, 38),
    "green": (26, 150, 52),
    "blue": (30, 74, 214),
    "yellow": (246, 222, 30),
    "orange": (248, 134, 16),
    "purple": (138, 38, 176),
    "white": (250, 250, 250),
    "black": (14, 14, 16),
}
"""Name of a colour → its RGB, 8 bits a channel."""

PLACES: tuple[str, ...] = (
    *("top left", "top", "top right"),
    *("left", "centre", "right"),
    *("bottom left", "bottom", "bottom right"),
)
"""The nine thirds-by-thirds places of the picture, row by row."""

COUNT_WORDS = ("nothing", "one", "two", "three")


@dataclass(frozen=True, slots=True)
class Thing:
    """One thing as it stands in one frame: centre, size (its height) and streak in pixels of that frame."""

    shape: Shape
    colour: str
    x_px: float
    y_px: float
    size_px: float
    movement: Movement = "still"
    number: int | None = None
    angle_deg: float = 0.0
    rgb: tuple[int, int, int] | None = None
    """Its exact colour; that of `COLOURS` when absent."""

    @property
    def width_px(self) -> float:
        """A number is wider than high; everything else fits a square."""
        return self.size_px * (1.5 if self.shape == "number" else 1.0)

    @property
    def streak_px(self) -> float:
        """How far behind the centre its streak reaches; 0 when still."""
        if self.movement == "still":
            return 0.0
        along_px = self.width_px if self.movement in ("left", "right") else self.size_px
        return 0.5 * along_px + 1.1 * self.size_px

    @property
    def noun(self) -> str:
        """A circle's is "circle", a number's "number 42"."""
        return self.shape if self.number is None else f"number {self.number}"

    @property
    def phrase(self) -> str:
        """ "red circle moves right", without an article."""
        verb = "stays still" if self.movement == "still" else f"moves {self.movement}"
        return f"{self.colour} {self.noun} {verb}"

    def shifted(self, dx_px: float, dy_px: float) -> Thing:
        return replace(self, x_px=self.x_px + dx_px, y_px=self.y_px + dy_px)

    def box_px(self, streak: bool = False) -> tuple[float, float, float, float]:
        """(left, top, right, bottom) around the thing, with its streak if asked."""
        half_width, half_height = self.width_px / 2, self.size_px / 2
        left, right = self.x_px - half_width, self.x_px + half_width
        top, bottom = self.y_px - half_height, self.y_px + half_height
        if streak:
            left = min(left, self.x_px - self.streak_px) if self.movement == "right" else left
            right = max(right, self.x_px + self.streak_px) if self.movement == "left" else right
            top = min(top, self.y_px - self.streak_px) if self.movement == "down" else top
            bottom = max(bottom, self.y_px + self.streak_px) if self.movement == "up" else bottom
        return left, top, right, bottom

    def visible_share(self, width_px: int, height_px: int) -> float:
        """Share of the thing's box that lies inside a picture of the given size."""
        left, top, right, bottom = self.box_px()
        inside_width = max(0.0, min(right, width_px) - max(left, 0.0))
        inside_height = max(0.0, min(bottom, height_px) - max(top, 0.0))
        return inside_width * inside_height / (self.width_px * self.size_px)

    def place(self, width_px: int, height_px: int) -> str:
        """Which of `PLACES` its centre lies in."""
        col = min(2, max(0, int(3 * self.x_px / width_px)))
        row = min(2, max(0, int(3 * self.y_px / height_px)))
        return PLACES[3 * row + col]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of one frame: its size and the things in it, from left to right."""

    width_px: int
    height_px: int
    things: tuple[Thing, ...]

    @classmethod
    def of(cls, width_px: int, height_px: int, things: list[Thing], least_visible: float = 0.5) -> Facts:
        """The facts about a frame; things of which less than `least_visible` shows are left out."""
        seen = [thing for thing in things if thing.visible_share(width_px, height_px) >= least_visible]
        return cls(width_px, height_px, tuple(sorted(seen, key=lambda thing: (thing.x_px, thing.y_px))))

    @property
    def caption(self) -> str:
        """One sentence that says what happens, things from left to right."""
        phrases = [f"{'an' if thing.colour[0] in 'aeiou' else 'a'} {thing.phrase}" for thing in self.things]
        if not phrases:
            return "nothing is there."
        *first, last = phrases
        return (f"{', '.join(first)} and {last}" if first else last) + "."
