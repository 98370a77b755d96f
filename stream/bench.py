"""Measures one run: records its events, and makes the report whose every figure has one definition."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stream.config import Config
from stream.events import Answer, Event, FrameReady, Summary
from stream.metrics import TRIM_S, Jitter, Percentiles, frames_per_second, jitter, trimmed
from stream.sinks.base import Sink


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `value` is None where the run gave nothing to measure it by."""

    name: str
    value: float | None
    unit: str
    definition: str


@dataclass(frozen=True, slots=True)
class Latency:
    """One measured distribution, in milliseconds. An answer counts from the capture of its packet's newest frame."""

    name: str
    values: Percentiles | None
    definition: str


class Recorder(Sink):
    """Keeps the frames, answers and summary of a run."""

    def __init__(self) -> None:
        self.frames: list[FrameReady] = []
        self.answers: list[Answer] = []
        self.summary: Summary | None = None

    def write(self, event: Event) -> None:
        if isinstance(event, FrameReady):
            self.frames.append(event)
        elif isinstance(event, Answer):
            self.answers.append(event)
        elif isinstance(event, Summary):
            self.summary = event

    def close(self) -> None:
        """Nothing to let go of."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a run measured. `frame_latency_ms` float64 [N] and `ready_s` float64 [N] are of the measured frames."""

    frames: int
    measured_frames: int
    trim_s: float
    latencies: tuple[Latency, ...]
    figures: tuple[Figure, ...]
    dropped: dict[str, int]
    ready_s: npt.NDArray[np.float64]
    frame_latency_ms: npt.NDArray[np.float64]

    def as_json(self, config: Config) -> dict[str, Any]:
        """Everything but the single frames, with the configuration and the machine."""
        return {
            "config": config.model_dump(mode="json"),
            "machine": machine(),
            "frames": self.frames,
            "measured_frames": self.measured_frames,
            "left_out_s_at_each_end": self.trim_s,
            "latency_ms": {
                one.name: {"definition": one.definition, **({} if one.values is None else asdict(one.values))}
                for one in self.latencies
            },
            "figures": {
                one.name: {"value": one.value, "unit": one.unit, "definition": one.definition} for one in self.figures
            },
            "dropped": self.dropped,
        }


def report(recorder: Recorder, *, scheduled: bool) -> Report:
    """The figures of a recorded run. `scheduled`: frames came at a pace of their own, so jitter has a meaning."""
    frames = recorder.frames
    ready_ns = np.array([frame.ready_ns for frame in frames], dtype=np.int64)
    inside = trimmed(ready_ns)
    measured = [frame for frame, counts in zip(frames, inside, strict=True) if counts]
    ready_ns = ready_ns[inside]
    capture_ns = np.array([frame.capture_ns for frame in measured], dtype=np.int64)
    pts_ns = np.array([round(frame.pts_s * 1e9) for frame in measured], dtype=np.int64)
    shown = {frame.frame_index for frame in measured}
    answers = [answer for answer in recorder.answers if answer.frame_index in shown]
    return Report(
        frames=len(frames),
        measured_frames=len(measured),
        trim_s=TRIM_S if len(measured) < len(frames) else 0.0,
        latencies=_latencies(measured, answers),
        figures=(
            *_rates(ready_ns, measured, answers),
            *_jitter_figures(jitter(capture_ns, ready_ns, pts_ns) if scheduled else None),
        ),
        dropped=dict(recorder.summary.dropped) if recorder.summary else {},
        ready_s=(ready_ns - ready_ns[:1]) / 1e9,
        frame_latency_ms=(ready_ns - capture_ns) / 1e6,
    )


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu_model(),
        "cores": cores,
        "load_1min": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "av", "arr-coc-stream")},
    }


def _latencies(frames: list[FrameReady], answers: list[Answer]) -> tuple[Latency, ...]:
    timings = [answer.timing for answer in answers if answer.timing is not None]
    return (
        Latency(
            "frame",
            Percentiles.of([(frame.ready_ns - frame.capture_ns) / 1e6 for frame in frames]),
            "capture to allocation ready",
        ),
        Latency("texture", Percentiles.of([frame.texture_ms for frame in frames]), "texture stage, a frame"),
        Latency("allocate", Percentiles.of([frame.allocate_ms for frame in frames]), "allocate stage, a frame"),
        Latency(
            "answer, first token",
            Percentiles.of([timing.ttft_ms for timing in timings]),
            "capture to first token",
        ),
        Latency(
            "answer, last token",
            Percentiles.of([timing.total_ms for timing in timings]),
            "capture to last token",
        ),
        Latency("encode", Percentiles.of([timing.encode_ms for timing in timings]), "vision encoder, an answer"),
        Latency("prefill", Percentiles.of([timing.prefill_ms for timing in timings]), "prompt, an answer"),
        Latency("decode", Percentiles.of([timing.decode_ms for timing in timings]), "all steps, an answer"),
    )


def _rates(ready_ns: npt.NDArray[np.int64], frames: list[FrameReady], answers: list[Answer]) -> tuple[Figure, ...]:
    span_s = float(ready_ns[-1] - ready_ns[0]) / 1e9 if ready_ns.size > 1 else 0.0
    rate = len(answers) / span_s if span_s else None
    return (
        Figure("fps", frames_per_second(ready_ns), "1/s", "allocations ready ÷ wall time"),
        Figure("answers", rate, "1/s", "answers about the measured frames ÷ wall time"),
        Figure("tokens", _mean([frame.tokens for frame in frames]), "", "visual tokens a frame, mean"),
        Figure("tiles changed", _mean([frame.dirty_share for frame in frames], 100), "%", "of the grid, mean"),
        Figure(
            "allocation jitter",
            _mean([frame.jitter_share for frame in frames], 100),
            "%",
            "tiles whose level changed, mean",
        ),
    )


def _jitter_figures(values: Jitter | None) -> tuple[Figure, ...]:
    named = {} if values is None else asdict(values)
    return (
        Figure("interarrival", named.get("interarrival_ms"), "ms", "jitter: RFC 3550's smoothed estimate"),
        Figure("interval_std", named.get("interval_std_ms"), "ms", "jitter: std of output gaps - PTS gaps"),
        Figure("tail", named.get("tail_ms"), "ms", "jitter: p99 - p50 of frame latency"),
        Figure("peak_to_peak", named.get("peak_to_peak_ms"), "ms", "jitter: max - min of frame latency"),
        Figure("deadline misses", named.get("deadline_misses_percent"), "%", "frames later than one source period"),
    )


def _mean(values: list[int] | list[float], scale: float = 1.0) -> float | None:
    return float(np.mean(values)) * scale if values else None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
