"""Notifications to systemd by a program that it started: ready, alive, ending (the protocol of sd_notify(3))."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SOCKET = "NOTIFY_SOCKET"
"""Environment variable of the socket that systemd listens at; absent if it expects no notifications."""

WATCHDOG_US = "WATCHDOG_USEC"
WATCHDOG_PID = "WATCHDOG_PID"

POLL_S = 1.0

JOIN_LIMIT_S = 2.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceState:
    """State of a program: `status` for people. `ready` once it does its work, `alive` unless it should be restarted."""

    status: str
    ready: bool
    alive: bool


class ServiceManager:
    """Sends systemd the state that `state` returns, from a separate thread, until it is closed.

    The watchdog is fed while the program is alive, at half of its time. `state` is called in the thread and raises
    nothing; while it hangs, nothing is fed.
    """

    def __init__(self, address: str, watchdog_s: float | None, state: Callable[[], ServiceState]) -> None:
        if address.startswith("@"):
            self._address = f"\0{address[1:]}"
        else:
            self._address = address
        self._feeds = watchdog_s is not None
        if watchdog_s:
            self._every_s = min(POLL_S, watchdog_s / 2)
        else:
            self._every_s = POLL_S
        self._state = state
        self._last_state: ServiceState | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="systemd", daemon=True)
        self._thread.start()

    @classmethod
    def of_environment(
        cls, state: Callable[[], ServiceState], environment: Mapping[str, str] = os.environ
    ) -> ServiceManager | None:
        """Return the notifier that systemd asks for; None if it asks for none, or asks another process."""
        address = environment.get(SOCKET)
        if not address:
            return None
        microseconds = environment.get(WATCHDOG_US, "")
        watchdog_pid = environment.get(WATCHDOG_PID)
        fed = microseconds.isdigit() and int(microseconds) > 0 and watchdog_pid in (None, str(os.getpid()))
        return cls(address, int(microseconds) / 1e6 if fed else None, state)

    def close(self) -> None:
        """Report that the program ends."""
        if not self._ending.is_set():
            self._ending.set()
            self._thread.join(JOIN_LIMIT_S)
            self._send("STOPPING=1")

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                state = self._state()
                words = []
                if state.ready and not (self._last_state is not None and self._last_state.ready):
                    words.append("READY=1")
                if self._last_state is None or state.status != self._last_state.status:
                    words.append(f"STATUS={' '.join(state.status.split())}")
                if self._feeds and state.alive:
                    words.append("WATCHDOG=1")
                if words:
                    self._send("\n".join(words))
                self._last_state = ServiceState(
                    state.status, state.ready or (self._last_state is not None and self._last_state.ready), True
                )
            except Exception:
                log.warning("the state could not be sent to systemd", exc_info=True)
            self._ending.wait(self._every_s)

    def _send(self, words: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(JOIN_LIMIT_S)
                sender.sendto(words.encode(), self._address)
        except OSError as error:
            log.debug("systemd did not get %r: %s", words, error)
