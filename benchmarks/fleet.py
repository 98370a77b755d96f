"""Several cameras in one command and one answer process: answers, waits, fairness, CPU time and memory of a camera.

    python -m benchmarks.fleet [--cameras 1 2 4 8 16] [--fps 12] [--seconds 24] [--slots N] [--out FILE]

Each camera plays an H.264 clip of `scene:demo`, 640x384, at its own pace, from a separate position, and wants an answer
of the bundled model every 4 s. All of them begin at the same moment, so their answers are due at the same moments.

An answer is due at the first frame of a camera and every 4 s of its media time from there on. `share`: answers that
were given of those that were due. `wait_ms`: from then to the capture of the frame that is asked about, so the wait for
a turn. `ttft_ms`: from that capture to the first text. `fairness`: the least answers of a camera, by the mean.
`frames_share`: allocated frames of those that were captured. CPU time is that of the processes, in percent of one core;
memory is what a process has for itself (USS), and its part of what is shared (PSS).

Targets, with sixteen cameras: no camera below 0.9 of its answers; fairness of at least 0.9; memory of a camera at most
150 MB. A machine that is shared has fewer answers: trust it only if `load_1min_before` is low.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil

from benchmarks.support.harness import percentiles, write_report
from benchmarks.support.watched_fleet import WatchedFleet
from stream.config import AnswerConfig, CaptureConfig, Config
from stream.events import Answer, Event, FrameReady
from stream.extensions.fleet.cameras import NamedCamera
from stream.extensions.fleet.run import CameraOutcome, Fleet
from stream.monitor.machine import machine
from stream.scenes import load_scene

RESULTS = Path(__file__).parent / "results" / "fleet.json"
SCENE = "demo"
EVERY_S = 4.0
LEAST_SHARE = 0.9
MOST_MB = 150.0
END_S = 2.0
"""An answer that was due less than this before the end may not have come."""
ROUNDING_S = 1e-3
"""Far below a frame's period: times are sums of fractions."""


class Recorder(WatchedFleet):
    """Record of answers and frames of each camera; `frames_ready` is set once all of them have frames."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.answers: dict[str, list[Answer]] = {name: [] for name in names}
        self.frames: dict[str, list[float]] = {name: [] for name in names}
        self.frames_ready = threading.Event()

    def show_failure(self, name: str, message: str) -> None:
        super().show_failure(name, message)
        self.frames_ready.set()

    def note(self, name: str, event: Event) -> None:
        if isinstance(event, Answer):
            self.answers[name].append(event)
        elif isinstance(event, FrameReady):
            self.frames[name].append(event.pts_s)
            if all(self.frames.values()):
                self.frames_ready.set()


class Usage:
    """CPU time and memory of the processes of a fleet, between two moments."""

    def __init__(self, fleet: Fleet, recorder: Recorder) -> None:
        self._processes = {
            **{name: psutil.Process(pid) for name, pid in fleet.processes().items()},
            **{name: psutil.Process(run.processes()["frames"]) for name, run in recorder.runs.items()},
        }
        self._begin_s = time.monotonic()
        self._cpu_s = {name: _cpu_s(process) for name, process in self._processes.items()}

    def measure(self) -> dict[str, dict[str, float]]:
        """Return CPU percent of one core, USS and PSS in MB, for each process by name."""
        wall_s = time.monotonic() - self._begin_s
        figures = {}
        for name, process in self._processes.items():
            memory = process.memory_full_info()
            figures[name] = {
                "cpu_percent": round(100 * (_cpu_s(process) - self._cpu_s[name]) / wall_s, 1),
                "uss_mb": round(memory.uss / 1e6, 1),
                "pss_mb": round(memory.pss / 1e6, 1),
            }
        return figures


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def clip(fps: int, seconds: float) -> Iterator[Path]:
    """Yield a clip of the scene, again and again, of that length."""
    scene = load_scene(SCENE)
    step = max(1, round(scene.fps / fps))
    count = round(seconds * fps)
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        path = Path(folder) / "camera.mp4"
        with av.open(str(path), "w") as container:
            stream = container.add_stream("libx264", rate=fps, options={"preset": "veryfast", "g": str(2 * fps)})
            stream.width, stream.height, stream.pix_fmt = scene.width_px, scene.height_px, "yuv420p"
            stream.time_base = Fraction(1, fps)
            for index in islice(cycle(range(0, scene.frames, step)), count):
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(scene.render(index)), format="rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
        yield path


def watch_fleet(path: Path, cameras: int, seconds: float, slots: int | None) -> dict[str, Any]:
    """Return the figures of a fleet of cameras, which all show one clip.

    Args:
        path: The clip.
        cameras: Number of cameras.
        seconds: Length of the run.
        slots: Slots of the model; its default if None.
    """
    named_cameras = [
        NamedCamera(
            f"camera{number:02}",
            Config(
                source=str(path),
                capture=CaptureConfig(realtime=True, start_s=0.75 * number),
                answer=AnswerConfig(every_s=EVERY_S, on_cut=False, **({} if slots is None else {"slots": slots})),
            ),
        )
        for number in range(cameras)
    ]
    recorder = Recorder([camera.name for camera in named_cameras])
    fleet = Fleet(named_cameras, recorder, limit_s=seconds)
    usage: dict[str, dict[str, float]] = {}

    def measure() -> None:
        recorder.frames_ready.wait()
        if recorder.failures:
            return
        time.sleep(0.1 * seconds)
        baseline = Usage(fleet, recorder)
        time.sleep(0.7 * seconds)
        usage.update(baseline.measure())

    measuring = threading.Thread(target=measure, daemon=True)
    measuring.start()
    outcomes = fleet.run()
    measuring.join()
    return figures(recorder, outcomes, usage)


def figures(
    recorder: Recorder, outcomes: Sequence[CameraOutcome], usage: dict[str, dict[str, float]]
) -> dict[str, Any]:
    """Return the figures of a phase."""
    failed = [*recorder.failures, *(str(outcome.error) for outcome in outcomes if outcome.error is not None)]
    if failed:
        raise SystemExit(f"a camera failed: {failed[0]}")
    answer_counts: list[int] = []
    shares, waits_ms, ttft_ms, frames = [], [], [], []
    for outcome in outcomes:
        times, summary = recorder.frames[outcome.camera], outcome.summary
        assert summary is not None
        points = answer_points(times, recorder.answers[outcome.camera])
        answer_counts.append(points.answer_count)
        shares.append(points.share)
        waits_ms += points.waits_ms
        ttft_ms += [answer.timing.ttft_ms for answer in recorder.answers[outcome.camera] if answer.timing is not None]
        frames.append(len(times) / (len(times) + sum(summary.dropped.get(queue, 0) for queue in REPLACED)))
    camera_usage = [values for name, values in usage.items() if name in recorder.answers]
    return {
        "cameras": len(outcomes),
        "answers_per_s": round(sum(answer_counts) / span_s(recorder), 2),
        "share_worst": round(min(shares), 3),
        "fairness": round(min(answer_counts) / statistics.mean(answer_counts), 3),
        "wait_ms": percentiles(waits_ms, 1),
        "ttft_ms": percentiles(ttft_ms, 1),
        "frames_share_worst": round(min(frames), 3),
        "camera": {key: round(statistics.mean(values[key] for values in camera_usage), 1) for key in camera_usage[0]},
        "camera_most": {key: max(values[key] for values in camera_usage) for key in camera_usage[0]},
        **{name: values for name, values in usage.items() if name not in recorder.answers},
        "cpu_percent": round(sum(values["cpu_percent"] for values in usage.values()), 1),
        "pss_mb": round(sum(values["pss_mb"] for values in usage.values()), 1),
    }


REPLACED = ("capture.replaced", "texture.replaced")
"""Queues in which a newer frame takes the place of an older one."""


class Points:
    """Moments at which answers of one camera were due, and the answers to them."""

    def __init__(self, due: int, waits_ms: list[float]) -> None:
        self.due = due
        self.answer_count = len(waits_ms)
        self.waits_ms = waits_ms

    @property
    def share(self) -> float:
        """Number of answers that were due and given."""
        return self.answer_count / self.due


def answer_points(frames_s: Sequence[float], answers: Sequence[Answer]) -> Points:
    """Return the moments at which answers were due, but for the last END_S, and how long each one waited."""
    begin_s, end_s = frames_s[0], frames_s[-1] - END_S
    waits: dict[int, float] = {}
    for answer in answers:
        point, wait_s = divmod(answer.pts_s - begin_s + ROUNDING_S, EVERY_S)
        if begin_s + point * EVERY_S <= end_s:
            waits.setdefault(int(point), 1000 * max(0.0, wait_s - ROUNDING_S))
    return Points(1 + int((end_s - begin_s) // EVERY_S), list(waits.values()))


def span_s(recorder: Recorder) -> float:
    """Return the media time in which answers are counted, the mean of the cameras."""
    return statistics.mean(times[-1] - END_S - times[0] for times in recorder.frames.values())


def targets(phases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what was to be reached with the most cameras, beside what was."""
    most = max(phases, key=lambda phase: int(phase["cameras"]))
    limits = {
        "share of its answers of the worst camera": (most["share_worst"], LEAST_SHARE, True),
        "fairness": (most["fairness"], LEAST_SHARE, True),
        "memory of a camera (PSS), MB": (most["camera"]["pss_mb"], MOST_MB, False),
    }
    return {
        name: {"value": value, "target": target, "met": value >= target if least else value <= target}
        for name, (value, target, least) in limits.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cameras", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--fps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=24.0)
    parser.add_argument("--slots", type=int)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    about = {"fps": options.fps, "seconds": options.seconds, "every_s": EVERY_S, "slots": options.slots}
    load = machine()["load_1min"]
    phases = []
    with clip(options.fps, options.seconds + 20 + 0.75 * max(options.cameras)) as path:
        for cameras in options.cameras:
            phases.append(watch_fleet(path, cameras, options.seconds, options.slots))
            print(json.dumps(phases[-1]), flush=True)
    target_report = targets(phases)
    print(json.dumps(target_report, indent=2))
    report = {"benchmark": "fleet", **about, "load_1min_before": load, "targets": target_report, "phases": phases}
    write_report(options.out, {**report, "machine": machine()})


if __name__ == "__main__":
    main()
