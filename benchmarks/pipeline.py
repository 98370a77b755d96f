"""Throughput of H.264 frames from capture to a ready allocation, beside decoding alone.

    python -m benchmarks.pipeline [--model FOLDER] [--clips hd box] [--frames 900] [--runs 3] [--height 1080]

Clips are H.264 of 1920×1080 pixels, or enlarged to 3840×2160, made anew in a temporary folder: the drawn scene `hd`
(mostly static, as a fixed camera sees), and `box`, its first picture with one box that moves (0.7 % of the tiles
change). Measured in turns, so that all cases share the machine's other load:

- `decoding`: the source's frames, and nothing done with them;
- `texture`: each of them written to the texture, in the same thread;
- `without answers`: the whole pipeline, answers at the start and the end only;
- `answers`: the whole pipeline, an answer always due, so that the answer process never rests.

No frame is dropped, none waits for an answer. Definitions are those of `python run_stream.py bench`. Targets: at least
120 frames a second with answers on 2 cores; on `hd` 0.8 of decoding without answers, 0.5 with; on `box` 0.6 without.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import FrameStamp
from arr_coc.video.texture_updater import TextureUpdater
from benchmarks.support.harness import write_report
from stream.clock import MonotonicClock
from stream.config import AnswerConfig, CaptureConfig, Config, PipelineConfig
from stream.extensions.bench.report import RunRecord, config_json, report
from stream.monitor.machine import machine
from stream.runtime.frame_stages import run_in_threads
from stream.scenes import load_scene
from stream.sources.factory import open_source

RESULTS = Path(__file__).parent / "results" / "pipeline.json"
ALWAYS_DUE_S, NEVER_DUE_S = 0.05, 1e6
TARGETS = {"hd": {"without answers": 0.8, "answers": 0.5}, "box": {"without answers": 0.6}}
BOX_PX = 96

Picture = npt.NDArray[np.uint8]


def make_clip(path: Path, frames: int, height_px: int = 1080, clip: str = "hd") -> None:
    """Write a clip as H.264, from its start over again if its scene is shorter.

    Args:
        path: File of the clip.
        frames: Number of frames.
        height_px: Height of the frames, which are 16:9.
        clip: "hd" for the scene, any other name for its first frame with a moving box.
    """
    scene = load_scene("hd")
    size = height_px * 16 // 9, height_px
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=scene.fps, options={"preset": "veryfast", "crf": "23"})
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for index in range(frames):
            frame = scene.render(index % scene.frames) if clip == "hd" else with_box(scene.render(0), index)
            picture = cv2.resize(frame, size, interpolation=cv2.INTER_CUBIC)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def with_box(picture: Picture, index: int) -> Picture:
    """Return frame `index` of a textured box on a winding path over a picture uint8 [H, W, 3]."""
    grain = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    box = cv2.resize(grain, (BOX_PX, BOX_PX), interpolation=cv2.INTER_NEAREST)
    ways = 0.5 + 0.45 * np.sin([index / 29, index / 40])
    top, left = ((np.array(picture.shape[:2]) - BOX_PX) * ways).round().astype(int)
    boxed = picture.copy()
    boxed[top : top + BOX_PX, left : left + BOX_PX] = box
    return boxed


def decode(clip: Path) -> float:
    """Frames a second of decoding alone."""
    source = open_source(str(clip), CaptureConfig(), MonotonicClock())
    started = time.perf_counter()
    frames = sum(1 for _ in source.frames())
    return frames / (time.perf_counter() - started)


def decode_to_texture(clip: Path) -> float:
    """Frames a second of decoding, and of writing what changed to the texture."""
    source, updater = open_source(str(clip), CaptureConfig(), MonotonicClock()), TextureUpdater()
    started, frames = time.perf_counter(), 0
    for frame in source.frames():
        updater.process(frame.planes, FrameStamp(frames, frame.media_ns, 0))
        frames += 1
    updater.close()
    return frames / (time.perf_counter() - started)


def run(clip: Path, model: str | None, every_s: float) -> dict[str, Any]:
    """One run of the whole pipeline, as JSON."""
    config = Config(
        source=str(clip),
        answer=AnswerConfig(model=model, every_s=every_s, on_cut="finish" if every_s == ALWAYS_DUE_S else False),
        pipeline=PipelineConfig(answers="newest"),
    )
    pipeline = run_in_threads(config)
    record = RunRecord(statistics=pipeline.statistics)
    for event in pipeline.run():
        record.write(event)
    report_config = config.model_copy(update={"source": f"{clip.name}, H.264"})
    return {"config": config_json(report_config), "machine": machine(), **report(record).as_json()}


def measure(clip: Path, model: str | None, rounds: int) -> dict[str, Any]:
    """Rates of all cases in turns, their ratios to decoding in the same round, and the median run with answers."""
    runs: list[dict[str, Any]] = []

    def run_fps(every_s: float) -> float:
        result = run(clip, model, every_s)
        if every_s == ALWAYS_DUE_S:
            runs.append(result)
        return float(result["figures"]["fps"]["value"])

    cases: dict[str, Callable[[], float]] = {
        "decoding": lambda: decode(clip),
        "texture": lambda: decode_to_texture(clip),
        "without answers": lambda: run_fps(NEVER_DUE_S),
        "answers": lambda: run_fps(ALWAYS_DUE_S),
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, rate in cases.items():
            rates[name].append(rate())
    ratios = {
        name: statistics.median(fps / decoding_fps for fps, decoding_fps in zip(series, rates["decoding"], strict=True))
        for name, series in rates.items()
    }
    runs.sort(key=lambda result: result["figures"]["fps"]["value"])
    return {
        "fps": {name: round(statistics.median(series), 1) for name, series in rates.items()},
        "beside_decoding": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "fps_of_runs": [round(rate, 1) for rate in sorted(rates["answers"])],
        "median_run": runs[len(runs) // 2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub name; the bundled model when absent")
    parser.add_argument("--clips", nargs="+", choices=tuple(TARGETS), default=tuple(TARGETS))
    parser.add_argument("--frames", type=int, default=900)
    parser.add_argument("--runs", type=int, default=3, help="rounds in which all cases are measured")
    parser.add_argument("--height", type=int, choices=(1080, 2160), default=1080, help="of the clip, in pixels")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    clips: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.clips:
            path = Path(folder) / f"{name}.mp4"
            make_clip(path, options.frames, options.height, name)
            clips[name] = measure(path, options.model, options.runs)
            show(name, clips[name])
    write_report(options.out, {"clips": clips})


def show(clip: str, measured: dict[str, Any]) -> None:
    """Print the rates of a clip."""
    latency = measured["median_run"]["latency_ms"]["frame"]
    for case, rate in measured["fps"].items():
        target = f", target {TARGETS[clip][case]:g}" if case in TARGETS[clip] else ""
        print(f"{clip}, {case}: {rate} frames a second ({measured['beside_decoding'][case]:.2f} of decoding{target})")
    print(f"{clip}: frame latency with answers, median run: p50 {latency['p50']:.2f} ms, p99 {latency['p99']:.2f} ms")
    answers = measured["median_run"]["figures"]["answers"]["value"]
    print(f"{clip}: answers beside it: {answers:.1f} a second", flush=True)


if __name__ == "__main__":
    main()
