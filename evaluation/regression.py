"""Regression test of the bundled model: a few questions of every suite, always the same.

    python -m evaluation.regression            # compare with regression.json
    python -m evaluation.regression --write    # write it anew, for a model that is meant to be another

The default way is asked: this project's choice of 27 % of the tokens, through the sparse encoder.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from arr_coc.errors import ArrCocError
from arr_coc.qwen.loading import load_qwen
from evaluation.errors import EvaluationError, ResultsError
from evaluation.journal import AnswerJournal, Row, model_hash
from evaluation.report import CELL, cells
from evaluation.runner import ModelUnderTest, Suite, plan, run_suite
from evaluation.suites import named_suite

RECORD = Path(__file__).with_name("regression.json")
COUNTS = {"still": 60, "video": 40, "text": 40, "camouflage": 30, "void": 10, "pan": 30}
"""Questions of each suite: half a minute on one core."""

STRATEGY, BUDGET = "arr-coc", "27%"
MAX_TOKENS = 64
ALL = "all"
"""The name under which all suites together are recorded."""

FELL, BAD_INPUT = 1, 2
"""Exit statuses: accuracy fell; it cannot be compared."""

WRITE = "python -m evaluation.regression --write"


def fixed_suites() -> list[Suite]:
    """The first questions of every suite, of the set that is not for reporting."""
    return [named_suite(name, count, "choose") for name, count in COUNTS.items()]


def measure(asking: ModelUnderTest, suites: Sequence[Suite]) -> dict[str, Any]:
    """Accuracy with its interval for each suite, and for all together."""
    ways = plan(STRATEGY, BUDGET, None, 1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, AnswerJournal(Path(folder) / "answers.jsonl") as journal:
        for suite in suites:
            rows += run_suite(asking, suite, ways, journal, lambda question: None)
    pooled_rows = [{**row, "suite": ALL, "id": f"{row['suite']} {row['id']}"} for row in rows]
    hashes = {suite.name: suite.hash for suite in suites}
    return {
        "model": asking.model_hash,
        **{"strategy": STRATEGY, "budget": BUDGET},
        "suites": {
            cell[CELL[0]]: {"hash": hashes.get(cell[CELL[0]], "")}
            | {part: cell[part] for part in ("count", "accuracy", "low", "high")}
            for cell in cells(rows + pooled_rows)
        },
    }


def regressions(measured: Mapping[str, Any], recorded: Mapping[str, Any]) -> list[str]:
    """Suites that are worse than the record by more than its interval, or cannot be compared; a line each."""
    lines = []
    for name, before in recorded["suites"].items():
        now = measured["suites"].get(name)
        if now is None or (now["hash"], now["count"]) != (before["hash"], before["count"]):
            lines.append(f"{name}: its questions are not those of the record; write it anew with `{WRITE}`")
        elif now["accuracy"] < before["low"]:
            lines.append(
                f"{name}: {now['accuracy']:.1%} right of {now['count']}, was {before['accuracy']:.1%} "
                f"({before['low']:.1%} to {before['high']:.1%})"
            )
    return lines


def read_record(path: Path = RECORD) -> dict[str, Any]:
    """Raise ResultsError if the file is missing, or is no record."""
    try:
        record: dict[str, Any] = json.loads(path.read_text("utf-8"))
        record["suites"][ALL]["low"]
    except OSError as error:
        raise ResultsError(f"there is no {path.name} to compare with; make it with `{WRITE}`") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ResultsError(f"{path.name} is no record of accuracy; write it anew with `{WRITE}`") from error
    return record


def load_bundled() -> ModelUnderTest:
    """The bundled model in float32 on the CPU, as every machine has it."""
    qwen = load_qwen(None, device="cpu", dtype="float32")
    return ModelUnderTest(qwen, model_hash(Path(qwen.model.name_or_path)), MAX_TOKENS)


def main(write: Annotated[bool, typer.Option("--write", help="Write the record anew.")] = False) -> None:
    """Compare the bundled model's accuracy with the record, or write that."""
    torch.set_num_threads(1)
    try:
        recorded = None if write else read_record()
        measured = measure(load_bundled(), fixed_suites())
    except (EvaluationError, ArrCocError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(BAD_INPUT) from None
    if recorded is None:
        RECORD.write_text(json.dumps(measured, indent=2) + "\n", "utf-8")
        print(f"wrote {RECORD.name}", file=sys.stderr)
    for name, now in measured["suites"].items():
        print(f"{name}: {now['accuracy']:.1%} right of {now['count']} ({now['low']:.1%} to {now['high']:.1%})")
    if lines := regressions(measured, recorded or measured):
        print("\n".join(lines), file=sys.stderr)
        raise typer.Exit(FELL)


if __name__ == "__main__":
    typer.run(main)
