"""Cost of allocating a frame, and its steadiness.

    python -m benchmarks.allocate [--out FILE]

Cost: `StreamAllocator.allocate` on a 1920×1080 frame with 0, 1, 10 and 100 % of its tiles changed since the frame
before. Steadiness: the mean share of tiles whose level differs from the frame before, carried along with the camera,
on a still scene with noise and on pans; frames go through the texture store and its estimate of the camera's motion,
as in a run. Targets: below 0.05 when still, below 0.2 on a pan.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.types import TILE_PX, FramePlanes, FrameStamp
from arr_coc.video.texture_updater import TextureUpdater
from benchmarks.support.harness import write_report
from stream.bench.report import machine

RESULTS = Path(__file__).parent / "results" / "allocate.json"
HEIGHT_PX, WIDTH_PX = 1080, 1920
PERIOD_NS = 33_366_667
STILL_TARGET, PAN_TARGET = 0.05, 0.2
FRAMES_BETWEEN_ANSWERS = 15

Picture = npt.NDArray[np.uint8]


def scenery(width_px: int) -> Picture:
    """Soft ground with discs, lines of text and a noisy field: uint8 [1080, width, 3]."""
    random = np.random.default_rng(0)
    small = random.integers(60, 160, (9, width_px // 120, 3), dtype=np.uint8)
    picture = cv2.resize(small, (width_px, HEIGHT_PX), interpolation=cv2.INTER_CUBIC)
    for index in range(width_px // 120):
        at = int(random.integers(0, width_px - 200)), int(random.integers(100, HEIGHT_PX - 100))
        colour = tuple(int(value) for value in random.integers(0, 256, 3))
        cv2.circle(picture, at, int(random.integers(20, 90)), colour, -1)
        cv2.putText(picture, f"line {index}", at, cv2.FONT_HERSHEY_SIMPLEX, 2, (255, 255, 255), 4)
    picture[300:500, 1000:1600] = random.integers(0, 256, (200, 600, 3), dtype=np.uint8)
    return np.asarray(picture, np.uint8)


def inverted(picture: Picture, share: float) -> Picture:
    """The picture with about this share of its tiles, in one block, inverted."""
    changed = picture.copy()
    rows, cols = (round(size / TILE_PX * share**0.5) * TILE_PX for size in (HEIGHT_PX, WIDTH_PX))
    block = changed[:rows, :cols] if share == 1 else changed[96 : 96 + rows, 96 : 96 + cols]
    np.invert(block, out=block)
    return changed


def follow(frames: Iterator[Picture], options: AllocatorOptions) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of allocating, jitter and share of dirty tiles of every frame but the first, within one epoch."""
    updater, allocator = TextureUpdater(), StreamAllocator(options)
    costs_ms, jitter, dirty = [], [], []
    for index, picture in enumerate(frames):
        update = updater.process(FramePlanes("rgb", (picture,)), FrameStamp(index, index * PERIOD_NS, 0))
        with updater.lease() as view:
            started = time.perf_counter()
            frame = allocator.allocate(view, update.motion)
            costs_ms.append((time.perf_counter() - started) * 1e3)
        jitter.append(frame.jitter_share)
        dirty.append(update.change.dirty_share)
        if index % FRAMES_BETWEEN_ANSWERS == FRAMES_BETWEEN_ANSWERS - 1:
            allocator.mark_answered()
    updater.close()
    return costs_ms[1:], jitter[1:], dirty[1:]


def measure_cost(frames: int) -> dict[str, Any]:
    """Cost at each share of changed tiles; the picture alternates between two states."""
    measured = {}
    picture = scenery(WIDTH_PX)
    for share in (0.0, 0.01, 0.1, 1.0):
        states = (picture, inverted(picture, share) if share else picture)
        costs_ms, _, dirty = follow((states[index % 2] for index in range(frames)), AllocatorOptions(levels=True))
        measured[f"{share:.0%}"] = {
            "dirty_share": round(statistics.fmean(dirty), 4),
            "median_ms": round(statistics.median(costs_ms), 3),
            "min_ms": round(min(costs_ms), 3),
        }
    return measured


def noisy(picture: Picture, sigma: float, index: int) -> Picture:
    """The picture with sensor noise, another one each frame."""
    cv2.setRNGSeed(index + 1)
    noise = np.empty(picture.shape, np.int16)
    cv2.randn(noise, 0, sigma)
    return np.asarray(cv2.add(picture.astype(np.int16), noise).clip(0, 255), np.uint8)


def measure_jitter(frames: int) -> dict[str, Any]:
    """Jitter of each strategy with still cameras at two levels of noise, and with pans at three speeds."""
    wide = scenery(WIDTH_PX + 24 * frames)
    cases = [("still", 0, 2.0), ("still", 0, 6.0), ("pan", 4, 2.0), ("pan", 12, 2.0), ("pan", 24, 2.0)]
    measured = {}
    for strategy in ("foveated", "mixed"):
        for name, speed_px, sigma in cases:
            pictures = (
                noisy(wide[:, index * speed_px : index * speed_px + WIDTH_PX], sigma, index) for index in range(frames)
            )
            _, jitter, dirty = follow(pictures, AllocatorOptions(strategy=strategy))
            target = STILL_TARGET if name == "still" else PAN_TARGET
            measured[f"{strategy}, {name}, {speed_px} px a frame, noise {sigma:g}"] = {
                "jitter_share": round(statistics.fmean(jitter), 4),
                "target": target,
                "reached": statistics.fmean(jitter) < target,
                "dirty_share": round(statistics.fmean(dirty), 3),
            }
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=45, help="frames of each case")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    result = {
        "machine": machine() | {"threads": 1},
        "cost_ms": measure_cost(arguments.frames),
        "jitter": measure_jitter(arguments.frames),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.out, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
