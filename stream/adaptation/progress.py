"""Progress bar of `adapt`, and its end by Ctrl-C."""

from __future__ import annotations

import signal
from types import TracebackType

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from stream import logs
from stream.display.progress import BestEffortConsole

STOPPING = "stopping: what was learned is being saved; Ctrl-C again ends at once"


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
        self._drawn = self._console.is_terminal and not logs.as_json()
        self._total: int | None = None
        self._stopping = False

    def __enter__(self) -> AdaptBar:
        if self._drawn:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
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
        """Show a phase of so many pictures or steps."""
        self._total = total
        self._bar.reset(self._task, description=phase, total=total, counts="")
        if not self._drawn:
            logs.say(phase if total is None else f"{phase}: {total}", message=phase, total=total)

    def advance(self, done: int) -> None:
        """Show how much of it is done."""
        counts = f"{done}" if self._total is None else f"{done}/{self._total}"
        self._bar.update(self._task, completed=done, counts=counts)
