"""Accuracy against tokens: `python -m evaluation.run --suite still --strategy arr-coc,grid --budget 27%,10%`.

Answers are written one by one beside --out, so that a killed run resumes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from arr_coc.errors import ArrCocError
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from evaluation.errors import ChoiceError, EvaluationError, ResultsError
from evaluation.journal import AnswerJournal, Row, model_hash
from evaluation.output import benchmark_lines, check_plotting, effects_table, plot, table, write
from evaluation.public.items import Request
from evaluation.public.registry import BENCHMARKS, PublicSuite, benchmark_named, data_folder
from evaluation.questions import FileQuestion, load_questions, read_questions
from evaluation.report import at_equal_flops, at_equal_tokens, cells, effects
from evaluation.runner import ModelUnderTest, Progress, StrategyRun, Suite, plan, run_suite
from evaluation.runner import split as listed
from evaluation.strategies.catalogue import STRATEGIES
from evaluation.suites import SUITES, SetName, named_suite
from stream.errors import StreamError
from stream.monitor.machine import machine

BAD_INPUT = 2
"""Exit status for a request that cannot be carried out."""

VIDEO_FRAMES, MAX_TOKENS = 4, 64
"""Of a question that belongs to no public benchmark."""

NO_ALLOCATOR = "none"
"""In place of an allocator's folder: without the one that comes with the model."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Places of the results: figures, the answers beside them, and the picture, if one is wanted."""

    figures: Path
    picture: Path | None
    fresh: bool

    @property
    def answers(self) -> Path:
        return self.figures.with_suffix(".answers.jsonl")

    def check(self, questions: Path | None) -> None:
        """Raise ResultsError if a file would be overwritten that is no evaluation's, or is read too."""
        for path in (self.figures, self.answers, self.picture):
            if path is not None and questions is not None and os.path.realpath(path) == os.path.realpath(questions):
                raise ResultsError(f"{path} holds the questions; choose another name for the results")
        if self.figures.exists() and not _is_evaluation(self.figures):
            raise ResultsError(f"{self.figures} is there already, and no evaluation wrote it; choose another --out")


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Model to load: a folder or name on the hub (None: the bundled one), and its allocator: None for the one that
    comes with it, or NO_ALLOCATOR."""

    model: str | None = None
    allocator: str | None = None
    device: str = "auto"
    dtype: str = "auto"

    def load(self, max_tokens: int = MAX_TOKENS) -> ModelUnderTest:
        """Load it, to answer with at most so many tokens. Raises as `load_qwen`."""
        allocator = None if self.allocator == NO_ALLOCATOR else self.allocator
        qwen = load_qwen(self.model, device=self.device, dtype=self.dtype, allocator=allocator)
        identity = model_hash(Path(qwen.model.name_or_path))
        if allocator is not None:
            identity = f"{identity} allocator {model_hash(Path(allocator))}"
        if self.allocator == NO_ALLOCATOR:
            return ModelUnderTest(replace(qwen, allocator=None), f"{identity} untrained", max_tokens)
        return ModelUnderTest(qwen, identity, max_tokens)


def evaluate(
    asking: ModelUnderTest,
    suites: Sequence[Suite],
    ways: Sequence[StrategyRun],
    outputs: Outputs,
    public: PublicSuite | None = None,
) -> dict[str, Any]:
    """Ask the open questions, and write figures and picture.

    Args:
        asking: The model.
        suites: The questions.
        ways: Strategies at their budgets; each answers all questions.
        outputs: Files of the answers, the figures and the picture.
        public: A public benchmark among the suites, which adds its own figures.

    Returns:
        The figures as they are written.

    Raises:
        ResultsError: A file cannot be read or written.
    """
    rows: list[Row] = []
    with AnswerJournal(outputs.answers, fresh=outputs.fresh) as journal:
        for suite in suites:
            progress = Progress(suite.name)
            rows += run_suite(asking, suite, ways, journal, progress.step)
            progress.finish()
    cell_figures = cells(rows)
    figures = {
        "evaluation": "accuracy against tokens",
        "machine": machine() | {"device": str(asking.qwen.device), "threads": torch.get_num_threads()},
        "model": describe_model(asking),
        "suites": {suite.name: suite.hash for suite in suites},
        "cells": cell_figures,
        "at_equal_tokens": at_equal_tokens(rows),
        "at_equal_flops": at_equal_flops(cell_figures),
        "effects": effects(rows),
    }
    if public is not None:
        figures["benchmark"] = public.report(rows)
    write(outputs.figures, json.dumps(figures, indent=2) + "\n")
    if outputs.picture is not None:
        plot(cell_figures, f"{asking.qwen.model_id}: accuracy against visual tokens", outputs.picture)
    return figures


def asked_suite(path: Path, questions: list[FileQuestion], video_frames: int) -> Suite:
    """A user's questions as a suite under the file's name."""
    digest = hashlib.sha256(path.read_bytes() + str(video_frames).encode()).hexdigest()[:16]
    return Suite(path.stem, digest, lambda: load_questions(questions, video_frames))


def main(
    suite: Annotated[str | None, typer.Option(help="Suites, comma-separated; all when absent.")] = None,
    of: Annotated[
        SetName, typer.Option("--set", help="Questions to choose by, or to report: choose or report.")
    ] = "report",
    strategy: Annotated[str, typer.Option(help="Strategies, comma-separated.")] = ",".join(STRATEGIES),
    budget: Annotated[str, typer.Option(help="Tokens a frame: shares of all, or numbers.")] = "27%,10%",
    encode: Annotated[
        str | None, typer.Option(help="sparse, incremental, prune, weighted or full; each strategy's own when absent.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A folder or a name on the hub; the bundled one if absent.")] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Leave out the allocator's weights that come with the model.")
    ] = False,
    allocator: Annotated[Path | None, typer.Option(help="An allocator that `adapt` made for the model.")] = None,
    count: Annotated[
        int | None, typer.Option("--count", "--limit", min=1, help="Questions of each suite; all when absent.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Figures; the answers go beside it.")] = Path("evaluation.json"),
    png: Annotated[Path | None, typer.Option(help="A picture of the curves.")] = None,
    questions: Annotated[Path | None, typer.Option(help="Own questions, one JSON object a line.")] = None,
    seeds: Annotated[int, typer.Option(help="How often what is random is repeated.")] = 5,
    frames: Annotated[
        int | None, typer.Option(min=1, help="Frames shown of each video: 4 of --questions, a benchmark's own number.")
    ] = None,
    benchmark: Annotated[str | None, typer.Option(help=f"A public benchmark: {', '.join(BENCHMARKS)}.")] = None,
    data: Annotated[Path | None, typer.Option(help="The benchmark's files, as published.")] = None,
    split: Annotated[str | None, typer.Option(help="Part of the benchmark; its first one when absent.")] = None,
    context: Annotated[
        float | None, typer.Option(min=0, help="Seconds shown before a question's time; all when absent.")
    ] = None,
    subtitles: Annotated[bool, typer.Option("--subtitles", help="Video-MME with subtitles.")] = False,
    bare: Annotated[
        bool, typer.Option("--bare", help="A picture's question without the words that ask for a short answer.")
    ] = False,
    max_tiles: Annotated[
        int | None, typer.Option(min=1, help="Largest picture or frame of a benchmark, in 32x32 tiles.")
    ] = None,
    skip_missing: Annotated[
        bool, typer.Option("--skip-missing", help="Leave out a benchmark's questions whose file is missing.")
    ] = False,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest answer: 64, or what a benchmark needs.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device of the model.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Precision of its weights.")] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="Threads to use.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget earlier answers.")] = False,
) -> None:
    """Ask a model the questions of suites, or your own, with fewer and fewer visual tokens."""
    torch.set_num_threads(threads)
    try:
        ways = plan(strategy, budget, encode, seeds)
        outputs = Outputs(out, png, fresh)
        outputs.check(questions)
        public = None
        if benchmark is not None:
            spec = benchmark_named(benchmark)
            folder = data_folder(benchmark, data)
            request = Request(folder, split or spec.splits[0], frames, max_tiles, context, subtitles, bare)
            public = PublicSuite.read(spec, request, count, skip_missing=skip_missing)
            max_tokens = max_tokens or spec.max_tokens
        suites = _suites(suite, of, questions, count, frames or VIDEO_FRAMES, public)
        if png is not None:
            check_plotting()
        if untrained and allocator is not None:
            raise ChoiceError("--untrained and --allocator are two allocators; give one of them")
        trained = None if allocator is None else str(allocator)
        options = ModelOptions(model, NO_ALLOCATOR if untrained else trained, device, dtype)
        asking = options.load(max_tokens or MAX_TOKENS)
        figures = evaluate(asking, suites, ways, outputs, public)
    except (EvaluationError, ArrCocError, StreamError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(BAD_INPUT) from None
    print(table(figures["cells"]))
    if figures["effects"]:
        print("\n" + effects_table(figures["effects"]))
    if public is not None:
        print("\n" + benchmark_lines(figures["benchmark"]))
    print(f"wrote {out}" + (f" and {png}" if png else ""), file=sys.stderr)


def _suites(
    names: str | None,
    of: SetName,
    questions: Path | None,
    count: int | None,
    video_frames: int,
    public: PublicSuite | None,
) -> list[Suite]:
    suites = []
    if names is not None or (questions is None and public is None):
        suite_names = list(SUITES) if names is None else listed(names, "--suite")
        suites = [named_suite(name, count, of) for name in suite_names]
    if questions is not None:
        suites.append(asked_suite(questions, read_questions(questions)[:count], video_frames))
    if public is not None:
        suites.append(public.suite())
    return suites


def describe_model(asking: ModelUnderTest) -> dict[str, Any]:
    """Name, hash and kind of a model, as results have them."""
    qwen: QwenVL = asking.qwen
    return {
        "name": qwen.model_id,
        "hash": asking.model_hash,
        "parameters": sum(weight.numel() for weight in qwen.model.parameters()),
        "dtype": qwen.weights_dtype,
        "allocator": "trained" if qwen.realiser is not None else "untrained",
        "max_tokens": asking.max_tokens,
    }


def _is_evaluation(path: Path) -> bool:
    """True if the file holds the figures of an evaluation."""
    try:
        return "evaluation" in json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, TypeError):
        return False


if __name__ == "__main__":
    typer.run(main)
