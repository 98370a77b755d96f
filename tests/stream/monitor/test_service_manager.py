"""Notifications to systemd, at a real datagram socket in its place."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from arr_coc.types import NS_PER_S
from stream.config import Config
from stream.events import Outage
from stream.monitor.health import RunMonitor
from stream.monitor.service_manager import ServiceManager, ServiceState
from stream.runtime.session import run_session, service_state
from tests.support.clock import FakeClock
from tests.support.events import answer, frame
from tests.support.network import LIMIT_S
from tests.support.runs import EndlessRun


class Systemd:
    """The end of the socket that systemd has."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self._socket.settimeout(LIMIT_S)

    def next(self) -> list[str]:
        return self._socket.recv(4096).decode().split("\n")

    def until(self, word: str) -> list[str]:
        """All words up to this one."""
        words: list[str] = []
        while word not in words:
            words += self.next()
        return words

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{tmp_path}/notify" if request.param == "path" else f"@arr-coc-{os.getpid()}-{tmp_path.name}"


@pytest.fixture
def systemd(address: str) -> Iterator[Systemd]:
    with closing(Systemd(address)) as server:
        yield server


def test_ready_is_sent_once_and_the_watchdog_is_fed_while_alive(systemd: Systemd, address: str) -> None:
    states = [ServiceState("loading", False, True), ServiceState("ok", True, True), ServiceState("ok", True, True)]
    stuck = ServiceState("stalled: no\nframe", True, False)
    manager = ServiceManager(address, 0.02, lambda: states.pop(0) if states else stuck)
    words = systemd.until("STATUS=stalled: no frame")
    assert words == [
        *("STATUS=loading", "WATCHDOG=1"),
        *("READY=1", "STATUS=ok", "WATCHDOG=1"),
        "WATCHDOG=1",
        "STATUS=stalled: no frame",
    ]
    manager.close()
    manager.close()
    assert systemd.next() == ["STOPPING=1"]


def test_without_a_watchdog_only_changes_are_sent(systemd: Systemd, address: str) -> None:
    with closing(ServiceManager(address, None, lambda: ServiceState("ok", True, True))):
        assert systemd.next() == ["READY=1", "STATUS=ok"]
    assert systemd.next() == ["STOPPING=1"]


def test_nothing_is_sent_without_a_socket(systemd: Systemd, address: str) -> None:
    def state() -> ServiceState:
        return ServiceState("ok", True, True)

    assert ServiceManager.of_environment(state, {}) is None
    of_another = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}
    manager = ServiceManager.of_environment(state, of_another)
    assert manager is not None
    assert systemd.next() == ["READY=1", "STATUS=ok"]
    manager.close()
    environment = {**of_another, "WATCHDOG_PID": str(os.getpid())}
    assert systemd.next() == ["STOPPING=1"]
    manager = ServiceManager.of_environment(state, environment)
    assert manager is not None
    assert systemd.next() == ["READY=1", "STATUS=ok", "WATCHDOG=1"]
    manager.close()


def test_systemd_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    ServiceManager(f"{tmp_path}/absent", 0.01, lambda: ServiceState("ok", True, True)).close()


def test_a_state_that_cannot_be_had_feeds_nothing(systemd: Systemd, address: str) -> None:
    states = [ServiceState("ok", True, True)]
    manager = ServiceManager(address, 0.01, states.pop)
    assert systemd.next() == ["READY=1", "STATUS=ok", "WATCHDOG=1"]
    manager.close()
    assert systemd.next() == ["STOPPING=1"]


def test_a_run_is_ready_with_its_first_frame_and_alive_in_an_outage() -> None:
    clock = FakeClock(NS_PER_S)
    monitor = RunMonitor(Config(source="rtsp://x/y", capture={"realtime": True}), clock)  # type: ignore[arg-type]
    assert service_state(monitor) == ServiceState("loading", ready=False, alive=True)
    monitor.add(frame(0, 0.0))
    assert service_state(monitor) == ServiceState("ok", ready=True, alive=True)
    clock.advance(3600 * NS_PER_S)
    assert not service_state(monitor).alive
    monitor.add(Outage(frame_index=0, pts_s=0.0, reason="gone"))
    assert service_state(monitor) == ServiceState("outage: gone", ready=True, alive=True)


class Silent:
    """A display that shows nothing."""

    def attach(self, run: object, frames: object) -> None:
        pass

    def write(self, event: object) -> None:
        pass

    def show_message(self, message: str) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_session_notifies_systemd(systemd: Systemd, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    run = EndlessRun([frame(0, 0.0), answer(0.0, "a cat")])
    words: list[str] = []

    def follow() -> None:
        words.extend(systemd.until("READY=1"))
        run.end()

    following = threading.Thread(target=follow)
    following.start()
    run_session(Config(source="scene:demo"), Silent(), make_run=lambda config: run)  # type: ignore[arg-type, return-value]
    following.join(LIMIT_S)
    assert "STATUS=ok" in words
    assert systemd.until("STOPPING=1")[-1] == "STOPPING=1"
