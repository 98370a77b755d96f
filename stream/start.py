"""The start of Python: of the command itself, and of every child process.

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

BOOTSTRAP = (
    "import sys;"
    "root, module = sys.argv[1:3];"
    "del sys.argv[1:3];"
    "sys.path[:] = [root, *(path for path in sys.path if path)];"
    "import runpy;"
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
"""Runs a module as `-m` does, but without the working folder, which Python names by the empty path for `-c`. Python
3.11 has `-P` for that; this does the same on 3.10. Up to `runpy` it imports only what is built into the interpreter."""


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
    wanted = {ROOT, *site.getsitepackages(), *(entry for entry in entries if os.path.isabs(entry))}
    unwanted = {"", *(os.path.abspath(entry) for entry in entries if not os.path.isabs(entry))} - wanted
    sys.path[:] = [path for path in sys.path if path not in unwanted]


def python_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs `module` as a program in a process of its own, with `python_environment`."""
    return [sys.executable, "-c", BOOTSTRAP, ROOT, module, *arguments]


def python_environment(more: dict[str, str] | None = None) -> dict[str, str]:
    """Returns this process's environment with `more`, without what lets a child import from the working folder."""
    environment = {**os.environ, **(more or {}), "PYTHONSAFEPATH": "1"}  # for what the child itself may start
    paths = [path for path in environment.pop("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)]
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment
