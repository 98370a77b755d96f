"""Clips with known cuts, made in memory, for tuning the cut detector and for scoring it.

Every clip is a shot, a true hard cut, an event that is no cut (or is several), another true cut, and a last shot.
Clips are split in two parts, `tuning` and `held-out`, by seed, by the real clips that they are made of, and by
kind of event: those of `HELD_OUT_KINDS` are never in the tuning part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from arr_coc.types import Colour, FramePlanes
from benchmarks.support.cut_grounds import HEIGHT_PX, WIDTH_PX, Ground, Image, Part, all_grounds, view

Rng = np.random.Generator
Pose = tuple[float, float, float, float]
"""A camera's x and y in pixels, zoom, and angle in degrees."""

_PART_SEEDS: dict[Part, int] = {"tuning": 1_000, "held-out": 4_000}
_WORN_SHARE = 0.5


@dataclass(frozen=True, eq=False)
class Material:
    """One clip: RGB `frames` uint8 [270, 480, 3], and `cuts`, the indices of new shots' first frames.

    `kind` is the event's, `base` what it happens over, and `sort` the sort of picture that this is.
    """

    kind: str
    base: str
    sort: str
    frames: list[Image]
    cuts: list[int]


def material(part: Part, folder: Path, per_kind: int, grounds_per_sort: int = 8) -> Iterator[Material]:
    """The part's clips, over all sorts of grounds in turn. The same arguments give the same clips.

    Args:
        part: For tuning, or held out.
        folder: Real clips; without them, clips are made of drawn grounds only.
        per_kind: Clips of each kind.
        grounds_per_sort: Grounds of each drawn sort, four or more.
    """
    sorts = all_grounds(part, folder, grounds_per_sort)
    kinds = {**TUNING_KINDS, **(HELD_OUT_KINDS if part == "held-out" else {})}
    for number, (kind, event) in enumerate(kinds.items()):
        for index in range(per_kind):
            rng = np.random.default_rng([_PART_SEEDS[part], number, index])
            yield _assemble(rng, kind, event, _cast(rng, sorts, number + index))


def planes_of_rgb(picture: Image) -> FramePlanes:
    """A frame as a decoder gives it: 4:2:0, BT.601, limited range."""
    rows, cols = picture.shape[:2]
    packed = cv2.cvtColor(picture, cv2.COLOR_RGB2YUV_I420)
    luma, chroma = packed[:rows], packed[rows:].reshape(2, rows // 2, cols // 2)
    return FramePlanes("yuv", (luma, chroma[0], chroma[1]), Colour())


def _cast(rng: Rng, sorts: dict[str, list[Ground]], index: int) -> list[Ground]:
    """Four grounds of different places. The event's sort goes in turns; half the clips keep to it."""
    names = list(sorts)
    main = names[index % len(names)]
    cast: list[Ground] = []
    while len(cast) < 4:
        sort = main if len(cast) == 1 or index % 2 else str(rng.choice(names))
        ground = sorts[sort][int(rng.integers(len(sorts[sort])))]
        if all(ground.name != other.name for other in cast):
            cast.append(ground)
    return cast


def _assemble(rng: Rng, kind: str, event: Callable[[Rng, Sequence[Ground]], Event], cast: Sequence[Ground]) -> Material:
    before = cast[0].footage(int(rng.integers(6, 16)))
    transition = event(rng, cast[1:3])
    after = cast[3].footage(int(rng.integers(6, 16)))
    cuts = [len(before), *(len(before) + cut for cut in transition.cuts), len(before) + len(transition.frames)]
    frames = _worn(rng, [*before, *transition.frames, *after])
    return Material(kind, cast[1].name, cast[1].sort, frames, cuts)


def _worn(rng: Rng, frames: list[Image]) -> list[Image]:
    """Half of all clips pass through a camera's noise and a lossy coder (JPEG, each frame by itself)."""
    if rng.random() < _WORN_SHARE:
        return frames
    sigma, quality = float(rng.uniform(0, 5)), int(rng.integers(35, 95))
    worn = []
    for frame in frames:
        _, coded = cv2.imencode(".jpg", _noisy(rng, frame, sigma), [cv2.IMWRITE_JPEG_QUALITY, quality])
        worn.append(np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR), np.uint8))
    return worn


@dataclass(frozen=True, eq=False)
class Event:
    """Event between two true cuts; `cuts` are those within it, counted from its first frame."""

    frames: list[Image]
    cuts: tuple[int, ...] = ()


# Cameras


def film_path(wide: Image, path: Sequence[Pose], shutter: float = 0.5) -> list[Image]:
    """A camera's frames along its path; it blurs what moves while the shutter is open.

    Args:
        wide: uint8 [H, W, 3], what it looks at.
        path: Pose of each frame.
        shutter: Share of the frame's time.
    """
    frames = []
    for index, pose in enumerate(path):
        last = path[max(0, index - 1)]
        way = float(np.hypot(pose[0] - last[0], pose[1] - last[1])) * shutter + abs(pose[3] - last[3]) * 2
        shots = int(np.clip(way / 4, 1, 10))
        total = np.zeros((HEIGHT_PX, WIDTH_PX, 3), np.float32)
        for share in np.linspace(1 - shutter, 1, shots) if shots > 1 else [1.0]:
            x, y, zoom, angle = (float(a + share * (b - a)) for a, b in zip(last, pose, strict=True))
            total += view(wide, x, y, zoom, angle)
        frames.append((total / shots).astype(np.uint8))
    return frames


def _still(rng: Rng, cast: Sequence[Ground]) -> Event:
    return Event(cast[0].footage(int(rng.integers(16, 36))))


def _pan(rng: Rng, cast: Sequence[Ground]) -> Event:
    angle, speed_px = rng.uniform(0, 2 * np.pi), float(rng.choice([2, 4, 8, 12, 16, 24]))
    dx, dy = speed_px * np.cos(angle), speed_px * np.sin(angle) / 2
    return Event(
        film_path(cast[0].wide, [(dx * i, dy * i, 1.0, 0.0) for i in range(30)], float(rng.choice([0.0, 0.5])))
    )


def _zoom(rng: Rng, cast: Sequence[Ground]) -> Event:
    rate = float(rng.choice([1.01, 1.03, 1.06, 1.1])) ** float(rng.choice([-1, 1]))
    frames = 24
    start = 1.0 if rate > 1 else 3.0
    return Event(
        film_path(cast[0].wide, [(0.0, 0.0, float(np.clip(start * rate**i, 0.4, 8)), 0.0) for i in range(frames)])
    )


def _rotation(rng: Rng, cast: Sequence[Ground]) -> Event:
    rate = float(rng.choice([1, 3, 6, 10])) * float(rng.choice([-1, 1]))
    return Event(film_path(cast[0].wide, [(0.0, 0.0, 1.2, rate * i) for i in range(28)]))


def _whip(rng: Rng, cast: Sequence[Ground]) -> Event:
    """A pan that speeds up to as much as half the frame's width a frame, and comes to rest."""
    frames, top_px = int(rng.integers(10, 20)), float(rng.uniform(80, 240)) * float(rng.choice([-1, 1]))
    ease = np.sin(np.linspace(0, np.pi, frames)) ** 2
    x = np.concatenate([np.zeros(6), np.cumsum(top_px * ease), np.full(6, top_px * ease.sum())])
    y = float(rng.uniform(-0.2, 0.2)) * x
    shutter = float(rng.uniform(0.4, 1.0))
    return Event(film_path(cast[0].wide, [(float(a), float(b), 1.0, 0.0) for a, b in zip(x, y, strict=True)], shutter))


def _shake(rng: Rng, cast: Sequence[Ground]) -> Event:
    """A camera that is hit: it swings by up to 60 px a frame, and calms down."""
    strength = float(rng.uniform(10, 40)) * np.concatenate([np.zeros(6), np.exp(-np.arange(24) / 8)])
    jolts = rng.normal(0, 1, (30, 3)) * strength[:, None]
    return Event(film_path(cast[0].wide, [(float(x), float(y), 1.1, float(a) / 20) for x, y, a in jolts]))


def _skip(rng: Rng, cast: Sequence[Ground]) -> Event:
    """A source that loses frames: a moving camera seen at every fourth to tenth frame."""
    step = float(rng.integers(4, 11))
    dx, dy = rng.uniform(-6, 6, 2) * step
    return Event(film_path(cast[0].wide, [(float(dx * i), float(dy * i), 1.0 + 0.01 * i, 0.0) for i in range(20)], 0.0))


# Light


def _lit(frame: Image, gain: float, offset: float = 0.0) -> Image:
    return np.clip(frame.astype(np.float32) * gain + offset, 0, 255).astype(np.uint8)


def _noisy(rng: Rng, frame: Image, sigma: float) -> Image:
    if sigma <= 0:
        return frame
    return np.clip(frame + rng.normal(0, sigma, frame.shape).astype(np.float32), 0, 255).astype(np.uint8)


def _flash(rng: Rng, cast: Sequence[Ground]) -> Event:
    frames = cast[0].footage(24)
    for first in range(3, 3 + 10 * int(rng.integers(1, 3)), 10):
        at, gain, offset = first + int(rng.integers(0, 5)), float(rng.uniform(1.0, 2.5)), float(rng.uniform(60, 255))
        for step in range(int(rng.integers(1, 4))):
            frames[min(at + step, 23)] = _lit(frames[at], gain, offset * 0.7**step)
    return Event(frames)


def _strobe(rng: Rng, cast: Sequence[Ground]) -> Event:
    """Light that goes on and off: a stage, a club, lightning."""
    frames, low, high = cast[0].footage(30), float(rng.uniform(0.1, 0.5)), float(rng.uniform(1.2, 2.0))
    period = int(rng.integers(2, 6))
    return Event(
        [_lit(f, high if i // period % 2 else low, 20 if i // period % 2 else 0) for i, f in enumerate(frames)]
    )


def _exposure(rng: Rng, cast: Sequence[Ground]) -> Event:
    frames, gain = cast[0].footage(28), float(rng.choice([0.45, 0.65, 1.4, 1.8]))
    tint = rng.uniform(0.85, 1.15, 3)
    steps = np.clip((np.arange(28) - 8) / float(rng.choice([1, 2, 8])), 0, 1)
    return Event([_lit(f, 1.0 + (gain * tint - 1) * s) for f, s in zip(frames, steps, strict=True)])  # type: ignore[arg-type]


def _fade(rng: Rng, cast: Sequence[Ground]) -> Event:
    """Out to black or white, and the next shot in from there."""
    steps, ground = int(rng.integers(6, 16)), float(rng.choice([0, 16, 255]))
    shares = [*np.linspace(1, 0, steps), *np.zeros(int(rng.integers(0, 6))), *np.linspace(0, 1, steps)]
    first, second = cast[0].footage(len(shares)), cast[1].footage(len(shares))
    frames = [first[i] if i < steps else second[i] for i in range(len(shares))]
    return Event([_lit(f, float(s), ground * (1 - float(s))) for f, s in zip(frames, shares, strict=True)])


# One shot becomes another, not at once


def _plan_change(
    rng: Rng, cast: Sequence[Ground], shortest: int, longest: int
) -> tuple[list[Image], list[Image], list[float]]:
    """Frames of both shots, and how far the change has come: it rests at both ends."""
    steps, rest = int(rng.integers(shortest, longest + 1)), 8
    shares = [*[0.0] * rest, *np.linspace(0, 1, steps + 2)[1:-1], *[1.0] * rest]
    return cast[0].footage(len(shares)), cast[1].footage(len(shares)), [float(share) for share in shares]


def _dissolve(rng: Rng, cast: Sequence[Ground]) -> Event:
    first, second, shares = _plan_change(rng, cast, 6, 20)
    return Event([cv2.addWeighted(a, 1 - s, b, s, 0) for a, b, s in zip(first, second, shares, strict=True)])


def _ease(share: float) -> float:
    return share * share * (3 - 2 * share)


def _wipe(rng: Rng, cast: Sequence[Ground]) -> Event:
    first, second, shares = _plan_change(rng, cast, 6, 18)
    x, y = np.meshgrid(np.linspace(-0.5, 0.5, WIDTH_PX), np.linspace(-0.5, 0.5, HEIGHT_PX))
    angle = rng.uniform(0, 2 * np.pi)
    along = x * np.cos(angle) + y * np.sin(angle)
    along = (along - along.min()) / np.ptp(along)
    return Event([np.where((along < s)[..., None], b, a) for a, b, s in zip(first, second, shares, strict=True)])


def _iris(rng: Rng, cast: Sequence[Ground]) -> Event:
    first, second, shares = _plan_change(rng, cast, 6, 18)
    x, y = np.meshgrid(np.linspace(-1, 1, WIDTH_PX), np.linspace(-1, 1, HEIGHT_PX))
    radius = np.hypot(x, y) / np.sqrt(2)
    return Event([np.where((radius < s)[..., None], b, a) for a, b, s in zip(first, second, shares, strict=True)])


def _push(rng: Rng, cast: Sequence[Ground]) -> Event:
    """The new shot pushes the old one out, faster in the middle."""
    first, second, shares = _plan_change(rng, cast, 7, 18)
    axis, back = int(rng.integers(2)), bool(rng.random() < 0.5)
    size = WIDTH_PX if axis else HEIGHT_PX
    frames = []
    for a, b, share in zip(first, second, shares, strict=True):
        at = round(size * _ease(share))
        strip, start = (np.concatenate([b, a], axis), size - at) if back else (np.concatenate([a, b], axis), at)
        frames.append(np.ascontiguousarray(np.take(strip, range(start, start + size), axis)))
    return Event(frames)


def _mosaic(rng: Rng, cast: Sequence[Ground]) -> Event:
    """Squares of the new shot take the place of the old one's, in no order."""
    first, second, shares = _plan_change(rng, cast, 8, 18)
    turns = cv2.resize(rng.random((9, 16)), (WIDTH_PX, HEIGHT_PX), interpolation=cv2.INTER_NEAREST)
    return Event([np.where((turns < s)[..., None], b, a) for a, b, s in zip(first, second, shares, strict=True)])


def _through(rng: Rng, cast: Sequence[Ground]) -> Event:
    """The camera dives into the old shot while the new one comes up, turning."""
    _, _, shares = _plan_change(rng, cast, 9, 18)
    frames = []
    for share in shares:
        old = view(cast[0].wide, 0, 0, 1.0 + 3 * _ease(share), 25 * _ease(share))
        new = view(cast[1].wide, 0, 0, 0.6 + 0.4 * _ease(share), 25 * _ease(share) - 25)
        frames.append(cv2.addWeighted(old, 1 - share, new, share, 0))
    return Event(frames)


def _curtains(rng: Rng, cast: Sequence[Ground]) -> Event:
    """An animated transition: bars and discs of plain colours fly over the old shot until they hide it, and off the new
    one."""
    steps = int(rng.integers(12, 24))
    first, second = cast[0].footage(steps + 12), cast[1].footage(steps + 12)
    colours = [tuple(int(v) for v in rng.integers(0, 255, 3)) for _ in range(4)]
    slant = int(rng.integers(-120, 120))
    frames = []
    for index in range(steps + 12):
        share = float(np.clip((index - 6) / steps, 0, 1))
        picture = (first[index] if share < 0.5 else second[index]).copy()
        if 0 < share < 1:
            for number, colour in enumerate(colours):
                right = round((2.6 * share - 0.12 * number) * (WIDTH_PX + 240)) - 120
                left = right - round(1.1 * (WIDTH_PX + 240)) + 60 * number
                corners = [(left, 0), (right, 0), (right + slant, HEIGHT_PX), (left + slant, HEIGHT_PX)]
                cv2.fillConvexPoly(picture, np.array(corners, np.int32), colour)
            for number, colour in enumerate(colours):
                centre = (round(share * 1.4 * WIDTH_PX) - 60 * number, 40 + 60 * number)
                cv2.circle(picture, centre, 24 + 8 * number, colour, -1)
        frames.append(picture)
    return Event(frames)


# Things in the picture


def _cutout(rng: Rng, ground: Ground, height_px: int) -> tuple[Image, Image]:
    """A piece of another place, and its outline: uint8 [h, w, 3] and [h, w]."""
    piece = np.ascontiguousarray(view(ground.wide, 0, 0)[:height_px, : int(height_px * 1.3)])
    mask = np.zeros(piece.shape[:2], np.uint8)
    rows, cols = mask.shape
    cv2.ellipse(mask, (cols // 2, rows // 2), (cols // 2 - 1, rows // 2 - 1), 0, 0, 360, 255, -1)
    return piece, mask


def _paste(picture: Image, piece: Image, mask: Image, x_px: int, y_px: int) -> None:
    """Draw the piece with its top left corner at (x, y), as far as it is inside; in place."""
    rows, cols = mask.shape
    top, left = max(0, y_px), max(0, x_px)
    bottom, right = min(HEIGHT_PX, y_px + rows), min(WIDTH_PX, x_px + cols)
    if top < bottom and left < right:
        part = np.s_[top - y_px : bottom - y_px, left - x_px : right - x_px]
        np.copyto(picture[top:bottom, left:right], piece[part], where=mask[part][..., None] > 0)


def _object(rng: Rng, cast: Sequence[Ground]) -> Event:
    """Something large passes fast, near the camera."""
    piece, mask = _cutout(rng, cast[1], int(rng.integers(120, 260)))
    speed, y = float(rng.uniform(30, 130)), int(rng.integers(-20, 100))
    frames = []
    for index, frame in enumerate(cast[0].footage(26)):
        picture = frame.copy()
        _paste(picture, piece, mask, round(speed * (index - 6)) - mask.shape[1], y)
        frames.append(picture)
    return Event(frames)


def _crowd(rng: Rng, cast: Sequence[Ground]) -> Event:
    """Many things move fast in all directions, over most of the frame."""
    pieces = [_cutout(rng, cast[1], int(rng.integers(50, 130))) for _ in range(int(rng.integers(5, 14)))]
    places = rng.uniform((-60, -60), (WIDTH_PX, HEIGHT_PX), (len(pieces), 2))
    speeds = rng.normal(0, float(rng.uniform(10, 35)), (len(pieces), 2))
    frames = []
    for frame in cast[0].footage(28):
        picture = frame.copy()
        for (piece, mask), (x, y) in zip(pieces, places, strict=True):
            _paste(picture, piece, mask, round(float(x)), round(float(y)))
        places += speeds
        speeds[(places < -60) | (places > (WIDTH_PX - 20, HEIGHT_PX - 20))] *= -1
        frames.append(picture)
    return Event(frames)


def _parallax(rng: Rng, cast: Sequence[Ground]) -> Event:
    """A camera that moves past near things: they go several times as fast as what lies behind."""
    speed = float(rng.uniform(4, 14))
    behind = film_path(cast[0].wide, [(speed * i, 0.0, 1.0, 0.0) for i in range(28)])
    pieces = [_cutout(rng, cast[1], int(rng.integers(80, 220))) for _ in range(4)]
    for index, picture in enumerate(behind):
        for number, (piece, mask) in enumerate(pieces):
            _paste(picture, piece, mask, WIDTH_PX + 260 * number - round(4 * speed * index), 40 * number)
    return Event(behind)


def _title(rng: Rng, cast: Sequence[Ground]) -> Event:
    """A title or a card comes over the shot at once, and goes."""
    frames, words = cast[0].footage(30), "".join(chr(int(c)) for c in rng.integers(65, 91, 8))
    shade, panel = float(rng.choice([1.0, 0.6, 0.35])), bool(rng.random() < 0.5)
    for index in range(8, 22):
        picture = _lit(frames[index], shade)
        if panel:
            picture[HEIGHT_PX - 90 : HEIGHT_PX - 20, 30:-30] = (20, 30, 90)
        cv2.putText(picture, words, (40, HEIGHT_PX - 45), cv2.FONT_HERSHEY_DUPLEX, 2, (250, 250, 250), 4)
        frames[index] = picture
    return Event(frames)


def _window(rng: Rng, cast: Sequence[Ground]) -> Event:
    """A window opens over a third of the frame at most."""
    frames, other = cast[0].footage(26), cast[1].footage(26)
    x, y = int(rng.integers(10, 200)), int(rng.integers(10, 90))
    for index in range(9, 26):
        picture = frames[index].copy()
        picture[y : y + 150, x : x + 240] = other[index][y : y + 150, x : x + 240]
        frames[index] = picture
    return Event(frames)


# Faults


def _noise(rng: Rng, cast: Sequence[Ground]) -> Event:
    sigma = float(rng.uniform(6, 30))
    return Event([_noisy(rng, frame, sigma) for frame in cast[0].footage(24)])


def _static(rng: Rng, cast: Sequence[Ground]) -> Event:
    """A receiver without a signal: coarse or fine grain, another in every frame."""
    grain = int(rng.choice([1, 2, 4]))
    shape = (HEIGHT_PX // grain + 1, WIDTH_PX // grain + 1)
    frames = []
    for _ in range(20):
        field = cv2.resize(
            rng.integers(0, 255, shape, dtype=np.uint8),
            (shape[1] * grain, shape[0] * grain),
            interpolation=cv2.INTER_NEAREST,
        )
        frames.append(cv2.cvtColor(field[:HEIGHT_PX, :WIDTH_PX], cv2.COLOR_GRAY2RGB))
    return Event(frames)


def _glitch(rng: Rng, cast: Sequence[Ground]) -> Event:
    """A frame or two whose blocks a decoder put in the wrong places."""
    frames = cast[0].footage(24)
    for _ in range(2):
        at = int(rng.integers(5, 20))
        for step in range(int(rng.integers(1, 3))):
            picture = frames[at + step].copy()
            for _ in range(int(rng.integers(20, 80))):
                y, x, v, u = (int(rng.integers(0, limit)) for limit in (15, 28, 15, 28))
                picture[y * 16 : y * 16 + 16, x * 16 : x * 16 + 16] = frames[at][
                    v * 16 : v * 16 + 16, u * 16 : u * 16 + 16
                ]
            frames[at + step] = picture
    return Event(frames)


# Cuts


def _montage(rng: Rng, cast: Sequence[Ground]) -> Event:
    """Cuts every 6 to 12 frames, between two shots in turn."""
    frames: list[Image] = []
    cuts: list[int] = []
    for number in range(4):
        if frames:
            cuts.append(len(frames))
        frames += cast[number % 2].footage(int(rng.integers(6, 13)))
    return Event(frames, tuple(cuts))


def _moving_cut(rng: Rng, cast: Sequence[Ground]) -> Event:
    """A cut from one pan into another."""
    sides = []
    for ground in cast:
        dx, dy = rng.uniform(-12, 12, 2)
        sides.append(film_path(ground.wide, [(float(dx * i), float(dy * i / 2), 1.0, 0.0) for i in range(14)]))
    return Event([*sides[0], *sides[1]], (14,))


def _dim_cut(rng: Rng, cast: Sequence[Ground]) -> Event:
    """A cut between two shots of little light."""
    gain, dark = float(rng.uniform(0.25, 0.5)), float(rng.uniform(0, 12))
    return Event([_lit(f, gain, dark) for ground in cast for f in ground.footage(12)], (12,))


def _into_transition(rng: Rng, cast: Sequence[Ground]) -> Event:
    """A cut, and two frames later the picture begins to slide away."""
    pushed = _push(rng, [cast[1], cast[0]]).frames[6:]
    return Event([*cast[0].footage(10), *pushed], (10,))


def _letterbox_cut(rng: Rng, cast: Sequence[Ground]) -> Event:
    frames = []
    bar = int(rng.integers(20, 50))
    for frame in (f for ground in cast for f in ground.footage(12)):
        picture = frame.copy()
        picture[:bar] = picture[-bar:] = 0
        frames.append(picture)
    return Event(frames, (12,))


TUNING_KINDS: dict[str, Callable[[Rng, Sequence[Ground]], Event]] = {
    "still": _still,
    "pan": _pan,
    "zoom": _zoom,
    "whip pan": _whip,
    "flash": _flash,
    "exposure": _exposure,
    "fade": _fade,
    "dissolve": _dissolve,
    "wipe": _wipe,
    "push": _push,
    "object": _object,
    "title": _title,
    "noise": _noise,
    "montage": _montage,
    "moving cut": _moving_cut,
}
"""In both parts."""

HELD_OUT_KINDS: dict[str, Callable[[Rng, Sequence[Ground]], Event]] = {
    "rotation": _rotation,
    "shake": _shake,
    "lost frames": _skip,
    "strobe": _strobe,
    "iris": _iris,
    "mosaic": _mosaic,
    "dive": _through,
    "curtains": _curtains,
    "crowd": _crowd,
    "parallax": _parallax,
    "window": _window,
    "static": _static,
    "glitch": _glitch,
    "dim cut": _dim_cut,
    "cut, then slide": _into_transition,
    "letterboxed cut": _letterbox_cut,
}
"""Never used for tuning."""
