"""Fork server: a process that has imported torch once, and forks the processes of a run from itself.

The import of torch takes longer than all else up to the first answer; a forked process has it at once, and shares its
memory. The server computes nothing and has one Python thread, so nothing is lost in a fork: no pool of threads, no
lock, no driver's state. If a GPU driver is present, processes are started afresh, as on systems other than Linux.

Requests and replies go over a pair of sockets, descriptors with them. How a child ended is written to a pipe that the
server and the child hold: an end without a status means that both were killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import logging
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, NoReturn

import msgspec

from stream.transport import sweep_directories

GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Device files of CUDA, ROCm, and CUDA in WSL. The state of such a driver in a process does not survive a fork."""

SHARED_IMPORTS = ("torch", "stream.runtime.answer_worker", "arr_coc.layer_weights")
"""Imported before the first fork, because every process of a run needs them."""

SERVER_DESCRIPTOR = 900
"""Least number of the server's own descriptors: those of its children keep the lower numbers that they were given."""

MOST_DESCRIPTORS = 16
"""Descriptors that one request may carry."""

REPLY_LIMIT_S = 60.0
"""Time that the server may take to reply; it may still be importing torch, on a busy machine."""

_STATUS = struct.Struct("i")


class ForkRequest(msgspec.Struct, frozen=True):
    """Request for a process that calls `module`'s `main`. Its descriptors come beside it: stdin, output, status, and
    those that get the numbers `inherited`. `preload`: the server imports the module too, for the next one."""

    module: str
    inherited: list[int]
    environment: dict[str, str]
    preload: bool = False


def can_fork() -> bool:
    """Returns whether processes of a run may be forked on this machine."""
    return sys.platform == "linux" and not any(map(os.path.exists, GPU_DRIVERS))


class ForkedProcess:
    """Process that `server` made, as far as `subprocess.Popen` handles one."""

    def __init__(self, server: ForkServer, pid: int, stdin: IO[bytes], status: int) -> None:
        self._server = server
        self.pid = pid
        self.stdin: IO[bytes] | None = stdin
        self.returncode: int | None = None
        self._status = status
        os.set_blocking(status, False)

    def poll(self) -> int | None:
        """Returns how it ended: its exit status, minus the number of the signal, or None while it runs."""
        if self.returncode is None:
            self._server.reap()
            with contextlib.suppress(BlockingIOError):
                data = os.read(self._status, _STATUS.size)
                if data:
                    self.returncode = _STATUS.unpack(data)[0]
                else:
                    self.returncode = -signal.SIGKILL
                os.close(self._status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end. Raises subprocess.TimeoutExpired."""
        if self.poll() is None:
            poller = select.poll()  # select() knows no descriptor above 1023
            poller.register(self._status, select.POLLIN)
            if not poller.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        status = self.poll()
        assert status is not None, "the pipe was readable"
        return status

    def kill(self) -> None:
        """Kills the process if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """Client side of a fork server; belongs to one thread at a time.

    `process` is the server's pid. Its end leaves its children running: they follow their own stdin.
    """

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes] | int) -> None:
        self._connection = connection
        self._process = process
        self._lock = threading.Lock()
        self._closed = False
        self._reaped = False
        connection.settimeout(REPLY_LIMIT_S)

    @classmethod
    def started(cls, command: Sequence[str], environment: Mapping[str, str]) -> ForkServer:
        """Starts a server as a separate process; `command` runs this module, followed by the descriptor."""
        client, server = socket.socketpair()
        with server:
            number = server.fileno()
            process = subprocess.Popen(
                [*command, str(number)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=(number,),
                start_new_session=True,
            )
        return cls(client, process)

    @classmethod
    def split_off(cls) -> ForkServer | None:
        """Imports the shared modules into this process, and forks a server from it.

        Returns None if torch was imported before or other threads run: their state could be lost in a fork.
        """
        if not can_fork() or "torch" in sys.modules or threading.active_count() > 1:
            return None
        _import_shared()
        client, server = socket.socketpair()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = _fork()
        if pid == 0:
            _run_and_exit(lambda: _become_server(server))
        server.close()
        return cls(client, pid)

    def fork(
        self,
        module: str,
        output: int,
        inherited: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        *,
        preload: bool = False,
    ) -> ForkedProcess | None:
        """Forks a process.

        Args:
            module: Module that the process runs.
            output: Descriptor of its stdout and stderr.
            inherited: Descriptors that it has under the same numbers.
            environment: Variables added to its environment.
            preload: Import the module in the server, once, before the fork.

        Returns:
            The process; None if the server has ended or cannot fork.
        """
        stdin_read, stdin_write = os.pipe()
        status_read, status_write = os.pipe()
        request = ForkRequest(module, list(inherited), dict(environment or {}), preload)
        pid = 0
        try:
            with self._lock:
                pid = self._ask(request, [stdin_read, output, status_write, *inherited])
        finally:
            os.close(stdin_read)
            os.close(status_write)
            if not pid:
                os.close(stdin_write)
                os.close(status_read)
        if pid:
            return ForkedProcess(self, pid, os.fdopen(stdin_write, "wb"), status_read)
        return None

    def _ask(self, request: ForkRequest, descriptors: list[int]) -> int:
        """Returns the new process's pid, 0 if there is none. A server that does not reply gets no further requests."""
        try:
            socket.send_fds(self._connection, [msgspec.json.encode(request)], descriptors)
            reply = self._connection.recv(_STATUS.size)
        except OSError:
            reply = b""
        if len(reply) != _STATUS.size:
            self._connection.close()
            self.reap()
            return 0
        return int(_STATUS.unpack(reply)[0])

    @property
    def pid(self) -> int:
        """The server's process id."""
        if isinstance(self._process, int):
            return self._process
        return self._process.pid

    def reap(self) -> None:
        """Takes the exit status of a server that has ended; without that it would stay a zombie as long as this run.

        Called whenever one of its children is looked after.
        """
        if not isinstance(self._process, int):
            self._process.poll()
        elif not self._reaped:
            try:
                self._reaped = os.waitpid(self._process, os.WNOHANG) != (0, 0)
            except ChildProcessError:
                self._reaped = True

    def close(self) -> None:
        """Ends the server, after its children. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._connection.close()
        self.reap()
        if isinstance(self._process, int):
            if self._reaped:
                return
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._process, signal.SIGKILL)
                os.waitpid(self._process, 0)
        else:
            self._process.kill()  # it may still be importing
            self._process.wait()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _import_shared() -> None:
    for name in SHARED_IMPORTS:
        importlib.import_module(name)


def _fork() -> int:
    """Forks; what lives then is left to itself by the garbage collector, so that its memory stays shared."""
    gc.freeze()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of BLAS's threads, which BLAS itself starts again
        pid = os.fork()
    if pid:
        gc.unfreeze()
    return pid


def _run_and_exit(run: Callable[[], object]) -> NoReturn:
    """Calls `run` and ends the process with the status that it returns, in any case."""
    status: object = 1
    try:
        status = run()
    except SystemExit as end:
        status = end.code
    except KeyboardInterrupt:  # before the process has left its parent's session
        status = 130
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)


def _become_server(connection: socket.socket) -> int:
    """Turns a freshly forked process into the server: in a new session, with none of its parent's files open."""
    os.setsid()
    for handler in logging.root.handlers[:]:
        logging.root.removeHandler(handler)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    keep = connection.fileno()
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        if number > 2 and number != keep:
            with contextlib.suppress(OSError):
                os.close(number)
    return _Server(connection).serve()


class _Server:
    """The server itself: forks on request, and writes down how each child ended."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = socket.socket(fileno=_moved(connection.detach()))
        self._children: dict[int, int] = {}
        self._woken, self._wake = map(_moved, os.pipe())
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):  # the command's handlers, if this process was split off
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def serve(self) -> int:
        """Serves until the client is gone."""
        while True:
            request_fd = self._connection.fileno()
            ready, _, _ = select.select([request_fd, self._woken], [], [])
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._reap()
            if request_fd in ready:
                data, descriptors, _, _ = socket.recv_fds(self._connection, 65536, MOST_DESCRIPTORS)
                if not data:
                    self._reap()
                    sweep_directories()  # the client may have been killed before it had any other child
                    return 0
                pid = self._fork(msgspec.json.decode(data, type=ForkRequest), descriptors)
                self._connection.sendall(_STATUS.pack(pid))

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self._children.pop(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(number, _STATUS.pack(os.waitstatus_to_exitcode(status)))
            os.close(number)

    def _fork(self, request: ForkRequest, received: list[int]) -> int:
        """Returns the child's pid, 0 if its descriptors would replace open ones."""
        descriptors = [_moved(number) for number in received]
        stdin, output, status, *inherited = descriptors
        if request.preload:
            importlib.import_module(request.module)
        pid = 0
        if not any(map(_is_open, request.inherited)):
            pid = _fork()
            if pid == 0:
                _run_and_exit(lambda: self._child(request, stdin, output, inherited))
            self._children[pid] = status
            descriptors.remove(status)
        for number in descriptors:
            os.close(number)
        return pid

    def _child(self, request: ForkRequest, stdin: int, output: int, inherited: list[int]) -> object:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        numbers = [0, 1, 2, *request.inherited]
        for source, number in zip([stdin, output, output, *inherited], numbers, strict=True):
            os.dup2(source, number)
        for number in {self._woken, self._wake, stdin, output, *inherited, *self._children.values()}:
            os.close(number)
        self._connection.close()
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        os.environ.update(request.environment)
        sys.argv = [request.module]
        return importlib.import_module(request.module).main()


def _moved(number: int) -> int:
    """Moves a descriptor to a high number, within what the system allows, and returns that."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        least = SERVER_DESCRIPTOR
    else:
        least = min(SERVER_DESCRIPTOR, most // 2)
    descriptor = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, least)
    os.close(number)
    return descriptor


def _is_open(number: int) -> bool:
    try:
        fcntl.fcntl(number, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def main() -> int:
    """Entry point of a server that was started; the descriptor of its socket is the first argument."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    _import_shared()
    return _Server(connection).serve()


if __name__ == "__main__":
    _run_and_exit(main)
