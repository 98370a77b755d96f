"""Time until the cameras of a lost answer server have text again, from another one.

    python -m benchmarks.failover [--rounds 4] [--out FILE]

Four cameras in one command (`watch a=… b=… c=… d=… --server x,y`) ask two answer servers with the bundled model and one
thread each for an answer every second; each plays a clip at its own pace. Three things are done in turn, repeatedly:

`killed`: one server gets SIGKILL. Counted from there, for each of its cameras.
`both_killed`: both do, and one is started again. Counted from the moment at which that has its model.
`stopped`: one gets SIGSTOP, and keeps its connections. Counted from there, for each of its cameras. Then it goes on
(SIGCONT), and `taken_back_s` is when the first camera has text of it again.

To the first piece of text after the loss was noticed. Targets: 2 s; 5 s if a server was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.support.answer_servers import AnswerServerProcess, free_port, make_clip
from benchmarks.support.harness import write_report
from benchmarks.support.watched_fleet import WatchedFleet
from stream.answer.connection import ANSWER_SERVER
from stream.config import AnswerConfig, CaptureConfig, Config
from stream.events import ANSWERS_LOST, AnswerDeltaEvent, Event, Notice
from stream.extensions.fleet.cameras import NamedCamera
from stream.extensions.fleet.run import Fleet
from stream.monitor.machine import machine

RESULTS = Path(__file__).parent / "results" / "failover.json"
CAMERAS = "abcd"
TARGETS_S = {"killed": 2.0, "both_killed": 2.0, "stopped": 5.0}
CLIP_S = 1800.0
WAIT_MAX_S = 120.0
TICK_S = 0.005


class Texts(WatchedFleet):
    """Record of each camera's server, the last time it lost or changed it, and its first text after that."""

    def __init__(self) -> None:
        super().__init__()
        self.server = dict.fromkeys(CAMERAS, "")
        self.changed_s = dict.fromkeys(CAMERAS, 0.0)
        self.text_s = dict.fromkeys(CAMERAS, 0.0)

    def note(self, name: str, event: Event) -> None:
        if isinstance(event, Notice) and event.code in (ANSWERS_LOST, ANSWER_SERVER):
            if event.message.startswith("answers come from "):
                self.server[name] = event.message.split()[3]
            self.changed_s[name], self.text_s[name] = time.monotonic(), 0.0
        elif isinstance(event, AnswerDeltaEvent) and not self.text_s[name]:
            self.text_s[name] = time.monotonic()

    def has_text(self, name: str, after_s: float, server: str) -> bool:
        """Return whether a camera has lost or changed its server since then, and has had text of this one."""
        return self.changed_s[name] > after_s and self.server[name] == server and bool(self.text_s[name])


class Losses:
    """Loses servers, and measures what follows."""

    def __init__(self, texts: Texts, servers: Sequence[AnswerServerProcess]) -> None:
        self._texts = texts
        self._servers = servers
        self.times_s: dict[str, list[float]] = {kind: [] for kind in TARGETS_S}
        self.taken_back_s: list[float] = []

    def all_spread(self) -> None:
        """Wait until both servers run and have cameras that have text."""
        self._wait(lambda: all(server.serves for server in self._servers))
        addresses = {server.address for server in self._servers}
        texts = self._texts
        self._wait(lambda: set(texts.server.values()) == addresses and all(texts.text_s.values()))

    def kill_one(self, number: int) -> None:
        victim, other = self._pair(number)
        cameras = self._cameras_of(victim)
        at_s = self._send(victim, signal.SIGKILL)
        self._measure("killed", cameras, at_s, at_s, other.address)
        victim.process.wait()
        victim.start()

    def kill_both(self, number: int) -> None:
        victim, other = self._pair(number)
        at_s = self._send(victim, signal.SIGKILL)
        self._send(other, signal.SIGKILL)
        for server in (victim, other):
            server.process.wait()
        other.start()
        self._wait(lambda: other.serves)
        self._measure("both_killed", list(CAMERAS), at_s, time.monotonic(), other.address)
        victim.start()

    def stop_one(self, number: int) -> None:
        victim, other = self._pair(number)
        cameras = self._cameras_of(victim)
        at_s = self._send(victim, signal.SIGSTOP)
        self._measure("stopped", cameras, at_s, at_s, other.address)
        on_s = self._send(victim, signal.SIGCONT)
        self._wait(lambda: any(self._texts.has_text(name, on_s, victim.address) for name in CAMERAS))
        self.taken_back_s.append(round(time.monotonic() - on_s, 2))

    def _pair(self, number: int) -> tuple[AnswerServerProcess, AnswerServerProcess]:
        victim = self._servers[number % 2]
        return victim, self._servers[1 - number % 2]

    def _cameras_of(self, server: AnswerServerProcess) -> list[str]:
        return [name for name, address in self._texts.server.items() if address == server.address]

    def _send(self, server: AnswerServerProcess, signum: signal.Signals) -> float:
        at_s = time.monotonic()
        server.process.send_signal(signum)
        return at_s

    def _measure(self, kind: str, cameras: Sequence[str], lost_s: float, begin_s: float, server: str) -> None:
        self._wait(lambda: all(self._texts.has_text(name, lost_s, server) for name in cameras))
        times_s = [round(self._texts.text_s[name] - begin_s, 3) for name in cameras]
        self.times_s[kind] += times_s
        print(kind, times_s, flush=True)

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Raise TimeoutError if it does not come."""
        until_s = time.monotonic() + WAIT_MAX_S
        while not condition():
            if self._texts.failures or time.monotonic() > until_s:
                state = {server.address: (server.serves, server.output()) for server in self._servers}
                raise TimeoutError(f"it does not come: {self._texts.failures}, {self._texts.server}, {state}")
            time.sleep(TICK_S)


def measure(folder: Path, rounds: int) -> Losses:
    """Watch, lose servers, and return what was found."""
    clip = folder / "clip.mp4"
    make_clip(clip, CLIP_S)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    servers = [AnswerServerProcess(free_port(), environment, folder / f"server{number}.log") for number in range(2)]
    answer = AnswerConfig(server=",".join(server.address for server in servers), every_s=1.0)
    cameras = [
        NamedCamera(name, Config(source=str(clip), answer=answer, capture=CaptureConfig(realtime=True, start_s=number)))
        for number, name in enumerate(CAMERAS)
    ]
    texts = Texts()
    losses, failed = Losses(texts, servers), []

    def lose() -> None:
        try:
            for number in range(rounds):
                for act in (losses.kill_one, losses.kill_both, losses.stop_one):
                    losses.all_spread()
                    act(number)
        except TimeoutError as error:
            failed.append(error)
        finally:
            for run in texts.runs.values():
                run.end()

    director = threading.Thread(target=lose, daemon=True)
    director.start()
    try:
        Fleet(cameras, texts).run()
    finally:
        for server in servers:
            server.process.kill()
            server.process.wait()
    if failed:
        raise SystemExit(str(failed[0]))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    load = machine()["load_1min"]
    with tempfile.TemporaryDirectory(prefix="failover-") as folder:
        losses = measure(Path(folder), options.rounds)
    report: dict[str, Any] = {
        kind: {
            "target_s": TARGETS_S[kind],
            "worst_s": max(times_s),
            "median_s": sorted(times_s)[len(times_s) // 2],
            "first_text_s": times_s,
        }
        for kind, times_s in losses.times_s.items()
    }
    report["stopped"]["taken_back_s"] = losses.taken_back_s
    print(json.dumps(report, indent=2))
    write_report(options.out, {"benchmark": "failover", "load_1min_before": load, **report, "machine": machine()})


if __name__ == "__main__":
    main()
