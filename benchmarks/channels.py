"""Cost of the channels `full40` beside `core13`.

    python -m benchmarks.channels [--out FILE]

A 1920×1080 frame with 0, 2, 10 and 100 % of its tiles changed since the frame before: milliseconds (processor time of
one thread) of its texture array, and of `StreamAllocator.allocate` as a whole, with an allocator that knows a question.
Beside them, why `core13` stays with cv2: kornia's Sobel operator on a whole frame's luma of level 1; and the time that
importing kornia takes after torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from kornia.filters import spatial_gradient

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import TextureArrayCache, texture_array
from arr_coc.relevance.profiles import PROFILES
from arr_coc.types import FramePlanes, FrameStamp, QueryEmbedding
from arr_coc.video.texture_updater import TextureUpdater
from benchmarks.allocate import PERIOD_NS, WIDTH_PX, Picture, invert_tiles, scenery
from benchmarks.support.harness import write_report
from stream.monitor.machine import machine
from stream.runtime.child import python_command, python_environment

RESULTS = Path(__file__).parent / "results" / "channels.json"
SHARES = (0.0, 0.02, 0.1, 1.0)
QUERY_DIM = 384


def asked_allocator(profile: str) -> StreamAllocator:
    """An allocator whose learned part hears a question, with random weights."""
    torch.manual_seed(0)
    allocator = StreamAllocator(AllocatorOptions(), RelevanceRealiser(QUERY_DIM, "m", channels=profile))
    allocator.set_query(QueryEmbedding("where?", np.random.default_rng(0).random((8, QUERY_DIM), np.float32), "m"))
    return allocator


def follow(pictures: list[Picture], profile: str, frames: int) -> dict[str, float]:
    """Median milliseconds of all frames but the first two.

    Args:
        pictures: uint8 RGB [H, W, 3] each, shown in turns.
        profile: Profile of channels.
        frames: Number of frames that count.
    """
    updater, allocator, cache = TextureUpdater(), asked_allocator(profile), TextureArrayCache()
    channels_ms, allocate_ms, dirty = [], [], []
    for index, picture in enumerate(islice(cycle(pictures), frames + 2)):
        update = updater.process(FramePlanes("rgb", (picture,)), FrameStamp(index, index * PERIOD_NS, 0))
        with updater.lease() as view, torch.inference_mode():
            channels_ms.append(timed_ms(lambda view=view: texture_array(view, profile, cache)))
            allocate_ms.append(timed_ms(lambda view=view: allocator.allocate(view)))
        dirty.append(update.change.dirty_share)
    updater.close()
    return {
        "dirty_share": round(statistics.fmean(dirty[2:]), 4),
        "channels_median_ms": round(statistics.median(channels_ms[2:]), 3),
        "allocate_median_ms": round(statistics.median(allocate_ms[2:]), 3),
    }


def timed_ms(work: Callable[[], object]) -> float:
    """Processor time of this thread, which does all of the work: other programs do not count."""
    started_s = time.thread_time()
    work()
    return (time.thread_time() - started_s) * 1e3


def measure_profiles(frames: int) -> dict[str, Any]:
    """Cost of every profile at each share of changed tiles."""
    picture = scenery(WIDTH_PX)
    states = {f"{share:.0%}": [picture, invert_tiles(picture, share)] if share else [picture] for share in SHARES}
    return {
        profile: {name: follow(pictures, profile, frames) for name, pictures in states.items()} for profile in PROFILES
    }


def measure_sobel(repeats: int) -> dict[str, Any]:
    """The same gradients by cv2 and by kornia: least milliseconds, and the largest difference of their numbers."""
    luma = cv2.copyMakeBorder(cv2.cvtColor(scenery(WIDTH_PX), cv2.COLOR_RGB2GRAY)[::2, ::2].copy(), 1, 1, 1, 1, 1)
    image = torch.from_numpy(luma)[None, None].float()

    def by_cv2() -> list[Any]:
        return [cv2.Sobel(luma, cv2.CV_32F, *axes, borderType=cv2.BORDER_REPLICATE) for axes in ((1, 0), (0, 1))]

    def by_kornia() -> torch.Tensor:
        return spatial_gradient(image, "sobel", 1, normalized=False)[0, 0]

    difference = float(np.abs(np.stack(by_cv2()) - by_kornia().numpy()).max())
    times = {
        name: statistics.median(timed_ms(work) for _ in range(repeats))
        for name, work in (("cv2", by_cv2), ("kornia", by_kornia))
    }
    return {f"{name}_median_ms": round(time_ms, 3) for name, time_ms in times.items()} | {
        "largest_difference": difference
    }


def measure_import(repeats: int) -> dict[str, float]:
    """Median seconds of importing each profile's module after torch, in a fresh process."""
    seconds = {}
    for profile, module in (("core13", "channels"), ("full40", "full40")):
        command = python_command("scripts.import_time", f"arr_coc.relevance.{module}")
        runs = [subprocess.check_output(command, env=python_environment()) for _ in range(repeats)]
        seconds[f"{profile}_s"] = round(statistics.median(map(float, runs)), 3)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=30, help="frames of each case")
    parser.add_argument("--repeats", type=int, default=10, help="repetitions of Sobel; a third of it, of imports")
    parser.add_argument("--out", type=Path, default=RESULTS, help="path of the JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    result = {
        "machine": machine() | {"threads": 1},
        "cost": measure_profiles(arguments.frames),
        "sobel_of_a_frame": measure_sobel(arguments.repeats),
        "import_after_torch": measure_import(max(1, arguments.repeats // 3)),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.out, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
