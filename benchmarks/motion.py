"""Cost of following each tile's motion: a frame in the texture, with and without it, at 1080p.

    python -m benchmarks.motion [--frames N] [--clips FOLDER] [--out FILE]

Cases: a still frame with noise of standard deviation 2, a block of 10 % of the frame that moves, a pan of 8 pixels a
frame, a zoom of 1 % a frame, and another picture every frame (cuts are not asked for). Times are medians of
`TextureUpdater.process` on one thread; the two take turns. `motion` is the difference.

Real clips of FOLDER, if it exists: the same with and without the codec's motion vectors, by turns, and the time to
decode a frame with and without exporting them: medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

import av
import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import FramePlanes, FrameStamp
from arr_coc.video.texture_updater import TextureOptions, TextureUpdater
from benchmarks.support.clips import CLIPS, clips_here
from benchmarks.support.harness import write_report
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.monitor.machine import machine
from stream.sources.file import FileSource
from stream.sources.motion_vectors import EXPORT_VECTORS

RESULTS = Path(__file__).parent / "results" / "motion.json"
CLIP_NAMES = "handheld_figurine.mp4", "cuts_bunny_1080p60.mp4", "anim_1200x1200_60fps.mp4", "static_cars_topdown.mp4"
HEIGHT_PX, WIDTH_PX = 1080, 1920

Picture = npt.NDArray[np.uint8]


def scenery(seed: int) -> Picture:
    """Rectangles of many sizes on a soft ground, wider and higher than a frame: uint8 [1620, 2880]."""
    rng = np.random.default_rng(seed)
    height, width = HEIGHT_PX * 3 // 2, WIDTH_PX * 3 // 2
    ground = cv2.resize(rng.integers(40, 215, (9, 16), dtype=np.uint8), (width, height), interpolation=cv2.INTER_CUBIC)
    for _ in range(1500):
        x, y, side = int(rng.integers(width)), int(rng.integers(height)), int(rng.integers(6, 60))
        cv2.rectangle(ground, (x, y), (x + side, y + side), int(rng.integers(20, 235)), -1)
    return ground


def cases() -> dict[str, Callable[[int], Picture]]:
    """Luma of frame n of each case."""
    wide, rng = scenery(1), np.random.default_rng(2)
    still_frame = wide[:HEIGHT_PX, :WIDTH_PX]
    grain = [np.rint(rng.normal(0, 2, still_frame.shape)).astype(np.int16) for _ in range(4)]
    others = [scenery(seed)[:HEIGHT_PX, :WIDTH_PX] for seed in range(3, 6)]

    def block(index: int) -> Picture:
        frame = still_frame.copy()
        left = 200 + 4 * (index % 60)
        frame[300:740, left : left + 440] = wide[1100:1540, 100:540]
        return frame

    def zoom(index: int) -> Picture:
        matrix = cv2.getRotationMatrix2D((WIDTH_PX * 0.75, HEIGHT_PX * 0.75), 0, 1.01**index)
        return np.asarray(cv2.warpAffine(wide, matrix, (WIDTH_PX, HEIGHT_PX)), np.uint8)

    return {
        "still, noise": lambda index: np.clip(still_frame + grain[index % 4], 0, 255).astype(np.uint8),
        "10 % moves": block,
        "pan": lambda index: wide[:HEIGHT_PX, 8 * (index % 100) : 8 * (index % 100) + WIDTH_PX],
        "zoom": zoom,
        "other pictures": lambda index: others[index % 3],
    }


def planes_of(luma: Picture) -> FramePlanes:
    chroma = np.full((HEIGHT_PX // 2, WIDTH_PX // 2), 128, np.uint8)
    return FramePlanes("yuv", (np.ascontiguousarray(luma), chroma, chroma))


def measure(draw: Callable[[int], Picture], frames: int) -> dict[str, float]:
    updaters = {name: TextureUpdater(TextureOptions("cpu", cuts=False, motion=name == "with")) for name in WAYS}
    took_ms: dict[str, list[float]] = {name: [] for name in WAYS}
    dirty: list[float] = []
    for index in range(frames):
        planes = planes_of(draw(index))
        for name, updater in updaters.items():
            start_ns = time.thread_time_ns()
            update = updater.process(planes, FrameStamp(index, 0, 0))
            if index > 1:
                took_ms[name].append((time.thread_time_ns() - start_ns) / 1e6)
        dirty.append(update.change.dirty_share)
    medians = {name: statistics.median(times) for name, times in took_ms.items()}
    return {
        "dirty_share": round(statistics.median(dirty), 3),
        "without_ms": round(medians["without"], 2),
        "with_ms": round(medians["with"], 2),
        "motion_ms": round(medians["with"] - medians["without"], 2),
    }


WAYS = ("without", "with")


def measure_clip(path: Path, frames: int) -> dict[str, float]:
    """Milliseconds of a frame in the texture, and of decoding one, without and with the codec's motion vectors."""
    updaters = {name: TextureUpdater(TextureOptions("cpu")) for name in WAYS}
    took_ms: dict[str, list[float]] = {name: [] for name in WAYS}
    with_vectors = 0
    with FileSource(path, CaptureConfig(max_frames=frames), MonotonicClock()) as source:
        for frame in source.frames():
            with_vectors += frame.planes.coded_motion is not None
            for name, updater in updaters.items():
                planes = frame.planes if name == "with" else replace(frame.planes, coded_motion=None)
                start_ns = time.thread_time_ns()
                updater.process(planes, FrameStamp(frame.frame_index, frame.media_ns, 0))
                took_ms[name].append((time.thread_time_ns() - start_ns) / 1e6)
    decode_ms: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(3):
        for name, options in zip(WAYS, ({}, EXPORT_VECTORS), strict=True):
            decode_ms[name].append(_decoding_ms(path, options, frames))
    return {
        "frames_with_vectors": with_vectors,
        **{f"{name}_ms": round(statistics.median(times), 2) for name, times in took_ms.items()},
        **{f"decode_{name}_ms": round(statistics.median(times), 2) for name, times in decode_ms.items()},
    }


def _decoding_ms(path: Path, options: Mapping[str, str], frames: int) -> float:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.options, stream.codec_context.thread_count = dict(options), 1
        start_ns = time.thread_time_ns()
        count = sum(1 for _ in islice(container.decode(stream), frames))
        return (time.thread_time_ns() - start_ns) / 1e6 / count


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--frames", type=int, default=30, help="frames of each case")
    parser.add_argument("--clips", type=Path, default=CLIPS, help="folder with real clips")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    report = {name: measure(draw, arguments.frames) for name, draw in cases().items()}
    paths = clips_here(arguments.clips, CLIP_NAMES)
    clips = {path.name: measure_clip(path, 2 * arguments.frames) for path in paths}
    for name, row in (*report.items(), *clips.items()):
        print(f"{name:26}" + "".join(f"{key} {value:<8}" for key, value in row.items()))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_report(arguments.out, {"benchmark": "motion", "machine": machine(), "cases": report, "clips": clips})


if __name__ == "__main__":
    main()
