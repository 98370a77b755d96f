"""One viewer's queue, credits and limits."""

from __future__ import annotations

import json

import pytest

from stream.clock import RateLimit
from stream.extensions.web.viewer import CREDITS, TEXTS_WAITING, MessageRefused, Viewer, ViewerMessage, read_message
from stream.untrusted import QUERY_LIMIT_CHARS


def test_a_viewer_gets_as_many_pictures_as_it_has_credits() -> None:
    viewer = Viewer(rate=1000, greatest_px=1280)
    count = 0
    for number in range(10):
        count += viewer.show(b"%d" % number, float(number))
        viewer.next()
    assert count == CREDITS == viewer.pictures_sent
    viewer.choose(ViewerMessage(ok=1))
    assert viewer.show(b"newest", 11.0)
    assert viewer.next() == b"newest"


def test_confirmations_never_raise_the_credit_above_its_limit() -> None:
    viewer = Viewer(rate=10, greatest_px=1280)
    for _ in range(50):
        viewer.choose(ViewerMessage(ok=CREDITS))
    assert viewer.credits == CREDITS


def test_pictures_come_at_the_rate_that_was_asked_for() -> None:
    viewer = Viewer(rate=30, greatest_px=1280)
    viewer.choose(ViewerMessage(rate=5))
    count = 0
    for at in range(600):  # two seconds of 300 frames each
        if viewer.show(b"x", at / 300):
            count += 1
            viewer.next()
            viewer.choose(ViewerMessage(ok=1))
    assert 10 <= count <= 12


def test_rate_and_width_stay_below_those_of_the_run() -> None:
    viewer = Viewer(rate=10, greatest_px=640)
    viewer.choose(ViewerMessage(rate=60, width=1920))
    assert (viewer.rate, viewer.width) == (10, 640)


def test_texts_go_before_pictures_and_too_many_push_out_the_oldest() -> None:
    viewer = Viewer(rate=10, greatest_px=640)
    viewer.show(b"picture", 0.0)
    for number in range(TEXTS_WAITING + 3):
        viewer.send(b"%d" % number)
    assert json.loads(str(viewer.next())) == {"topic": "missed", "count": 3}
    assert [viewer.next() for _ in range(TEXTS_WAITING)] == [str(number) for number in range(3, TEXTS_WAITING + 3)]
    assert viewer.next() == b"picture"
    assert viewer.next() is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "nonsense",
        '{"ok": "1"}',
        '{"ok": 0}',
        '{"ok": 99}',
        '{"rate": 0}',
        '{"rate": 1e9}',
        '{"width": 641}',
        '{"more": 1}',
        b"\xff\xfe",
        "[" * 100_000,
        json.dumps({"ask": "x" * (QUERY_LIMIT_CHARS + 1)}),
    ],
)
def test_a_message_that_cannot_be_followed_is_refused(text: str | bytes) -> None:
    with pytest.raises(MessageRefused):
        read_message(text)


def test_a_limit_lets_through_its_burst_and_then_its_rate() -> None:
    limit = RateLimit(rate=2, burst=4)
    assert sum(limit.take(0.0) for _ in range(1000)) == 4
    assert sum(limit.take(at / 100) for at in range(1, 1001)) == pytest.approx(20, abs=1)
