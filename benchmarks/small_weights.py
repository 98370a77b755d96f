"""Qwen3-VL-2B's dimensions in 8 and 4 bits, beside bfloat16 and float32, as `--dtype` has them.

    python -m benchmarks.small_weights [--rounds N] [--answers N] [--dtypes NAME …] [--budget N] [--clips FOLDER]
        [--model FOLDER] [--out FILE]

Weights, clip, runs and figures are those of `whole_model`. The dtypes take turns, each in new processes, which quantise
the weights as they load them. The processor time of an answer and its text is given too, since other programs on the
machine change it less. Ratios are to bfloat16, and for the first token to the better one of bfloat16 and float32.
Memory is the model's process at its largest, the load included.

At the end every dtype writes an answer of AGREEMENT_TOKENS about one picture. `agreement` says how many of its tokens
are those of float32 and of bfloat16 at the same place, and how many before the first other one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch

from arr_coc.model import ARRCOCQwen
from benchmarks.support.clips import CLIPS
from benchmarks.support.harness import write_report
from benchmarks.support.whole_runs import EVERY_S, RunFigures
from benchmarks.whole_model import material, measured, row, table
from stream.bench.report import machine

RESULTS = Path(__file__).parent / "results" / "small_weights.json"
DTYPES = ("float32", "bfloat16", "int8", "int4")
MODEL_PROCESS = "answers"
"""The process that holds the model, by its name in `RunFigures.peak_mib`."""


AGREEMENT_TOKENS = 32


def agreement(answers: Mapping[str, Sequence[int]]) -> dict[str, dict[str, int]]:
    """Return for each pair of a dtype and one in floating point how many token ids are the same at their places, and
    how many before the first other one."""
    found = {}
    for reference in ("float32", "bfloat16"):
        for dtype in answers.keys() - {"float32", reference}:
            same = [one == other for one, other in zip(answers[dtype], answers[reference], strict=True)]
            first_other = same.index(False) if False in same else len(same)
            found[f"{dtype}, {reference}"] = {"of": len(same), "same": sum(same), "first_same": first_other}
    return dict(sorted(found.items()))


def greedy(model: Path, clip: Path, dtype: str, budget: str) -> tuple[int, ...]:
    """Return the token ids of an answer about the clip's first frame."""
    with av.open(str(clip)) as container:
        picture = next(container.decode(video=0)).to_ndarray(format="rgb24")
    qwen = ARRCOCQwen.from_pretrained(model, dtype=dtype, device="cpu")
    made = qwen.generate(np.ascontiguousarray(picture), "What is there?", max_tokens=AGREEMENT_TOKENS, budget=budget)
    return made.token_ids


def ratios(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return each small dtype against those in floating point, of which both are there."""
    halves, singles = rows["bfloat16"], rows["float32"]
    return {
        dtype: {
            "tokens": round(one["tokens_hz"] / halves["tokens_hz"], 2),
            "first_token": round(one["first_token_ms"] / min(each["first_token_ms"] for each in (halves, singles)), 2),
            "cpu": round(one["cpu_s"] / min(each["cpu_s"] for each in (halves, singles)), 2),
            "memory": round(one["peak_mib_of"][MODEL_PROCESS] / halves["peak_mib_of"][MODEL_PROCESS], 2),
        }
        for dtype, one in rows.items()
        if dtype not in ("float32", "bfloat16")
    }


def report_of(runs: Mapping[str, Sequence[RunFigures]]) -> dict[str, Any]:
    """Return the rows of all dtypes that have run, and their ratios once both in floating point have."""
    rows = {dtype: row(taken) for dtype, taken in runs.items() if taken}
    return {"dtypes": rows} | ({"ratios": ratios(rows)} if {"float32", "bfloat16"} <= rows.keys() else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    with material(arguments.clips, arguments.model) as (model, clip):
        report: dict[str, Any] = {
            "benchmark": "small_weights",
            "machine": machine(),
            "processor": torch.backends.cpu.get_cpu_capability(),
            "clip": clip.name,
            "budget": arguments.budget,
            "every_s": EVERY_S,
        }
        for _ in range(arguments.rounds):
            for dtype in arguments.dtypes:
                runs[dtype].append(measured(model, clip, f"sparse {arguments.budget} {dtype}", arguments.answers))
                report |= report_of(runs)
                write_report(arguments.out, report)
        if {"float32", "bfloat16"} <= set(arguments.dtypes):
            texts = {dtype: greedy(model, clip, dtype, arguments.budget) for dtype in arguments.dtypes}
            report["agreement"] = agreement(texts)
            write_report(arguments.out, report)
    print(table(list(report["dtypes"].values())))
    for dtype, against in report.get("ratios", {}).items():
        print(f"{dtype:17}" + "  ".join(f"{name} {ratio:g}×" for name, ratio in against.items()))
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
