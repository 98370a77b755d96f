"""Command → first caption, beside the import of torch and transformers alone: processor and wall time.

    python -m benchmarks.startup [--rounds 7] [--out FILE]

Each round runs `python -c "import torch, transformers"` and each command once, as a user does, with the bundled model
and the drawn scene `demo`, of which one frame is answered. Processor time is that of the command and all its processes;
wall time ends with the first text on stdout. A first round, which warms the disk, is not counted. Ratios are taken
within a round; all figures are medians over the rounds.
Targets: the command takes at most 1.5 times the processor time and 1.5 times the time of the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.support.harness import write_report
from stream.monitor.machine import machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "startup.json"
RATIO = 1.5

IMPORTS = "import torch, transformers"
BASE = "imports"
ONE_FRAME = ("scene:demo", "--max-frames", "1", "-q", "What is there?")

COMMANDS = {
    BASE: ("-c", IMPORTS),
    "caption": ("run_stream.py", "caption", *ONE_FRAME),
    "caption --single-process": ("run_stream.py", "caption", *ONE_FRAME, "--single-process"),
    "watch --realtime": ("run_stream.py", "watch", *ONE_FRAME, "--realtime"),
}


def run_once(arguments: tuple[str, ...]) -> dict[str, float]:
    """Seconds of one command: `cpu_s` of it and all processes that it waited for, `first_s` until its first text (its
    end, if it prints none), `wall_s` until its end. Raises RuntimeError if it fails."""
    start_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    text = os.read(process.stdout.fileno(), 4096)
    first_s = time.monotonic() - start_s
    process.stdout.read()
    errors = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.monotonic() - start_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or (not text.strip() and IMPORTS not in arguments):
        raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}: {errors.strip()[-500:]}")
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "first_s": first_s, "wall_s": wall_s}


def summary(rounds: list[dict[str, dict[str, float]]], name: str) -> dict[str, Any]:
    """Medians of one command's seconds, and of their ratios to the imports of the same round."""
    medians = {key: statistics.median(run[name][key] for run in rounds) for key in ("cpu_s", "first_s", "wall_s")}
    ratios = {
        f"{key}_ratio": statistics.median(run[name][key] / run[BASE][key] for run in rounds)
        for key in ("cpu_s", "first_s")
    }
    return {key: round(value, 3) for key, value in (medians | ratios).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    load_before = machine()["load_1min"]
    rounds = [{name: run_once(command) for name, command in COMMANDS.items()} for _ in range(options.rounds + 1)][1:]
    commands = {name: summary(rounds, name) for name in COMMANDS}
    result = {
        "benchmark": "startup",
        "rounds": options.rounds,
        "load_1min_before": load_before,
        "targets": {
            f"caption, {key} ÷ imports": {
                "value": commands["caption"][f"{key}_ratio"],
                "target": RATIO,
                "met": commands["caption"][f"{key}_ratio"] <= RATIO,
            }
            for key in ("cpu_s", "first_s")
        },
        "commands": commands,
        "machine": machine(),
    }
    print(json.dumps({key: result[key] for key in ("targets", "commands")}, indent=2))
    write_report(options.out, result)


if __name__ == "__main__":
    main()
