"""The sender: what waits, what a failure costs, and an end that is bounded whatever the target does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from stream.sinks.background import BackgroundSender, Outbox, Unreachable
from tests.support.network import LIMIT_S, until


class TestOutbox:
    def test_the_newest_of_a_key_takes_the_place_of_the_one_before(self) -> None:
        outbox = Outbox[str](lambda item: item[0])
        for item in ("a1", "b1", "a2", "a3"):
            outbox.put(item)
        assert (len(outbox), outbox.dropped) == (2, 2)
        assert outbox.replaces("a1")
        assert not outbox.replaces("c1")
        assert (outbox.take(1), outbox.take(9), outbox.take(9)) == (["b1"], ["a3"], [])

    def test_of_items_without_a_key_the_newest_wait_after_the_others(self) -> None:
        outbox = Outbox[str](lambda item: item[0] if item[0].isupper() else None, 3)
        for number in range(5):
            outbox.put(f"A{number}")
            outbox.put(f"b{number}")
        assert (len(outbox), outbox.dropped) == (4, 4 + 2)
        assert outbox.take(9) == ["A4", "b2", "b3", "b4"]

    def test_items_put_first_replace_no_newer_ones(self) -> None:
        outbox = Outbox[str](lambda item: item[0])
        for item in ("a2", "b2"):
            outbox.put(item)
        outbox.put_first(["c1", "b1"])
        assert outbox.take(9) == ["c1", "b2", "a2"]

    def test_items_put_first_are_the_first_to_be_dropped(self) -> None:
        outbox = Outbox[str](limit=3)
        outbox.put("c")
        outbox.put("d")
        outbox.put_first(["a", "b"])
        assert (outbox.take(9), outbox.dropped) == (["b", "c", "d"], 1)


class Sender(BackgroundSender[str]):
    """Sender that calls `target` with each item, and puts one back that it does not take."""

    def __init__(self, target: Callable[[str], None], *, retry_at_end: bool = False, retry_s: float = 0.0) -> None:
        texts = "no {place}: {reason}", "the {place} is there"
        super().__init__("pigeon", Outbox(limit=3), *texts, (retry_s, 5.0), retry_at_end=retry_at_end, place="loft")
        self.target = target
        self.attempts = 0
        self.start()

    def serve(self) -> None:
        self.attempts += 1
        while items := self.take():
            try:
                self.target(items[0])
            except Exception:
                self.put_first(items)
                raise
            self.reached()


class Loft:
    """Target that raises the next of `errors`, and else takes an item."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.arrivals: queue.Queue[str] = queue.Queue()

    def __call__(self, item: str) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.arrivals.put(item)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_items_arrive_in_order_and_what_waits_is_sent_at_the_end() -> None:
    loft = Loft()
    sender = Sender(loft)
    sender.put("a")
    assert loft.arrivals.get(timeout=LIMIT_S) == "a"
    sender.put("b")
    sender.put("c")
    assert sender.end(LIMIT_S)
    sender.put("late")
    assert list(loft.arrivals.queue) == ["b", "c"]
    assert (sender.attempts, len(sender.outbox)) == (1, 0)


def test_several_items_are_taken_together_or_none_after_a_wait() -> None:
    batches: queue.Queue[list[str]] = queue.Queue()

    class Batches(BackgroundSender[str]):
        def serve(self) -> None:
            batches.put(self.take(2, 0.0))
            while batch := self.take(2, LIMIT_S, LIMIT_S):
                batches.put(batch)

    sender = Batches("batches", Outbox(limit=9), "", "")
    sender.start()
    assert batches.get(timeout=LIMIT_S) == []
    sender.put("a")
    sender.put("b")
    assert batches.get(timeout=LIMIT_S) == ["a", "b"]
    sender.put("c")
    assert sender.end(LIMIT_S)
    assert batches.get() == ["c"]


def test_a_full_outbox_delays_no_one(gate: threading.Event) -> None:
    sender = Sender(lambda _: gate.wait(LIMIT_S) and None)
    sender.put("held")
    until(lambda: not len(sender.outbox))
    for number in range(100):
        sender.put(str(number))
    assert (len(sender.outbox), sender.outbox.dropped) == (3, 97)
    gate.set()
    assert sender.end(LIMIT_S)


def test_a_problem_and_its_end_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    loft = Loft(Unreachable("rain"), Unreachable("snow"), ValueError(), Unreachable())
    sender = Sender(loft)
    sender.put("a")
    assert loft.arrivals.get(timeout=LIMIT_S) == "a"
    loft.errors = [KeyError()]
    sender.put("b")
    assert loft.arrivals.get(timeout=LIMIT_S) == "b"
    assert sender.end(LIMIT_S)
    assert capsys.readouterr().err.splitlines() == [
        "note: no loft: rain",
        "the loft is there",
        "note: no loft: unexpected KeyError",
        "the loft is there",
    ]


def test_waits_grow_until_the_target_takes_items(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(Sender, "wait", lambda _, until, limit_s: waits.append(limit_s))
    loft = Loft(*[Unreachable("rain")] * 6)
    sender = Sender(loft, retry_s=0.5)
    sender.put("a")
    assert loft.arrivals.get(timeout=LIMIT_S) == "a"
    until(lambda: sender.failures == 0)
    loft.errors = [Unreachable("rain")]
    sender.put("b")
    assert loft.arrivals.get(timeout=LIMIT_S) == "b"
    assert sender.end(LIMIT_S)
    assert waits == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 0.5]


def test_a_target_may_report_each_reason_and_be_reached_for_a_moment(capsys: pytest.CaptureFixture[str]) -> None:
    sender = Sender(Loft())
    sender.failures = 3
    for reason in ("rain", "snow", "snow", "hail"):
        sender.lost(reason, each_reason=reason != "hail")
    sender.reached(steady=False)
    assert sender.failures == 3
    assert sender.end(LIMIT_S)
    assert capsys.readouterr().err.splitlines() == ["note: no loft: rain", "note: no loft: snow", "the loft is there"]


@pytest.mark.parametrize("retry_at_end", [False, True])
def test_the_end_interrupts_a_wait_and_one_that_insists_tries_once_more(
    retry_at_end: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    loft = Loft(Unreachable("rain"), Unreachable("snow"), Unreachable("hail"))
    sender = Sender(loft, retry_at_end=retry_at_end, retry_s=3600.0)
    sender.put("a")
    until(lambda: sender.failures == 1)
    assert sender.end(LIMIT_S)
    assert (sender.attempts, len(sender.outbox)) == (1 + retry_at_end, 1)
    assert capsys.readouterr().err == "note: no loft: rain\n"


@pytest.mark.parametrize("retry_at_end", [False, True])
def test_a_problem_at_the_end_is_reported_by_one_that_insists(
    retry_at_end: bool, gate: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    visits: list[str] = []

    def target(item: str) -> None:
        gate.wait(LIMIT_S)
        if not visits:
            visits.append(item)
            raise Unreachable("rain")

    sender = Sender(target, retry_at_end=retry_at_end)
    sender.put("a")
    until(lambda: not len(sender.outbox))
    sender.stop()
    gate.set()
    assert sender.end(LIMIT_S)
    assert len(sender.outbox) == 1 - retry_at_end
    assert capsys.readouterr().err == ("note: no loft: rain\nthe loft is there\n" if retry_at_end else "")


def test_an_end_is_bounded_with_work_left_and_from_several_threads(gate: threading.Event) -> None:
    sender = Sender(lambda _: gate.wait(LIMIT_S) and None)
    for item in ("held", "a", "b"):
        sender.put(item)
    until(lambda: len(sender.outbox) == 2)
    ends: queue.Queue[bool] = queue.Queue()
    assert not sender.overdue
    threads = [threading.Thread(target=lambda: ends.put(sender.end(0.01))) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert [ends.get(timeout=LIMIT_S) for _ in threads] == [False] * 3
    until(lambda: sender.overdue)
    gate.set()
    assert sender.end(LIMIT_S)
    assert len(sender.outbox) == 0
