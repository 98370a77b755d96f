"""The thread that draws a run on a terminal, and listens to what is typed there."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable

from stream.line_editor import Key, LineEditor
from stream.live_figures import Figures
from stream.questions import READ_BYTES, put_question
from stream.sinks.live_layout import Typing, compose, input_line
from stream.sinks.live_screen import Screen
from stream.sinks.live_state import LiveState

DRAW_S = 0.125
"""Between two drawings: eight a second."""

FIGURES_S = 0.5
"""Between two looks at the figures: numbers that change faster cannot be read."""

WHOLE_S = 2.0
"""Every row is drawn anew so often, in case that something else has written on the terminal."""

REMARK_S = 8.0
"""How long the answer to what was typed is shown."""

JOIN_LIMIT_S = 1.0
"""How long the drawing may take to end: a terminal that takes nothing any more is left alone."""

log = logging.getLogger(__name__)


class View:
    """Draws in its own thread, so that it goes on while no events come.

    `keys` is the descriptor that questions are typed on, None where they cannot be; `ask` gets them.
    """

    def __init__(self, screen: Screen, keys: int | None, state: LiveState, ask: Callable[[str], None]) -> None:
        self._screen = screen
        self._keys = keys
        self._state = state
        self._ask = ask
        self._editor = LineEditor()
        self._figures: Figures | None = None
        self._figures_s = self._whole_s = self._drawn_s = 0.0
        self._remark, self._remark_until_s = "", 0.0
        self._urgent = self._pending = ""
        self._stopping = False
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        screen.open()
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)
        self._thread.start()

    def say(self, remark: str) -> None:
        """Shows a remark for some seconds."""
        self._remark, self._remark_until_s = remark, time.monotonic() + REMARK_S

    def answered_question(self, question: str) -> None:
        """This question was taken, or refused: it does not wait any more."""
        if question == self._pending:
            self._pending = ""
        self.say("")

    def insist(self, remark: str) -> None:
        """Shows a remark from now on. Takes no lock and uses no buffer, for signal handlers."""
        self._urgent = remark

    def close(self) -> None:
        """Ends the thread and gives the terminal back; called once."""
        self._stopping = True
        os.write(self._wake, b"!")
        self._thread.join(JOIN_LIMIT_S)
        self._screen.close()
        os.close(self._wake)
        if not self._thread.is_alive():
            os.close(self._woken)

    def _run(self) -> None:
        """Draws and listens until the end, or until the terminal has gone."""
        try:
            while not self._stopping:
                now_s = time.monotonic()
                if now_s - self._drawn_s >= DRAW_S:
                    self._drawn_s = now_s
                    self._draw(now_s)
                self._listen(max(0.0, self._drawn_s + DRAW_S - time.monotonic()))
        except OSError:
            log.debug("the view ends: its terminal has gone", exc_info=True)

    def _draw(self, now_s: float) -> None:
        if self._figures is None or now_s - self._figures_s >= FIGURES_S:
            self._figures, self._figures_s = self._state.figures(), now_s
        if now_s - self._whole_s >= WHOLE_S:
            self._whole_s = now_s
            self._screen.forget()
        size = self._screen.size
        self._screen.draw(compose(self._state.scene(self._figures), self._typing(now_s), *size), size)

    def _typing(self, now_s: float) -> Typing:
        remark = self._urgent or (self._remark if now_s < self._remark_until_s else "")
        return Typing(None if self._keys is None else self._editor.text, remark, self._pending)

    def _listen(self, timeout_s: float) -> None:
        """Waits for keys, and acts on them."""
        keys = [] if self._keys is None else [self._keys]
        ready, _, _ = select.select([*keys, self._woken], [], [], timeout_s)
        if self._keys not in ready:
            return
        data = os.read(self._keys, READ_BYTES) if self._keys is not None else b""
        if not data:
            self._keys = None
            return
        for typed in self._editor.feed(data):
            if typed is Key.SUSPEND:
                self._screen.suspend()
            elif typed is Key.REDRAW:
                self._screen.forget()
            else:
                put_question(str(typed), self._asked, self.say)
        columns, rows = self._screen.size
        self._screen.draw_row(rows - 1, input_line(self._typing(time.monotonic()), columns))

    def _asked(self, question: str) -> None:
        self._pending = question
        self.say("")
        self._ask(question)
