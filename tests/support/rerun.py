"""Rerun recordings read back, and a real server in a viewer's place. Skips if the extra `rerun` is not installed."""

from __future__ import annotations

import signal
import socket
import subprocess
import warnings
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.network import LIMIT_S, free_port, until

pytest.importorskip("rerun_cli", reason="no rerun-sdk, 700 MB: pip install 'arr-coc-stream[rerun]'")

from stream.extensions.rerun.library import rr

RrdReader = rr.chunk.RrdReader

_SPEC = find_spec("rerun_cli")
assert _SPEC is not None
assert _SPEC.origin is not None
PROGRAM = Path(_SPEC.origin).with_name("rerun")

Row = dict[str, Any]


def rows_of(path: Path) -> dict[str, list[Row]]:
    """The rows of each entity in a recording, in the order of their frames: components by name, `media` in seconds."""
    entities: dict[str, list[Row]] = defaultdict(list)
    with warnings.catch_warnings(action="ignore"):  # a file that is not complete has no index
        chunks = list(RrdReader(str(path)).stream())
    for chunk in chunks:
        batch = chunk.to_record_batch()
        for number in range(batch.num_rows):
            row: Row = {}
            for name in batch.schema.names:
                cell = batch.column(name)[number]
                if name == "media":
                    row[name] = cell.value / 1e9
                elif name not in ("log_time", "rerun.controls.RowId"):
                    row[name.partition(":")[2] or name] = cell.as_py()
            entities[chunk.entity_path].append(row)
    return {entity: sorted(rows, key=lambda row: row.get("frame", -1)) for entity, rows in entities.items()}


def is_valid_rrd(path: Path) -> bool:
    """Whether `rerun rrd verify` finds nothing wrong with a file."""
    process = subprocess.run([PROGRAM, "rrd", "verify", path], capture_output=True, timeout=LIMIT_S)
    return process.returncode == 0


class RerunServer:
    """A server as in every viewer, without a window; it can be killed and started again, and forgets all then."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = self._program("--bind", "127.0.0.1", "--port", str(self.port), "--serve-grpc")
        until(self._listens)

    def kill(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(LIMIT_S)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait_for(self, folder: Path, entity: str, text: str) -> dict[str, list[Row]]:
        """The rows of a server, once a row of an entity contains this text."""
        path = folder / "received.rrd"
        url = f"rerun+http://127.0.0.1:{self.port}/proxy"
        fetching = self._program("--connect", url, "--save", str(path))
        try:
            until(lambda: path.exists() and text in str(_readable(path).get(entity)))
        finally:
            fetching.kill()
            fetching.wait(LIMIT_S)
        return _readable(path)

    def _program(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "rerun ended at once"
        try:
            socket.create_connection(("127.0.0.1", self.port), LIMIT_S).close()
        except ConnectionRefusedError:
            return False
        return True


def _readable(path: Path) -> dict[str, list[Row]]:
    """The rows of a file that still grows; none if its beginning is not written yet."""
    try:
        return rows_of(path)
    except (RuntimeError, ValueError, OSError):
        return {}
