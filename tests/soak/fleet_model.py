"""Simulated cameras that ask answer servers: the cost of a turn, the waits, and the effect of a server's death."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

FAILOVER_S = 2.0
"""Time until a camera whose server died is at another one: the target of the project."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Times of one server's work in ms, by the number of concurrent answers.

    `begin_ms`: encoding and prefilling that many new answers; `step_ms`: one more token for that many answers. Both are
    measured for some numbers, and lie on straight lines between them and beyond. An answer has `tokens`. `message_ms`
    is the overhead of the server in a step for that many: receiving messages, sending tokens, accounting.
    """

    begin_ms: Mapping[int, float]
    step_ms: Mapping[int, float]
    tokens: int
    slots: int
    message_ms: Mapping[int, float] = field(default_factory=dict)

    def begin_s(self, count: int) -> float:
        """Seconds until `count` new answers have their first token."""
        return (_between(self.begin_ms, count) + self._messages_ms(count)) / 1e3

    def step_s(self, count: int) -> float:
        """Seconds of one step for `count` answers."""
        return (_between(self.step_ms, count) + self._messages_ms(count)) / 1e3

    def _messages_ms(self, count: int) -> float:
        return max(0.0, _between(self.message_ms, count)) if self.message_ms else 0.0


def _between(points: Mapping[int, float], count: int) -> float:
    counts = sorted(points)
    if count > counts[-1] and len(counts) > 1:  # on along the last line
        (a, b) = counts[-2:]
        return points[b] + (count - b) * (points[b] - points[a]) / (b - a)
    return float(np.interp(count, counts, [points[number] for number in counts]))


@dataclass(slots=True)
class Turn:
    """One answer: when it was asked for, begun, and heard of first and last, in seconds; None if it never was."""

    camera: int
    asked_s: float
    begun_s: float | None = None
    first_s: float | None = None
    done_s: float | None = None
    left: int = 0


@dataclass(frozen=True, slots=True)
class Outage:
    """A server that is dead for a time, in seconds from the start."""

    server: int
    begins_s: float
    ends_s: float


@dataclass(slots=True)
class Served:
    """Outcome of a simulation; the first `warm_s` seconds are not counted."""

    seconds: float
    warm_s: float
    every_s: float
    turns: list[list[Turn]]
    busy_s: list[float]
    lost_turns: int = 0

    def figures(self) -> dict[str, float]:
        """Answers a second, waits in seconds, and the least share of a camera in its demand and in the mean."""
        span_s = self.seconds - self.warm_s
        answered_turns = [
            [turn for turn in turns if turn.done_s is not None and turn.done_s >= self.warm_s] for turns in self.turns
        ]
        ended = [turn for turns in answered_turns for turn in turns]
        counts = np.array([len(turns) for turns in answered_turns])
        waits = [turn.begun_s - turn.asked_s for turn in ended if turn.begun_s is not None]
        firsts = [turn.first_s - turn.asked_s for turn in ended if turn.first_s is not None]
        return {
            "answers_hz": len(ended) / span_s,
            "p95_wait_s": float(np.percentile(waits, 95)) if waits else float("inf"),
            "p95_first_s": float(np.percentile(firsts, 95)) if firsts else float("inf"),
            "share_worst": float(counts.min() / (span_s / self.every_s)),
            "fairness": float(counts.min() / counts.mean()) if counts.any() else 0.0,
            "busy_share": float(np.mean(self.busy_s) / self.seconds),
            "lost": self.lost_turns,
        }


@dataclass(slots=True)
class _Server:
    alive: bool = True
    waiting: deque[Turn] = field(default_factory=deque)
    open: list[Turn] = field(default_factory=list)
    wake: Any = None
    busy_s: float = 0.0


class Fleet:
    """Cameras that ask one of several servers every `every_s` seconds, each about its newest frame.

    A camera asks again once its answer has ended, and not before its time has come. Cameras are spread over the
    servers; those of a dead one ask the others after `FAILOVER_S`, and return to it between two answers.
    """

    def __init__(self, costs: Costs, cameras: int, servers: int, every_s: float, *, seed: int = 0) -> None:
        self._costs, self._every_s = costs, every_s
        self._random = np.random.default_rng(seed)
        self._env = simpy.Environment()
        self._servers = [_Server() for _ in range(servers)]
        self._turns: list[list[Turn]] = [[] for _ in range(cameras)]
        self._ends: dict[int, Any] = {}
        self._lost_turns = 0

    def run(self, seconds: float, *, warm_s: float = 0.0, outages: tuple[Outage, ...] = ()) -> Served:
        """Simulate `seconds` seconds."""
        for server in self._servers:
            self._env.process(self._serve(server))
        for camera in range(len(self._turns)):
            self._env.process(self._ask(camera))
        for outage in outages:
            self._env.process(self._kill(outage))
        self._env.run(until=seconds)
        busy_s = [server.busy_s for server in self._servers]
        return Served(seconds, warm_s, self._every_s, self._turns, busy_s, self._lost_turns)

    def _ask(self, camera: int) -> Iterator[Any]:
        yield self._env.timeout(self._random.random() * self._every_s)
        while True:
            turn = Turn(camera, self._env.now, left=self._costs.tokens)
            self._turns[camera].append(turn)
            while turn.done_s is None:
                while (server := self._server_of(camera)) is None:
                    yield self._env.timeout(FAILOVER_S)
                turn.left = self._costs.tokens
                turn.begun_s = turn.first_s = None
                server.waiting.append(turn)
                if server.wake is not None and not server.wake.triggered:
                    server.wake.succeed()
                self._ends[camera] = self._env.event()
                if not (yield self._ends[camera]):  # its server died
                    self._lost_turns += 1
                    yield self._env.timeout(FAILOVER_S)
            yield self._env.timeout(max(0.0, turn.asked_s + self._every_s - self._env.now))

    def _server_of(self, camera: int) -> _Server | None:
        count = len(self._servers)
        order = (self._servers[(camera + step) % count] for step in range(count))
        return next((server for server in order if server.alive), None)

    def _serve(self, server: _Server) -> Iterator[Any]:
        while True:
            if not (server.alive and (server.waiting or server.open)):
                server.wake = self._env.event()
                yield server.wake
                continue
            began_s = self._env.now
            room = self._costs.slots - len(server.open)
            new = [server.waiting.popleft() for _ in range(min(room, len(server.waiting)))]
            if new:
                for turn in new:
                    turn.begun_s = began_s
                server.open += new
                yield self._env.timeout(self._costs.begin_s(len(new)))
                self._heard(server, new)
            if server.open and server.alive:
                yield self._env.timeout(self._costs.step_s(len(server.open)))
                self._heard(server, server.open)
            server.busy_s += self._env.now - began_s

    def _heard(self, server: _Server, turns: list[Turn]) -> None:
        """One more token of each."""
        for turn in list(turns):
            if turn not in server.open:  # its server died meanwhile
                continue
            turn.left -= 1
            if turn.first_s is None:
                turn.first_s = self._env.now
            if turn.left <= 0:
                turn.done_s = self._env.now
                server.open.remove(turn)
                self._ends[turn.camera].succeed(True)

    def _kill(self, outage: Outage) -> Iterator[Any]:
        server = self._servers[outage.server]
        yield self._env.timeout(outage.begins_s)
        server.alive = False
        turns = [*server.waiting, *server.open]
        server.waiting.clear()
        server.open.clear()
        for turn in turns:
            self._ends[turn.camera].succeed(False)
        yield self._env.timeout(outage.ends_s - outage.begins_s)
        server.alive = True
        if server.wake is not None and not server.wake.triggered:
            server.wake.succeed()
