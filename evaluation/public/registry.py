"""Readers by name, with splits, figures, and remedies for missing files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from evaluation.errors import ChoiceError, QuestionsError
from evaluation.journal import Row
from evaluation.public import figures
from evaluation.public.figures import Figures
from evaluation.public.items import PublicQuestion, Request, present
from evaluation.public.ovo_bench import read_ovo_bench
from evaluation.public.pictures import read_coco, read_doc_vqa, read_text_vqa, read_vqa_v2
from evaluation.public.streaming_bench import read_streaming_bench
from evaluation.public.videos import read_video_mme
from evaluation.questions import first_twice
from evaluation.report import CELL
from evaluation.runner import Suite

WHOLE = "test"
"""The split of a benchmark that has one."""

Shows = Literal["pictures", "videos", "streams"]
"""A stream is a video up to the time of the question."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A public benchmark. `read` documents the layout of its folder; `splits`: the first one is the default; `metric`
    names its figure; `remedy` says how a missing file is got; `other_splits`: splits with their own figures and metric;
    `max_tokens`: enough for its answers."""

    name: str
    read: Callable[[Request], list[PublicQuestion]]
    figures: Figures
    metric: str
    remedy: str
    splits: tuple[str, ...] = (WHOLE,)
    other_splits: Mapping[str, tuple[Figures, str]] = field(default_factory=dict)
    shows: Shows = "pictures"
    max_tokens: int = 16

    def suite_name(self, request: Request) -> str:
        """The name under which the split's answers are kept."""
        name = self.name if self.splits == (WHOLE,) else f"{self.name}-{request.split}"
        return f"{name}-subtitles" if request.subtitles else name

    def of_split(self, split: str) -> tuple[Figures, str]:
        """The figures of a split, and their name."""
        return self.other_splits.get(split, (self.figures, self.metric))


BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            "streamingbench",
            read_streaming_bench,
            figures.mean_by("aspect", "task"),
            "share of right first letters",
            "unpack the archives of mjuicem/StreamingBench and run scripts/preprocess.sh of its repository",
            ("real", "omni", "sqa", "proactive"),
            {"proactive": (figures.proactive, "share of instructions met within 2 s")},
            shows="streams",
        ),
        Benchmark(
            "ovo-bench",
            read_ovo_bench,
            figures.ovo_bench,
            "mean of three modes' means over their tasks",
            "join and unpack src_videos.tar.part* or chunked_videos.tar.part* of JoeLeelyf/OVO-Bench there",
            shows="streams",
        ),
        Benchmark(
            "video-mme",
            read_video_mme,
            figures.video_mme,
            "share of right letters",
            "unpack videos_chunked_*.zip of lmms-lab/Video-MME there",
            shows="videos",
        ),
        Benchmark(
            "textvqa",
            read_text_vqa,
            figures.mean_by(),
            "VQA accuracy",
            "unpack train_val_images.zip of textvqa.org there",
            ("val", "train"),
        ),
        Benchmark(
            "docvqa",
            read_doc_vqa,
            figures.mean_by("question_type"),
            "ANLS, threshold 0.5",
            "unpack spdocvqa_images.tar.gz of the challenge's downloads there",
            ("val", "train"),
            max_tokens=32,
        ),
        Benchmark(
            "vqav2",
            read_vqa_v2,
            figures.mean_by("answer_type", "question_type"),
            "VQA accuracy",
            "unpack val2014.zip or train2014.zip of cocodataset.org there",
            ("val2014", "train2014"),
        ),
        Benchmark(
            "coco",
            read_coco,
            figures.mean_by("size", "category"),
            "IoU of the tiles shown with those of the asked category's boxes",
            "unpack val2017.zip or train2017.zip of cocodataset.org there",
            ("val2017", "train2017"),
            max_tokens=1,
        ),
    )
}


def benchmark_named(name: str) -> Benchmark:
    """Raise ChoiceError, naming the benchmarks that there are."""
    if name not in BENCHMARKS:
        raise ChoiceError(f"unknown benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]


@dataclass(frozen=True, slots=True)
class PublicSuite:
    """A split as a suite: `questions` of it are asked, of `total_count` in its annotations; `missing_count` lack their
    file."""

    benchmark: Benchmark
    request: Request
    questions: tuple[PublicQuestion, ...]
    hash: str
    total_count: int
    missing_count: int

    @classmethod
    def read(cls, benchmark: Benchmark, request: Request, limit: int | None, *, skip_missing: bool) -> PublicSuite:
        """Read the annotations, and look for the files of the questions.

        Args:
            benchmark: Which benchmark.
            request: Folder, split, and what is shown of each question.
            limit: Number of questions, from the first on; all if None.
            skip_missing: Leave out questions whose file is missing.

        Raises:
            ChoiceError: The request does not suit the benchmark.
            QuestionsError: The annotations cannot be read, or files are missing.
        """
        _check(benchmark, request)
        questions = benchmark.read(request)
        duplicate = first_twice(question.id for question in questions)
        if duplicate is not None:
            raise QuestionsError(
                f'{benchmark.name} has two questions with the id "{duplicate}"; download its files again'
            )
        selection = questions[:limit]
        local_questions = present(selection, benchmark.remedy, skip=skip_missing)
        return cls(
            benchmark,
            request,
            tuple(local_questions),
            _hash(questions),
            len(questions),
            len(selection) - len(local_questions),
        )

    def suite(self) -> Suite:
        """As the runner takes it. The hash names all questions and what is shown of each, so not the limit."""
        return Suite(self.benchmark.suite_name(self.request), self.hash, lambda: self.questions)

    def report(self, rows: Sequence[Row]) -> dict[str, Any]:
        """The benchmark's own figures of every cell of its rows."""
        suite = self.suite().name
        figures_of, metric = self.benchmark.of_split(self.request.split)
        cells: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            if row["suite"] == suite:
                cells.setdefault(tuple(row[part] for part in CELL), []).append(row)
        return {
            "name": self.benchmark.name,
            "split": self.request.split,
            "metric": metric,
            "questions": self.total_count,
            "skipped": self.missing_count,
            "cells": [
                dict(zip(CELL, cell, strict=True)) | figures_of(of_cell).as_json() for cell, of_cell in cells.items()
            ],
        }


def _hash(questions: Sequence[PublicQuestion]) -> str:
    digest = hashlib.sha256()
    for question in questions:
        content = (
            question.path.name,
            question.sampling,
            question.start_s,
            question.end_s,
            question.tiles,
            question.boxes,
            bool(question.subtitles),
        )
        digest.update(repr((question.id, question.text, question.answers, content)).encode())
    return digest.hexdigest()[:16]


def _check(benchmark: Benchmark, request: Request) -> None:
    if request.split not in benchmark.splits:
        raise ChoiceError(f"{benchmark.name} has no split {request.split!r}; there are {', '.join(benchmark.splits)}")
    if not request.folder.is_dir():
        raise ChoiceError(f"there is no folder {request.folder}; --data is the one with the benchmark's files")
    if request.subtitles and benchmark.shows != "videos":
        raise ChoiceError(f"{benchmark.name} has no subtitles; leave --subtitles out")
    if request.context_s is not None and benchmark.shows != "streams":
        raise ChoiceError(f"the questions of {benchmark.name} have no time; leave --context out")
    if request.frames is not None and benchmark.shows == "pictures":
        raise ChoiceError(f"{benchmark.name} has no videos; leave --frames out")
    if request.bare and benchmark.shows != "pictures":
        raise ChoiceError(f"{benchmark.name} has a prompt, which its scores need; leave --bare out")


def data_folder(benchmark: str, folder: Path | None) -> Path:
    """Raise ChoiceError if there is none."""
    if folder is None:
        raise ChoiceError(f"--benchmark {benchmark} needs --data, the folder with its files as they are published")
    return folder
