"""Command in the place of vLLM's: `vllm serve MODEL --host HOST --port PORT …`, which takes tokens and answers alike.

`--note FILE` appends its process id and arguments, as a JSON line, to a file at each start. `--refuse TEXT` prints
that and ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

from tests.support.api_server import FakeApiServer
from tests.support.vllm_plugin import TokenServer

SCRIPT = """#!{python}
import sys
sys.path.insert(0, {root!r})
from tests.support.fake_vllm import main
main(sys.argv[1:])
"""


def write_command(path: Path) -> str:
    """Write the command as an executable file; return its path."""
    path.write_text(SCRIPT.format(python=sys.executable, root=str(Path(__file__).parents[2])))
    path.chmod(0o755)
    return str(path)


def main(arguments: list[str]) -> None:
    def after(name: str) -> str | None:
        return arguments[arguments.index(name) + 1] if name in arguments else None

    if (refusal := after("--refuse")) is not None:
        print(f"INFO starting\nValueError: {refusal}", flush=True)
        sys.exit(1)
    note = Path(after("--note") or os.devnull)
    with note.open("a") as file:
        file.write(json.dumps([os.getpid(), *arguments]) + "\n")
    server = FakeApiServer(int(after("--port") or 0))
    server.models = [arguments[1]]
    TokenServer(server)
    threading.Event().wait()
