"""Progress bar of `adapt`, and its end by Ctrl-C."""

from __future__ import annotations

import signal
from types import TracebackType

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from arr_coc.adaptation.adapt import AdaptResult
from arr_coc.errors import counted
from stream import logs
from stream.display.progress import BestEffortConsole, PlainConsole

STOPPING = "stopping: saving the allocator; Ctrl-C again ends at once"


class AdaptBar:
    """Shows phases on a terminal as bars, elsewhere as lines; a context manager.

    `on_signal` is for the signal handler: the first signal lets the adaptation save and end, the second interrupts it.
    """

    def __init__(self) -> None:
        self._console = BestEffortConsole(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[counts]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=self._console,
            expand=True,
        )
        self._task = self._bar.add_task("starting", total=None, counts="")
        self._has_bar = self._console.is_terminal and not logs.as_json()
        self._total: int | None = None
        self._stopping = False

    def __enter__(self) -> AdaptBar:
        if self._has_bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_bar:
            self._bar.update(self._task, visible=False)
            self._bar.stop()

    @property
    def stopping(self) -> bool:
        return self._stopping

    def on_signal(self, number: signal.Signals) -> None:
        """Raises KeyboardInterrupt for the second signal."""
        if self._stopping:
            raise KeyboardInterrupt
        self._stopping = True
        logs.say(STOPPING, message=STOPPING)

    def begin(self, phase: str, total: int | None) -> None:
        """Show a phase of `total` pictures or steps."""
        self._total = total
        self._bar.reset(self._task, description=phase, total=total, counts="")
        if not self._has_bar:
            logs.say(phase if total is None else f"{phase}: {total}", message=phase, total=total)

    def advance(self, count: int) -> None:
        """Show how much of it is done."""
        if self._total is None:
            counts = f"{count}"
        else:
            counts = f"{count}/{self._total}"
        self._bar.update(self._task, completed=count, counts=counts)


ROWS = (
    ("of that, found with 25 % of the tokens", "recall", True),
    ("of that, found with 10 % of the tokens", "recall_small", True),
    ("IoU of as many tiles", "matched_iou", False),
)
"""Words, the field of `arr_coc.adaptation.accuracy.MapAccuracy`, and whether it is a share."""


def print_adaptation(result: AdaptResult) -> None:
    """Print what was found on held-out frames, before and after."""
    console = PlainConsole()
    console.width = min(console.width, 80)
    console.print()
    console.print(
        f"{counted(result.held_out_questions, 'question')} about {counted(result.held_out, 'frame')} that nothing was "
        f"learned from. What counts is {_criterion(result)}:"
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


def _criterion(result: AdaptResult) -> str:
    looked_at = "what the model looks at when it is shown all tokens"
    boxed = "what the boxes hold"
    if not result.labelled:
        return looked_at
    if result.labelled == result.held_out_questions:
        return boxed
    return f"{boxed}, and without boxes {looked_at}"
