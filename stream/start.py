"""Entry point of the command.

Only code of this program and of its libraries runs, never code in the folder that the user happens to be in: a
`random.py` beside the clips must not run with the user's rights. So the working folder is no place for imports, neither
as Python puts it there for `-m` and `-c`, nor as an empty or relative entry of PYTHONPATH stands for it.

This module imports only what Python has imported at its start, because it runs before the working folder is left out.
"""

from __future__ import annotations

import os
import site
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder of this program's packages."""


def main() -> int:
    """Runs the command and returns its exit status."""
    try:
        os.getcwd()
    except FileNotFoundError:
        print("error: the working folder was removed; change to another one", file=sys.stderr)
        return 2
    leave_out_working_folder()
    from stream.cli import main as run

    return run()


def leave_out_working_folder() -> None:
    """Takes out of `sys.path` what an empty or relative entry of PYTHONPATH stands for, and the empty path.

    An entry that is written out as an absolute path stays, and so do the folders of this program and of its libraries.
    """
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    wanted = {ROOT, *site.getsitepackages(), *(entry for entry in entries if os.path.isabs(entry))}
    unwanted = {"", *(os.path.abspath(entry) for entry in entries if not os.path.isabs(entry))} - wanted
    sys.path[:] = [path for path in sys.path if path not in unwanted]
