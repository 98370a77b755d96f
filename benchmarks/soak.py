"""Growth over a long run: memory, threads, descriptors, shared memory, temporary files.

    python -m benchmarks.soak [--frames 100000] [--out FILE]

A clip of small frames, with a cut every 500 of them, is read as fast as it goes, every frame; the bundled model answers
every 20 s of media time in a separate process. Every 500 frames both processes of the run are sampled.
Growth is the slope of a straight line through the samples after the first fifth, times the frames that it covers.
Target: no growth in counts, at most 8 MiB of memory in either process over 100 000 frames.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil

from benchmarks.support.harness import write_report
from stream.answer.model import CONFIGURED
from stream.config import AnswerConfig, Config
from stream.events import Answer, Cut, FrameReady, Summary
from stream.monitor.machine import machine
from stream.runtime.frame_stages import run_in_threads

RESULTS = Path(__file__).parent / "results" / "soak.json"
WIDTH_PX, HEIGHT_PX, FPS = 128, 96, 25
SHOT_FRAMES = 500
SAMPLE_FRAMES = 500
WARM_SHARE = 0.2
GROWTH_MAX_MIB = 8.0
SHARED = Path("/dev/shm")


def make_clip(path: Path, frames: int) -> None:
    """Shots of a square that moves over a ground of one noise each, as H.264."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"preset": "ultrafast", "crf": "30"})
        stream.width, stream.height, stream.pix_fmt = WIDTH_PX, HEIGHT_PX, "yuv420p"
        for index in range(frames):
            shot, step = divmod(index, SHOT_FRAMES)
            if step == 0:
                rng = np.random.default_rng(shot)
                coarse = rng.integers(0, 256, (HEIGHT_PX // 8, WIDTH_PX // 8, 3), dtype=np.uint8)
                ground = coarse.repeat(8, axis=0).repeat(8, axis=1)
            image = ground.copy()
            left = step % (WIDTH_PX - 16)
            image[40:56, left : left + 16] = (220, 40, 30)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())


@dataclass
class Samples:
    """Samples of a run, by name. The first `warm_share` of the looks shows no growth."""

    frames: list[int] = field(default_factory=list)
    series: dict[str, list[float]] = field(default_factory=dict)
    warm_share: float = WARM_SHARE

    def look(self, frames: int, processes: dict[str, int], temporary: Path) -> None:
        figures: dict[str, float] = {
            "shared memory files": len(os.listdir(SHARED)) if SHARED.is_dir() else 0,
            "temporary files": len(os.listdir(temporary)),
        }
        for name, pid in processes.items():
            process = psutil.Process(pid)
            figures |= {f"{name} {resource}": value for resource, value in process_figures(process).items()}
        self.add(frames, figures)

    def add(self, frames: int, figures: dict[str, float]) -> None:
        """Add the findings of one sample, after `frames` frames."""
        self.frames.append(frames)
        for name, value in figures.items():
            self.series.setdefault(name, []).append(value)

    def growth(self, name: str) -> float:
        """Over the samples after the warm part."""
        first = round(len(self.frames) * self.warm_share)
        frames, values = np.array(self.frames[first:], float), np.array(self.series[name][first:])
        if len(frames) < 2:
            return 0.0
        return float(np.polyfit(frames, values, 1)[0] * (frames[-1] - frames[0]))

    def growths(self) -> dict[str, float]:
        return {name: round(self.growth(name), 3) for name in self.series}

    def faults(self) -> list[str]:
        """Series that have grown beyond noise."""
        return [
            f"{name} grew by {growth:g}"
            for name, growth in self.growths().items()
            if growth > (GROWTH_MAX_MIB if name.endswith("MiB") else 0.5)
        ]


@dataclass
class Soak:
    """One long run."""

    samples: Samples
    summary: Summary
    answers: int
    cuts: int


def process_figures(process: psutil.Process) -> dict[str, float]:
    """Resources of a process that might grow."""
    return {
        "MiB": process.memory_info().rss / 2**20,
        "threads": process.num_threads(),
        "descriptors": process.num_fds(),
    }


def soak(
    frames: int, *, model_loader: str = CONFIGURED, every_s: float = 20.0, sample_frames: int = SAMPLE_FRAMES
) -> Soak:
    """Run a clip through the pipeline, in two processes.

    Args:
        frames: Length of the clip.
        model_loader: How the model process gets its model.
        every_s: Time between answers.
        sample_frames: Frames between samples of the processes.
    """
    with _private_temporary() as folder:
        clip = folder / "soak.mkv"
        make_clip(clip, frames)
        config = Config(source=str(clip), answer=AnswerConfig(every_s=every_s))
        pipeline = run_in_threads(config, model_loader=model_loader)
        samples, summary, answers, cuts = Samples(), None, 0, 0
        for event in pipeline.run():
            answers += isinstance(event, Answer)
            cuts += isinstance(event, Cut)
            if isinstance(event, FrameReady) and (event.frame_index + 1) % sample_frames == 0:
                samples.look(event.frame_index + 1, pipeline.processes(), folder)
            if isinstance(event, Summary):
                summary = event
    assert summary is not None
    return Soak(samples, summary, answers, cuts)


@contextmanager
def _private_temporary() -> Iterator[Path]:
    """A temporary folder of this run alone, so that what lies there is its own."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before


def round_values(series: dict[str, list[float]]) -> dict[str, list[float]]:
    """Fit to be written down."""
    return {name: [round(value, 2) for value in values] for name, values in series.items()}


def document(result: Soak) -> dict[str, Any]:
    summary = result.summary
    return {
        "frames": summary.frames,
        "answers": result.answers,
        "cuts": result.cuts,
        "dropped": summary.dropped,
        "fps": round(summary.timing["fps"], 1) if summary.timing else None,
        "growth": result.samples.growths(),
        "growth_max_mib": GROWTH_MAX_MIB,
        "faults": result.samples.faults(),
        "samples": {"frames": result.samples.frames, **round_values(result.samples.series)},
        "machine": machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    result = soak(options.frames)
    report = document(result)
    print(f"{report['frames']} frames at {report['fps']} a second, {report['answers']} answers, {report['cuts']} cuts")
    for name, growth in report["growth"].items():
        print(f"{name}: {result.samples.series[name][-1]:.1f} at the end, growth {growth:+.2f}")
    print("; ".join(report["faults"]) or "nothing grew")
    write_report(options.out, report)


if __name__ == "__main__":
    main()
