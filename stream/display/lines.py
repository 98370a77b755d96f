"""Displays that print lines: plain text for people, JSON on stderr for machines."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from arr_coc.errors import of_counted
from stream import logs
from stream.clock import Clock, DisplayClock, MonotonicClock, duration_text
from stream.control import Ask
from stream.display.input import Questions
from stream.display.state import CameraState, TranscriptEntry
from stream.display.text import ABOUT_THE_MODEL, SEPARATOR, dropped_text, label_text, print_answer, verdict_text
from stream.errors import OutputFailed, ReaderGone
from stream.events import (
    OF_FRAMES,
    Answer,
    Event,
    FrameReady,
    Notice,
    Outage,
    QueryChanged,
    Restarted,
    Skipped,
    Summary,
    VerdictChanged,
    event_fields,
)
from stream.logs import json_line, write_line, write_now
from stream.monitor.health import ANSWERS, RunHandle
from stream.monitor.statistics import StatisticsSnapshot
from stream.sinks.base import SINGLE_CAMERA, Display
from stream.untrusted import printable

log = logging.getLogger(__name__)


class RepeatedCall:
    """Thread that calls `call` every `every_s` seconds, from its making to `close`."""

    def __init__(self, every_s: float, call: Callable[[], None]) -> None:
        self._every_s = every_s
        self._call = call
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="figures", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closing.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                self._call()
            except OSError:  # such as no descriptor left: the next figures may come
                log.debug("figures are left out", exc_info=True)


class LinesDisplay(Display):
    """Prints cameras as lines, each after the camera's name: answers on stdout, all else on stderr.

    `every_s`: time between lines of figures, none if that is None. Without `captions` stdout belongs to an output.
    `questions_fd` is a descriptor that lines to ask are read from.
    """

    def __init__(
        self,
        every_s: float | None,
        names: Sequence[str] = SINGLE_CAMERA,
        *,
        captions: bool = True,
        questions_fd: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._every_s = every_s
        self._width = max(map(len, names), default=0)
        self._captions = captions
        self._clock = clock or MonotonicClock()
        self._lock = threading.RLock()
        self._running_cameras = set(names)
        self._cameras: dict[str, CameraState] = {}
        self._answers: dict[str, AnswerPrinter] = {}
        self._shared_texts: set[str] = set()
        self._figures: RepeatedCall | None = None
        self._questions = Questions(names, questions_fd, self.show_note)

    def attach(self, run: RunHandle, frames: int | None, camera: str = "") -> None:
        state = CameraState(self._clock, camera, cuts=True, dates=True)
        state.attach(run, self._questions.add(camera, partial(self._ask, state, run)))
        with self._lock:
            self._cameras[camera] = state
            self._answers[camera] = AnswerPrinter(label_text(camera, self._width))
            if self._figures is None and self._every_s is not None:
                self._figures = RepeatedCall(self._every_s, self._print_figures)

    def write(self, event: Event, camera: str = "") -> None:
        entries = self._cameras[camera].add(event)
        if camera and isinstance(event, Restarted) and event.process == ANSWERS:
            return  # the fleet reports it, once for all cameras
        if isinstance(event, Summary):
            self._over(camera)
        with self._lock:
            self._show(event, entries, camera)

    def end(self, camera: str) -> None:
        self._over(camera)
        with self._lock, suppress(ReaderGone, OutputFailed):
            if camera in self._answers:
                self._answers[camera].finish()

    def show_message(self, message: str) -> None:
        """Safe in a signal handler: takes no lock, uses no buffer."""
        write_now(message)

    def show_note(self, text: str) -> None:
        with self._lock:
            logs.say(text)

    def show_unreachable(self, camera: str, message: str) -> None:
        self._say(camera, message)

    def close(self) -> None:
        for camera in tuple(self._cameras):
            self.end(camera)
        self._stop()

    def _show(self, event: Event, entries: Sequence[TranscriptEntry], camera: str) -> None:
        """Print an event of a camera, which has added `entries` to its transcript."""
        answers = self._answers[camera]
        if isinstance(event, Answer):
            for entry in entries if self._captions else ():
                answers.print(entry)
        elif isinstance(event, VerdictChanged):
            answers.finish()
            for entry in entries if self._captions else ():
                print_answer(f"{label_text(camera, self._width)}{entry.at}", entry.text)
        elif entries:
            if isinstance(event, QueryChanged) and event.error is None:
                answers.finish()
            about_model = isinstance(event, Notice) and event.code in ABOUT_THE_MODEL
            for entry in entries:
                self._say(camera, entry.text, shared=about_model)
        elif isinstance(event, Notice):
            self._say(camera, f"{printable(event.message)} …", shared=True)  # only a model's loading has no entry
        elif isinstance(event, Summary):
            answers.finish()
            if text := self._cameras[camera].summary:
                self._say(camera, text)

    def _say(self, camera: str, text: str, *, shared: bool = False) -> None:
        """Write a remark about a camera on stderr; a `shared` remark of several cameras is written once."""
        with self._lock:
            if not (camera and shared):
                logs.say(f"{label_text(camera, self._width)}{text}")
            elif text not in self._shared_texts:
                self._shared_texts.add(text)
                logs.say(text)

    def _print_figures(self) -> None:
        for camera, state in tuple(self._cameras.items()):
            if camera not in self._running_cameras:
                continue
            figures = state.statistics()
            if figures.frames or figures.outage is not None:
                self._say(camera, figures_text(figures, state.position(figures)))

    def _ask(self, state: CameraState, run: RunHandle, command: Ask) -> None:
        """Ask; report that the answer cannot come yet."""
        if state.loading:
            self._say(state.name, f"asking, once the model is loaded: {command.query}", shared=True)
        run.send(command)

    def _over(self, camera: str) -> None:
        """Remove a camera that has ended; after the last one, stop the figures and the questions."""
        self._questions.remove(camera)
        self._running_cameras.discard(camera)
        if not self._running_cameras:
            self._stop()

    def _stop(self) -> None:
        self._questions.close()
        if self._figures is not None:
            self._figures.close()


class AnswerPrinter:
    """Answers on stdout, a line each after `label`; repetitions of an answer share one line."""

    def __init__(self, label: str = "") -> None:
        self._label = label
        self._text: str | None = None
        self._repetition: TranscriptEntry | None = None

    def print(self, entry: TranscriptEntry) -> None:
        """Print an answer, or count it if the last one was the same."""
        if entry.text == self._text:
            if self._repetition is None:
                self._repetition = entry
            else:
                self._repetition = self._repetition.with_repetition(entry.at)
            return
        self.finish()
        self._text = entry.text
        print_answer(f"{self._label}{entry.at}", entry.text)

    def finish(self) -> None:
        """Print how long the last answer went on; the next one is printed whole."""
        repetition = self._repetition
        self._text = None
        self._repetition = None
        if repetition is not None and repetition.count == 1:
            print_answer(f"{self._label}{repetition.at}", "the same")
        elif repetition is not None:
            print_answer(f"{self._label}{repetition.at} to {repetition.until}", f"the same, {repetition.count} times")


def figures_text(figures: StatisticsSnapshot, at: str) -> str:
    """The figures in one line, which begins with the newest frame's time."""
    parts = [f"{at}  {figures.fps:.1f} frames per second"]
    if figures.outage is not None:
        parts.append(f"source lost for {duration_text(figures.outage.lasted_s)}")
    if figures.latency_ms is not None:
        latency = figures.latency_ms
        parts.append(f"delay {latency.p50:.0f} ms, p95 {latency.p95:.0f} ms")
    if figures.ttft_ms is not None and figures.total_ms is not None:
        parts.append(f"answer {figures.ttft_ms:.0f} to {figures.total_ms:.0f} ms")
    if figures.target_ms is not None:
        if figures.ttft_p95_ms is None:
            p95 = ""
        else:
            p95 = f" p95 {figures.ttft_p95_ms:.0f}"
        parts.append(f"first token{p95} for {figures.target_ms:.0f} ms, budget {figures.budget}")
    if figures.checks_words is not None:
        if figures.budget_raises:
            raises = f", budget {figures.budget}"
        else:
            raises = ""
        parts.append(f"shadow {figures.checks_same} of {figures.checks} the same{raises}")
    if figures.tiles:
        parts.append(of_counted(figures.tokens, figures.tiles, "token"))
    parts.append(dropped_text(figures.dropped))
    return SEPARATOR.join(parts)


QUIET_NOTICES = {"loading"}
"""Codes of notices of usual things."""


class JsonDisplay(Display):
    """Writes events to stderr as they happen, each with its camera's name.

    `captions`: answers go to stdout too, a plain line each. `questions_fd` is a descriptor that lines to ask are read
    from.
    """

    def __init__(
        self, names: Sequence[str] = SINGLE_CAMERA, *, captions: bool, questions_fd: int | None = None
    ) -> None:
        self._width = max(map(len, names), default=0)
        self._captions = captions
        self._lock = threading.Lock()
        self._clocks = {name: DisplayClock(live=False) for name in names}
        self._questions = Questions(names, questions_fd)

    def attach(self, run: RunHandle, frames: int | None, camera: str = "") -> None:
        self._clocks[camera] = DisplayClock(run.source_info.live, dates=True)
        self._questions.add(camera, run.send)

    def write(self, event: Event, camera: str = "") -> None:
        if isinstance(event, FrameReady):
            self._clocks[camera].sync(event.pts_s, event.latency_s)
        if isinstance(event, OF_FRAMES):
            return
        name = {"camera": camera} if camera else {}
        if isinstance(event, Summary):
            self.end(camera)
        elif isinstance(event, QueryChanged):
            for line in self._questions.settle(camera, event):
                logs.say(line, **name, message=line)
        fields = event_fields(event)
        write_line(json_line(log_level(event), {"event": fields.pop("type"), **name, **fields}))
        if self._captions and isinstance(event, VerdictChanged):
            self._print(camera, event.pts_s, verdict_text(event))
        if self._captions and isinstance(event, Answer) and (text := printable(event.text)):
            self._print(camera, event.pts_s, text)

    def end(self, camera: str) -> None:
        self._questions.remove(camera)
        if not camera:
            self._questions.close()

    def show_failure(self, camera: str, message: str) -> None:
        logs.say(message, "error", "error", camera=camera, message=message)

    def show_unreachable(self, camera: str, message: str) -> None:
        logs.say(message, "warning", "unreachable", camera=camera, message=message)

    def show_message(self, message: str) -> None:
        write_now(json_line("info", {"event": "signal", "message": message}))

    def close(self) -> None:
        self._questions.close()

    def _print(self, camera: str, pts_s: float, text: str) -> None:
        with self._lock:
            print_answer(f"{label_text(camera, self._width)}{self._clocks[camera].text(pts_s)}", text)


def log_level(event: Event) -> str:
    """The level of an event in the words of `logging`."""
    if isinstance(event, Summary):
        return "info" if event.error is None else "error"
    if isinstance(event, Notice):
        if event.code in QUIET_NOTICES:
            return "info"
        return "warning"
    if isinstance(event, Outage):
        return "warning" if event.lasted_s is None else "info"
    if isinstance(event, QueryChanged):
        return "info" if event.error is None else "warning"
    if isinstance(event, (Restarted, Skipped)):
        return "warning"
    return "info"
