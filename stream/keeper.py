"""Keeps one child process alive: notices its death or silence, starts it again, and gives up a crash loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from arr_coc.types import NS_PER_S
from stream.child import Child
from stream.clock import Clock
from stream.errors import StageDied
from stream.events import Restarted

LOOP_WINDOW_NS = 60 * NS_PER_S
"""Deaths within this time make a crash loop."""

LAST_WORDS_NS = NS_PER_S // 2
"""How long a dead child's last message may take to be heard, before the death itself is reported."""


@dataclass(frozen=True, slots=True)
class RestartRules:
    """`limit` deaths within a minute are a crash loop; a child that is silent for `heartbeat_s` hangs."""

    restart: bool = False
    limit: int = 5
    heartbeat_s: float = 5.0


class Keeper:
    """One process under watch. `start` makes it, also after each death; `process` is its name for people."""

    def __init__(self, process: str, start: Callable[[], Child], rules: RestartRules, clock: Clock) -> None:
        self._process = process
        self._start = start
        self._rules = rules
        self._clock = clock
        self._deaths_ns: deque[int] = deque(maxlen=rules.limit)
        self._death_seen_ns: int | None = None
        self._count = 0
        self.child = start()

    def watch(self) -> Restarted | None:
        """To be called often: what has happened to the process, where it has been started again.

        Raises StageDied where it died and may not be started again, or dies again and again.
        """
        self.mind_silence()
        now_ns, death = self._clock.now_ns(), self.child.death()
        if death is None:
            return None
        if self._death_seen_ns is None:
            self._death_seen_ns = now_ns
        may_have_spoken = not (self._rules.restart and self.child.killed)
        if may_have_spoken and now_ns - self._death_seen_ns < LAST_WORDS_NS:
            return None
        if not self._rules.restart:
            raise death
        self._death_seen_ns = None
        self._count += 1
        self._deaths_ns.append(now_ns)
        if len(self._deaths_ns) == self._rules.limit and now_ns - self._deaths_ns[0] < LOOP_WINDOW_NS:
            times = "once" if self._rules.limit == 1 else f"{self._rules.limit} times"
            raise StageDied(
                death.stage,
                f"it died {times} within a minute, the last time because {death.cause}; --debug "
                "shows what it printed, and pipeline.restart_limit allows more",
            )
        self.child.stop()
        self.child = self._start()
        return Restarted(process=self._process, cause=death.cause, count=self._count)

    def mind_silence(self) -> None:
        """Kills the process where it hangs."""
        silence_s = self.child.silence_s()
        if silence_s > self._rules.heartbeat_s:
            self.child.kill(hung_s=silence_s)

    def forgive(self) -> None:
        """What the process dies of now is not its fault, and no part of a crash loop: a camera that is away."""
        self._deaths_ns.clear()

    def stop(self) -> None:
        self.child.stop()
