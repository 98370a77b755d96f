"""The frame process while its source is still being opened: it hears its parent all the same."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from stream.config import Config
from stream.runtime.child import Child
from stream.runtime.worker_messages import FrameWorkerConfig, Told
from stream.transport import SocketDirectory
from tests.waiting import LIMIT_S, until


def tell_to_end(child: Child) -> None:
    child.tell(msgspec.json.encode(Told(end=True)))
    until(lambda: child.death() is not None)


@pytest.mark.parametrize(("how", "status"), [(Child.stop, 1), (tell_to_end, 0)])
def test_it_ends_at_once_although_its_source_does_not_open(
    how: Callable[[Child], None], status: int, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LIMIT_S)
        child = Child("frame", "stream.runtime.frame_worker", environment={"OMP_NUM_THREADS": "1"})
        try:
            config = Config(source=f"zmq+tcp://127.0.0.1:{silent.getsockname()[1]}")
            orders = FrameWorkerConfig(
                reports=f"ipc://{tmp_path}/reports",
                answers="",
                snapshot=-1,
                pulse=child.pulse_writer,
                directory=SocketDirectory(str(tmp_path / "sockets"), "", 0, 0),
                speaker="tests.fake_speaker:FakeSpeaker",
                config=config.model_dump_json(),
            )
            child.tell(msgspec.json.encode(orders))
            connection, _ = silent.accept()
            with connection:
                how(child)
                assert child._process.returncode == status
        finally:
            child.stop()
