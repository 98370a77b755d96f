"""Queue of reports that are acknowledged."""

from __future__ import annotations

import threading

from stream.fleet.on_ray.messages import ReportQueue
from tests.support.network import LIMIT_S


def test_a_report_is_given_until_it_is_acknowledged() -> None:
    box = ReportQueue(gather_s=0.0)
    assert box.take(0, 0.0) == []
    for report in (b"a", b"b", b"c"):
        box.put(report)
    assert box.take(0, 0.0) == [b"a", b"b", b"c"]
    assert box.take(0, 0.0) == [b"a", b"b", b"c"], "the reply was lost"
    assert box.take(2, 0.0) == [b"c"]
    box.put(b"d")
    assert box.take(3, 0.0) == [b"d"]
    assert box.take(4, 0.0) == []


def test_a_full_queue_makes_the_sender_wait() -> None:
    box = ReportQueue(limit=2, gather_s=0.0)
    sent = threading.Event()

    def send() -> None:
        for report in (b"a", b"b", b"c"):
            box.put(report)
        sent.set()

    threading.Thread(target=send, daemon=True).start()
    while len(box.take(0, LIMIT_S)) < 2:
        pass
    assert not sent.is_set()
    box.take(1, 0.0)
    assert sent.wait(LIMIT_S)
    assert box.take(1, 0.0) == [b"b", b"c"]
