"""`--engine vllm`: one vLLM server that answers for the cameras of a fleet, started and ended with it.

The server is vLLM's own command, `vllm serve`, from a separate environment, with the plugin that takes tokens. On a
Ray cluster it is vLLM's data-parallel server: one address, and an engine on each of `[ray] servers` nodes
(https://docs.vllm.ai/en/latest/serving/data_parallel_deployment).

[vllm]
command = "/opt/vllm/bin/vllm"        # vLLM's command; found in PATH when absent
options = ["--max-model-len", "8192"] # more options of `vllm serve`
host = "10.0.0.5"                     # this machine's address, for cameras on other nodes
start_s = 900                         # longest time that it may take to load the model
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from pydantic import Field

from stream.config import Config, Section, is_local
from stream.control import RunControl
from stream.errors import ConfigError, StageDied
from stream.extension.registry import model_type_of
from stream.sources.timing import Backoff
from stream.untrusted import replace_surrogates

POLL_S = 0.25
"""Time between two looks at the server."""

STOP_LIMIT_S = 15.0
READ_LIMIT_S = 2.0
"""Time that the server may take to end, before it is killed, and that the rest of its output may take then."""

DEATHS_MAX = 5
"""Deaths in a row after which the cameras fail."""

LIVED_S = 60.0
"""Life after which a death does not count as one of several in a row."""

LINES_KEPT = 200
LINE_BYTES_MAX = 4096
REASON_CHARS = 300
"""Last lines of the server's output in which the reason for its end is looked for, the longest of them, and of it."""

SERVE_OPTIONS = ("--enable-prompt-tokens-details",)
"""Options that every server gets: it reports how many tokens of a prompt its prefix cache held."""

FOLLOW_PARENT = (
    "import ctypes, os, signal, sys;"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM);"  # PR_SET_PDEATHSIG
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Runs a command that is terminated with the process that started it."""

log = logging.getLogger(__name__)


class VllmSettings(Section):
    """Table `[vllm]` of a fleet file: the server of `--engine vllm`."""

    command: str = Field(default="vllm", min_length=1)
    """vLLM's command: a path, or a name in PATH."""
    options: list[str] = Field(default=[])
    """More options of `vllm serve`, which win over those that are given to it here."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address at which the server listens, and cameras reach it."""
    start_s: float = Field(default=900.0, gt=0)
    """Longest time, in seconds, until the server lists its model."""


@dataclass(frozen=True, slots=True)
class VllmPlace:
    """Address of a server, `host` and a free `port`. `ray`: address of the cluster on whose nodes its `engines` are."""

    host: str
    port: int
    ray: str | None = None
    engines: int = 1

    @classmethod
    def of(cls, settings: VllmSettings, ray: str | None, engines: int) -> VllmPlace:
        """Return a place for a server of this machine. Raises ConfigError if it cannot listen at its host, or cameras
        on other nodes could not reach it."""
        host = settings.host
        if ray is not None and is_local(f"tcp://{host}:0"):
            raise ConfigError(
                f"cameras on other nodes cannot reach vLLM at {host}; set [vllm] host to this machine's address"
            )
        try:
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
                probe.bind((host, 0))
                return cls(host, probe.getsockname()[1], ray, engines)
        except OSError as error:
            raise ConfigError(
                f"vLLM cannot listen at {host} ({error.strerror or error}); set [vllm] host to an address of this "
                "machine"
            ) from error

    @property
    def url(self) -> str:
        """Base address of its API."""
        if ":" in self.host:
            host = f"[{self.host}]"
        else:
            host = self.host
        return f"http://{host}:{self.port}/v1"


class VllmServer:
    """vLLM server at a place, for cameras whose configurations name its address.

    A thread starts the server again if it dies while it is `running`. Raises ConfigError if vLLM's command is missing,
    the cameras have several models, or the server would be open to other machines without `network.plain_tcp`.
    """

    def __init__(self, configs: Sequence[Config], settings: VllmSettings, place: VllmPlace) -> None:
        model_type = model_type_of(configs[0])
        assert model_type is not None
        if model_type.extra is not None:
            model_type.extra.require("--engine vllm")
        path = shutil.which(os.path.expanduser(settings.command))
        if path is None:
            raise ConfigError(
                f"--engine vllm finds no command {settings.command!r}; install vllm and arr-coc-vllm into an "
                "environment of their own, and name its vllm as [vllm] command in the file"
            )
        models = sorted({str(config.answer.model) for config in configs})
        if len(models) > 1:
            raise ConfigError(
                f"--engine vllm serves one model, and the cameras have {', '.join(models)}; give -m, or the cameras of "
                "another model an api.url"
            )
        plain = all(config.network.plain_tcp for config in configs)
        if not plain and not is_local(f"tcp://{place.host}:{place.port}"):
            raise ConfigError(
                f"every program that reaches {place.host} could ask vLLM there; allow that with --plain-tcp"
            )
        self.place = place
        self._settings = settings
        model_type.name_of(configs[0])  # checks the key
        self._config = configs[0]
        self._model_type = model_type
        frames = max(config.answer.memory.frames for config in configs)
        self._command = [path, *serve_arguments(models[0], frames, place), *settings.options]
        self._process: subprocess.Popen[bytes] | None = None
        self._last_lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._ended = threading.Event()

    @contextlib.contextmanager
    def running(self, controls: Iterable[RunControl], report: Callable[[str], None]) -> Iterator[None]:
        """Run the server inside the block, which begins once it lists its model.

        `controls` of its cameras get the error if it dies again and again; `report` takes a line for the user. Raises
        StageDied if it ends before it was ready, or takes longer than `start_s`.
        """
        self._controls = list(controls)
        self._report = report
        thread = threading.Thread(target=self._serve, name="vllm", daemon=True)
        try:
            report(f"starting vLLM at {self.place.url}")
            thread.start()
            self._wait()
            yield
        finally:
            self._stopping.set()
            for number in (signal.SIGTERM, signal.SIGKILL):  # what has not ended in time is killed
                if self._process is not None and self._process.poll() is None:
                    _signal_group(self._process.pid, number)
                if self._ended.wait(STOP_LIMIT_S):
                    break
            thread.join()

    def _wait(self) -> None:
        """Wait until the server lists its model."""
        until_s = time.monotonic() + self._settings.start_s

        def goes_on() -> bool:
            if time.monotonic() > until_s:
                raise StageDied(
                    "vllm",
                    f"it lists no model within {self._settings.start_s:g} s; raise [vllm] start_s, or see what "
                    "--debug logs of it",
                )
            return not self._ended.wait(POLL_S)

        if not self._model_type.wait_for_program(self._config, goes_on):
            raise StageDied("vllm", self._reason)
        self._ready.set()

    @property
    def _reason(self) -> str:
        """Reason for the server's end: the last error that it printed, or its last line."""
        lines = list(self._last_lines)
        errors = [line for line in lines if "Error" in line or "error:" in line]
        line = replace_surrogates((errors or lines or ["it printed nothing"])[-1])
        if len(line) <= REASON_CHARS:
            return line
        return f"{line[: REASON_CHARS - 1]}…"

    def _serve(self) -> None:
        """Run the server, in a thread, and start it again after a death once it was ready."""
        deaths = 0
        waits = Backoff()
        while not self._stopping.is_set():
            began_s = time.monotonic()
            try:
                self._run_once()
            except OSError as error:
                self._last_lines.append(f"its command cannot be started: {error.strerror or error}")
            if self._stopping.is_set() or not self._ready.is_set():
                break
            if time.monotonic() - began_s > LIVED_S:
                deaths = 0
                waits = Backoff()
            deaths += 1
            if deaths > DEATHS_MAX:
                for control in self._controls:
                    control.fail(StageDied("vllm", self._reason))
                break
            self._report(f"vLLM ended ({self._reason}); starting it again")
            self._stopping.wait(waits.next_s())
        self._ended.set()

    def _run_once(self) -> None:
        """Run the server until it ends, in a separate session, so that Ctrl-C reaches this program only."""
        environment = dict(os.environ)
        if self.place.ray is not None:
            environment["RAY_ADDRESS"] = self.place.ray
        key = os.environ.get(self._config.value("api.key_env"), "").strip()
        if key:
            environment["VLLM_API_KEY"] = key
        self._last_lines.clear()
        self._process = process = subprocess.Popen(
            [sys.executable, "-I", "-c", FOLLOW_PARENT, *self._command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        assert process.stdout is not None
        reader = threading.Thread(target=self._read, args=(process.stdout,), name="vllm-output", daemon=True)
        reader.start()
        if self._stopping.is_set():
            process.terminate()
        process.wait()
        _signal_group(process.pid, signal.SIGKILL)  # its engines
        reader.join(READ_LIMIT_S)

    def _read(self, output: IO[bytes]) -> None:
        """Log the server's output, and keep its last lines."""
        with output:
            while line := output.readline(LINE_BYTES_MAX):
                text = " ".join(line.decode("utf-8", "replace").split())
                if text:
                    log.debug("vllm: %s", text)
                    self._last_lines.append(text)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def serve_arguments(model: str, frames: int, place: VllmPlace) -> list[str]:
    """Return the arguments of vLLM's command for a model that is sent up to `frames` frames in a request."""
    on_ray = ["--data-parallel-backend", "ray", "--data-parallel-size", str(place.engines)]
    return [
        *("serve", model, "--host", place.host, "--port", str(place.port)),
        *SERVE_OPTIONS,
        *("--limit-mm-per-prompt", json.dumps({"image": frames})),
        *(on_ray if place.ray is not None else []),
    ]
