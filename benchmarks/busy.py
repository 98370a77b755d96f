"""Answers of the library beside processes that use every core, against the same alone.

    python -m benchmarks.busy [--rounds 5] [--answers 16] [--out FILE]

A round starts a process with the library and the bundled model for each way of waiting. It answers about one picture,
by turns alone and beside a busy loop on each core. `default` is what users get: threads of OpenMP that sleep while they
wait (`arr_coc/__init__.py`). `spinning` has torch's own default, for comparison. A ratio is that of two answers after
each other; the figures are medians over all pairs of the rounds. No pair begins after 30 s of answers.
Target: beside the busy loops, an answer takes at most 3 times as long as alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.support.harness import write_report
from stream.monitor.machine import machine
from stream.runtime.child import python_command, python_environment

RESULTS = Path(__file__).parent / "results" / "busy.json"
RATIO = 3.0

WAYS = {"default": {}, "spinning": {"GOMP_SPINCOUNT": "300000"}}
"""Variables of each way of waiting; 300,000 turns are libgomp's default."""

WARM_UP = 2
LIMIT_S = 30.0
"""Time of all answers after which no further pair begins: threads that spin may take seconds for one."""

QUESTION = "Say what happens."


@contextmanager
def busy_loops() -> Iterator[Callable[[int], None]]:
    """Start a loop on each core that this process may use, paused; yields a function that signals all of them."""
    cores = len(os.sched_getaffinity(0))
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]

    def signal_all(number: int) -> None:
        for loop in loops:
            loop.send_signal(number)

    try:
        signal_all(signal.SIGSTOP)
        yield signal_all
    finally:
        signal_all(signal.SIGKILL)
        for loop in loops:
            loop.wait()


def answer_by_turns(answers: int) -> None:
    """Print the seconds of pairs of answers, alone and beside busy cores, as JSON: the program of a round's process."""
    import torch

    from arr_coc import ARRCOCQwen
    from stream.scenes.stills import draw_street

    model, picture = ARRCOCQwen.from_pretrained(), draw_street()

    def answer_s() -> float:
        start_s = time.perf_counter()
        model.forget()
        model.generate(picture, QUESTION)
        return time.perf_counter() - start_s

    for _ in range(WARM_UP):
        answer_s()
    pairs: list[tuple[float, float]] = []
    with busy_loops() as signal_all:
        while len(pairs) < answers and sum(map(sum, pairs)) < LIMIT_S:
            alone_s = answer_s()
            signal_all(signal.SIGCONT)
            pairs.append((alone_s, answer_s()))
            signal_all(signal.SIGSTOP)
    print(json.dumps({"pairs": pairs, "threads": torch.get_num_threads()}))


def run_once(way: str, answers: int) -> dict[str, Any]:
    """Seconds of pairs of answers in a separate process."""
    command = python_command("benchmarks.busy", "--pairs", "--answers", str(answers))
    result: dict[str, Any] = json.loads(subprocess.check_output(command, env=python_environment(WAYS[way]), text=True))
    return result


def summary(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """Medians of the seconds and of their ratios, and the quartiles of the ratios."""
    ratios = [busy_s / alone_s for alone_s, busy_s in pairs]
    first, middle, third = statistics.quantiles(ratios, n=4)
    return {
        "pairs": len(pairs),
        "alone_s": round(statistics.median(alone_s for alone_s, _ in pairs), 4),
        "busy_s": round(statistics.median(busy_s for _, busy_s in pairs), 4),
        "ratio": round(middle, 3),
        "ratio_quartiles": [round(first, 3), round(third, 3)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--answers", type=int, default=16)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--pairs", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pairs:
        answer_by_turns(options.answers)
        return
    load_before = machine()["load_1min"]
    rounds = [{way: run_once(way, options.answers) for way in WAYS} for _ in range(options.rounds)]
    ways = {way: summary([pair for runs in rounds for pair in runs[way]["pairs"]]) for way in WAYS}
    result = {
        "benchmark": "busy",
        "rounds": options.rounds,
        "answers": options.answers,
        "threads": rounds[0]["default"]["threads"],
        "load_1min_before": load_before,
        "targets": {
            "default, beside busy cores ÷ alone": {
                "value": ways["default"]["ratio"],
                "target": RATIO,
                "met": ways["default"]["ratio"] <= RATIO,
            }
        },
        "ways": ways,
        "machine": machine(),
    }
    print(json.dumps({key: result[key] for key in ("targets", "ways")}, indent=2))
    write_report(options.out, result)


if __name__ == "__main__":
    main()
