"""Throughput of H.264 frames from capture to a ready allocation, beside decoding alone.

    python -m benchmarks.pipeline [--model FOLDER] [--frames 900] [--runs 3] [--height 1080] [--out FILE]

The clip is the drawn scene `hd` as H.264 (mostly static, as a fixed camera sees), at 1920×1080 or enlarged to
3840×2160, made anew in a temporary folder. Measured in turns, so that all share what the machine does meanwhile:

- `decoding`: the source's frames, and nothing done with them;
- `texture`: each of them written to the texture, in the same thread;
- `without answers`: the whole pipeline, answers at the start and the end only;
- `answers`: the whole pipeline, an answer always due, so that the answer process never rests.

No frame is dropped, none waits for an answer. Definitions are those of `python run_stream.py bench`. Targets: at least
120 frames a second with answers on 2 cores; 0.8 of decoding without answers, 0.5 with.
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

from arr_coc.types import FrameStamp
from arr_coc.video.texture_updater import TextureUpdater
from benchmarks.support.harness import write_report
from stream.bench.report import RunRecord, config_json, machine, report
from stream.clock import MonotonicClock
from stream.config import AnswerConfig, CaptureConfig, Config, PipelineConfig
from stream.runtime.frame_stages import run_in_threads
from stream.scenes import load_scene
from stream.sources.factory import open_source

RESULTS = Path(__file__).parent / "results" / "pipeline.json"
ALWAYS_DUE_S, NEVER_DUE_S = 0.05, 1e6
TARGETS = {"without answers": 0.8, "answers": 0.5}


def make_clip(path: Path, frames: int, height_px: int = 1080) -> None:
    """The scene `hd` as H.264, from its start over again where it is shorter."""
    scene = load_scene("hd")
    size = height_px * 16 // 9, height_px
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=scene.fps, options={"preset": "veryfast", "crf": "23"})
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for index in range(frames):
            picture = cv2.resize(scene.render(index % scene.frames), size, interpolation=cv2.INTER_CUBIC)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


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
    shown = config.model_copy(update={"source": "scene hd as H.264"})
    return {"config": config_json(shown), "machine": machine(), **report(record).as_json()}


def measure(clip: Path, model: str | None, rounds: int) -> dict[str, Any]:
    """Rates of all cases in turns, their ratios to decoding in the same round, and the median run with answers."""
    runs: list[dict[str, Any]] = []

    def piped(every_s: float) -> float:
        made = run(clip, model, every_s)
        if every_s == ALWAYS_DUE_S:
            runs.append(made)
        return float(made["figures"]["fps"]["value"])

    cases: dict[str, Callable[[], float]] = {
        "decoding": lambda: decode(clip),
        "texture": lambda: decode_to_texture(clip),
        "without answers": lambda: piped(NEVER_DUE_S),
        "answers": lambda: piped(ALWAYS_DUE_S),
    }
    rates: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, rate in cases.items():
            rates[name].append(rate())
    ratios = {
        name: statistics.median(one / alone for one, alone in zip(found, rates["decoding"], strict=True))
        for name, found in rates.items()
    }
    runs.sort(key=lambda made: made["figures"]["fps"]["value"])
    return {
        "fps": {name: round(statistics.median(found), 1) for name, found in rates.items()},
        "beside_decoding": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "fps_of_runs": [round(rate, 1) for rate in sorted(rates["answers"])],
        "median_run": runs[len(runs) // 2],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub name; the bundled model when absent")
    parser.add_argument("--frames", type=int, default=900)
    parser.add_argument("--runs", type=int, default=3, help="rounds in which all cases are measured")
    parser.add_argument("--height", type=int, choices=(1080, 2160), default=1080, help="of the clip, in pixels")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clip = Path(folder) / "hd.mp4"
        make_clip(clip, options.frames, options.height)
        found = measure(clip, options.model, options.runs)
    latency = found["median_run"]["latency_ms"]["frame"]
    for name, rate in found["fps"].items():
        target = f", target {TARGETS[name]:g}" if name in TARGETS else ""
        print(f"{name}: {rate} frames a second ({found['beside_decoding'][name]:.2f} of decoding{target})")
    print(f"frame latency with answers, median run: p50 {latency['p50']:.2f} ms, p99 {latency['p99']:.2f} ms")
    print(f"answers beside it: {found['median_run']['figures']['answers']['value']:.1f} a second")
    write_report(options.out, found)


if __name__ == "__main__":
    main()
