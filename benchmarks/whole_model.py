"""Qwen3-VL-2B whole on this machine: runs of the pipeline over a real clip, beside stock transformers.

    python -m benchmarks.whole_model [--rounds N] [--answers N] [--ways WAY …] [--clips FOLDER] [--model FOLDER]
        [--out FILE]

Weights are random, in bfloat16, at all of the model's dimensions; times do not depend on their values. They are written
to a temporary folder (4.3 GB), and every process loads them from there. A way is a run as `caption` makes it: decoding,
texture and allocation of every frame of the clip, an answer of twelve tokens every half second of it. Stock
transformers then answers about the same frames with `generate`. Ways and stock take turns, each in new processes.

First-token and answer times begin when the frame leaves the decoder. Answers a second count everything from one
answer's end to the next one's, with the frames in between; so does processor time, which other programs on the machine
change less. Peak memory is the largest resident size of all processes together, weights included. Without the folder of
clips a drawn scene is taken in their place.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.pipeline import make_clip
from benchmarks.support.answer_ways import TEXT_TOKENS
from benchmarks.support.clips import CLIPS, clips_here
from benchmarks.support.harness import write_report
from benchmarks.support.qwen_2b import write_qwen3_vl_2b
from benchmarks.support.whole_runs import EVERY_S, MEASURED_MS, STOCK, RunFigures
from stream.monitor.machine import machine
from stream.runtime.child import python_command, python_environment

RESULTS = Path(__file__).parent / "results" / "whole_model.json"
CLIP = "cuts_bunny_30s.webm"
"""1280×720, 24 frames a second: 920 tiles. Its first cut comes after the part that is read."""

WAYS = ("full 100%", "sparse 27%", "sparse 10%", "incremental 27%", "incremental 10%")
DRAWN_FRAMES = 90


@contextmanager
def material(folder: Path, model: Path | None) -> Iterator[tuple[Path, Path]]:
    """The model's folder and the clip."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        if model is None:
            model = root / "qwen3-vl-2b-random"
            model.mkdir()
            write_qwen3_vl_2b(model)
        paths = clips_here(folder, [CLIP])
        clip = paths[0] if paths else root / "drawn.mp4"
        if not paths:
            make_clip(clip, DRAWN_FRAMES)
        yield model, clip


def measure_way(model: Path, clip: Path, way: str, *numbers: int) -> RunFigures:
    """One process, or the processes of one run."""
    arguments = (str(model), str(clip), way, *map(str, numbers))
    command, environment = python_command("benchmarks.support.whole_runs", *arguments), python_environment()
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return RunFigures(**json.loads(process.stdout.splitlines()[-1]))


def rounds_of(
    model: Path, clip: Path, ways: Sequence[str], rounds: int, answers: int
) -> Iterator[dict[str, list[RunFigures]]]:
    """The ways by turns, and stock transformers on the frames of the first one; all figures so far after each process.

    Args:
        model: Folder of the model.
        clip: The video.
        ways: "ENCODE BUDGET" each.
        rounds: Runs of each way.
        answers: Answers of a run.
    """
    runs: dict[str, list[RunFigures]] = {STOCK: [], **{way: [] for way in ways}}
    for _ in range(rounds):
        for way in ways:
            runs[way].append(measure_way(model, clip, way, answers))
            yield runs
        runs[STOCK].append(measure_way(model, clip, STOCK, *runs[ways[0]][-1].frames))
        yield runs


def row(runs: Sequence[RunFigures]) -> dict[str, Any]:
    """One line of the table: medians over all counted answers of all rounds, and the largest memory."""
    answers = [answer for run in runs for answer in run.answers]
    medians = {name: round(statistics.median(answer[name] for answer in answers), 1) for name in MEASURED_MS}
    return {
        "way": runs[0].way,
        "visual_tokens": runs[0].visual_tokens,
        "answers": len(answers),
        **medians,
        "tokens_hz": round(1e3 * (TEXT_TOKENS - 1) / medians["decode_ms"], 2),
        "cpu_s": round(statistics.median(spent for run in runs for spent in run.cpu_s), 2),
        "answers_hz": round(1 / statistics.median(gap for run in runs for gap in run.gaps_s), 3),
        "peak_mib": max(round(sum(run.peak_mib.values())) for run in runs),
        "peak_mib_of": runs[-1].peak_mib,
    }


def against_stock(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Each way against the stock model: times sooner, times as many, times less on processors, share of its memory."""
    stock, *others = rows
    if stock["way"] != STOCK:
        return {}
    return {
        entry["way"]: {
            "first_token": round(stock["first_token_ms"] / entry["first_token_ms"], 2),
            "tokens": round(entry["tokens_hz"] / stock["tokens_hz"], 2),
            "answers": round(entry["answers_hz"] / stock["answers_hz"], 2),
            "cpu": round(stock["cpu_s"] / entry["cpu_s"], 2),
            "memory": round(entry["peak_mib"] / stock["peak_mib"], 2),
        }
        for entry in others
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """As it is printed: one line a way."""
    times = ("encode_ms", "prefill_ms", "first_token_ms", "decode_ms", "answer_ms")
    lines = [f"{'way':17}{'tokens':>7}{'encode':>9}{'prefill':>9}{'first':>9}{'decode':>9}{'answer':>9}{'tok/s':>8}"]
    lines[0] += f"{'answers/s':>11}{'CPU s':>7}{'MiB':>7}"
    for entry in rows:
        cells = "".join(f"{entry[name]:9.0f}" for name in times)
        lines.append(
            f"{entry['way']:17}{entry['visual_tokens']:7}{cells}{entry['tokens_hz']:8.2f}"
            f"{entry['answers_hz']:11.3f}{entry['cpu_s']:7.1f}{entry['peak_mib']:7}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each way")
    parser.add_argument("--answers", type=int, default=5, help="of a run; the first is not counted")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help='"ENCODE BUDGET", such as "sparse 27%%"')
    parser.add_argument("--clips", type=Path, default=CLIPS, help="folder with real clips")
    parser.add_argument("--model", type=Path, help="folder of a model to measure in place of random weights")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with material(arguments.clips, arguments.model) as (model, clip):
        report: dict[str, Any] = {
            "benchmark": "whole_model",
            "machine": machine(),
            "environment": {name: value for name, value in os.environ.items() if name.startswith("OMP_")},
            "model": arguments.model.name if arguments.model else "Qwen3-VL-2B's dimensions, random weights, bfloat16",
            "clip": clip.name,
            "every_s": EVERY_S,
            "text_tokens": TEXT_TOKENS,
        }
        for runs in rounds_of(model, clip, arguments.ways, arguments.rounds, arguments.answers):
            rows = [row(results) for results in runs.values() if results]
            report |= {"ways": rows, "against_stock": against_stock(rows)}
            write_report(arguments.out, report)
    print(table(report["ways"]))
    for way, ratios in report["against_stock"].items():
        print(f"{way:17}" + "  ".join(f"{name} {ratio:g}×" for name, ratio in ratios.items()))
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
