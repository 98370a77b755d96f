"""Tiles that count as changed in a room that flickers, in noise and behind a codec: old rule and `TileNews`.

    python -m benchmarks.tile_news [--clips FOLDER] [--seed N] [--looks N] [--scenes N] [--out FILE]

Pictures are drawn in code: a room and a page, in which things happen, then what a lamp, a sensor and a codec do to
them. The picture without the latter shows whether a tile truly shows something else than when it was last shown to the
model: any mean of 4×4 pixels differs by more than 12 of 255. Both rules look at the texture, and each keeps its own
account of what was shown. The old rule is that difference of the pictures themselves.

`false`: share of tiles that a look calls news although they show the same; of a true change, `at_once`: share found by
the first look, `in_4`: by the fourth; `missed`: share never found while it lasted, `mean_looks`: looks until it was
found. Seed 1 served to choose the rule; the default is another one. `clips`: share of tiles that a look appends in two
real clips of fixed cameras, at two and four looks a second. `cost_ms`: processor time of a look at 1080p.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import av
import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.allocation.tile_news import CHANGE, SIDE, TileNews
from arr_coc.types import TILE_PX, FramePlanes, FrameStamp
from arr_coc.video.texture_updater import TextureOptions, TextureUpdater
from benchmarks.support.clips import CLIPS, clips_here
from benchmarks.support.cut_material import planes_of_rgb
from benchmarks.support.harness import write_report
from stream.monitor.machine import machine
from stream.sources.planes import planes_of

RESULTS = Path(__file__).parent / "results" / "tile_news.json"
HEIGHT_PX, WIDTH_PX = 384, 640
CHANGE_LEVEL = 2
CLIP_LOOKS = {"static_cars_topdown.mp4": 6, "static_signer.mkv": 8}
"""Clips of fixed cameras, and every how many frames there is a look."""

Picture = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Values = npt.NDArray[np.float32]
Rng = np.random.Generator
Disturbance = Callable[[Rng, int, Values], Values]
"""What a lamp or a sensor makes of a picture float32 [H, W, 3] at a look."""


class Rule(Protocol):
    """A rule of what is news; it keeps what it needs from look to look."""

    def news(self, reference: Picture, current: Picture, tiles: Flags) -> Flags:
        """Return which tiles [gh, gw] show something else; those are shown then."""
        ...


class LargestDifference:
    """The old rule: any mean of 4×4 pixels differs by more than `CHANGE`."""

    def news(self, reference: Picture, current: Picture, tiles: Flags) -> Flags:
        return _differs(reference, current)


class MeaningOfChange:
    """`TileNews`."""

    def __init__(self) -> None:
        self._news: TileNews | None = None

    def news(self, reference: Picture, current: Picture, tiles: Flags) -> Flags:
        if self._news is None:
            self._news = TileNews.of(reference)
        news, state = self._news.look(reference, current, tiles)
        self._news = state.showing(news)
        return news


RULES: dict[str, Callable[[], Rule]] = {"old": LargestDifference, "new": MeaningOfChange}


def _differs(reference: Picture, current: Picture) -> Flags:
    """Return which tiles of two pictures, both level 2, differ by more than `CHANGE`."""
    rows, cols = reference.shape[0] // SIDE, reference.shape[1] // SIDE
    delta = cv2.absdiff(reference, current).reshape(rows, SIDE, cols, SIDE * 3)
    return delta.max(axis=(1, 3)) > CHANGE


def _shown(reference: Picture, current: Picture, tiles: Flags) -> Picture:
    """Return a picture with these tiles of another one, both level 2."""
    return np.where(tiles.repeat(SIDE, 0).repeat(SIDE, 1)[..., None], current, reference)


def _level2(picture: Picture) -> Picture:
    return cv2.resize(picture, None, fx=0.25, fy=0.25, interpolation=cv2.INTER_AREA)


# What is there.


def room(rng: Rng) -> Picture:
    """A room: walls, furniture, a picture, a poster with text, a lamp that is white, and a dark corner."""
    down, right = np.mgrid[0:HEIGHT_PX, 0:WIDTH_PX].astype(np.float32)
    wall = rng.uniform(130, 190, 3).astype(np.float32)
    picture = wall * (1 - 0.25 * right / WIDTH_PX - 0.15 * down / HEIGHT_PX)[..., None]
    picture[300:] = rng.uniform(60, 110, 3) + 12 * np.sin(right[300:, :, None] / 7)
    for _ in range(7):
        top, left = int(rng.integers(120, 300)), int(rng.integers(0, 560))
        height, width = int(rng.integers(30, 110)), int(rng.integers(40, 130))
        picture[top : top + height, left : left + width] = rng.uniform(20, 200, 3)
    grain = cv2.GaussianBlur(rng.normal(0, 1, (120, 160, 3)).astype(np.float32), (0, 0), 3)
    picture[20:140, 30:190] = 110 + 45 * grain / grain.std()
    picture[24:136, 420:540] = 225
    picture = picture.clip(0, 255).astype(np.uint8)
    for line in range(6):
        text = "".join(rng.choice(list("ABCDEFGHKLMN0123456789 "), 9))
        cv2.putText(picture, text, (426, 44 + 17 * line), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (40, 40, 40), 1, cv2.LINE_AA)
    cv2.circle(picture, (300, 50), 26, (255, 255, 250), -1)
    picture[:, 600:] //= 5
    return picture


def page(rng: Rng) -> Picture:
    """A page of text with a coloured bar and a photograph."""
    picture = np.full((HEIGHT_PX, WIDTH_PX, 3), 200, np.uint8)
    picture[:32] = rng.integers(30, 220, 3)
    for line in range(16):
        text = "".join(rng.choice(list("abcdefghiklmnoprstu     "), 34))
        cv2.putText(picture, text, (20, 60 + 20 * line), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (60, 50, 40), 1, cv2.LINE_AA)
    grain = cv2.GaussianBlur(rng.normal(0, 1, (160, 192, 3)).astype(np.float32), (0, 0), 5)
    picture[120:280, 420:612] = (120 + 50 * grain / grain.std()).clip(0, 255)
    return picture


# What happens.


@dataclass(frozen=True)
class Event:
    """Something that happens in `looks` [first, end) and is drawn into `box` (top, left, height, width)."""

    name: str
    box: tuple[int, int, int, int]
    draw: Callable[[Picture, int], None]
    """Draws it into the picture of its box at a look."""
    looks: tuple[int, int]


def _tint(amount: tuple[int, int, int]) -> Callable[[Picture, int], None]:
    def draw(target: Picture, look: int) -> None:
        target[:] = (target.astype(int) + amount).clip(0, 255)

    return draw


def _digit(target: Picture, look: int) -> None:
    target[:] = 25
    cv2.putText(target, str(look % 10), (3, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.55, (230, 60, 50), 1, cv2.LINE_AA)


def _blinking(target: Picture, look: int) -> None:
    if look % 2:
        target[:] = (target.astype(int) + 60 * _sign(float(target.mean()))).clip(0, 255)


def _mover(target: Picture, look: int) -> None:
    left = (look * 12) % (target.shape[1] - 24)
    target[:, left : left + 24] = (target[:, left : left + 24].astype(int) - 30).clip(0, 255)


def _sign(value: float) -> int:
    return -1 if value > 120 else 1


def events(rng: Rng, scene: Picture, looks: int) -> list[Event]:
    """Small and large things that come, go, move and change, each in a separate place."""
    happenings: list[Event] = []
    occupied = np.zeros((HEIGHT_PX // TILE_PX, WIDTH_PX // TILE_PX), bool)

    def place(height: int, width: int, step: int) -> tuple[int, int, int, int]:
        while True:
            top, left = (
                int(rng.integers(0, (high - side) // step)) * step
                for high, side in ((HEIGHT_PX, height), (WIDTH_PX, width))
            )
            part = slice(top // 32, (top + height - 1) // 32 + 1), slice(left // 32, (left + width - 1) // 32 + 1)
            if not occupied[part].any():
                occupied[part] = True
                return top, left, height, width

    def add(name: str, size: tuple[int, int], step: int, draw: Callable[[Picture, int], None] | int) -> None:
        box = place(*size, step)
        if isinstance(draw, int):
            part = scene[box[0] : box[0] + box[2], box[1] : box[1] + box[3]]
            amount = draw * _sign(float(part.mean()))
            draw = _tint((amount, amount, amount))
        first = int(rng.integers(looks // 3, looks // 2))
        last = looks if name in ("digit", "blinking", "mover") else first + looks // 3
        happenings.append(Event(name, box, draw, (first, last)))

    add("panel", (128, 160), 4, 26)
    add("mover", (24, 128), 4, _mover)
    for _ in range(2):
        add("digit", (24, 20), 4, _digit)
        add("blinking", (8, 8), 4, _blinking)
        add("thing", (8, 8), 1, 45)
        add("stroke down", (24, 2), 4, 26)
        add("stroke across", (2, 24), 4, 26)
        add("colour", (16, 16), 1, _tint((30, -14, -10)))
    return happenings


def clean_pictures(scene: Picture, happening: list[Event], looks: int, light: Callable[[int], float]) -> list[Picture]:
    """Pictures of a scene at every look, with what happens, in the light of the room that is meant."""
    pictures = []
    for look in range(looks):
        picture = scene.copy()
        for event in happening:
            if event.looks[0] <= look < event.looks[1]:
                top, left, height, width = event.box
                event.draw(picture[top : top + height, left : left + width], look)
        gain = light(look)
        pictures.append(picture if gain == 1 else (picture * gain).clip(0, 255).astype(np.uint8))
    return pictures


# What disturbs.


def flicker(share: float, *, colours: bool = False, slow: bool = False) -> Disturbance:
    """Brightness of the picture that swings by a share, at random or slowly; each channel by itself, or as one."""

    def disturb(rng: Rng, look: int, picture: Values) -> Values:
        swing = rng.uniform(-share, share, 3 if colours else 1)
        if slow:
            swing = share * np.sin(look / 4 + np.arange(3 if colours else 1))
        return picture * (1 + swing.astype(np.float32))

    return disturb


def bands(share: float, period_px: float = 300) -> Disturbance:
    """Bands of brightness that roll: the mains' frequency beside the camera's."""

    def disturb(rng: Rng, look: int, picture: Values) -> Values:
        phase = 2 * np.pi * (np.arange(HEIGHT_PX) / period_px + 0.37 * look)
        return picture * (1 + share * np.sin(phase)).astype(np.float32)[:, None, None]

    return disturb


def lamp(share: float) -> Disturbance:
    """One lamp of several that flickers: strong near it, weak far away."""
    down, right = np.mgrid[0:HEIGHT_PX, 0:WIDTH_PX].astype(np.float32)
    closeness = np.exp(-((down - 60) ** 2 + (right - 300) ** 2) / (2 * 170**2))[..., None]

    def disturb(rng: Rng, look: int, picture: Values) -> Values:
        return picture * (1 + np.float32(rng.uniform(-share, share)) * closeness)

    return disturb


def noise(sigma: float) -> Disturbance:
    """Gaussian noise of a pixel."""

    def disturb(rng: Rng, look: int, picture: Values) -> Values:
        return picture + np.float32(sigma) * rng.standard_normal(picture.shape, dtype=np.float32)

    return disturb


def shot_noise(sigma_at_white: float) -> Disturbance:
    """Noise that grows as the square root of the light."""

    def disturb(rng: Rng, look: int, picture: Values) -> Values:
        sigma = np.float32(sigma_at_white) * np.sqrt(picture / np.float32(255))
        return picture + sigma * rng.standard_normal(picture.shape, dtype=np.float32)

    return disturb


def both(*parts: Disturbance) -> Disturbance:
    """One disturbance after the other."""

    def disturb(rng: Rng, look: int, picture: Values) -> Values:
        for part in parts:
            picture = part(rng, look, picture)
        return picture

    return disturb


def none(rng: Rng, look: int, picture: Values) -> Values:
    return picture


@dataclass(frozen=True)
class Case:
    """A kind of clip: what disturbs, the codec's rate factor if it was coded, and the light that is meant."""

    disturb: Disturbance = none
    rate_factor: int | None = None
    light: Callable[[int], float] = field(default=lambda look: 1.0)


CASES: dict[str, Case] = {
    "nothing": Case(),
    "flicker 5 %": Case(flicker(0.05)),
    "flicker 10 %": Case(flicker(0.10)),
    "flicker 20 %": Case(flicker(0.20)),
    "slow flicker 10 %": Case(flicker(0.10, slow=True)),
    "coloured flicker 10 %": Case(flicker(0.10, colours=True)),
    "rolling bands 10 %": Case(bands(0.10)),
    "one lamp 20 %": Case(lamp(0.20)),
    "noise 2": Case(noise(2)),
    "noise 6": Case(noise(6)),
    "noise 12": Case(noise(12)),
    "shot noise 16": Case(shot_noise(16)),
    "flicker 10 %, noise 6": Case(both(flicker(0.10), noise(6))),
    "bands 10 %, noise 12": Case(both(bands(0.10), noise(12))),
    "codec, noise 4": Case(noise(4), rate_factor=38),
    "codec, flicker 10 %": Case(both(flicker(0.10), noise(4)), rate_factor=38),
    "light off and on": Case(light=lambda look: 0.6 if 15 <= look < 32 else 1.0),
    "light off, noise 6": Case(noise(6), light=lambda look: 0.6 if 15 <= look < 32 else 1.0),
}


def coded(pictures: list[Picture], rate_factor: int) -> list[Picture]:
    """Return pictures as H.264 keeps them, a key frame every 12."""
    target = io.BytesIO()
    with av.open(target, "w", format="matroska") as container:
        stream = container.add_stream(
            "libx264", rate=25, options={"crf": str(rate_factor), "g": "12", "preset": "veryfast"}
        )
        stream.height, stream.width, stream.pix_fmt = HEIGHT_PX, WIDTH_PX, "yuv420p"
        for picture in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    target.seek(0)
    with av.open(target) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


# How it is judged.


@dataclass
class Tally:
    """Counts of one rule over clips."""

    tile_looks: int = 0
    news: int = 0
    false: int = 0
    delays: list[int] = field(default_factory=list)
    misses: int = 0

    @property
    def report(self) -> dict[str, float]:
        changes = len(self.delays) + self.misses
        report = {"false": round(self.false / max(1, self.tile_looks), 4), "changes": changes}
        if changes:
            report["at_once"] = round(sum(delay == 1 for delay in self.delays) / changes, 3)
            report["in_4"] = round(sum(delay <= 4 for delay in self.delays) / changes, 3)
            report["missed"] = round(self.misses / changes, 3)
            report["mean_looks"] = round(statistics.fmean(self.delays or [0]), 2)
        return report


class Account:
    """What a rule has shown to the model, beside what was there."""

    def __init__(self, rule: Rule, tally: Tally) -> None:
        self.rule, self.tally = rule, tally
        self._reference: Picture | None = None
        self._clean: Picture | None = None
        self._waits: npt.NDArray[np.int64] | None = None

    def look(self, current: Picture, clean: Picture | None, tiles: Flags) -> Flags | None:
        """Judge a picture, level 2; `clean` is what it shows. Return the news, None at the first look."""
        if self._reference is None:
            self._reference, self._clean = current.copy(), clean
            self._waits = np.zeros(tiles.shape, np.int64)
            return None
        news = self.rule.news(self._reference, current, tiles)
        self.tally.tile_looks += news.size
        self.tally.news += int(np.count_nonzero(news))
        self._reference = _shown(self._reference, current, news)
        if clean is not None and self._clean is not None and self._waits is not None:
            true = _differs(self._clean, clean)
            self.tally.false += int(np.count_nonzero(news & ~true))
            self.tally.misses += int(np.count_nonzero((self._waits > 0) & ~true))
            self._waits = np.where(true, self._waits + 1, 0)
            self.tally.delays += self._waits[true & news].tolist()
            self._waits[news] = 0
            self._clean = _shown(self._clean, clean, news)
        return news

    def end(self) -> None:
        """Count what was never found."""
        if self._waits is not None:
            self.tally.misses += int(np.count_nonzero(self._waits))


class Looker:
    """The texture of a stream, looked at frame by frame."""

    def __init__(self) -> None:
        self._updater = TextureUpdater(TextureOptions(backend="cpu", cuts=False, motion=False))
        self._index = 0

    def take(self, planes: FramePlanes) -> Flags:
        """Write a frame; return which tiles were written."""
        update = self._updater.process(planes, FrameStamp(self._index, self._index * 40_000_000, 0))
        self._index += 1
        with self._updater.lease() as view:
            frames = view.versions.frame
        return np.asarray(frames) == update.change.stamp.frame_index

    def level2(self) -> Picture:
        """Return level 2 of the texture."""
        with self._updater.lease() as view:
            return view.read(CHANGE_LEVEL).copy()


def run_case(case: Case, seed: list[int], looks: int, tallies: dict[str, Tally]) -> None:
    """Show one clip of a case to every rule."""
    rng = np.random.default_rng(seed)
    scene = (room, page)[seed[-1] % 2](rng)
    clean = clean_pictures(scene, events(rng, scene, looks), looks, case.light)
    pictures = [
        case.disturb(rng, look, p.astype(np.float32)).clip(0, 255).round().astype(np.uint8)
        for look, p in enumerate(clean)
    ]
    if case.rate_factor is not None:
        pictures = coded(pictures, case.rate_factor)
    accounts = [Account(make(), tallies[name]) for name, make in RULES.items()]
    looker = Looker()
    for picture, truth in zip(pictures, clean, strict=True):
        tiles = looker.take(planes_of_rgb(picture))
        current = looker.level2()
        for account in accounts:
            account.look(current, _level2(truth), tiles)
    for account in accounts:
        account.end()


def of_cases(seed: int, looks: int, scenes: int) -> dict[str, Any]:
    """Every rule's figures on every case."""
    report: dict[str, Any] = {}
    for number, (name, case) in enumerate(CASES.items()):
        tallies = {rule: Tally() for rule in RULES}
        for scene in range(scenes):
            run_case(case, [seed, number, scene], looks, tallies)
        report[name] = {rule: tally.report for rule, tally in tallies.items()}
        _print_row(name, report[name])
    return report


def _print_row(name: str, figures: dict[str, dict[str, float]]) -> None:
    """Print the rules' figures of a case in one line: false, changes, at_once, in_4, missed, mean_looks."""
    print(
        f"{name:26}" + "   ".join(" ".join(f"{value:7g}" for value in row.values()) for row in figures.values()),
        flush=True,
    )


def of_clips(folder: Path) -> dict[str, Any]:
    """Share of tiles that a look appends in clips of fixed cameras."""
    report: dict[str, Any] = {}
    for path in clips_here(folder, list(CLIP_LOOKS)):
        looker, tallies = Looker(), {rule: Tally() for rule in RULES}
        accounts = [Account(make(), tallies[name]) for name, make in RULES.items()]
        updates: Flags | None = None
        with av.open(str(path)) as container:
            for index, frame in enumerate(container.decode(video=0)):
                tiles = looker.take(planes_of(frame))
                updates = tiles if updates is None else updates | tiles
                if index % CLIP_LOOKS[path.name] == 0:
                    current = looker.level2()
                    for account in accounts:
                        account.look(current, None, updates)
                    updates = None
        report[path.name] = {rule: round(tally.news / tally.tile_looks, 4) for rule, tally in tallies.items()}
        print(path.name, report[path.name], flush=True)
    return report


def cost_ms(repeats: int = 15) -> dict[str, float]:
    """Median processor time of a look at 1080p and of noting what was shown, by what was written."""
    rng = np.random.default_rng(0)
    shape = 34, 60
    before = rng.integers(40, 200, (2 * shape[0], 2 * shape[1], 3), np.uint8).repeat(4, 0).repeat(4, 1)
    full_grid = np.ones(shape, bool)
    few = np.zeros(shape, bool)
    few[3, 3:13] = True
    tenth = np.arange(full_grid.size).reshape(shape) % 10 == 0
    noisy = (before + rng.normal(0, 2, before.shape)).round().astype(np.uint8)
    looks = {
        "10 tiles": (_shown(before, 255 - before, few), few),
        "10 % of tiles": (_shown(before, 255 - before, tenth), tenth),
        "all, noise 2": (noisy, full_grid),
        "all, flicker 15 %": ((before * 1.15).astype(np.uint8), full_grid),
        "all, another picture": (255 - before, full_grid),
    }
    report = {}
    for name, (now, tiles) in looks.items():
        _, state = TileNews.of(before).look(before, before, full_grid)
        spent = []
        for _ in range(repeats):
            start_ns = time.process_time_ns()
            news, after = state.look(before, now, tiles)
            after.showing(news)
            spent.append((time.process_time_ns() - start_ns) / 1e6)
        report[name] = round(statistics.median(spent), 2)
    print(report, flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clips", type=Path, default=CLIPS, help="folder of real clips")
    parser.add_argument("--seed", type=int, default=2, help="of the drawn pictures")
    parser.add_argument("--looks", type=int, default=48, help="looks of a drawn clip")
    parser.add_argument("--scenes", type=int, default=4, help="drawn clips of each case")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report = {
        "benchmark": "tile_news",
        "machine": machine(),
        "seed": arguments.seed,
        "cost_ms": cost_ms(),
        "cases": of_cases(arguments.seed, arguments.looks, arguments.scenes),
        "clips": of_clips(arguments.clips),
    }
    write_report(arguments.out, report)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
