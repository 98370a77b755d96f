"""The frame process while its source is still being opened: it follows its parent all the same."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stream.config import Config
from stream.control import Stop
from stream.runtime.child import ChildProcess
from stream.runtime.frame_process import run_in_child
from stream.runtime.worker_messages import FrameWorkerConfig
from stream.transport import SocketDirectory
from tests.support.children import SHARED
from tests.support.hls import make_variants
from tests.support.network import LIMIT_S, until
from tests.support.senders import Server


def request_end(child: ChildProcess) -> None:
    child.send_line(msgspec.json.encode(Stop()))
    until(lambda: child.exit_error() is not None)


@pytest.mark.parametrize(("end", "status", "forks"), [(ChildProcess.stop, 1, SHARED), (request_end, 0, None)])
def test_it_ends_at_once_although_its_source_does_not_open(
    end: Callable[[ChildProcess], None], status: int, forks: Any, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LIMIT_S)
        child = ChildProcess("frame", "stream.runtime.frame_worker", environment={"OMP_NUM_THREADS": "1"}, forks=forks)
        try:
            config = Config(source=f"zmq+tcp://127.0.0.1:{silent.getsockname()[1]}")
            orders = FrameWorkerConfig(
                reports_to=f"ipc://{tmp_path}/reports",
                answers=None,
                snapshot=None,
                heartbeat=child.heartbeat_writer,
                directory=SocketDirectory(str(tmp_path / "sockets"), "", 0, 0),
                model_loader="tests.support.answer_models:FakeAnswerModel",
                config=config.model_dump_json(),
            )
            child.send_line(msgspec.json.encode(orders))
            connection, _ = silent.accept()
            with connection:
                end(child)
                assert child._process.returncode == status
        finally:
            child.stop()


def test_warnings_of_its_log_reach_the_run(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A source warns in the frame process, whose stderr is not shown."""
    make_variants(tmp_path, {"low": (64, 48), "high": (128, 96)})
    with Server(tmp_path) as web:
        config = Config.model_validate({"source": f"{web.url}/all.m3u8", "capture": {"max_frames": 2}})
        run = run_in_child(config, model_loader="tests.support.answer_models:FakeAnswerModel", forks=SHARED)
        for _ in run.run():
            pass
    assert caplog.records[0].name == "stream.sources.variants"
    assert "has 2 variants; reading 1: 128x96 at 0.1 Mbit/s, not 0: 64x48 at 0.1 Mbit/s" in caplog.messages[0]
