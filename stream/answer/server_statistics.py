"""Statistics of an answer server: its clients, their waits for a turn, its working time, its answers.

The server's thread writes them, any thread reads them.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from arr_coc.types import NS_PER_S
from stream.clock import Clock, MonotonicClock

LOADING = "loading"
SERVING = "ok"
"""States of a server: its model is being loaded; it serves."""

RECENT_NS = 60 * NS_PER_S
"""Window of the p95 wait, the busy share and the token rate."""

STEP_NS = 1 * NS_PER_S
"""Interval between the totals kept, from which recent rates are computed."""

WAITS_KEPT = 4096
"""Number of waits kept: those of the last minute at 68 turns a second."""


@dataclass(slots=True)
class ServerTotals:
    """Counts since the start. `answers`: complete answers; `checks`: evaluations of watches; `failed`: turns
    without a result; tokens are those of answers; `evictions`: groups of pictures dropped because another client got
    their slot; `busy_ns`: time in which at least one turn was served; `idle_ns`: time of idle work, in which
    `idle_tokens` were read ahead, and `rebuilt` groups written anew."""

    answers: int = 0
    checks: int = 0
    glances: int = 0
    failed: int = 0
    text_tokens: int = 0
    visual_tokens: int = 0
    evictions: int = 0
    busy_ns: int = 0
    idle_ns: int = 0
    idle_tokens: int = 0
    rebuilt: int = 0


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """Figures of a server at one moment.

    `serving`: turns that are being served, of `slots` at once; `waiting`: clients that wait for a turn. `wait_p95_s`:
    of the turns of the last minute and of the waits that still go on; 0 without any. `busy_share` and
    `text_tokens_per_s`: of the last minute. `silent_s`: time since the server's thread last looked for messages.
    `groups`: groups of pictures kept, with `group_tokens` visual tokens in all. `idle_share`: idle work's share of the
    last minute.
    """

    clients: int
    slots: int
    serving: int
    waiting: int
    wait_p95_s: float
    busy_share: float
    text_tokens_per_s: float
    silent_s: float
    uptime_s: float
    totals: ServerTotals
    groups: int = 0
    group_tokens: int = 0
    idle_share: float = 0.0


class ServerStatistics:
    """Statistics of one answer server, which serves at most `slots` turns at once; `state` is LOADING or SERVING.

    `on_wait` is called with the seconds of each wait that ended with a turn, `on_turn` with those of each turn.
    """

    def __init__(self, clock: Clock | None = None, slots: int = 1) -> None:
        self._clock = clock or MonotonicClock()
        self._lock = threading.Lock()
        self.slots = slots
        self._clients = self._serving = self._groups = self._group_tokens = 0
        self._waiting: dict[bytes, int] = {}
        self._recent_waits: deque[tuple[int, int]] = deque(maxlen=WAITS_KEPT)
        self.on_wait: Callable[[float], None] = lambda seconds: None
        self.on_turn: Callable[[float], None] = lambda seconds: None
        self._totals = ServerTotals()
        self._start_ns = self._seen_ns = self._counted_ns = self._clock.now_ns()
        self._history: deque[tuple[int, ServerTotals]] = deque([(self._start_ns, ServerTotals())])
        self.state = LOADING

    def begin_serving(self) -> None:
        """Note that the model has been loaded."""
        with self._lock:
            self.state = SERVING
            self._seen_ns = self._count_time()

    def note_poll(self) -> None:
        """Note that the server looks for messages."""
        with self._lock:
            self._seen_ns = self._count_time()

    def clients_are(self, count: int) -> None:
        """Note how many clients are connected."""
        self._clients = count

    def turn_requested(self, client: bytes) -> None:
        """Note that a client waits for a turn from now on, unless it waits already."""
        with self._lock:
            self._waiting.setdefault(client, self._clock.now_ns())

    def turn_withdrawn(self, client: bytes) -> None:
        """Note that a client no longer waits, and gets no turn; it need not have waited."""
        with self._lock:
            self._waiting.pop(client, None)

    def turn_granted(self, client: bytes) -> None:
        """Note that the wait of a client has ended with a turn."""
        with self._lock:
            since_ns = self._waiting.pop(client, None)
            if since_ns is not None:
                now_ns = self._clock.now_ns()
                self._recent_waits.append((now_ns, now_ns - since_ns))
                self.on_wait((now_ns - since_ns) / NS_PER_S)

    def turn_began(self) -> int:
        """Count the time until `turn_ended` as work: a turn is served. Returns the current time."""
        with self._lock:
            now_ns = self._count_time()
            self._serving += 1
            return now_ns

    def turn_ended(self, began_ns: int, *, failed: bool = False) -> None:
        """Note that a turn which began at `began_ns` has ended."""
        with self._lock:
            now_ns = self._count_time()
            self._serving -= 1
            self._totals.failed += failed
            self.on_turn((now_ns - began_ns) / NS_PER_S)

    def count_answer(self, text_tokens: int, visual_tokens: int) -> None:
        """Count a complete answer, and its tokens."""
        with self._lock:
            self._totals.answers += 1
            self._totals.text_tokens += text_tokens
            self._totals.visual_tokens += visual_tokens

    def count_checks(self, visual_tokens: int, watches: int) -> None:
        """Count the evaluation of a frame's watches."""
        with self._lock:
            self._totals.checks += watches
            self._totals.visual_tokens += visual_tokens

    def count_glance(self, visual_tokens: int) -> None:
        """Count a glance."""
        with self._lock:
            self._totals.glances += 1
            self._totals.visual_tokens += visual_tokens

    def count_idle_time(self, took_ns: int) -> None:
        """Count the time of a piece of idle work."""
        with self._lock:
            self._totals.idle_ns += took_ns

    def count_idle_reading(self, tokens: int, *, rebuilt: bool) -> None:
        """Count a packet that was read ahead; `rebuilt`: it began a new group."""
        with self._lock:
            self._totals.idle_tokens += tokens
            self._totals.rebuilt += rebuilt

    def memory_is(self, groups: int, tokens: int, evictions: int) -> None:
        """Note the number of groups of pictures kept, of their visual tokens, and of groups evicted so far."""
        with self._lock:
            self._groups, self._group_tokens, self._totals.evictions = groups, tokens, evictions

    def figures(self) -> ServerFigures:
        """Return the current figures."""
        with self._lock:
            now_ns = self._count_time()
            totals, (then_ns, then) = replace(self._totals), self._history[0]
            passed_ns = max(1, now_ns - then_ns)
            return ServerFigures(
                clients=self._clients,
                slots=self.slots,
                serving=self._serving,
                waiting=len(self._waiting),
                wait_p95_s=self._wait_p95_s(now_ns),
                busy_share=min(1.0, (totals.busy_ns - then.busy_ns) / passed_ns),
                text_tokens_per_s=(totals.text_tokens - then.text_tokens) / (passed_ns / NS_PER_S),
                silent_s=(now_ns - self._seen_ns) / NS_PER_S,
                uptime_s=(now_ns - self._start_ns) / NS_PER_S,
                totals=totals,
                groups=self._groups,
                group_tokens=self._group_tokens,
                idle_share=min(1.0, (totals.idle_ns - then.idle_ns) / passed_ns),
            )

    def status(self, silence_limit_s: float, *, draining: bool) -> tuple[str, str | None]:
        """Return LOADING, SERVING, "draining", or "stalled" after a long silence, and the reason of that."""
        silent_s = self.figures().silent_s
        if self.state == SERVING and silent_s > silence_limit_s:
            return "stalled", f"the model has produced nothing for {silent_s:.0f} s"
        return ("draining" if self.state == SERVING and draining else self.state), None

    def _count_time(self) -> int:
        """Update the busy time, keep the totals every STEP_NS, and return the current time."""
        now_ns = self._clock.now_ns()
        if self._serving:
            self._totals.busy_ns += now_ns - self._counted_ns
        self._counted_ns = now_ns
        if now_ns - self._history[-1][0] >= STEP_NS:
            self._history.append((now_ns, replace(self._totals)))
        while len(self._history) > 1 and now_ns - self._history[1][0] >= RECENT_NS:
            self._history.popleft()
        return now_ns

    def _wait_p95_s(self, now_ns: int) -> float:
        """Return the nearest-rank 95th percentile of the recent waits, and of those that go on."""
        ended_ns = [wait_ns for at_ns, wait_ns in self._recent_waits if now_ns - at_ns < RECENT_NS]
        waits_ns = sorted([*ended_ns, *(now_ns - since_ns for since_ns in self._waiting.values())])
        if waits_ns:
            return waits_ns[math.ceil(0.95 * len(waits_ns)) - 1] / NS_PER_S
        return 0.0
