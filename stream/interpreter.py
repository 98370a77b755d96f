"""Starting Python again: the one place that makes the command line and the environment of a child process.

A child runs the code of this program and of its libraries, never code in the folder that the user happens to be in: a
`random.py` beside the clips must not run with the user's rights. So the working folder is no place for imports, neither
as Python puts it there for `-m` and `-c`, nor as an empty or relative entry of PYTHONPATH stands for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
"""Where the packages of this program lie."""

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


def python_command(module: str, *arguments: str) -> list[str]:
    """What runs `module` as a program in a process of its own; to be started with `python_environment`."""
    return [sys.executable, "-c", BOOTSTRAP, ROOT, module, *arguments]


def python_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with `more`, and without what would let a child import from the working folder."""
    environment = {**os.environ, **(more or {}), "PYTHONSAFEPATH": "1"}  # for what the child itself may start
    paths = [path for path in environment.pop("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)]
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment
