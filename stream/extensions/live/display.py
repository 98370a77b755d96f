"""Live view of one or several cameras on a whole terminal, drawn by prompt_toolkit in a separate thread."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import io
import logging
import os
import signal
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from prompt_toolkit.application import Application
from prompt_toolkit.application.run_in_terminal import run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import Input, create_pipe_input
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout.containers import HSplit, VSplit, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.layout import Layout
from prompt_toolkit.layout.processors import AfterInput, ConditionalProcessor
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style

from arr_coc.types import NS_PER_S
from stream import logs
from stream.clock import Clock, MonotonicClock
from stream.display.input import Questions
from stream.display.state import STARTING, CameraState
from stream.display.text import ABOUT_THE_MODEL, label_text, print_answer
from stream.events import Answer, Event, Notice, QueryChanged, Restarted, Summary, VerdictChanged
from stream.extension import DisplayOpening
from stream.extensions.live.cells import wrap
from stream.extensions.live.layout import Row, compose
from stream.extensions.live.panes import compose_several
from stream.logs import write_now
from stream.monitor.health import ANSWERS, RunHandle
from stream.sinks.base import SINGLE_CAMERA, Display
from stream.untrusted import printable, printable_span

ERASE = "\r\x1b[K"

HINT = ("type a question and press Enter · Ctrl-C ends", "a question, Enter · Ctrl-C ends", "Ctrl-C ends")
HINT_SEVERAL = (
    "question to all, or NAME: question, and Enter · Ctrl-C ends",
    "[NAME:] question, Enter · Ctrl-C ends",
    "Ctrl-C ends",
)
HINT_NO_KEYS = ("Ctrl-C ends",)
"""Forms of the hint in the empty input line, of which the first that fits is shown."""

PROMPT = " › "

MESSAGE_S = 8.0
"""Time for which a reply to typed text is shown."""

LAST_ENTRIES = 12
"""Number of last answers and messages that stay on the terminal after the view has closed."""

PLAIN_FORMS = str.maketrans({"·": "|", "─": "-", "…": "~", "›": ">", "–": "-", "×": "x"})
"""For terminals whose encoding is not Unicode."""

STYLE = Style.from_dict(
    {
        "title": "bold",
        "dim": "dim",
        "label": "ansicyan",
        "time": "ansicyan",
        "partial": "italic",
        "note": "ansiyellow",
        "alarm": "bold ansired",
    }
)

log = logging.getLogger(__name__)


class TerminalModes:
    """Modes of a terminal while a program reads its keys: each comes at once and unseen, and Ctrl-C still interrupts.

    Ctrl-C is left to the kernel, so that it works while the terminal takes no output. `give_back` may be called twice.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before: list[Any] | None = None

    def take(self) -> None:
        """Sets the modes. They are restored at the end of the program in any case."""
        with contextlib.suppress(termios.error):
            self._before = termios.tcgetattr(self._descriptor)
            modes = [*self._before[:6], list(self._before[6])]
            modes[0] &= ~termios.IXON
            modes[3] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
            modes[6][termios.VSUSP] = bytes([os.fpathconf(self._descriptor, "PC_VDISABLE")])
            modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self._descriptor, termios.TCSANOW, modes)
            atexit.register(self.give_back)

    def give_back(self) -> None:
        """Sets the modes that were before."""
        before = self._before
        self._before = None
        if before is not None:
            atexit.unregister(self.give_back)
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._descriptor, termios.TCSANOW, before)

    def suspend(self) -> None:
        """Stops the program, as Ctrl-Z does, with the terminal given back; returns when it goes on."""
        self.give_back()
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        # The group's signal goes to any thread, at its time: this one stops before it takes the terminal again.
        signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        self.take()


class _Keyboard(Vt100Input):
    """Keys of a terminal whose modes are set already."""

    def raw_mode(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class _PlainOutput(Vt100_Output):
    """A terminal without Unicode."""

    def write(self, data: str) -> None:
        super().write(data.translate(PLAIN_FORMS))


class LiveView:
    """Draws on the terminal `out` in a separate thread, also while no event comes.

    `rows` returns all but the input line for a message, which is shown in place of the run's status, a width
    and a height. `ask` gets the typed text, and a function that shows a reply. `keys` is the descriptor that questions
    are typed on, None if they cannot be; then `hints` are not shown. A terminal that takes no output delays this thread
    and no other.
    """

    def __init__(
        self,
        out: int,
        keys: int | None,
        modes: TerminalModes,
        rows: Callable[[str, int, int], list[Row]],
        ask: Callable[[str, Callable[[str], None]], None],
        hints: Sequence[str],
    ) -> None:
        self._rows = rows
        self._ask = ask
        self._hints = HINT_NO_KEYS if keys is None else hints
        self._modes = modes
        self._message = ""
        self._message_until_s = 0.0
        self._urgent = ""
        self._drawn_rows: list[Row] = []
        self._out = os.fdopen(os.dup(out), "w", encoding=sys.stdout.encoding, errors="replace")
        self._closing = False
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self._out)
        self._app = self._application(keys)
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)
        self._thread.start()

    def show(self, message: str) -> None:
        """Shows a message for some seconds."""
        self._message = message
        self._message_until_s = time.monotonic() + MESSAGE_S

    def show_until_end(self, message: str) -> None:
        """Shows a message from now on. Takes no lock and uses no buffer, for signal handlers."""
        self._urgent = message

    def close(self) -> None:
        """Ends the thread and with it the view; called once."""
        self._closing = True
        if (loop := self._app.loop) is not None:  # otherwise it has not begun, or has ended
            with contextlib.suppress(RuntimeError):  # it ends at this moment
                loop.call_soon_threadsafe(self._end)
        # limit for the drawing to end: a terminal that takes no output any more is abandoned
        self._thread.join(1.0)

    def _application(self, keys: int | None) -> Application[None]:
        source: Input
        if keys is None:
            source = self._stack.enter_context(create_pipe_input())
        else:
            source = _Keyboard(open(keys, closefd=False))  # noqa: SIM115
        if self._out.encoding.lower().startswith("utf"):
            output = Vt100_Output
        else:
            output = _PlainOutput
        bindings = KeyBindings()
        bindings.add("c-z")(self._suspend)
        line = Buffer(multiline=False, history=InMemoryHistory(), accept_handler=self._accept)
        hint = AfterInput(self._hint, style="class:dim")
        input_control = BufferControl(line, [ConditionalProcessor(hint, Condition(lambda: not line.text))])
        prompt = Window(FormattedTextControl([("class:time", PROMPT)]), width=len(PROMPT))
        rows = Window(FormattedTextControl(self._draw))
        return Application(
            layout=Layout(
                HSplit([rows, VSplit([prompt, Window(input_control)], height=1)]), focused_element=input_control
            ),
            style=STYLE,
            include_default_pygments_style=False,
            key_bindings=bindings,
            full_screen=True,
            erase_when_done=True,
            color_depth=ColorDepth.from_env(),
            input=source,
            output=output.from_pty(self._out, term=os.environ.get("TERM")),
        )

    def _run(self) -> None:
        """Draws and reads keys until the end, or until the terminal has gone."""
        try:
            with self._stack:
                asyncio.run(self._show())
        except (OSError, EOFError, termios.error):
            log.debug("the live view ends: its terminal is gone", exc_info=True)

    async def _show(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._fail)
        await self._app.run_async(self._begin, set_exception_handler=False)

    def _begin(self) -> None:
        self._app.create_background_task(self._refresh())
        if self._closing:
            self._end()

    def _end(self) -> None:
        if not self._app.is_done:
            self._app.exit()

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        log.debug("the live view ends: %s", context["message"], exc_info=context.get("exception"))
        self._end()

    async def _refresh(self) -> None:
        """Redraws after a change."""
        while True:
            await asyncio.sleep(0.125)  # between two looks at the run: at most eight drawings a second
            termios.tcgetattr(self._out)  # fails if the terminal has gone
            if self._compose() != self._drawn_rows:
                self._app.invalidate()

    def _draw(self) -> StyleAndTextTuples:
        self._drawn_rows = self._compose()
        pieces: StyleAndTextTuples = []
        for row in self._drawn_rows:
            pieces += [*((style, printable_span(text)) for style, text in row), ("", "\n")]
        return pieces[:-1]

    def _compose(self) -> list[Row]:
        message = self._urgent or (self._message if time.monotonic() < self._message_until_s else "")
        size = self._app.output.get_size()
        return self._rows(message, size.columns, size.rows - 1)

    def _hint(self) -> str:
        room = self._app.output.get_size().columns - len(PROMPT) - 1  # the cursor is before it
        return next((hint for hint in self._hints if len(hint) <= room), self._hints[-1])

    def _accept(self, line: Buffer) -> bool:
        self.show("")
        self._ask(line.text, self.show)
        return False

    def _suspend(self, event: KeyPressEvent) -> None:
        run_in_terminal(self._modes.suspend)


class LiveDisplay(Display):
    """Shows cameras on the terminal `out`: one that is alone from `attach` to `close`, several from the beginning.

    `keys` is the descriptor of the terminal that questions are typed on, `questions_fd` one that lines to ask are read
    from; None if there is none. Lines on stderr meanwhile become messages in the view. Before `attach`, while libraries
    are loaded and the source of a single camera is opened, one word shows progress; text typed then moves into the
    view.
    """

    def __init__(
        self,
        out: int,
        keys: int | None,
        names: Sequence[str] = SINGLE_CAMERA,
        *,
        questions_fd: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._out = out
        self._keys = keys
        self._clock = clock or MonotonicClock()
        self._begin_ns = self._clock.now_ns()
        self._lock = threading.Lock()
        self._cameras = {name: CameraState(self._clock, name) for name in names}
        self._single_camera = self._cameras.get("")
        self._notes: deque[str] = deque(maxlen=50)
        self._questions = Questions(names, questions_fd, self.show_note)
        self._view: LiveView | None = None
        self._stderr = sys.stderr
        self._modes = TerminalModes(out)
        self._modes.take()
        self._is_starting = self._single_camera is not None and sys.stderr.isatty()
        if self._is_starting:
            print(STARTING, end="", file=sys.stderr, flush=True)
        if self._single_camera is None:
            self._open()

    @classmethod
    def open(cls, opening: DisplayOpening) -> LiveDisplay:
        """Open the view of a command."""
        return cls(opening.out, opening.keys, opening.names, questions_fd=opening.questions_fd)

    def attach(self, run: RunHandle, frames: int | None, camera: str = "") -> None:
        self._cameras[camera].attach(run, self._questions.add(camera, run.send))
        if self._single_camera is not None:
            self._open()

    def write(self, event: Event, camera: str = "") -> None:
        entries = self._cameras[camera].add(event)
        if not camera:
            if isinstance(event, QueryChanged) and self._view is not None:
                self._view.show("")
            elif isinstance(event, Summary):
                self.close()
        elif not isinstance(event, (Answer, VerdictChanged)):
            if isinstance(event, Restarted) and event.process == ANSWERS:
                return  # the fleet reports it, once for all cameras
            shared = isinstance(event, Notice) and event.code in ABOUT_THE_MODEL
            for entry in entries:
                self.show_note(entry.text if shared else f"{camera}: {entry.text}", once=shared)

    def end(self, camera: str) -> None:
        self._questions.remove(camera)

    def show_message(self, message: str) -> None:
        """Safe in a signal handler: takes no lock, uses no buffer."""
        view = self._view
        if view is not None:
            view.show_until_end(message)
        else:
            write_now(message)

    def show_note(self, text: str, *, once: bool = False) -> None:
        """Show a remark, among the answers of a camera that is alone; `once`: several cameras would repeat it."""
        if self._single_camera is not None:
            self._single_camera.add_message(text)
            return
        text = printable(text)
        with self._lock:
            if not (once and text in self._notes):
                self._notes.append(text)

    def show_failure(self, camera: str, message: str) -> None:
        self._cameras[camera].fail(message, is_final=True)
        super().show_failure(camera, message)

    def show_unreachable(self, camera: str, message: str) -> None:
        self._cameras[camera].fail(message, is_final=False)

    def close(self) -> None:
        """Give the terminal back, with the last answers and messages on it."""
        view = self._view
        self._view = None
        self._end_waiting()
        self._questions.close()
        if view is not None:
            view.close()
        self._modes.give_back()
        if view is not None:
            sys.stderr = self._stderr
            with contextlib.suppress(OSError):
                columns = terminal_columns(self._out)
                width = max(map(len, self._cameras))
                for note in list(self._notes)[-LAST_ENTRIES:]:
                    logs.show("\n".join(wrap(note, columns)))
                for camera, state in self._cameras.items():
                    for entry in state.entries[-LAST_ENTRIES:]:
                        label = f"{label_text(camera, width)}{entry.at}"
                        indent = len(label) + 2
                        if entry.is_message:
                            logs.show("\n".join(wrap(entry.text, columns)))
                        else:
                            print_answer(
                                label, f"\n{'':{indent}}".join(wrap(entry.display_text, max(1, columns - indent)))
                            )
                    if state.summary:
                        logs.show("\n".join(wrap(f"{label_text(camera, width)}{state.summary}", columns)))

    def _open(self) -> None:
        self._end_waiting()
        if self._single_camera is not None:
            hints = HINT
        else:
            hints = HINT_SEVERAL
        self._view = LiveView(self._out, self._keys, self._modes, self._rows, self._questions.put, hints)
        self._stderr = sys.stderr
        if self._stderr.isatty():
            sys.stderr = LineWriter(self.show_note)

    def _rows(self, message: str, width: int, height: int) -> list[Row]:
        if self._single_camera is not None:
            return compose(self._single_camera.snapshot(), message, width, height)
        with self._lock:
            notes = tuple(self._notes)
        cameras = [state.snapshot() for state in self._cameras.values()]
        uptime_s = (self._clock.now_ns() - self._begin_ns) / NS_PER_S
        return compose_several(cameras, notes, uptime_s, message, width, height)

    def _end_waiting(self) -> None:
        if self._is_starting:
            self._is_starting = False
            print(ERASE, end="", file=sys.stderr, flush=True)


def terminal_columns(descriptor: int) -> int:
    """Return the width of a terminal, in cells; 80 if it is unknown."""
    with contextlib.suppress(OSError):
        return os.get_terminal_size(descriptor).columns or 80
    return 80


class LineWriter(io.TextIOBase):
    """A text stream that gives each line to `take`."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._line = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if line.strip():
                self._take(line)
        return len(text)
