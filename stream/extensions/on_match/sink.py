"""Commands that matches of watches start: without a shell, a few at once, each with a time limit."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import psutil

from arr_coc.errors import counted
from stream import logs
from stream.config import Config
from stream.errors import ConfigError
from stream.events import Event, Match, WatchesChanged
from stream.extension import SinkOpening
from stream.extensions.on_match.section import OnMatchSection
from stream.sinks.base import Sink

AT_ONCE_MAX = 4
"""Commands of one run at once; a match that comes meanwhile starts none."""

CLOSE_LIMIT_S = 10.0
"""Longest wait for commands at the end of a run; then they are killed."""

PREFIX = "ARR_COC_"
"""Prefix of environment variables with the fields of a match. Others with it, which may hold secrets, are not
passed."""

MARK = f"{PREFIX}COMMAND"
"""Environment variable that all processes of one command share."""

KILL_LIMIT_S = 5.0
"""Longest time for which a command that starts processes again and again is killed."""

FIELDS = ("match", "watch", "question", "time", "camera", "frame_index", "pts_s", "yes", "certain")
"""Fields of a match for a command."""

_FIELD = re.compile(r"\{(\w+)\}")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MatchCommand:
    """Command of one watch, as words with fields in braces."""

    words: tuple[str, ...]

    @classmethod
    def of(cls, text: str, option: str = "--on-match") -> MatchCommand:
        """Split a command as a shell would. Raises ConfigError, which names the option, if it cannot be run."""
        try:
            words = tuple(shlex.split(text))
        except ValueError as error:
            raise ConfigError(f"{option}: {text!r} is no command: {error}; check its quotation marks") from None
        if not words:
            raise ConfigError(f"{option} needs a command, such as 'notify-send {{watch}}'")
        for word in words:
            for name in _FIELD.findall(word):
                if name not in FIELDS:
                    raise ConfigError(f"{option}: unknown field {{{name}}}; there are {', '.join(FIELDS)}")
        if shutil.which(os.path.expanduser(words[0])) is None:
            raise ConfigError(f"{option}: there is no program {words[0]!r}; give its path, or install it")
        return cls((os.path.expanduser(words[0]), *words[1:]))

    def filled(self, fields: Mapping[str, str]) -> list[str]:
        """Return the words with the fields of a match in their places."""
        return [_FIELD.sub(lambda match: fields[match[1]], word) for word in self.words]


def commands_of(config: Config) -> dict[str, MatchCommand]:
    """Return the command of each watch that has one, by the watch's name. Raises ConfigError for an unusable one."""
    commands = {}
    for watch in config.watch:
        text = watch.on_match or OnMatchSection.of(config).command
        if text is not None:
            if watch.on_match is None:
                option = "--on-match"
            else:
                option = f"watch {watch.name!r}: on_match"
            commands[watch.name] = MatchCommand.of(text, option)
    return commands


def fields_of(event: Match, camera: str, unix_s: float) -> dict[str, str]:
    """Return the fields of a match as text; `time` is local time in ISO 8601, of a live source
    that of the frame, of others the present."""
    return {
        "match": str(event.match),
        "watch": event.watch,
        "question": event.question,
        "time": event.time or datetime.fromtimestamp(unix_s).astimezone().isoformat(timespec="milliseconds"),
        "camera": camera,
        "frame_index": str(event.frame_index),
        "pts_s": f"{event.pts_s:.3f}",
        "yes": f"{event.yes:.3f}",
        "certain": f"{event.certain:.3f}",
    }


@dataclass(frozen=True, slots=True)
class _Running:
    """A command that runs: the thread that waits for it, and its mark."""

    waiter: threading.Thread
    mark: str


class MatchCommandSink(Sink):
    """Sink that starts the commands of `commands_of` and waits for none of them.

    A command has `limit_s` seconds, no input, and its output is dropped. Its failure is one note, and the next one is
    noted after a success only. `camera`: name for `{camera}`. `dropped`: matches that started no command.
    """

    def __init__(
        self,
        commands: Mapping[str, MatchCommand],
        *,
        limit_s: float,
        camera: str = "",
        close_limit_s: float = CLOSE_LIMIT_S,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._commands = dict(commands)
        self._limit_s = limit_s
        self._close_limit_s = close_limit_s
        self._camera = camera
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._running: dict[subprocess.Popen[bytes], _Running] = {}
        self._failing: set[str] = set()
        self.dropped = 0

    @classmethod
    def open(cls, opening: SinkOpening) -> MatchCommandSink:
        """Open the sink of a run."""
        config = opening.config
        return cls(commands_of(config), limit_s=OnMatchSection.of(config).limit_s, camera=opening.camera)

    def write(self, event: Event) -> None:
        if isinstance(event, WatchesChanged):  # another watch of the same name has no command
            present = {watch.name for watch in event.watches}
            self._commands = {name: command for name, command in self._commands.items() if name in present}
        if not isinstance(event, Match) or event.watch not in self._commands:
            return
        with self._lock:
            busy = len(self._running) >= AT_ONCE_MAX
        if busy:
            self.dropped += 1
            self._note(event.watch, f"{counted(AT_ONCE_MAX, 'command')} still run, so this match started none")
            return
        fields = fields_of(event, self._camera, self._wall_s())
        words = self._commands[event.watch].filled(fields)
        mark = uuid.uuid4().hex
        try:
            process = _start(words, {MARK: mark, **{f"{PREFIX}{name.upper()}": text for name, text in fields.items()}})
        except (OSError, ValueError) as error:
            self._note(event.watch, f"{words[0]!r} cannot be started: {getattr(error, 'strerror', None) or error}")
            return
        waiter = threading.Thread(target=self._wait, args=(process, mark, event.watch), name="on-match", daemon=True)
        with self._lock:
            self._running[process] = _Running(waiter, mark)
        waiter.start()

    def close(self) -> None:
        with self._lock:
            running = dict(self._running)
        until_s = time.monotonic() + self._close_limit_s
        for process, command in running.items():
            command.waiter.join(max(0.0, until_s - time.monotonic()))
            if command.waiter.is_alive():
                _kill(process, command.mark)
                command.waiter.join()

    def _wait(self, process: subprocess.Popen[bytes], mark: str, watch: str) -> None:
        try:
            status = process.wait(self._limit_s)
            if status == 0:
                problem = ""
            else:
                problem = f"ended with status {status}"
        except subprocess.TimeoutExpired:
            _kill(process, mark)
            process.wait()
            problem = f"took more than {self._limit_s:g} s and was killed"
        with self._lock:
            del self._running[process]
        if problem:
            self._note(watch, f"{process.args[0]!r} {problem}")  # type: ignore[index]
        else:
            self._failing.discard(watch)

    def _note(self, watch: str, problem: str) -> None:
        """Report a failure, once until a command of this watch succeeds."""
        if watch not in self._failing:
            self._failing.add(watch)
            logs.say(f"note: the command of watch {watch} failed: {problem}", "warning", event="on_match", watch=watch)


def _start(words: Sequence[str], fields: Mapping[str, str]) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    null = subprocess.DEVNULL
    return subprocess.Popen(
        list(words),
        stdin=null,
        stdout=null,
        stderr=null,
        env={**environment, **fields},
        start_new_session=True,  # Ctrl-C is for the run
    )


def _kill(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill a command with all that it has started, in its session or in others."""
    until_s = time.monotonic() + KILL_LIMIT_S
    # again, because they may start others meanwhile
    while (alive := _processes_of(process, mark)) and time.monotonic() < until_s:
        for candidate in alive:
            with suppress(psutil.Error):
                candidate.kill()
        time.sleep(0.01)


def _processes_of(process: subprocess.Popen[bytes], mark: str) -> set[psutil.Process]:
    """Return the live processes that descend from a command's, and those that have its mark: one whose parent has ended
    descends from it no longer, but keeps the environment."""
    processes = set()
    if process.returncode is None:  # its number is not another process's yet
        with suppress(psutil.Error):
            leader = psutil.Process(process.pid)
            processes = {leader, *leader.children(recursive=True)}
    for candidate in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if candidate.environ().get(MARK) == mark:
                processes.add(candidate)
    return {candidate for candidate in processes if _is_alive(candidate)}


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
