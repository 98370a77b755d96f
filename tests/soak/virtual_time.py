"""Virtual time: threads that run one at a time, each until it waits, in the order of the moments they wait for.

Blocking code runs in it unchanged; only its waits have to be made of `VirtualTime.wait`. Two runs with the
same random numbers are equal.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable

RUN_LIMIT_S = 120.0
"""A thread that runs for this long without waiting hangs."""


class Killed(BaseException):
    """Raised in a waiting thread of a process that is killed. No program can catch it as an error."""


class VirtualProcess:
    """Process of virtual threads: it can be killed, and stopped and continued. All calls are for other processes, or
    for the one who advances time."""

    def __init__(self, time: VirtualTime, name: str) -> None:
        self.name = name
        self.dead = False
        self.stopped_ns: int | None = None
        self._time = time
        self._threads: list[_VirtualThread] = []
        self._waiting: list[tuple[_VirtualThread, int]] = []

    def start(self, run: Callable[[], None]) -> None:
        """Run something in a separate thread, from now on. The process is dead once the first of them returns."""
        self._threads.append(_VirtualThread(self, run, first=not self._threads))
        self._time.wake(self._threads[-1], 0)

    def kill(self) -> None:
        """End all of its threads at their waits."""
        self.dead, self.stopped_ns = True, None
        self._waiting.clear()
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.end()

    def stop(self) -> None:
        """Stop its threads."""
        if not self.dead and self.stopped_ns is None:
            self.stopped_ns = self._time.now_ns()

    def go_on(self) -> None:
        """Resume its stopped threads."""
        self.stopped_ns = None
        waiting, self._waiting = self._waiting, []
        for thread, number in waiting:
            self._time.wake(thread, number)

    def hold(self, thread: _VirtualThread, number: int) -> bool:
        """Return whether it is stopped; then the thread goes on with it."""
        if self.stopped_ns is not None:
            self._waiting.append((thread, number))
        return self.stopped_ns is not None


class _VirtualThread:
    """Thread that runs between two waits. `waits` counts them, so that it is not woken for one that is over."""

    def __init__(self, process: VirtualProcess, run: Callable[[], None], *, first: bool) -> None:
        self.process = process
        self.waits = 0
        self.error: BaseException | None = None
        self._run = run
        self._first = first
        self._go, self._turn_end = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = self._ended = False
        self._thread = threading.Thread(target=self._main, name=process.name, daemon=True)
        self._thread.start()

    def turn(self) -> None:
        """Run it until it waits or has ended. Raises its error."""
        if self._ended:
            return
        self._go.release()
        if not self._turn_end.acquire(timeout=RUN_LIMIT_S):
            raise TimeoutError(f"{self.process.name} does not wait")
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Raise Killed in it, and wait for its end."""
        self._killed = True
        while not self._ended:
            self.turn()
        self._thread.join()

    def pause(self) -> None:
        """Wait for the next turn; in the thread itself."""
        self._turn_end.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def _main(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self._run()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self._ended = True
        if self._first:
            self.process.dead = True
        self._turn_end.release()


class VirtualTime:
    """Clock of virtual nanoseconds, and the threads that wait for it."""

    def __init__(self, start_ns: int = 10**12) -> None:
        self._now_ns = start_ns
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._current: _VirtualThread | None = None

    def now_ns(self) -> int:
        return self._now_ns

    def at(self, when_ns: int, act: Callable[[], None]) -> None:
        """Do something then, outside of all threads."""
        heapq.heappush(self._due, (max(when_ns, self._now_ns), next(self._number), act))

    def wait(self, limit_ns: int) -> None:
        """Wait, at most `limit_ns`; in a virtual thread. `waker` ends it early."""
        thread, number = self._waiting()
        self.at(self._now_ns + limit_ns, lambda: self.wake(thread, number))
        thread.pause()
        thread.waits += 1

    def waker(self) -> Callable[[], None]:
        """Return the function by which another thread ends the next wait of this one early."""
        thread, number = self._waiting()
        return lambda: self.wake(thread, number)

    def wake(self, thread: _VirtualThread, number: int) -> None:
        """Let a thread go on now, unless it has done so already; later with its process, if that is stopped."""

        def turn() -> None:
            if thread.waits == number and not thread.process.dead and not thread.process.hold(thread, number):
                self._current = thread
                try:
                    thread.turn()
                finally:
                    self._current = None
                if thread.process.dead:
                    thread.process.kill()

        self.at(self._now_ns, turn)

    def advance(self, span_ns: int) -> None:
        """Let `span_ns` pass."""
        end_ns = self._now_ns + span_ns
        while self._due and self._due[0][0] <= end_ns:
            self._now_ns, _, act = heapq.heappop(self._due)
            act()
        self._now_ns = end_ns

    def _waiting(self) -> tuple[_VirtualThread, int]:
        if self._current is None:
            raise Killed  # a thread that is being killed tidies up, and waits for nothing
        return self._current, self._current.waits
