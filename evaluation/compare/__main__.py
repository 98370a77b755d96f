"""Two configurations on the same pictures and questions: `python -m evaluation.compare FOLDER --a budget=10%`.

Answers are written one by one beside --out, so that a killed run resumes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from arr_coc.errors import ArrCocError, counted
from evaluation.compare.figures import answer_pairs, paired, side_figures
from evaluation.compare.page import GENERATOR, page, sentences
from evaluation.compare.sides import KEYS, Side
from evaluation.errors import ChoiceError, EvaluationError, QuestionsError, ResultsError
from evaluation.journal import AnswerJournal, Row
from evaluation.output import write
from evaluation.questions import EvalQuestion, FileQuestion, load_questions, read_questions
from evaluation.run import BAD_INPUT, MAX_TOKENS, VIDEO_FRAMES, Outputs, asked_suite, describe_model
from evaluation.runner import ModelUnderTest, Progress, Suite, run_suite
from stream.errors import StreamError
from stream.monitor.machine import machine
from stream.sources.checks import pictures_of

QUESTIONS = "questions.jsonl"
"""File of a folder's questions."""

HEAD_CHARS = 1000
"""So far from its beginning a page names what wrote it."""

INTERRUPTED = 130
"""Exit status after Ctrl-C."""

app = typer.Typer(add_completion=False)


def folder_suite(path: Path, question: str | None, count: int | None, video_frames: int = VIDEO_FRAMES) -> Suite:
    """The questions of a file, or of a folder's `questions.jsonl`; with a `question`, that about each picture of a
    folder.

    Raises QuestionsError, and SourceError for a folder without pictures.
    """
    if question is None:
        file = path / QUESTIONS if path.is_dir() else path
        if not file.is_file():
            remedy = f"write {QUESTIONS} in it, or give --question TEXT to ask the same about every picture"
            raise QuestionsError(f"there is no file {file}; give a folder of pictures, and {remedy}")
        suite = asked_suite(file, read_questions(file, answered=False)[:count], video_frames)
        return replace(suite, name=file.parent.resolve().name if file.name == QUESTIONS else suite.name)
    if not question.strip():
        raise QuestionsError("--question has no words; leave it out, or ask something")
    if not path.is_dir():
        raise QuestionsError(f"--question is asked about the pictures of a folder, and {path} is none")
    pictures = pictures_of(str(path))[:count]
    questions = [FileQuestion(picture.name, "own", question, (), (picture,), False, ()) for picture in pictures]
    digest = hashlib.sha256("\0".join([question, *(picture.name for picture in pictures)]).encode()).hexdigest()[:16]
    return Suite(path.resolve().name, digest, lambda: load_questions(questions, video_frames))


def compare(sides: tuple[Side, Side], suite: Suite, outputs: Outputs, max_tokens: int = MAX_TOKENS) -> dict[str, Any]:
    """Ask what is open on each side, one side after the other, and write page and figures.

    `outputs.picture` is the page. Raises ResultsError, QuestionsError, and as `load_qwen`.
    """
    described, rows = [], []
    asking: ModelUnderTest | None = None
    with AnswerJournal(outputs.answers, fresh=outputs.fresh) as journal:
        for side in sides:
            if asking is None or side.model != sides[0].model:
                asking = None  # its memory is free before the other model comes
                asking = side.model.load(max_tokens)
            progress = Progress(side.name)
            rows.append(run_suite(asking, suite, [side.way], journal, progress.step, keep_regions=True))
            progress.finish()
            described.append({"settings": dict(side.settings), "model": describe_model(asking)})
    assert asking is not None, "there are two sides"
    figures = {
        "evaluation": "comparison",
        "machine": machine() | {"device": str(asking.qwen.device), "threads": torch.get_num_threads()},
        "questions": {"name": suite.name, "hash": suite.hash, "count": len(rows[0])},
        "a": described[0] | side_figures(rows[0]),
        "b": described[1] | side_figures(rows[1]),
        **paired(*rows),
        "answers": answer_pairs(*rows),
    }
    write(outputs.figures, json.dumps(figures, indent=2) + "\n")
    assert outputs.picture is not None, "the page is one of the outputs"
    write(outputs.picture, page(figures, _with_frames(suite, *rows)))
    return figures


def _with_frames(
    suite: Suite, rows: Sequence[Row], other_rows: Sequence[Row]
) -> Iterator[tuple[EvalQuestion, Row, Row]]:
    for pending, row, other in zip(suite.questions(), rows, other_rows, strict=True):
        yield pending.load(), row, other


def _outputs(out: Path, *, fresh: bool) -> Outputs:
    """Raise ResultsError if the page's name ends otherwise than in .html, or another page has it."""
    if out.suffix != ".html":
        raise ResultsError(f"--out is a page, with the figures beside it: give a name that ends in .html, not {out}")
    try:
        is_other = out.exists() and GENERATOR not in out.read_text("utf-8", "replace")[:HEAD_CHARS]
    except OSError as error:
        raise ResultsError(f"cannot read {out}: {error.strerror}; choose another --out") from error
    if is_other:
        raise ResultsError(f"{out} is there already, and no comparison wrote it; choose another --out")
    return Outputs(out.with_suffix(".json"), out, fresh)


@app.command()
def main(
    questions: Annotated[Path, typer.Argument(help=f"Folder of pictures with {QUESTIONS}, or such a file.")],
    a: Annotated[str, typer.Option("--a", help=f"One side, as KEY=VALUE,... of {', '.join(KEYS)}.")] = "",
    b: Annotated[str, typer.Option("--b", help="The other side, likewise.")] = "",
    question: Annotated[str | None, typer.Option(help="Ask this about every picture of the folder.")] = None,
    out: Annotated[Path, typer.Option(help="The page; figures and answers go beside it.")] = Path("comparison.html"),
    count: Annotated[int | None, typer.Option(min=1, help="First questions only; all when absent.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = MAX_TOKENS,
    device: Annotated[str, typer.Option(help="Device of the models.")] = "auto",
    threads: Annotated[int, typer.Option(min=1, help="Threads to use.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget earlier answers.")] = False,
) -> None:
    """Have the same questions answered by two configurations, and show the answers side by side."""
    torch.set_num_threads(threads)
    try:
        sides = (Side.parse("A", a, device), Side.parse("B", b, device))
        if sides[0].model == sides[1].model and sides[0].way == sides[1].way:
            raise ChoiceError("A and B are the same; give --b something else, such as --b budget=10%")
        suite = folder_suite(questions, question, count)
        outputs = _outputs(out, fresh=fresh)
        outputs.check(questions)
        figures = compare(sides, suite, outputs, max_tokens)
    except (EvaluationError, ArrCocError, StreamError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        print("\ninterrupted: the answers so far are kept; the same command goes on", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    for name in ("a", "b"):
        side = figures[name]
        right = "" if side["accuracy"] is None else f"{100 * side['accuracy']:.1f} % right, "
        print(f"{name.upper()}: {right}{side['tokens']:.0f} tokens, first token {side['ttft_ms']:.0f} ms")
    print("\n".join(sentences(figures)))
    print(f"wrote {out} and {outputs.figures} ({counted(figures['questions']['count'], 'question')})", file=sys.stderr)


if __name__ == "__main__":
    app()
