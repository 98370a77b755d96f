"""Evenness of `watch --realtime` at 1080p30, with and without what keeps it even, and by stage.

    python -m benchmarks.pacing [--minutes 1] [--rounds 1] [--source FILE] [--out FILE]

The clip of `live` (the drawn scene `hd` as H.264), an answer every two seconds, as `python run_stream.py watch FILE`.
Each round runs it twice, in turn: as it is (`steady`), and with `pipeline.steady = false` (`plain`): no frame is held
for even intervals, the collector goes through everything that was imported, and a thread keeps the interpreter for up
to 5 ms. Figures are medians over the rounds, definitions those of docs/measuring.md. `parts_std_ms` is the standard
deviation of each part of a frame's latency; `interval_std_small_changes_ms` leaves out frames of which more than half
changed (cuts), and what follows them at once. `sleeps` is a loop that only sleeps to the same schedule: the machine's
own. `causes` are measured alone, each with and without `short_pauses`: the processor time of one full garbage
collection, with everything imported that a frame process has, and how long a thread that wakes up waits while another
computes in Python.
Targets: interval_std at most 1 ms, and no deadline miss.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.types import NS_PER_S
from benchmarks.live import make_clip
from benchmarks.support.harness import percentiles, write_report
from stream.config import AnswerConfig, CaptureConfig, Config, PipelineConfig
from stream.display.progress import ProgressDisplay
from stream.extensions.bench.measure import record_run
from stream.extensions.bench.report import RunRecord, report
from stream.monitor.machine import machine
from stream.runtime.frame_worker import main as _frame_process  # noqa: F401  (its imports are what is collected)
from stream.runtime.pacing import short_pauses

RESULTS = Path(__file__).parent / "results" / "pacing.json"
INTERVAL_STD_MS, MISSES = 1.0, 0

WAYS = {"steady": True, "plain": False}

WARMUP_FRAMES = 30
"""Left out at the beginning of `parts_std_ms`, as everywhere the first second is."""

SLEEPS, PERIOD_NS = 300, NS_PER_S // 30


def sleeping_std_ms(count: int) -> float:
    """Evenness of a loop that does nothing but sleep until each frame is due."""
    start_ns, woke_ns = time.monotonic_ns(), []
    for number in range(count):
        time.sleep(max(0, start_ns + number * PERIOD_NS - time.monotonic_ns()) / NS_PER_S)
        woke_ns.append(time.monotonic_ns())
    return round(float(np.diff(woke_ns).std()) / 1e6, 4)


def full_collection_ms(rounds: int = 5) -> float:
    """Processor time of a full garbage collection of this process; all threads wait for it."""
    gc.collect()
    taken_ms = []
    for _ in range(rounds):
        start_s = time.thread_time()
        gc.collect()
        taken_ms.append((time.thread_time() - start_s) * 1e3)
    return round(statistics.median(taken_ms), 3)


def interpreter_wait_ms(wakes: int = 300) -> dict[str, float]:
    """Delay of a thread that wakes up every 2 ms while another one computes in Python."""
    over, waits_ms = threading.Event(), []

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    other = threading.Thread(target=compute)
    other.start()
    for _ in range(wakes):
        due_s = time.perf_counter() + 0.002
        time.sleep(0.002)
        waits_ms.append((time.perf_counter() - due_s) * 1e3)
    over.set()
    other.join()
    return percentiles(waits_ms, 3)


def causes() -> dict[str, Any]:
    plain = {"full_collection_ms": full_collection_ms(), "interpreter_wait_ms": interpreter_wait_ms()}
    with short_pauses():
        steady = {"full_collection_ms": full_collection_ms(), "interpreter_wait_ms": interpreter_wait_ms()}
    return {"plain": plain, "steady": steady}


def measure(source: str, minutes: float, *, steady: bool) -> dict[str, Any]:
    config = Config(
        source=source,
        capture=CaptureConfig(realtime=True),
        answer=AnswerConfig(every_s=2.0),
        pipeline=PipelineConfig(answers="newest", steady=steady),
    )
    record = record_run(config, ProgressDisplay(captions=False), minutes * 60)
    measured = report(record)
    figures = {figure.name: figure.value for figure in measured.figures}
    frame = measured.latencies[0].values
    return {
        "frames": len(record.frames),
        "interval_std_ms": figures["interval_std"],
        "source_interval_std_ms": figures["source interval_std"],
        "deadline_misses_percent": figures["deadline misses"],
        "frame_p50_ms": frame and frame.p50,
        "frame_p99_ms": frame and frame.p99,
        "frame_max_ms": frame and frame.max,
        **parts(record),
        "dropped": dict(measured.dropped),
    }


def parts(record: RunRecord) -> dict[str, Any]:
    """Standard deviation of each part of the latency, and evenness of frames with little change."""
    frames = record.frames[WARMUP_FRAMES:]
    latency_ms = (frames["ready_ns"] - frames["capture_ns"]) / 1e6
    texture_ms, allocate_ms = frames["texture_ms"].astype(float), frames["allocate_ms"].astype(float)
    deviations_ms = np.diff(frames["ready_ns"]) / 1e6 - np.diff(frames["pts_s"]) * 1e3
    cuts = frames["dirty_share"] > 0.5
    quiet = ~(cuts[1:] | cuts[:-1])
    stds = {
        "latency": latency_ms,
        "texture": texture_ms,
        "allocate": allocate_ms,
        "held": frames["held_ms"].astype(float),
        "waits": latency_ms - texture_ms - allocate_ms - frames["held_ms"],
        "release": (frames["capture_ns"] / 1e6 - frames["pts_s"] * 1e3),
    }
    return {
        "parts_std_ms": {name: round(float(values.std()), 3) for name, values in stds.items()},
        "interval_std_small_changes_ms": round(float(deviations_ms[quiet].std()), 3),
    }


def median_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of each number over the runs of one way; drops of all of them."""
    result: dict[str, Any] = {}
    for key, value in runs[0].items():
        if isinstance(value, dict):
            names = sorted({name for run in runs for name in run[key]})
            result[key] = {name: statistics.median(run[key].get(name, 0) for run in runs) for name in names}
        else:
            values = [run[key] for run in runs if run[key] is not None]
            result[key] = round(statistics.median(values), 4) if values else None
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--source", help="a file or scene:NAME; a clip made for this when absent")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    load_before = machine()["load_1min"]
    sleeps_ms = sleeping_std_ms(SLEEPS)
    cause_figures = causes()
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        clip = Path(folder) / "hd.mp4"
        if options.source is None:
            make_clip(clip, options.minutes * 60)
        for _ in range(options.rounds):
            for name, steady in WAYS.items():
                runs[name].append(measure(options.source or str(clip), options.minutes, steady=steady))
    ways = {name: median_of(measured) for name, measured in runs.items()}
    ratios = [a["interval_std_ms"] / b["interval_std_ms"] for a, b in zip(*runs.values(), strict=True)]
    steady_way = ways["steady"]
    result = {
        "benchmark": "pacing",
        "minutes": options.minutes,
        "rounds": options.rounds,
        "load_1min_before": load_before,
        "targets": {
            "interval_std, ms": {
                "value": steady_way["interval_std_ms"],
                "target": INTERVAL_STD_MS,
                "met": steady_way["interval_std_ms"] <= INTERVAL_STD_MS,
            },
            "deadline misses, %": {
                "value": steady_way["deadline_misses_percent"],
                "target": MISSES,
                "met": steady_way["deadline_misses_percent"] <= MISSES,
            },
        },
        "steady_to_plain": round(statistics.median(ratios), 3),
        "ways": ways,
        "sleeps_interval_std_ms": sleeps_ms,
        "causes": cause_figures,
        "machine": machine(),
    }
    print(
        json.dumps(
            {key: result[key] for key in ("targets", "steady_to_plain", "ways", "sleeps_interval_std_ms", "causes")},
            indent=2,
        )
    )
    write_report(options.out, result)


if __name__ == "__main__":
    main()
