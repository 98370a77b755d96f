"""Progress bar and captions of a run, drawn with rich."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from stream import logs
from stream.clock import DisplayClock
from stream.control import leave_gone_terminal
from stream.display.input import Questions
from stream.display.text import EventText, discards_partial_answer, print_answer, summary_text, verdict_text
from stream.errors import OutputFailed, ReaderGone
from stream.events import (
    Answer,
    AnswerDeltaEvent,
    Event,
    FrameReady,
    Notice,
    QueryChanged,
    Summary,
    VerdictChanged,
)
from stream.logs import write_now
from stream.monitor.health import RunHandle
from stream.sinks.base import SINGLE_CAMERA, Display
from stream.untrusted import printable, printable_lines


class ProgressDisplay(Display):
    """Shows a run to a person. With `captions`, finished captions are printed to stdout.

    `questions_fd` is a descriptor that lines to ask are read from.
    """

    def __init__(self, *, captions: bool, questions_fd: int | None = None) -> None:
        self._captions = captions
        self._questions = Questions(SINGLE_CAMERA, questions_fd)
        self._err = BestEffortConsole(stderr=True)
        self._live: Live | None = None
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[counts]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=self._err,
            expand=True,
        )
        self._task = self._progress.add_task("starting", total=None, counts="")
        self._frame: FrameReady | None = None
        self._partial = ""
        self._message = ""
        self._clock = DisplayClock(live=False)
        self._event_text = EventText(self._clock.text)
        if self._err.is_terminal:
            self._live = Live(console=self._err, get_renderable=self._render, refresh_per_second=8, transient=True)
            self._live.start()

    def attach(self, run: RunHandle, frames: int | None, camera: str = "") -> None:
        self._progress.update(self._task, total=frames)
        self._clock = DisplayClock(run.source_info.live, dates=True)
        self._event_text = EventText(self._clock.text)
        self._questions.add(camera, run.send)

    def show_message(self, message: str) -> None:
        """Shows a message at once. Safe in a signal handler: takes no lock, uses no buffer."""
        if self._live is not None:
            self._message = message
        else:
            write_now(message)

    def write(self, event: Event, camera: str = "") -> None:
        if isinstance(event, FrameReady):
            self._frame = event
            self._clock.sync(event.pts_s, event.latency_s)
        elif isinstance(event, AnswerDeltaEvent):
            self._partial += event.text
        elif isinstance(event, Answer):
            self._partial = ""
            self._print_answer(event.pts_s, printable(event.text))
        elif isinstance(event, VerdictChanged):
            # a verdict is printed in any case: the run was started for it
            if self._captions:
                self._print_answer(event.pts_s, verdict_text(event))
            else:
                line = f"{self._clock.text(event.pts_s)}  {verdict_text(event)}"
                self._err.print(Text(line), soft_wrap=not self._err.is_terminal)
        elif isinstance(event, Summary):
            self.close()
            if text := summary_text(event, verbose=logs.verbose()):
                self._err.print(Text(text), soft_wrap=not self._err.is_terminal)
        else:
            self._print_event(event, camera)

    def close(self) -> None:
        self._questions.close()
        live = self._live
        self._live = None
        if live is not None:
            with suppress(OSError):  # output is optional
                live.stop()

    def _print_answer(self, pts_s: float, text: str) -> None:
        if not self._captions or not text:
            return
        if not sys.stdout.isatty():
            print_answer(self._clock.text(pts_s), text)
            return
        line = Table.grid(padding=(0, 2))
        line.add_column(justify="right", style="cyan", no_wrap=True)
        line.add_column(overflow="fold")
        line.add_row(self._clock.text(pts_s), Text(text))
        try:
            (self._err if self._live is not None else PlainConsole()).print(line)
        except OSError as error:
            if not leave_gone_terminal():
                raise OutputFailed(f"cannot write stdout: {error.strerror}") from error

    def _print_event(self, event: Event, camera: str) -> None:
        if isinstance(event, Notice) and event.code == "loading":
            self._progress.update(self._task, description=printable(event.message))
        elif discards_partial_answer(event):
            self._partial = ""
        elif isinstance(event, QueryChanged):
            for note in self._questions.settle(camera, event):
                logs.say(note)
        line = self._event_text.line(event)
        if line is not None:
            self._err.print(Text(line, style="yellow"), soft_wrap=not self._err.is_terminal)

    def _render(self) -> RenderableType:
        if self._frame is not None:  # here, not for every frame: rich's speed takes longer than a frame's event
            frame_number = self._frame.frame_index + 1
            speed = self._progress.tasks[0].speed
            if speed:
                counts = f"frame {frame_number} · {speed:.0f}/s"
            else:
                counts = f"frame {frame_number}"
            self._progress.update(self._task, description="", completed=frame_number, counts=counts)
        parts: list[RenderableType] = []
        if self._partial:
            room = 2 * max(20, self._err.width - 4)  # lines for the answer that is being generated
            partial = printable(self._partial)
            parts.append(Padding(Text(partial[-room:], style="italic"), (0, 2)))
        if self._message:
            parts.append(Text(self._message, style="bold yellow"))
        return Group(*parts, self._progress)


class PlainConsole(Console):
    """A console that prints every text literally: neither markup in it nor control sequences have an effect.

    Styles come from objects such as `Text`, whose texts may be untrusted.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable_lines(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Control codes of rich itself are separate segments, which stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable_lines(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raises ReaderGone, as `print_line` does; rich would end the program as a failed one."""
        raise ReaderGone("the reader of stdout is gone")


class BestEffortConsole(PlainConsole):
    """Console whose output is optional: if it cannot be written, the run goes on."""

    def print(self, *objects: Any, **options: Any) -> None:
        with suppress(OSError):
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        """Stop printing; rich would end the program."""
        self.quiet = True
