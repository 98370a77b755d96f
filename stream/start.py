"""Start of Python for the command and its children, without the working folder among its imports.

Only code of this program and of its libraries runs, never code in the folder that the user happens to be in: a
`random.py` beside the clips must not run with the user's rights. So the working folder is no place for imports, neither
as Python puts it there for `-m` and `-c`, nor as an empty or relative entry of PYTHONPATH stands for it.

This module imports only what Python has imported at its start, because it runs before the working folder is left out.

Signals end the command with status 130 and without a traceback, however early or late they come.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # built into Python; signal.py is a file
import os
import site
import sys

INTERRUPTED = 130
"""Exit status after a signal: 128 + SIGINT, as shells count."""

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder of this program's packages."""


def main() -> int:
    """Runs the command and returns its exit status."""
    exit_on_interrupt()
    leave_out_working_folder()
    from stream.cli import main as run

    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a shell's background
                signal.signal(number, _interrupt)
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        exit_on_interrupt()


def exit_on_interrupt() -> None:
    """Let Ctrl-C end the process at once: as long as imports run, or Python ends, there is nothing to tidy up."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(INTERRUPTED))


def _interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt, so that what is open is closed. Of a lost terminal's several SIGHUP the first counts."""
    if number == signal.SIGHUP:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def leave_out_working_folder() -> None:
    """Removes from `sys.path` the folder of an empty or relative entry of PYTHONPATH, and the empty path.

    An entry that is written out as an absolute path stays, and so do the folders of this program and of its libraries.
    """
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    trusted_paths = {ROOT, *site.getsitepackages(), *(entry for entry in entries if os.path.isabs(entry))}
    excluded_paths = {""}
    try:
        excluded_paths |= {os.path.abspath(entry) for entry in entries if not os.path.isabs(entry)} - trusted_paths
    except FileNotFoundError:  # the working folder was removed
        excluded_paths |= {entry for entry in entries if not os.path.isabs(entry)}
    sys.path[:] = [path for path in sys.path if path not in excluded_paths]
