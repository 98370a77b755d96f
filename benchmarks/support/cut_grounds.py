"""Pictures that the material for scene cuts is made of: real frames, drawn scenes, pages and fine textures.

A ground is one shot's world. Grounds of the tuning part and of the held-out part share no real clip and no seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import av
import cv2
import numpy as np
import numpy.typing as npt

from training.clips.scenes import clip_rng, random_clip

Image = npt.NDArray[np.uint8]
Part = Literal["tuning", "held-out"]

WIDTH_PX, HEIGHT_PX = 480, 270
WIDE_PX, TALL_PX = 3 * WIDTH_PX, 3 * HEIGHT_PX
"""Size of the picture over which a camera moves."""

REAL_CLIPS: dict[Part, tuple[str, ...]] = {
    "tuning": (
        "static_cars_topdown.mp4",
        "cuts_bunny_30s.webm",
        "cuts_bunny_1080p60.mp4",
        "anim_1200x1200_60fps.mp4",
        "odd_resolution_change.h264",
        "broken_packet.mp4",
    ),
    "held-out": (
        "static_signer.mkv",
        "handheld_figurine.mp4",
        "multistream_nasa.mp4",
        "screen_terminal.gif",
        "odd_161x121.webm",
        "odd_hlg_10bit.mkv",
    ),
}
"""Clips of one film are in the same part."""

_STREAMS: dict[Part, int] = {"tuning": 41, "held-out": 42}
_WINDOW_FRAMES = 40
_WINDOWS_PER_CLIP = 4
_GRADUAL_MARGIN_FRAMES = 2
_DRIFT_PX = 0.7


@dataclass(frozen=True, eq=False)
class Ground:
    """One shot's world: `wide` uint8 RGB [810, 1440, 3], and `film`, frames [270, 480, 3] of a clip, if it is one.

    Grounds of the same `name` show the same place: going from one to the other is no cut. `sort` is "real", or how it
    was drawn.
    """

    name: str
    sort: str
    wide: Image
    film: tuple[Image, ...] = ()

    def footage(self, frames: int) -> list[Image]:
        """So many frames of a camera at rest: the clip's own, there and back again, or a slow drift over the wide
        picture."""
        if self.film:
            there_and_back = [*range(len(self.film)), *range(len(self.film) - 2, 0, -1)] or [0]
            return [self.film[there_and_back[index % len(there_and_back)]] for index in range(frames)]
        return [view(self.wide, _DRIFT_PX * index, 0.0) for index in range(frames)]


def view(wide: Image, x_px: float, y_px: float, zoom: float = 1.0, angle_deg: float = 0.0) -> Image:
    """The part of a wide picture that a camera sees. Beyond its edges the picture is mirrored.

    Args:
        wide: uint8 [H, W, 3].
        x_px: Distance of the camera from the middle, to the right.
        y_px: The same, down.
        zoom: Magnification.
        angle_deg: Turn, counter-clockwise.

    Returns:
        uint8 [270, 480, 3].
    """
    rows, cols = wide.shape[:2]
    matrix = cv2.getRotationMatrix2D((cols / 2 + x_px, rows / 2 + y_px), angle_deg, zoom)
    matrix[:, 2] += WIDTH_PX / 2 - cols / 2 - x_px, HEIGHT_PX / 2 - rows / 2 - y_px
    flags = cv2.INTER_LINEAR
    picture = cv2.warpAffine(wide, matrix, (WIDTH_PX, HEIGHT_PX), flags=flags, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(picture, np.uint8)


def drawn_grounds(part: Part, seed: int) -> dict[str, Ground]:
    """One ground of every drawn sort. The same part and seed give the same pictures."""
    grounds = {}
    for number, (sort, draw) in enumerate(_SORTS.items()):
        rng = np.random.default_rng([_STREAMS[part], seed, number])
        grounds[sort] = Ground(f"{sort}:{seed}", sort, draw(rng, part, seed))
    return grounds


def real_grounds(part: Part, folder: Path) -> list[Ground]:
    """Windows of the part's real clips, none of which holds a cut or a gradual change. Empty if the folder has no
    manifest."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        return []
    about = {clip["file"]: clip for clip in json.loads(manifest.read_text(encoding="utf-8"))}
    return [ground for name in REAL_CLIPS[part] if name in about for ground in _windows(folder / name, about[name])]


def _windows(path: Path, about: dict[str, object]) -> Iterator[Ground]:
    shots = list(_calm_stretches(about))
    spread = [shots[index % len(shots)] for index in range(_WINDOWS_PER_CLIP)]
    starts = [shot[0] + (index // len(shots)) * (shot[1] - shot[0]) // 2 for index, shot in enumerate(spread)]
    windows = {
        start: (shot, range(start, min(start + _WINDOW_FRAMES, shot[1])))
        for start, shot in zip(starts, spread, strict=True)
    }
    films: dict[int, list[Image]] = {start: [] for start in windows}
    for index, frame in enumerate(decode_frames(path)):
        for start, (_, window) in windows.items():
            if index in window:
                films[start].append(_fit(frame.to_ndarray(format="rgb24")))
    for start, (shot, _) in windows.items():
        if films[start]:
            wide = np.tile(_mirror(films[start][0]), (2, 2, 1))[:TALL_PX, :WIDE_PX]
            yield Ground(f"{path.stem}@{shot[0]}", "real", np.ascontiguousarray(wide), tuple(films[start]))


def _calm_stretches(about: dict[str, object]) -> Iterator[tuple[int, int]]:
    """First and last frame (half-open) of what lies between cuts and gradual changes."""
    cuts: list[int] = about["hard_cut_first_frame"]  # type: ignore[assignment]
    gradual: list[tuple[int, int, str]] = about.get("gradual") or []  # type: ignore[assignment]
    margin = _GRADUAL_MARGIN_FRAMES
    bounds = [(cut, cut) for cut in cuts] + [(start - margin, end + margin) for start, end, _ in gradual]
    first = 0
    for start, end in [*sorted(bounds), (int(str(about["frames"])), 0)]:
        if start - first >= _WINDOW_FRAMES // 2:
            yield first, start
        first = max(first, end)


def decode_frames(path: Path) -> Iterator[av.VideoFrame]:
    """The frames of the first video stream; packets that do not decode are skipped."""
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            try:
                yield from packet.decode()
            except av.error.InvalidDataError:
                continue


def _fit(picture: Image) -> Image:
    """Scaled to cover the frame, and cut to it."""
    rows, cols = picture.shape[:2]
    scale = max(HEIGHT_PX / rows, WIDTH_PX / cols)
    size = (max(WIDTH_PX, round(cols * scale)), max(HEIGHT_PX, round(rows * scale)))
    scaled = cv2.resize(picture, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    top, left = (size[1] - HEIGHT_PX) // 2, (size[0] - WIDTH_PX) // 2
    return np.ascontiguousarray(scaled[top : top + HEIGHT_PX, left : left + WIDTH_PX])


def _mirror(picture: Image) -> Image:
    row = np.concatenate([picture, picture[:, ::-1]], axis=1)
    return np.concatenate([row, row[::-1]], axis=0)


def _scene(rng: np.random.Generator, part: Part, seed: int) -> Image:
    """The project's own drawn world, with photographed-looking ground, light and things."""
    clip = random_clip(clip_rng("train" if part == "tuning" else "test", 7_000_000 + seed), (WIDTH_PX, HEIGHT_PX), 1)
    parts = [clip.frames[0]]
    parts += [
        random_clip(np.random.default_rng([_STREAMS[part], seed, 90 + index]), (WIDTH_PX, HEIGHT_PX)).frames[0]
        for index in range(8)
    ]
    rows = [np.concatenate(parts[index : index + 3], axis=1) for index in (0, 3, 6)]
    return np.concatenate(rows, axis=0)


def _clutter(rng: np.random.Generator, part: Part, seed: int) -> Image:
    """Rectangles and discs of many sizes and colours on a smooth ground."""
    low = rng.integers(10, 120, 3)
    high = low + rng.integers(40, 130, 3)
    patches = rng.integers(low, high, (6, 9, 3), dtype=np.uint8)
    ground = np.ascontiguousarray(cv2.resize(patches, (WIDE_PX, TALL_PX)))
    for _ in range(int(rng.integers(150, 900))):
        x, y, side = int(rng.integers(WIDE_PX)), int(rng.integers(TALL_PX)), int(rng.integers(4, 50))
        colour = tuple(int(rng.integers(a, b)) for a, b in zip(low, high, strict=True))
        if rng.random() < 0.5:
            cv2.circle(ground, (x, y), side, colour, -1)
        else:
            cv2.rectangle(ground, (x, y), (x + side, y + 2 * side), colour, -1)
    return ground


def _fine(rng: np.random.Generator, part: Part, seed: int) -> Image:
    """Fine random texture: grain of one to four pixels, gray or tinted; of the held-out part also of one direction, as
    grass and water have."""
    noise = rng.normal(0, 1, (TALL_PX, WIDE_PX)).astype(np.float32)
    sigma = float(rng.choice([0.0, 0.6, 1.0, 1.6]))
    stretch = float(rng.choice([1.0, 4.0])) if part == "held-out" else 1.0
    if sigma:
        noise = cv2.GaussianBlur(noise, (0, 0), sigmaX=sigma, sigmaY=sigma * stretch)
    noise *= float(rng.uniform(18, 60)) / max(float(noise.std()), 1e-6)
    tint = rng.uniform(70, 180, 3)
    return np.clip(tint + noise[..., None] * rng.uniform(0.6, 1.0, 3), 0, 255).astype(np.uint8)


def _page(rng: np.random.Generator, part: Part, seed: int) -> Image:
    """Pages of a document, side by side: headings, ragged paragraphs of print, margins, and a figure here and there."""
    paper, ink = int(rng.integers(190, 255)), int(rng.integers(0, 80))
    image = np.full((TALL_PX, WIDE_PX, 3), (paper, paper, paper - 10), np.uint8)
    line_px = int(rng.integers(7, 14))
    for left in range(0, WIDE_PX, WIDTH_PX):
        y = int(rng.integers(0, 60))
        while y < TALL_PX - 20:
            y += _block_of_page(rng, image, (left, y), line_px, ink)
    return image


def _block_of_page(rng: np.random.Generator, image: Image, corner_px: tuple[int, int], line_px: int, ink: int) -> int:
    """Draw a heading, a figure or a paragraph; returns the height that it takes."""
    left, top = corner_px[0] + int(rng.integers(20, 60)), corner_px[1]
    width = WIDTH_PX - int(rng.integers(50, 150))
    kind = float(rng.random())
    if kind < 0.2:
        image[top : top + 2 * line_px, left : left + int(rng.integers(60, width))] = ink
        return 4 * line_px
    if kind < 0.35:
        height = int(rng.integers(50, 130))
        shade = rng.integers(60, 220, (4, 6, 3), dtype=np.uint8)
        figure = cv2.resize(shade, (width, height), interpolation=cv2.INTER_CUBIC)
        room = image[top : top + height, left : left + width]
        room[:] = figure[: room.shape[0], : room.shape[1]]
        return height + 2 * line_px
    lines = int(rng.integers(2, 9))
    for line in range(lines):
        x, end = left, left + (width if line < lines - 1 else int(rng.integers(40, width)))
        while x < end:
            word = int(rng.integers(8, 40))
            y = top + line * line_px
            image[y : y + line_px // 2, x : min(x + word, end) : 2] = ink
            x += word + line_px // 2
    return (lines + int(rng.integers(1, 4))) * line_px


def _flat(rng: np.random.Generator, part: Part, seed: int) -> Image:
    """A few large shapes of one colour each, as in flat animation."""
    image = np.full((TALL_PX, WIDE_PX, 3), rng.integers(0, 255, 3, dtype=np.uint8), np.uint8)
    for _ in range(int(rng.integers(10, 30))):
        corners = rng.integers((0, 0), (WIDE_PX, TALL_PX), (1, 2)) + rng.integers(
            -160, 160, (int(rng.integers(3, 7)), 2)
        )
        cv2.fillConvexPoly(image, cv2.convexHull(corners.astype(np.int32)), [int(v) for v in rng.integers(0, 255, 3)])
    return image


_SORTS: dict[str, Callable[[np.random.Generator, Part, int], Image]] = {
    "scene": _scene,
    "clutter": _clutter,
    "fine": _fine,
    "page": _page,
    "flat": _flat,
}


@lru_cache(maxsize=2)
def all_grounds(part: Part, folder: Path, grounds_per_sort: int = 8) -> dict[str, list[Ground]]:
    """The part's grounds by sort, `grounds_per_sort` seeds of each drawn sort; "real" is left out if there are no
    clips."""
    sorts: dict[str, list[Ground]] = {}
    for seed in range(grounds_per_sort):
        for sort, ground in drawn_grounds(part, seed).items():
            sorts.setdefault(sort, []).append(ground)
    if real := real_grounds(part, folder):
        sorts["real"] = real
    return sorts
