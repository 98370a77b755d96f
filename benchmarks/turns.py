"""Two versions of the program by turns: the time of each benchmark in this checkout beside that in another one.

    python -m benchmarks.turns CHECKOUT [--programs startup allocate] [--rounds 3] [--out FILE]

CHECKOUT is a folder with another version, its kernels built, such as `git worktree add ../before COMMIT`. In each round
every program runs once in both, first in the one and then in the other, the next time in the opposite order. A ratio is
the time here divided by the time there; of a rate it is the inverse. More than 1 is slower. Ratios are taken within a
round, and their median over the rounds counts.
Target: the median ratio of no program is more than 1.05.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from benchmarks.support.harness import write_report
from stream.monitor.machine import machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "turns.json"
RATIO = 1.05

PROGRAMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "startup": (("--rounds", "2"), ("commands.caption*.cpu_s", "commands.caption*.first_s", "commands.watch*.cpu_s")),
    "pipeline": (("--runs", "1", "--frames", "450"), ("clips.*.fps.*",)),
    "allocate": (("--rounds", "3"), ("cost_ms.*.median_ms",)),
    "batching": (("--rounds", "1"), ("*.slots.*.answers_per_s", "*.slots.*.checks_per_s")),
    "failover": (("--rounds", "2"), ("*.median_s",)),
    "memory": (("--only", "scenes", "--answers", "5"), ("scenes.*.ways.memory.first_token_ms",)),
}
"""Program → its arguments, and the patterns of the figures that are compared."""

RATES = ("*fps*", "*_per_s")
"""Figures of which more is better."""


def figures_of(result: dict[str, Any], patterns: tuple[str, ...]) -> dict[str, float]:
    """Return the figures of a result that match, by their dotted names."""
    return {
        name: value
        for name, value in _leaves(result)
        if isinstance(value, float | int) and value > 0 and any(fnmatch(name, pattern) for pattern in patterns)
    }


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from _leaves(item, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, value


def ratios_of(here: dict[str, float], there: dict[str, float]) -> dict[str, float]:
    """Return how many times as long each figure takes here."""
    ratios = {}
    for name in here.keys() & there.keys():
        is_rate = any(fnmatch(name, pattern) for pattern in RATES)
        ratios[name] = there[name] / here[name] if is_rate else here[name] / there[name]
    return ratios


def run_once(checkout: Path, program: str, folder: Path) -> dict[str, float]:
    """Return the figures of one run. Raises CalledProcessError."""
    arguments, patterns = PROGRAMS[program]
    out = folder / f"{program}.json"
    command = [sys.executable, "-m", f"benchmarks.{program}", *arguments, "--out", str(out)]
    subprocess.run(command, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    return figures_of(json.loads(out.read_text("utf-8")), patterns)


def summary(ratios: dict[str, list[float]]) -> dict[str, Any]:
    """Return the median ratio of each figure, and the median of these."""
    medians = {name: round(statistics.median(values), 3) for name, values in sorted(ratios.items())}
    middle = round(statistics.median(medians.values()), 3)
    return {"ratio": middle, "target": RATIO, "met": middle <= RATIO, "figures": medians}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--programs", nargs="+", choices=tuple(PROGRAMS), default=tuple(PROGRAMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    ratios: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in options.programs}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for program in options.programs:
                sides = [ROOT, options.checkout.resolve()]
                turns = sides if number % 2 == 0 else sides[::-1]
                try:
                    figures = {side: run_once(side, program, Path(folder)) for side in turns}
                except subprocess.CalledProcessError as error:
                    print(f"round {number + 1}: {program} is left out: {error}", flush=True)
                    continue
                for name, ratio in ratios_of(figures[sides[0]], figures[sides[1]]).items():
                    ratios[program][name].append(ratio)
                print(f"round {number + 1}: {program}", flush=True)
            programs = {program: summary(ratios[program]) for program in options.programs if ratios[program]}
            result = {"benchmark": "turns", "rounds": number + 1, "programs": programs, "machine": machine()}
            write_report(options.out, result)
    for program, figures_of_program in programs.items():
        print(f"{program}: {figures_of_program['ratio']} (target {RATIO})")


if __name__ == "__main__":
    main()
