"""Plain worlds of `scene:demo` with questions.

The drawing and the wording of captions are those of `stream.scenes`; here are chance, and the questions. A world may
have several frames, and what moves may leave its streak out: then the frames alone show which way it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import cv2
import numpy as np

from stream.scenes.drawing import (
    COLOURS,
    DIRECTIONS,
    MOVEMENTS,
    RGB,
    SHAPES,
    GroundTruth,
    Image,
    SceneObject,
    draw_object,
    gradient,
    page,
)

SIZES_PX: tuple[tuple[int, int], ...] = (
    (192, 192),
    (256, 192),
    (320, 192),
    (320, 256),
    (384, 256),
    (448, 320),
    (512, 320),
    (640, 384),
    (640, 384),
    (640, 352),
)
LARGE_SIZES_PX: tuple[tuple[int, int], ...] = ((960, 544), (1280, 736), (1920, 1088))

Kind = Literal["caption", "colour", "shape", "place", "movement", "number", "count", "exists"]
KINDS: tuple[Kind, ...] = ("caption", "colour", "shape", "place", "movement", "number", "count", "exists")


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """One question about a world, and its answer."""

    kind: Kind
    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class World:
    """Pictures, uint8 RGB [H, W, 3], and what is true of each; the last is now."""

    images: tuple[Image, ...]
    frames: tuple[GroundTruth, ...]
    streaks: bool = True

    @property
    def image(self) -> Image:
        return self.images[-1]

    @property
    def facts(self) -> GroundTruth:
        return self.frames[-1]


def random_world(
    rng: np.random.Generator, size_px: tuple[int, int], most_things: int = 3, frames: int = 1, streaks: bool = True
) -> World:
    """Return a random world, drawn and then worn as a camera would.

    Args:
        rng: Source of chance.
        size_px: (width, height) of the frames.
        most_things: Most things; there is at least one.
        frames: Number of frames.
        streaks: Draw streaks behind what moves; False only with two frames or more, which show the movement.
    """
    while True:
        facts = random_facts(rng, size_px, most_things, NUMBER_SHARE)
        ways = [float(rng.uniform(*WAYS)) for _ in facts.things]
        first = _before(facts, ways)
        if streaks or all(thing.visible_share(*size_px) >= _LEAST_SEEN for thing in first.things):
            break
    background = _background(rng, *size_px)
    images, truths = [], []
    for back in range(frames - 1, -1, -1):
        truth = _before(facts, [way * back / max(1, frames - 1) for way in ways])
        image = background.copy()
        for thing in truth.things:
            draw_object(image, thing if streaks else replace(thing, movement="still"))
        images.append(_worn(rng, image))
        truths.append(truth)
    return World(tuple(images), tuple(truths), streaks)


WAYS = (0.4, 1.0)
"""Distance that a thing moves over a world's frames, in its own sizes: no further than its streak is long."""


_LEAST_SEEN = 0.5
"""Of a thing in the first frame, if no streak shows that it moves."""


def _before(facts: GroundTruth, ways: Sequence[float]) -> GroundTruth:
    """The things at their places `ways` of their own sizes ago."""
    things = []
    for thing, way in zip(facts.things, ways, strict=True):
        dx, dy = DIRECTIONS.get(thing.movement, (0, 0))
        things.append(thing.shift(-dx * way * thing.size_px, -dy * way * thing.size_px))
    return replace(facts, things=tuple(things))


def random_facts(
    rng: np.random.Generator, size_px: tuple[int, int], most_things: int = 3, number_share: float = 0.25
) -> GroundTruth:
    """Return the contents of a random world, without drawing it.

    Args:
        rng: Source of chance.
        size_px: (width, height) of the frame.
        most_things: Most things; there is at least one.
        number_share: Chance that a thing is a number.
    """
    things = _things(rng, *size_px, int(rng.integers(1, most_things + 1)), number_share)
    return GroundTruth.of(*size_px, things)


def _background(rng: np.random.Generator, width_px: int, height_px: int) -> Image:
    first, second = _grey(rng), _grey(rng)
    kind = rng.random()
    if kind < 0.3:
        return gradient(width_px, height_px, first, first)
    if kind < 0.8:
        return gradient(width_px, height_px, first, second, float(rng.uniform(0, 360)))
    ink = tuple(int(channel) + int(rng.integers(-45, -15)) for channel in first)
    return page(width_px, height_px, first, (ink[0], ink[1], ink[2]), int(rng.integers(8, 25)), rng)


def _grey(rng: np.random.Generator) -> RGB:
    """A dull colour of middle brightness, from which every named colour stands out."""
    level = rng.integers(95, 185)
    red, green, blue = (int(level + rng.integers(-22, 23)) for _ in range(3))
    return red, green, blue


def _things(
    rng: np.random.Generator, width_px: int, height_px: int, count: int, number_share: float
) -> list[SceneObject]:
    """Things whose boxes, streaks included, do not meet, and whose order from left to right is plain."""
    things: list[SceneObject] = []
    for _ in range(60):
        if len(things) == count:
            break
        thing = _thing(rng, width_px, height_px, number_share)
        if _fits(thing, things, width_px, height_px):
            things.append(thing)
    return things


def _thing(rng: np.random.Generator, width_px: int, height_px: int, number_share: float) -> SceneObject:
    others = len(SHAPES) - 1
    shape = SHAPES[int(rng.choice(len(SHAPES), p=[(1 - number_share) / others] * others + [number_share]))]
    colour = str(rng.choice(list(COLOURS)))
    least_px = max(36.0, 0.11 * height_px) if shape != "number" else max(44.0, 0.13 * height_px)
    size_px = float(rng.uniform(least_px, max(least_px + 8, 0.32 * height_px)))
    red, green, blue = (int(np.clip(c + rng.integers(-14, 15), 0, 255)) for c in COLOURS[colour])
    return SceneObject(
        shape,
        colour,
        float(rng.uniform(0, width_px)),
        float(rng.uniform(0, height_px)),
        size_px,
        MOVEMENTS[int(rng.integers(len(MOVEMENTS)))],
        int(rng.integers(10, 100)) if shape == "number" else None,
        float(rng.uniform(-8, 8)),
        (red, green, blue),
    )


NUMBER_SHARE = 0.4
"""Of all things; the shapes share the rest. Two digits take longer to learn than six shapes."""


def _fits(thing: SceneObject, others: list[SceneObject], width_px: int, height_px: int) -> bool:
    least_visible = 0.98 if thing.shape == "number" else 0.7
    if thing.visible_share(width_px, height_px) < least_visible:
        return False
    for share in (3 * thing.x_px / width_px, 3 * thing.y_px / height_px):
        if min(abs(share - 1), abs(share - 2)) < 0.09:
            return False
    left, top, right, bottom = thing.box_px(streak=True)
    for other in others:
        if abs(other.x_px - thing.x_px) < 0.08 * width_px:
            return False
        other_left, other_top, other_right, other_bottom = other.box_px(streak=True)
        disjoint = left > other_right or right < other_left or top > other_bottom or bottom < other_top
        if not disjoint:
            return False
    return True


def _worn(rng: np.random.Generator, image: Image) -> Image:
    """The picture after sensor noise, a little blur, or JPEG compression; often untouched."""
    kind = rng.random()
    if kind < 0.12:
        image = cv2.GaussianBlur(image, (3, 3), float(rng.uniform(0.4, 1.0)))
    elif kind < 0.30:
        quality = [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(40, 95))]
        image = np.asarray(cv2.imdecode(cv2.imencode(".jpg", image, quality)[1], cv2.IMREAD_COLOR), dtype=np.uint8)
    elif kind < 0.45:
        noise = np.empty(image.shape, dtype=np.int8)
        cv2.setRNGSeed(int(rng.integers(2**31)))
        cv2.randn(noise, 0, float(rng.uniform(1, 4)))
        image = cv2.add(image, noise, dtype=cv2.CV_8U)
    return image


def ask(rng: np.random.Generator, facts: GroundTruth, kind: Kind) -> DemoQuestion:
    """A question of the given kind about a frame, in one of its wordings."""
    text, answer = _ASKERS[kind](rng, facts)
    if rng.random() < 0.1:
        text = text.lower().rstrip("?.")
    return DemoQuestion(kind, text, answer)


def _pick(rng: np.random.Generator, wordings: tuple[str, ...]) -> str:
    return wordings[int(rng.integers(len(wordings)))]


def _caption(rng: np.random.Generator, facts: GroundTruth) -> tuple[str, str]:
    wordings = (
        "Say what happens.",
        "Say what happens.",
        "Say what happens.",
        "What happens?",
        "What is happening?",
        "Describe what happens.",
        "Describe the scene.",
        "Describe this image.",
        "What do you see?",
        "What is in the picture?",
        "Caption this.",
        "What is going on here?",
    )
    return _pick(rng, wordings), facts.caption


def _unique(facts: GroundTruth, thing: SceneObject) -> str:
    """A name that fits this thing alone; "" if none does."""
    same_shape = [other for other in facts.things if other.shape == thing.shape]
    if len(same_shape) == 1:
        return thing.shape
    same = [other for other in same_shape if other.colour == thing.colour]
    return f"{thing.colour} {thing.shape}" if len(same) == 1 else ""


def _named(rng: np.random.Generator, facts: GroundTruth) -> tuple[SceneObject, str] | None:
    """A thing and a name that fits it alone, sometimes with its colour though the shape would do."""
    thing = facts.things[int(rng.integers(len(facts.things)))]
    name = _unique(facts, thing)
    if not name:
        return None
    if " " not in name and rng.random() < 0.5:
        name = f"{thing.colour} {name}"
    return thing, name


def _absent(rng: np.random.Generator, facts: GroundTruth) -> str:
    """An absent shape, with a colour now and then."""
    shapes = {thing.shape for thing in facts.things}
    shape = _pick(rng, tuple(shape for shape in SHAPES if shape not in shapes))
    return f"{_pick(rng, tuple(COLOURS))} {shape}" if rng.random() < 0.3 else shape


def _about(
    wordings: tuple[str, ...], answer: Callable[[GroundTruth, SceneObject], str], with_colour: bool = True
) -> Callable[[np.random.Generator, GroundTruth], tuple[str, str]]:
    """Questions about one named thing; now and then about an absent one."""

    def asker(rng: np.random.Generator, facts: GroundTruth) -> tuple[str, str]:
        choice = _named(rng, facts)
        if choice is None or rng.random() < 0.08:
            name = _absent(rng, facts)
            name = name if with_colour else name.split()[-1]
            return _pick(rng, wordings).format(name), f"there is no {name}."
        thing, name = choice
        if not with_colour:
            name = name.split()[-1]
            if len([other for other in facts.things if other.shape == thing.shape]) > 1:
                return _caption(rng, facts)
        return _pick(rng, wordings).format(name), answer(facts, thing)

    return asker


def _shape(rng: np.random.Generator, facts: GroundTruth) -> tuple[str, str]:
    thing = facts.things[int(rng.integers(len(facts.things)))]
    wordings = ("What is the {} thing?", "What shape is {}?", "Which thing is {}?", "What is {}?")
    if len([other for other in facts.things if other.colour == thing.colour]) > 1 or rng.random() < 0.08:
        absent = [colour for colour in COLOURS if all(colour != other.colour for other in facts.things)]
        colour = _pick(rng, tuple(absent))
        return _pick(rng, wordings).format(colour), f"nothing is {colour}."
    return _pick(rng, wordings).format(thing.colour), f"a {thing.noun}."


def _number(rng: np.random.Generator, facts: GroundTruth) -> tuple[str, str]:
    numbers = [thing for thing in facts.things if thing.number is not None]
    plain = ("What number is shown?", "Which number is it?", "What is the number?", "Read the number.")
    if not numbers:
        return _pick(rng, (*plain, "What number is on the left?")), "there is no number."
    if len(numbers) == 1:
        thing = numbers[0]
        by_colour = (f"What number is {thing.colour}?", f"What is the {thing.colour} number?")
        side = "left" if thing.x_px < facts.width_px / 2 else "right"
        return _pick(rng, (*plain, *by_colour, f"What number is on the {side}?")), f"{thing.number}."
    leftmost = rng.random() < 0.5
    thing = numbers[0] if leftmost else numbers[-1]
    return f"What number is on the {'left' if leftmost else 'right'}?", f"{thing.number}."


def _count(rng: np.random.Generator, facts: GroundTruth) -> tuple[str, str]:
    wordings = ("How many things are there?", "How many things do you see?", "Count the things.")
    return _pick(rng, wordings), f"{('nothing', 'one', 'two', 'three')[len(facts.things)]}."


def _exists(rng: np.random.Generator, facts: GroundTruth) -> tuple[str, str]:
    wordings = ("Is there a {}?", "Do you see a {}?")
    if rng.random() < 0.5:
        thing = facts.things[int(rng.integers(len(facts.things)))]
        return _pick(rng, wordings).format(_pick(rng, (thing.shape, f"{thing.colour} {thing.shape}"))), "yes."
    kinds = {(thing.colour, thing.shape) for thing in facts.things}
    if rng.random() < 0.5:
        return _pick(rng, wordings).format(_absent(rng, facts)), "no."
    colour, shape = _pick(rng, tuple(COLOURS)), facts.things[0].shape
    return _pick(rng, wordings).format(f"{colour} {shape}"), "yes." if (colour, shape) in kinds else "no."


_ASKERS: dict[Kind, Callable[[np.random.Generator, GroundTruth], tuple[str, str]]] = {
    "caption": _caption,
    "colour": _about(
        ("What colour is the {}?", "What color is the {}?", "Which colour is the {}?", "What is the colour of the {}?"),
        lambda facts, thing: f"{thing.colour}.",
        with_colour=False,
    ),
    "shape": _shape,
    "place": _about(
        ("Where is the {}?", "Where do you see the {}?", "In which place is the {}?"),
        lambda facts, thing: f"{thing.place(facts.width_px, facts.height_px)}.",
    ),
    "movement": _about(
        ("Which way does the {} move?", "Where does the {} move?", "How does the {} move?", "What does the {} do?"),
        lambda facts, thing: f"it {thing.phrase.split(' ', 2 if thing.number is None else 3)[-1]}.",
    ),
    "number": _number,
    "count": _count,
    "exists": _exists,
}
