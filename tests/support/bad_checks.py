"""Checks that end in every bad way."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

from stream.extensions.doctor.gpu.checks import CheckAbsent, CheckFailed, CheckResult, Figure


def good() -> CheckResult:
    return CheckResult("as it should be", {"answer": 42})


def slow() -> CheckResult:
    return CheckResult.of_figures(Figure("easy", 1.0, target=2.0), Figure("hard", 3.0, target=2.0), Figure("free", 9.0))


def absent() -> CheckResult:
    raise CheckAbsent("not on this machine", "buy one")


def fails() -> CheckResult:
    raise CheckFailed("level 3: 1 of 4 values differ")


def raises() -> CheckResult:
    raise KeyError("no such\nthing")


def hangs() -> CheckResult:
    print("about to hang", flush=True)
    threading.Event().wait()
    raise AssertionError


def hangs_in_c() -> CheckResult:
    """Hang with the interpreter's lock held, and deaf to SIGABRT."""
    signal.signal(signal.SIGABRT, signal.SIG_IGN)
    ctypes.PyDLL(None).pause()
    while True:
        time.sleep(1)


def crashes() -> CheckResult:
    ctypes.string_at(0)
    raise AssertionError


def aborts() -> CheckResult:
    print("CUDA error: device-side assert triggered", flush=True)
    os.abort()


def exits() -> CheckResult:
    print("giving up", flush=True)
    os._exit(7)


def crashes_afterwards() -> CheckResult:
    """Crash while the interpreter ends, as a driver's library may."""
    atexit.register(ctypes.string_at, 0)
    return CheckResult("all well")


def floods() -> CheckResult:
    """Print more than any pipe holds, and then the end of it."""
    for _ in range(200):
        os.write(1, b"\xff\x00\x1b[2Jgarbage " * 4096)
    os.write(1, b"\nthe last line\n")
    raise CheckFailed("after a flood")


def writes_garbage() -> CheckResult:
    os.write(int(sys.argv[3]), b"{no json")
    os._exit(0)


def eats_memory() -> CheckResult:
    blocks = []
    while True:
        blocks.append(bytes(16 << 20).replace(b"\0", b"x"))


def leaves_a_child() -> CheckResult:
    """Leave a process that holds the pipes open."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    return CheckResult("left", {"pid": process.pid})


def names_everybody() -> CheckResult:
    """Name the folders of this machine."""
    raise CheckFailed(f"in {os.path.expanduser('~')}/secret and {os.getcwd()} and {sys.prefix}/lib")
