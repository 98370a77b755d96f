"""Where the command begins: keeps the working folder out of imports before anything else is imported."""

from __future__ import annotations

import os
import site
import sys


def main() -> int:
    """Runs the command and returns its exit status."""
    leave_out_working_folder()
    from stream.cli import main as run

    return run()


def leave_out_working_folder() -> None:
    """Takes out of `sys.path` what an empty or relative entry of PYTHONPATH stands for, and the empty path.

    An entry that is written out as an absolute path stays, and so do the folders of this program and of its libraries.
    """
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    wanted = {root, *site.getsitepackages(), *(entry for entry in entries if os.path.isabs(entry))}
    unwanted = {"", *(os.path.abspath(entry) for entry in entries if not os.path.isabs(entry))} - wanted
    sys.path[:] = [path for path in sys.path if path not in unwanted]
