"""Table of an adaptation's figures, for people: at most 80 columns."""

from __future__ import annotations

from rich.table import Table

from arr_coc.adaptation.adapt import AdaptResult
from arr_coc.errors import counted
from stream.display.progress import PlainConsole

WIDTH = 80

ROWS = (
    ("of that, found with 25 % of the tokens", "recall", True),
    ("of that, found with 10 % of the tokens", "recall_small", True),
    ("IoU of as many tiles", "matched_iou", False),
)
"""Words, the field of `arr_coc.adaptation.found.Found`, and whether it is a share."""


def print_adaptation(result: AdaptResult) -> None:
    """Print what was found on held-out frames, before and after."""
    console = PlainConsole()
    console.width = min(console.width, WIDTH)
    console.print()
    console.print(
        f"{counted(result.held_out_questions, 'question')} about {counted(result.held_out, 'frame')} that nothing was "
        f"learned from. What counts is {_wanted(result)}:"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("before", "after"):
        table.add_column(name, justify="right")
    for words, field, is_share in ROWS:
        values = (result.before[field], result.after[field])
        table.add_row(words, *(f"{100 * value:.0f} %" if is_share else f"{value:.2f}" for value in values))
    console.print(table)
    console.print(
        f"learned from {counted(result.questions, 'question')} about {counted(result.pictures, 'frame')}, "
        f"{counted(result.steps, 'step')} in {result.minutes:.1f} min"
    )


def _wanted(result: AdaptResult) -> str:
    looked_at, boxed = "what the model looks at when it is shown all tokens", "what the boxes hold"
    if not result.labelled:
        return looked_at
    return boxed if result.labelled == result.held_out_questions else f"{boxed}, and without boxes {looked_at}"
