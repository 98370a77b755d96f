"""Qwen3-VL-2B's dimensions in 8 and 4 bits, beside bfloat16 and float32, as `--dtype` has them.

    python -m benchmarks.small_weights [--parts NAME …] [--rounds N] [--answers N] [--dtypes NAME …] [--budget N]
        [--clips FOLDER] [--model FOLDER] [--out FILE]

Weights, clip, runs and figures are those of `whole_model`. The dtypes take turns, each in new processes, which quantise
the weights as they load them. The processor time of an answer and its text is given too, since other programs on the
machine change it less. Ratios are to bfloat16, and for the first token to the better one of bfloat16 and float32.
Memory is the model's process at its largest, the load included. These are the part `runs`.

`loads`: the time and memory of loading small weights that are made, and of those that an earlier process cached.

`agreement`: every dtype writes PROMPTS answers of AGREEMENT_TOKENS, each about another picture of the clip. Against
float32 and bfloat16: the share of answers whose first token is the same, and the mean number of tokens before the first
other one.

With `--parts` the other parts of the report stay as they were.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch

from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.quantisation import SMALL_DTYPES
from arr_coc.qwen.small_weights.cache import FOLDER
from benchmarks.support.clips import CLIPS
from benchmarks.support.harness import write_report
from benchmarks.support.whole_runs import EVERY_S, RunFigures
from benchmarks.whole_model import material, measure_way, row, table
from stream.monitor.machine import machine
from stream.runtime.child import python_command, python_environment

RESULTS = Path(__file__).parent / "results" / "small_weights.json"
DTYPES = ("float32", "bfloat16", "int8", "int4")
MODEL_PROCESS = "answers"
"""The process that holds the model, by its name in `RunFigures.peak_mib`."""


PARTS = ("runs", "loads", "agreement")
AGREEMENT_TOKENS = 32
PROMPTS = (
    "What is there?",
    "Say what happens.",
    "How many things are there?",
    "What is in the upper left?",
    "Which colours are there?",
    "Is anything moving?",
    "Describe the picture in one sentence.",
    "What does the text say?",
)
PICTURES_APART = 12
"""Frames of the clip from one picture to the next."""

Answers = Sequence[Sequence[int]]
"""Token ids of each answer."""


def agreement(answers: Mapping[str, Answers]) -> dict[str, dict[str, float]]:
    """Return for each pair of a dtype and one in floating point the share of answers whose first token is the same, and
    the mean number of tokens before the first other one."""
    figures = {}
    for reference in ("float32", "bfloat16"):
        for dtype in answers.keys() - {"float32", reference} if reference in answers else ():
            prefixes = list(map(_common_tokens, answers[dtype], answers[reference]))
            figures[f"{dtype}, {reference}"] = {
                "answers": len(prefixes),
                "first_token": round(statistics.mean(length > 0 for length in prefixes), 3),
                "mean_prefix": round(statistics.mean(prefixes), 1),
            }
    return dict(sorted(figures.items()))


def _common_tokens(tokens: Sequence[int], other_tokens: Sequence[int]) -> int:
    """Return the number of tokens before the first other one."""
    pairs = zip(tokens, other_tokens, strict=False)
    return next(
        (place for place, (token, other_token) in enumerate(pairs) if token != other_token),
        min(len(tokens), len(other_tokens)),
    )


def greedy(model: Path, clip: Path, dtype: str, budget: str) -> list[tuple[int, ...]]:
    """Return the token ids of an answer to each of PROMPTS.

    Args:
        model: Folder of the model.
        clip: Video of the pictures.
        dtype: Precision of the weights.
        budget: Visual tokens of a picture.
    """
    with av.open(str(clip)) as container:
        frames = itertools.islice(container.decode(video=0), 0, None, PICTURES_APART)
        pictures = [frame.to_ndarray(format="rgb24") for frame, _ in zip(frames, PROMPTS, strict=False)]
    qwen = ARRCOCQwen.from_pretrained(model, dtype=dtype, device="cpu")
    pairs = zip(PROMPTS, itertools.cycle(pictures), strict=False)
    return [
        qwen.generate(np.ascontiguousarray(picture), prompt, max_tokens=AGREEMENT_TOKENS, budget=budget).token_ids
        for prompt, picture in pairs
    ]


def loads(model: Path, dtype: str) -> dict[str, dict[str, float]]:
    """Return the figures of `load_runs` for weights that are made, and for cached ones; what was cached is removed."""
    figures = {}
    for name, options in (("made", ()), ("cache written", ("--cache",)), ("cached", ("--cache",))):
        command = python_command("benchmarks.support.load_runs", str(model), dtype, *options)
        process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=python_environment())
        figures[name] = json.loads(process.stdout.splitlines()[-1])
    shutil.rmtree(model / FOLDER)
    return figures


def ratios(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return each small dtype against those in floating point, of which both are there."""
    halves, singles = rows["bfloat16"], rows["float32"]
    return {
        dtype: {
            "tokens": round(figures["tokens_hz"] / halves["tokens_hz"], 2),
            "first_token": round(
                figures["first_token_ms"] / min(baseline["first_token_ms"] for baseline in (halves, singles)), 2
            ),
            "cpu": round(figures["cpu_s"] / min(baseline["cpu_s"] for baseline in (halves, singles)), 2),
            "memory": round(figures["peak_mib_of"][MODEL_PROCESS] / halves["peak_mib_of"][MODEL_PROCESS], 2),
        }
        for dtype, figures in rows.items()
        if dtype not in ("float32", "bfloat16")
    }


def report_of(runs: Mapping[str, Sequence[RunFigures]]) -> dict[str, Any]:
    """Return the rows of all dtypes that have run, and their ratios once both in floating point have."""
    rows = {dtype: row(results) for dtype, results in runs.items() if results}
    return {"dtypes": rows} | ({"ratios": ratios(rows)} if {"float32", "bfloat16"} <= rows.keys() else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each dtype")
    parser.add_argument("--answers", type=int, default=4, help="of a run; the first is not counted")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES))
    parser.add_argument("--budget", default="27%", help="visual tokens of a frame")
    parser.add_argument("--clips", type=Path, default=CLIPS, help="folder with real clips")
    parser.add_argument("--model", type=Path, help="folder of a model to measure in place of random weights")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[RunFigures]] = {dtype: [] for dtype in arguments.dtypes}
    report: dict[str, Any] = {"benchmark": "small_weights", "processor": torch.backends.cpu.get_cpu_capability()}
    if set(arguments.parts) < set(PARTS) and arguments.out.is_file():
        report = json.loads(arguments.out.read_text(encoding="utf-8"))

    def write(**figures: Any) -> None:
        report.update(figures)
        write_report(arguments.out, report)

    with material(arguments.clips, arguments.model) as (model, clip):
        if "runs" in arguments.parts:
            write(machine=machine(), clip=clip.name, budget=arguments.budget, every_s=EVERY_S)
            for _, dtype in itertools.product(range(arguments.rounds), arguments.dtypes):
                runs[dtype].append(measure_way(model, clip, f"sparse {arguments.budget} {dtype}", arguments.answers))
                write(**report_of(runs))
        if "loads" in arguments.parts:
            small = [dtype for dtype in arguments.dtypes if dtype in SMALL_DTYPES]
            write(loads={dtype: loads(model, dtype) for dtype in small})
        if "agreement" in arguments.parts:
            texts: dict[str, Answers] = {}
            for dtype in arguments.dtypes:
                texts[dtype] = greedy(model, clip, dtype, arguments.budget)
                write(agreement_budget=arguments.budget, agreement=agreement(texts))
    if runs_taken := list(report.get("dtypes", {}).values()):
        print(table(runs_taken))
    for dtype, against in report.get("ratios", {}).items():
        print(f"{dtype:17}" + "  ".join(f"{name} {ratio:g}×" for name, ratio in against.items()))
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
