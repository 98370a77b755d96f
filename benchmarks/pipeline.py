"""Throughput of 1080p frames from capture to a ready allocation, the answer process decoding beside it.

    python -m benchmarks.pipeline [--model FOLDER] [--frames 900] [--out FILE]

The clip is the drawn scene `hd` as H.264 (mostly static, as a fixed camera sees), made anew in a temporary folder. No
frame is dropped, none waits for an answer, and an answer is always due, so that the answer process never rests.
Definitions are those of `python run_stream.py bench`. Target: at least 120 frames a second on 2 cores.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import av

from benchmarks.support.harness import write_report
from stream.bench.report import RunRecord, config_json, machine, report
from stream.config import AnswerConfig, Config, PipelineConfig
from stream.runtime.pipeline import Pipeline
from stream.scenes import load_scene

RESULTS = Path(__file__).parent / "results" / "pipeline.json"
TARGET_FPS = 120.0
ALWAYS_DUE_S = 0.05


def make_clip(path: Path, frames: int) -> None:
    """The scene `hd` as H.264 at 1920×1080, from its start over again where it is shorter."""
    scene = load_scene("hd")
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=scene.fps, options={"preset": "veryfast", "crf": "23"})
        stream.width, stream.height, stream.pix_fmt = scene.width_px, scene.height_px, "yuv420p"
        for index in range(frames):
            picture = av.VideoFrame.from_ndarray(scene.render(index % scene.frames), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def measure(clip: Path, model: str | None) -> dict[str, Any]:
    """One run, as JSON."""
    config = Config(
        source=str(clip),
        answer=AnswerConfig(model=model, every_s=ALWAYS_DUE_S),
        pipeline=PipelineConfig(answers="newest"),
    )
    run = Pipeline(config)
    record = RunRecord(statistics=run.statistics)
    for event in run.run():
        record.write(event)
    shown = config.model_copy(update={"source": "scene hd as H.264"})
    return {"config": config_json(shown), "machine": machine(), **report(record).as_json()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub name; the bundled model when absent")
    parser.add_argument("--frames", type=int, default=900)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clip = Path(folder) / "hd.mp4"
        make_clip(clip, options.frames)
        runs = [measure(clip, options.model) for _ in range(options.runs)]
    runs.sort(key=lambda run: run["figures"]["fps"]["value"])
    median = runs[len(runs) // 2]
    rates = [round(run["figures"]["fps"]["value"], 1) for run in runs]
    latency = median["latency_ms"]["frame"]
    print(f"capture to allocation ready: {rates} frames a second (target {TARGET_FPS:g})")
    print(f"frame latency, median run: p50 {latency['p50']:.2f} ms, p99 {latency['p99']:.2f} ms")
    print(f"answers beside it: {median['figures']['answers']['value']:.1f} a second")
    write_report(options.out, {"fps_of_runs": rates, "median_run": median})


if __name__ == "__main__":
    main()
