"""Figures of one measured run, each under the name of its definition, and the machine that it ran on."""

from __future__ import annotations

import math
import struct
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from stream.clock import MonotonicClock
from stream.config import Config
from stream.events import AnswerPoint, Cut, Event, FrameReady, Summary
from stream.monitor.metrics import (
    TRIM_S,
    Jitter,
    Percentiles,
    frames_per_second,
    interval_std_ms,
    jitter,
    slope_per_hour,
    trimmed,
)
from stream.monitor.statistics import MemorySample, RunStatistics
from stream.sinks.base import Sink
from stream.sources.address import shown_config

BYTES_PER_MB = 1e6

PERCENTILES = tuple(field.name for field in fields(Percentiles))

FRAME = np.dtype(
    [
        ("frame_index", "<i8"),
        ("pts_s", "<f8"),
        ("capture_ns", "<i8"),
        ("ready_ns", "<i8"),
        ("texture_ms", "<f8"),
        ("allocate_ms", "<f8"),
        ("held_ms", "<f8"),
        ("dirty_share", "<f8"),
        ("tokens", "<i8"),
        ("tiles", "<i8"),
        ("jitter_share", "<f8"),
    ]
)
"""The numbers of a FrameReady that are measured: 88 bytes a frame, so that a long measurement is no leak itself."""

_PACKED = struct.Struct("<qdqqddddqqd")

Frames = npt.NDArray[np.void]
Milliseconds = npt.NDArray[np.float64]


@dataclass
class RunRecord(Sink):
    """Frames, answers and cuts of a run, its statistics, and samples of its memory.

    `scheduled`: frames came at their own pace, so jitter has a meaning.
    """

    scheduled: bool = False
    answers: list[AnswerPoint] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    statistics: RunStatistics = field(default_factory=lambda: RunStatistics(MonotonicClock()))
    summary: Summary | None = None
    memory: list[MemorySample] = field(default_factory=list)
    _frames: bytearray = field(default_factory=bytearray)

    def write(self, event: Event) -> None:
        if isinstance(event, FrameReady):
            values = (getattr(event, name) for name in FRAME.names or ())
            self._frames += _PACKED.pack(*(math.nan if value is None else value for value in values))
        elif isinstance(event, AnswerPoint):
            self.answers.append(event)
        elif isinstance(event, Cut):
            self.cuts.append(event)
        elif isinstance(event, Summary):
            self.summary = event

    def close(self) -> None:
        """Nothing to release."""

    @property
    def frames(self) -> Frames:
        """All frames so far: an array [N] of `FRAME`."""
        return np.frombuffer(bytes(self._frames), FRAME)


@dataclass(frozen=True, slots=True)
class Metric:
    """One measured value. `value` is None if the run had nothing to measure it by."""

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
    def of(cls, name: str, values_ms: npt.ArrayLike, definition: str) -> Latency:
        """Return the latency of a run.

        Args:
            name: Name of the latency in reports.
            values_ms: One value a frame or answer [N], in milliseconds; may be empty.
            definition: From which moment to which it is measured.
        """
        return cls(name, Percentiles.of(values_ms), _mean(values_ms), definition)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The measured frames and answers in time; all times in seconds since the first measured frame was ready.

    `ready_s` and `latency_ms` are float64 [N]; `answers_s` holds (capture, first token, last token); `gaps_s` holds
    (when, how many): frames that were dropped between two that were not.
    """

    ready_s: Milliseconds
    latency_ms: Milliseconds
    answers_s: tuple[tuple[float, float, float], ...] = ()
    cuts_s: tuple[float, ...] = ()
    gaps_s: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Figures of a run. `left_out_s` is left out at its start and end; times are those of measured frames.

    A picture of the run is drawn from `timeline`.
    """

    frames: int
    measured_frames: int
    left_out_s: tuple[float, float]
    ended: str
    latencies: tuple[Latency, ...]
    figures: tuple[Metric, ...]
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
                latency.name: {
                    "definition": latency.definition,
                    **({} if latency.values is None else {**asdict(latency.values), "mean": latency.mean}),
                }
                for latency in self.latencies
            },
            "figures": {
                figure.name: {"value": figure.value, "unit": figure.unit, "definition": figure.definition}
                for figure in self.figures
            },
            "memory_mb": self.memory_mb,
            "counts": self.counts,
            "dropped": self.dropped,
        }


def report(record: RunRecord, *, warmup_s: float = TRIM_S) -> Report:
    """The figures of a recorded run, without its first `warmup_s` and its last second."""
    frames = record.frames
    measured = frames[trimmed(frames["ready_ns"], warmup_s)]
    captured_ns = dict(zip(measured["frame_index"].tolist(), measured["capture_ns"].tolist(), strict=True))
    answers = [answer for answer in record.answers if answer.frame_index in captured_ns]
    summary = record.summary
    counted = record.statistics.snapshot()
    largest: dict[str, float] = {}
    for sample in record.memory:
        for name, rss_bytes in sample.rss_bytes.items():
            largest[name] = max(largest.get(name, 0.0), rss_bytes / BYTES_PER_MB)
    return Report(
        frames=len(frames),
        measured_frames=len(measured),
        left_out_s=(warmup_s, TRIM_S) if len(measured) < len(frames) else (0.0, 0.0),
        ended=summary.ended if summary else "",
        latencies=(*_frame_latencies(measured), *_answer_latencies(answers, measured)),
        figures=(*_rates(measured, answers), *_memory(record), *_jitter_figures(measured, record.scheduled)),
        memory_mb=largest,
        counts={
            "answers": counted.answers,
            "unchanged": counted.unchanged,
            "glances": counted.glances,
            "cuts": counted.cuts,
            "skipped": counted.skipped,
            "outages": counted.outages,
            "restarts": sum(counted.restarts.values()),
        },
        dropped=dict(summary.dropped) if summary else {},
        timeline=_timeline(measured, answers, captured_ns, record.cuts),
    )


def config_json(config: Config) -> dict[str, Any]:
    """The whole configuration, the source without its secrets."""
    return shown_config(config).model_dump(mode="json")


def _latency_ms(frames: Frames) -> Milliseconds:
    latency: Milliseconds = (frames["ready_ns"] - frames["capture_ns"]) / 1e6
    return latency


def _frame_latencies(frames: Frames) -> tuple[Latency, ...]:
    latency_ms = _latency_ms(frames)
    waits_ms = latency_ms - frames["texture_ms"] - frames["allocate_ms"] - frames["held_ms"]
    return (
        Latency.of("frame", latency_ms, "capture to allocation ready"),
        Latency.of("texture", frames["texture_ms"], "texture stage, a frame"),
        Latency.of("allocate", frames["allocate_ms"], "allocate stage, a frame"),
        Latency.of("held", frames["held_ms"], "until the frame's release, at even intervals"),
        Latency.of("waits", waits_ms, "the rest of it: queues, hops"),
    )


def _answer_latencies(answers: list[AnswerPoint], frames: Frames) -> tuple[Latency, ...]:
    frame_ms = dict(zip(frames["frame_index"].tolist(), _latency_ms(frames).tolist(), strict=True))
    timed = [(answer.timing, frame_ms[answer.frame_index]) for answer in answers if answer.timing is not None]
    rest = [
        timing.total_ms - timing.encode_ms - timing.prefill_ms - timing.decode_ms - latency_ms
        for timing, latency_ms in timed
    ]
    glances = [answer.timing.glance_ms for answer in answers if answer.timing is not None and answer.glances]
    return (
        Latency.of("glance", glances, "overview sent to its reply, before an answer"),
        Latency.of("answer, first token", [timing.ttft_ms for timing, _ in timed], "capture to first token"),
        Latency.of("answer, last token", [timing.total_ms for timing, _ in timed], "capture to last token"),
        Latency.of("encode", [timing.encode_ms for timing, _ in timed], "vision encoder, an answer"),
        Latency.of("prefill", [timing.prefill_ms for timing, _ in timed], "prompt, an answer"),
        Latency.of("decode", [timing.decode_ms for timing, _ in timed], "all steps, an answer"),
        Latency.of("answer waits", rest, "the rest: queue, hops, text"),
    )


def _rates(frames: Frames, answers: list[AnswerPoint]) -> tuple[Metric, ...]:
    ready_ns = frames["ready_ns"]
    if ready_ns.size > 1:
        span_s = float(ready_ns[-1] - ready_ns[0]) / 1e9
    else:
        span_s = 0.0
    rate = len(answers) / span_s if span_s else None
    flops = sum(answer.flops for answer in answers)
    if flops:
        ratio = sum(answer.full_flops for answer in answers) / flops
    else:
        ratio = None
    if answers:
        idle_tokens = sum(answer.idle_tokens for answer in answers) / len(answers)
    else:
        idle_tokens = None
    idle_ms = sum(answer.timing.idle_ms for answer in answers if answer.timing is not None)
    if span_s:
        idle_share = idle_ms / 1e3 / span_s * 100
    else:
        idle_share = None
    jitter = frames["jitter_share"][~np.isnan(frames["jitter_share"])]
    changed = 100 * frames["dirty_share"]
    jittered = 100 * jitter
    return (
        Metric("fps", frames_per_second(ready_ns), "1/s", "allocations ready ÷ wall time"),
        Metric("answers", rate, "1/s", "answers about the measured frames ÷ wall time"),
        Metric("tokens", _mean(frames["tokens"]), "", "visual tokens a frame, mean"),
        Metric("tiles", _mean(frames["tiles"]), "", "visual tokens of a whole frame, mean"),
        Metric("less work", ratio, "×", "operations with all tokens ÷ with those shown"),
        Metric("read ahead", idle_tokens, "", "visual tokens read between two answers, mean"),
        Metric("idle work", idle_share, "%", "time of the model for that ÷ wall time"),
        Metric("tiles changed", _mean(changed), "%", "of the grid, mean"),
        Metric("allocation jitter", _mean(jittered), "%", "tiles whose level changed, mean"),
    )


def _memory(record: RunRecord) -> tuple[Metric, ...]:
    at_ns = np.array([sample.at_ns for sample in record.memory], dtype=np.int64)
    total_mb = [sample.total_bytes / BYTES_PER_MB for sample in record.memory]
    running = at_ns >= (record.frames["ready_ns"][0] if len(record.frames) else 0)
    if total_mb:
        slope = slope_per_hour(at_ns[running], np.array(total_mb)[running])
    else:
        slope = None
    return (
        Metric("memory", max(total_mb, default=None), "MB", "largest RSS, summed over the processes"),
        Metric("memory slope", slope, "MB/h", "line through RSS since the first frame"),
    )


def _jitter_figures(frames: Frames, scheduled: bool) -> tuple[Metric, ...]:
    """Jitter of the frames that came out, and that of the source itself, before any stage had the frame."""
    measured: Jitter | None = None
    released: float | None = None
    if scheduled and len(frames) > 2:
        pts_ns = np.round(frames["pts_s"] * 1e9).astype(np.int64)
        measured = jitter(frames["capture_ns"], frames["ready_ns"], pts_ns)
        released = interval_std_ms(frames["capture_ns"], pts_ns)
    values = {} if measured is None else asdict(measured)
    return (
        Metric("interarrival", values.get("interarrival_ms"), "ms", "jitter: RFC 3550's smoothed estimate"),
        Metric("interval_std", values.get("interval_std_ms"), "ms", "jitter: std of output gaps - PTS gaps"),
        Metric("tail", values.get("tail_ms"), "ms", "jitter: p99 - p50 of frame latency"),
        Metric("peak_to_peak", values.get("peak_to_peak_ms"), "ms", "jitter: max - min of frame latency"),
        Metric("deadline misses", values.get("deadline_misses_percent"), "%", "frames later than one source period"),
        Metric("source interval_std", released, "ms", "jitter: std of capture gaps - PTS gaps"),
    )


def _timeline(frames: Frames, answers: list[AnswerPoint], captured_ns: dict[int, int], cuts: list[Cut]) -> Timeline:
    zero_ns = int(frames["ready_ns"][0]) if len(frames) else 0
    ready_s = (frames["ready_ns"] - zero_ns) / 1e9
    ready = list(zip(frames["frame_index"].tolist(), ready_s.tolist(), strict=True))
    ready_at = dict(ready)
    timed = [((captured_ns[answer.frame_index] - zero_ns) / 1e9, answer.timing) for answer in answers if answer.timing]
    return Timeline(
        ready_s=ready_s,
        latency_ms=_latency_ms(frames),
        answers_s=tuple((at_s, at_s + timing.ttft_ms / 1e3, at_s + timing.total_ms / 1e3) for at_s, timing in timed),
        cuts_s=tuple(ready_at[cut.frame_index] for cut in cuts if cut.frame_index in ready_at),
        gaps_s=tuple(
            (at_s, next_index - index - 1)
            for (index, _), (next_index, at_s) in pairwise(ready)
            if next_index > index + 1
        ),
    )


def _mean(values: npt.ArrayLike) -> float | None:
    samples = np.asarray(values)
    return float(samples.mean()) if samples.size else None
