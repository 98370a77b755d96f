"""Warnings of a child in the log of its parent: from any thread, and never in the way of what the child does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stream.runtime.worker_log import ChildLog, ParentLog
from stream.transport import Transport
from tests.support.network import until

BURST = 5000
"""More warnings than a socket keeps for a parent that reads nothing, and than a process may have sockets."""


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/reports"


@pytest.fixture
def child(endpoint: str) -> Iterator[logging.Logger]:
    logger = logging.Logger("child")
    with closing(Transport()) as transport, closing(ParentLog(transport, endpoint)) as handler:
        logger.addHandler(handler)
        yield logger


def test_warnings_of_every_thread_reach_the_log_of_the_parent(
    endpoint: str, child: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    threads = [threading.Thread(target=child.warning, args=("thread %d", number)) for number in range(8)]
    with closing(ChildLog(endpoint)) as parent:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        def all_are_there() -> bool:
            parent.write()
            return len(caplog.messages) == len(threads)

        until(all_are_there)
    assert sorted(caplog.messages) == [f"thread {number}" for number in range(8)]
    assert {record.name for record in caplog.records} == {"child"}


def test_a_parent_that_does_not_read_stops_no_child(endpoint: str, child: logging.Logger) -> None:
    with closing(ChildLog(endpoint)):
        for number in range(BURST):
            child.warning("number %d", number)


def test_a_warning_that_cannot_be_written_stops_no_child(
    endpoint: str, child: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(ChildLog(endpoint)):
        child.warning("%d", "a word")
    assert "Logging error" in capsys.readouterr().err
