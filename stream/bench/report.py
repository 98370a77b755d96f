"""The figures of one run, each under the name of its definition."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from stream.bench.machine import machine
from stream.bench.recorder import Recorder
from stream.config import Config
from stream.events import Answer, FrameReady
from stream.monitor.metrics import (
    TRIM_S,
    Jitter,
    Nanoseconds,
    Percentiles,
    frames_per_second,
    interval_std_ms,
    jitter,
    slope_per_hour,
    trimmed,
)
from stream.sources.address import shown_config

BYTES_PER_MB = 1e6

PERCENTILES = tuple(field.name for field in fields(Percentiles))


def config_json(config: Config) -> dict[str, Any]:
    """The whole configuration, the source without its secrets."""
    return shown_config(config).model_dump(mode="json")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `value` is None where the run gave nothing to measure it by."""

    name: str
    value: float | None
    unit: str
    definition: str


@dataclass(frozen=True, slots=True)
class Latency:
    """One measured distribution, in milliseconds, and its mean."""

    name: str
    values: Percentiles | None
    mean: float | None
    definition: str

    @classmethod
    def of(cls, name: str, values_ms: list[float], definition: str) -> Latency:
        return cls(name, Percentiles.of(values_ms), float(np.mean(values_ms)) if values_ms else None, definition)


@dataclass(frozen=True, slots=True)
class Report:
    """What a run measured. `left_out_s` is what was left out at its start and end; times are those of measured frames.

    `timeline` is what a picture of the run is drawn from.
    """

    frames: int
    measured_frames: int
    left_out_s: tuple[float, float]
    ended: str
    latencies: tuple[Latency, ...]
    figures: tuple[Figure, ...]
    memory_mb: dict[str, float]
    counts: dict[str, int]
    dropped: dict[str, int]
    timeline: Timeline

    def as_json(self) -> dict[str, Any]:
        """Everything but the single frames."""
        return {
            "frames": self.frames,
            "measured_frames": self.measured_frames,
            "left_out_s": {"start": self.left_out_s[0], "end": self.left_out_s[1]},
            "ended": self.ended,
            "latency_ms": {
                one.name: {
                    "definition": one.definition,
                    **({} if one.values is None else {**asdict(one.values), "mean": one.mean}),
                }
                for one in self.latencies
            },
            "figures": {
                one.name: {"value": one.value, "unit": one.unit, "definition": one.definition} for one in self.figures
            },
            "memory_mb": self.memory_mb,
            "counts": self.counts,
            "dropped": self.dropped,
        }

    def with_circumstances(self, config: Config) -> dict[str, Any]:
        """`as_json`, after the configuration and the machine."""
        return {"config": config_json(config), "machine": machine(), **self.as_json()}


@dataclass(frozen=True, slots=True)
class Timeline:
    """The measured frames and answers in time; all times in seconds since the first measured frame was ready.

    `ready_s` and `latency_ms` are float64 [N]; `answers_s` holds (capture, first token, last token); `gaps_s` holds
    (when, how many): frames that were dropped between two that were not.
    """

    ready_s: npt.NDArray[np.float64]
    latency_ms: npt.NDArray[np.float64]
    answers_s: tuple[tuple[float, float, float], ...] = ()
    cuts_s: tuple[float, ...] = ()
    gaps_s: tuple[tuple[float, int], ...] = ()


def report(recorder: Recorder, *, warmup_s: float = TRIM_S) -> Report:
    """The figures of a recorded run, without its first `warmup_s` and its last second."""
    frames = list(recorder.frames)
    inside = trimmed(np.array([frame.ready_ns for frame in frames], dtype=np.int64), warmup_s)
    measured = [frame for frame, counts in zip(frames, inside, strict=True) if counts]
    ready_ns, capture_ns, pts_ns = _times(measured)
    shown = {frame.frame_index: frame for frame in measured}
    answers = [answer for answer in recorder.answers if answer.frame_index in shown]
    summary, counted = recorder.summary, recorder.statistics.snapshot()
    return Report(
        frames=len(frames),
        measured_frames=len(measured),
        left_out_s=(warmup_s, TRIM_S) if len(measured) < len(frames) else (0.0, 0.0),
        ended=summary.ended if summary else "",
        latencies=(*_frame_latencies(measured), *_answer_latencies(answers, shown)),
        figures=(
            *_rates(ready_ns, measured, answers),
            *_memory(recorder),
            *_jitter_figures(jitter(capture_ns, ready_ns, pts_ns) if recorder.scheduled else None),
            _release(capture_ns, pts_ns) if recorder.scheduled else _release(capture_ns[:0], pts_ns),
        ),
        memory_mb=_largest_of_each(recorder),
        counts={
            "answers": counted.answers,
            "cuts": counted.cuts,
            "skipped": counted.skipped,
            "outages": counted.outages,
            "restarts": sum(counted.restarts.values()),
        },
        dropped=dict(summary.dropped) if summary else {},
        timeline=_timeline(measured, answers, recorder),
    )


def _times(frames: list[FrameReady]) -> tuple[Nanoseconds, Nanoseconds, Nanoseconds]:
    """When they were ready, were captured, and are shown: int64 [N] each."""
    ready_ns = np.array([frame.ready_ns for frame in frames], dtype=np.int64)
    capture_ns = np.array([frame.capture_ns for frame in frames], dtype=np.int64)
    pts_ns = np.array([round(frame.pts_s * 1e9) for frame in frames], dtype=np.int64)
    return ready_ns, capture_ns, pts_ns


def _latency_ms(frame: FrameReady) -> float:
    return (frame.ready_ns - frame.capture_ns) / 1e6


def _frame_latencies(frames: list[FrameReady]) -> tuple[Latency, ...]:
    waits = [_latency_ms(frame) - frame.texture_ms - frame.allocate_ms for frame in frames]
    return (
        Latency.of("frame", [_latency_ms(frame) for frame in frames], "capture to allocation ready"),
        Latency.of("texture", [frame.texture_ms for frame in frames], "texture stage, a frame"),
        Latency.of("allocate", [frame.allocate_ms for frame in frames], "allocate stage, a frame"),
        Latency.of("waits", waits, "the rest of it: queues, hops"),
    )


def _answer_latencies(answers: list[Answer], shown: dict[int, FrameReady]) -> tuple[Latency, ...]:
    timed = [(answer.timing, shown[answer.frame_index]) for answer in answers if answer.timing is not None]
    rest = [
        timing.total_ms - timing.encode_ms - timing.prefill_ms - timing.decode_ms - _latency_ms(frame)
        for timing, frame in timed
    ]
    return (
        Latency.of("answer, first token", [timing.ttft_ms for timing, _ in timed], "capture to first token"),
        Latency.of("answer, last token", [timing.total_ms for timing, _ in timed], "capture to last token"),
        Latency.of("encode", [timing.encode_ms for timing, _ in timed], "vision encoder, an answer"),
        Latency.of("prefill", [timing.prefill_ms for timing, _ in timed], "prompt, an answer"),
        Latency.of("decode", [timing.decode_ms for timing, _ in timed], "all steps, an answer"),
        Latency.of("answer waits", rest, "the rest: queue, hops, text"),
    )


def _rates(ready_ns: Nanoseconds, frames: list[FrameReady], answers: list[Answer]) -> tuple[Figure, ...]:
    span_s = float(ready_ns[-1] - ready_ns[0]) / 1e9 if ready_ns.size > 1 else 0.0
    rate = len(answers) / span_s if span_s else None
    return (
        Figure("fps", frames_per_second(ready_ns), "1/s", "allocations ready ÷ wall time"),
        Figure("answers", rate, "1/s", "answers about the measured frames ÷ wall time"),
        Figure("tokens", _mean([frame.tokens for frame in frames]), "", "visual tokens a frame, mean"),
        Figure("tiles", _mean([frame.tiles for frame in frames]), "", "visual tokens of a whole frame, mean"),
        Figure("less work", _work_ratio(answers), "×", "operations with all tokens ÷ with those shown"),
        Figure("tiles changed", _mean([frame.dirty_share for frame in frames], 100), "%", "of the grid, mean"),
        Figure(
            "allocation jitter",
            _mean([frame.jitter_share for frame in frames], 100),
            "%",
            "tiles whose level changed, mean",
        ),
    )


def _work_ratio(answers: list[Answer]) -> float | None:
    flops = sum(answer.flops for answer in answers)
    return sum(answer.full_flops for answer in answers) / flops if flops else None


def _memory(recorder: Recorder) -> tuple[Figure, ...]:
    at_ns = np.array([sample.at_ns for sample in recorder.memory], dtype=np.int64)
    total_mb = [sample.total_bytes / BYTES_PER_MB for sample in recorder.memory]
    running = at_ns >= (recorder.frames[0].ready_ns if recorder.frames else 0)
    slope = slope_per_hour(at_ns[running], np.array(total_mb)[running]) if total_mb else None
    return (
        Figure("memory", max(total_mb, default=None), "MB", "largest RSS, summed over the processes"),
        Figure("memory slope", slope, "MB/h", "line through RSS since the first frame"),
    )


def _largest_of_each(recorder: Recorder) -> dict[str, float]:
    largest: dict[str, float] = {}
    for sample in recorder.memory:
        for name, held in sample.rss_bytes.items():
            largest[name] = max(largest.get(name, 0.0), held / BYTES_PER_MB)
    return largest


def _jitter_figures(values: Jitter | None) -> tuple[Figure, ...]:
    named = {} if values is None else asdict(values)
    return (
        Figure("interarrival", named.get("interarrival_ms"), "ms", "jitter: RFC 3550's smoothed estimate"),
        Figure("interval_std", named.get("interval_std_ms"), "ms", "jitter: std of output gaps - PTS gaps"),
        Figure("tail", named.get("tail_ms"), "ms", "jitter: p99 - p50 of frame latency"),
        Figure("peak_to_peak", named.get("peak_to_peak_ms"), "ms", "jitter: max - min of frame latency"),
        Figure("deadline misses", named.get("deadline_misses_percent"), "%", "frames later than one source period"),
    )


def _release(capture_ns: Nanoseconds, pts_ns: Nanoseconds) -> Figure:
    """How uneven the source itself was, before any stage had the frame."""
    value = interval_std_ms(capture_ns, pts_ns) if capture_ns.size > 2 else None
    return Figure("source interval_std", value, "ms", "jitter: std of capture gaps - PTS gaps")


def _timeline(frames: list[FrameReady], answers: list[Answer], recorder: Recorder) -> Timeline:
    ready_ns, capture_ns, _ = _times(frames)
    zero_ns = int(ready_ns[0]) if frames else 0

    def seconds(at_ns: float) -> float:
        return (at_ns - zero_ns) / 1e9

    by_index = {frame.frame_index: frame for frame in frames}
    spoken = [(by_index[answer.frame_index].capture_ns, answer.timing) for answer in answers if answer.timing]
    gaps = [
        (seconds(later.ready_ns), later.frame_index - earlier.frame_index - 1)
        for earlier, later in itertools.pairwise(frames)
        if later.frame_index > earlier.frame_index + 1
    ]
    return Timeline(
        ready_s=(ready_ns - zero_ns) / 1e9,
        latency_ms=(ready_ns - capture_ns) / 1e6,
        answers_s=tuple(
            (seconds(at_ns), seconds(at_ns + timing.ttft_ms * 1e6), seconds(at_ns + timing.total_ms * 1e6))
            for at_ns, timing in spoken
        ),
        cuts_s=tuple(
            seconds(by_index[cut.frame_index].ready_ns) for cut in recorder.cuts if cut.frame_index in by_index
        ),
        gaps_s=tuple(gaps),
    )


def _mean(values: list[int] | list[float], scale: float = 1.0) -> float | None:
    return float(np.mean(values)) * scale if values else None
