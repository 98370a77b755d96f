"""Accuracy of the semantic-void guard: pictures without content against those with some.

    python -m benchmarks.void [--seeds N] [--clips FOLDER] [--out FILE]

Voids are blank pictures, gradients, white noise and splatter (drops smaller than a tile, everywhere); the others are
pages, screens, drawn scenes, plain grounds with one small thing, and frames of real clips. Each is looked at as a
stream's first frame, at three sizes, with the shipped allocator and a question, and with an untrained one. Seeds from
`HELD_OUT_SEED` on were not used to choose the guard's thresholds. Target: 95 % right of each kind.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.allocation.structure import picture_structure
from arr_coc.qwen.loading import load_qwen
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.types import FramePlanes, FrameStamp, QueryEmbedding
from arr_coc.video.picture_allocator import FrameAllocator
from benchmarks.support.clips import CLIPS, described_clips
from benchmarks.support.harness import write_report
from stream.monitor.machine import machine
from stream.scenes.drawing import COLOURS, RGB, SHAPES, SceneObject, draw_object, gradient, page
from stream.scenes.textures import add_grain, plain_surface
from training.clips.scenes import clip_rng, random_clip

Image = npt.NDArray[np.uint8]
Rng = np.random.Generator

RESULTS = Path(__file__).parent / "results" / "void.json"
HELD_OUT_SEED = 6_000
SIZES_PX = ((640, 384), (1280, 720), (512, 512))
QUESTION = "Say what happens."


def _grey(rng: Rng) -> RGB:
    low = int(rng.integers(10, 236))
    red, green, blue = (int(np.clip(low + rng.integers(-20, 21), 0, 255)) for _ in range(3))
    return red, green, blue


def _with_noise(rng: Rng, image: Image, most: float) -> Image:
    noisy = image + rng.normal(0, rng.uniform(0, most), image.shape).astype(np.float32)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def _blank(rng: Rng, width_px: int, height_px: int) -> Image:
    return _with_noise(rng, np.full((height_px, width_px, 3), _grey(rng), np.uint8), 4)


def _gradient(rng: Rng, width_px: int, height_px: int) -> Image:
    if rng.random() < 0.7:
        return _with_noise(rng, gradient(width_px, height_px, _grey(rng), _grey(rng), float(rng.uniform(0, 360))), 4)
    x, y = np.meshgrid(np.linspace(-1, 1, width_px), np.linspace(-1, 1, height_px))
    share = np.hypot(x - rng.uniform(-0.5, 0.5), y - rng.uniform(-0.5, 0.5))[..., None] / 2
    first, second = np.array(_grey(rng)), np.array(_grey(rng))
    return _with_noise(rng, (first + share * (second - first)).clip(0, 255).astype(np.uint8), 4)


def _white_noise(rng: Rng, width_px: int, height_px: int) -> Image:
    """Independent values of one to eight pixels, gray or coloured, uniform or normal."""
    grain, channels = int(rng.choice([1, 2, 4, 8])), int(rng.choice([1, 3]))
    shape = (height_px // grain + 1, width_px // grain + 1, channels)
    if rng.random() < 0.5:
        field = rng.integers(0, 256, shape).astype(np.float32)
    else:
        field = rng.normal(rng.uniform(60, 190), rng.uniform(10, 60), shape).astype(np.float32)
    field = np.repeat(np.repeat(field, grain, 0), grain, 1)[:height_px, :width_px]
    return np.clip(np.broadcast_to(field, (height_px, width_px, 3)), 0, 255).astype(np.uint8)


def _splatter(rng: Rng, width_px: int, height_px: int) -> Image:
    """Drops of a radius of 1 to 12 px, evenly at random, in one colour or in many."""
    image = np.full((height_px, width_px, 3), _grey(rng), np.uint8)
    largest = int(rng.integers(2, 13))
    coverage, many, ink = float(rng.uniform(0.15, 0.8)), bool(rng.random() < 0.5), _grey(rng)
    drops = int(coverage * width_px * height_px / (np.pi * (largest * 0.6) ** 2))
    for _ in range(drops):
        centre = (int(rng.integers(width_px)), int(rng.integers(height_px)))
        colour = tuple(int(v) for v in rng.integers(0, 256, 3)) if many else ink
        cv2.circle(image, centre, int(rng.integers(1, largest + 1)), colour, -1)
    return image


def _small_thing(rng: Rng, width_px: int, height_px: int) -> Image:
    """One thing of one to three tiles on a plain ground or a gradient, with a sensor's noise."""
    image = plain_surface(rng, width_px, height_px) if rng.random() < 0.5 else _gradient(rng, width_px, height_px)
    size = float(rng.uniform(28, 96))
    x, y = float(rng.uniform(size, width_px - size)), float(rng.uniform(size, height_px - size))
    under = image[int(y), int(x)].astype(int)
    colours = [name for name, rgb in COLOURS.items() if np.abs(np.array(rgb) - under).max() > 70]
    draw_object(
        image, SceneObject(str(rng.choice([s for s in SHAPES if s != "number"])), str(rng.choice(colours)), x, y, size)
    )  # type: ignore[arg-type]
    return add_grain(rng, image, float(rng.uniform(0, 3)))


def _scene(rng: Rng, width_px: int, height_px: int) -> Image:
    number = 6_000_000 + int(rng.integers(2**20))
    return random_clip(clip_rng("test", number), (width_px, height_px), 1).frames[0]


def _page(rng: Rng, width_px: int, height_px: int) -> Image:
    """A page of print with margins on a plain desk, or a page that fills the frame."""
    paper = int(rng.integers(200, 256))
    ink = int(rng.integers(0, 90))
    image = np.full((height_px, width_px, 3), paper, np.uint8)
    margin = int(rng.uniform(0.03, 0.15) * min(width_px, height_px))
    inner = (width_px - 2 * margin, height_px - 2 * margin)
    lines = page(*inner, (paper, paper, paper), (ink, ink, ink), int(rng.integers(8, 22)), rng)
    image[margin : margin + inner[1], margin : margin + inner[0]] = lines
    return _with_noise(rng, image, 3)


def _letters(rng: Rng, width_px: int, height_px: int) -> Image:
    """Paragraphs of words on white, as on a screen, or the other way round."""
    dark = bool(rng.random() < 0.5)
    image = np.full((height_px, width_px, 3), 25 if dark else 245, np.uint8)
    scale, margin = float(rng.uniform(0.4, 0.9)), int(rng.uniform(0.03, 0.12) * width_px)
    step, y = int(34 * scale), margin
    while y < height_px - margin:
        if rng.random() < 0.15:
            y += step
            continue
        words = int(rng.integers(3, 14)) if rng.random() < 0.3 else 40
        text = " ".join(
            "".join(chr(97 + int(c)) for c in rng.integers(0, 26, int(rng.integers(2, 9)))) for _ in range(words)
        )
        room = int((width_px - 2 * margin) / (18.5 * scale))
        colour = (225,) * 3 if dark else (30,) * 3
        cv2.putText(image, text[:room], (margin, y), cv2.FONT_HERSHEY_SIMPLEX, scale, colour, 1, cv2.LINE_AA)
        y += step
    return image


VOIDS: dict[str, Callable[[Rng, int, int], Image]] = {
    "blank": _blank,
    "gradient": _gradient,
    "white noise": _white_noise,
    "splatter": _splatter,
}
CONTENTS: dict[str, Callable[[Rng, int, int], Image]] = {
    "one small thing": _small_thing,
    "drawn scene": _scene,
    "page": _page,
    "letters": _letters,
}


def pictures(kind: str, first_seed: int, count: int) -> Iterator[Image]:
    """So many pictures of a kind, in the sizes in turn. The same seed gives the same picture."""
    number = [*VOIDS, *CONTENTS].index(kind)
    for seed in range(first_seed, first_seed + count):
        yield {**VOIDS, **CONTENTS}[kind](np.random.default_rng([number, seed]), *SIZES_PX[seed % len(SIZES_PX)])


def real_frames(folder: Path, clips: Sequence[dict[str, Any]], count: int) -> Iterator[Image]:
    """Frames of a folder's clips, evenly over its length, at most 720 rows high; black ones are left out."""
    for clip in clips:
        indices = {round(share * (clip["frames"] - 1)) for share in np.linspace(0.05, 0.95, count)}
        with av.open(str(folder / clip["file"])) as container:
            index = -1
            for packet in container.demux(video=0):
                try:
                    frames = packet.decode()
                except av.error.InvalidDataError:
                    continue
                for frame in frames:
                    index += 1
                    if index in indices:
                        picture = frame.to_ndarray(format="rgb24")
                        if picture.std() > 4:
                            yield picture


class Guard:
    """Return the strategy that `auto` means for a picture as a stream's first frame, and the guard's time."""

    def __init__(self, realiser: RelevanceRealiser, query: QueryEmbedding) -> None:
        self._realiser, self._query = realiser, query

    def is_void(self, picture: Image) -> bool:
        stream = FrameAllocator(AllocatorOptions(budget=64), self._realiser)
        stream.allocator.set_query(self._query)
        allocated = stream.allocate(FramePlanes("rgb", (picture,)), FrameStamp(0, 0, 0))
        return allocated.allocation.strategy == "grid"


def cost_us(shape: tuple[int, int] = (34, 60), repeats: int = 200) -> dict[str, float]:
    """Median processor time of judging one picture of a grid: of noise, which is measured to the end, and of a
    scene."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0.5, 0.1, (7, *shape)).astype(np.float32)
    scene = noise.copy()
    scene[:, 10:20, 10:30] += 0.4
    costs = {}
    for name, looks in (("noise", torch.from_numpy(noise)), ("scene", torch.from_numpy(scene))):
        spent = []
        for _ in range(repeats):
            start_ns = time.process_time_ns()
            picture_structure(looks)
            spent.append(time.process_time_ns() - start_ns)
        costs[name] = round(statistics.median(spent) / 1e3, 1)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=60, help="pictures of each drawn kind")
    parser.add_argument("--clips", type=Path, default=CLIPS, help="folder with a manifest.json")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    qwen = load_qwen()
    query = qwen.embed_query(QUESTION)
    guards = {"untrained": Guard(RelevanceRealiser(), query)}
    if qwen.realiser is not None:
        guards["shipped"] = Guard(qwen.realiser, query)
    kinds = {kind: list(pictures(kind, HELD_OUT_SEED, arguments.seeds)) for kind in (*VOIDS, *CONTENTS)}
    if clips := described_clips(arguments.clips):
        kinds["real clips"] = list(real_frames(arguments.clips, clips, 8))
    rows = []
    print(f"{'':18}{'pictures':>9}" + "".join(f"{name:>12}" for name in guards))
    for kind, images in kinds.items():
        right = {
            name: sum(guard.is_void(picture) == (kind in VOIDS) for picture in images) for name, guard in guards.items()
        }
        rows.append({"kind": kind, "void": kind in VOIDS, "pictures": len(images), "right": right})
        print(f"{kind:18}{len(images):9}" + "".join(f"{count:12}" for count in right.values()))
    report = {
        "benchmark": "void",
        "first_seed": HELD_OUT_SEED,
        "cost_us": cost_us(),
        "machine": machine(),
        "kinds": rows,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.out, report)
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
