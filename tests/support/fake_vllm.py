"""Command in the place of vLLM's: `vllm serve MODEL --host HOST --port PORT …`, which takes tokens and answers alike.

`--note FILE` appends its arguments, as a JSON line, to a file at each start. `--refuse TEXT` prints that and ends;
`--die-after N` kills it at the packet after N answers, at its first start only.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from tests.support import api_server as fake
from tests.support.api_server import ApiHandler, FakeApiServer
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
    starts = len(note.read_text().splitlines()) if note.is_file() else 0
    with note.open("a") as file:
        file.write(json.dumps([os.getpid(), *arguments]) + "\n")
    die_after = int(after("--die-after") or 0)

    def speak(handler: ApiHandler, body: dict[str, Any]) -> None:
        if die_after and not starts and len(plugin.requests) > die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        fake.speak(handler, body)

    server = FakeApiServer(int(after("--port") or 0))
    server.models = [arguments[1]]
    plugin = TokenServer(server, speak)
    threading.Event().wait()
