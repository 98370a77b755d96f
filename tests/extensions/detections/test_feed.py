"""Detections of another program: tiles that they raise, what is new, what is stale, and notices."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest
import zmq

from arr_coc.allocation.zones import ZoneOptions
from arr_coc.types import NS_PER_S, FrameStamp, TileGrid
from stream.config import CaptureConfig, Config, NetworkConfig, ZoneConfig
from stream.control import FOUND
from stream.errors import ConfigError, TransportError
from stream.events import Event, FrameReady, Notice
from stream.extensions.detections.feed import (
    DETECTIONS_CUT,
    DETECTIONS_LOST,
    DETECTIONS_REFUSED,
    DETECTIONS_UNREADABLE,
    TRACKS_MAX,
    DetectionAddress,
    DetectionFeed,
    ThingTracker,
)
from stream.extensions.detections.message import OBJECTS_MAX, DetectedBoxes
from stream.extensions.detections.section import DetectionsSection
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.plan import RunPlan
from stream.transport.security import client_curve, server_curve
from tests.support.clock import FakeClock
from tests.support.network import free_port, keyed, until
from tests.support.polygons import box_polygon
from tests.support.runs import WATCHED_INFO
from tests.support.sections import sections as sections_of

GRID = TileGrid.of(96, 120)
HOLD_NS = 2 * NS_PER_S
STAMP = FrameStamp(0, 0, 0, epoch=1)
UNIX_NS = 1_700_000_000 * NS_PER_S


class Receiver:
    """Messages that wait, as a socket has them."""

    def __init__(self) -> None:
        self.waiting: list[list[memoryview]] = []
        self.is_lost = self.is_refused = self.closed = False

    def receive(self, timeout_ms: int) -> tuple[list[memoryview] | None, int]:
        assert timeout_ms == 0
        return (self.waiting.pop(0) if self.waiting else None), 0

    def close(self) -> None:
        self.closed = True


class Fed:
    """A feed with a detector in the test's hands."""

    def __init__(self, zones: ZoneOptions | None = None) -> None:
        self.clock, self.receiver, self.stamp = FakeClock(100 * NS_PER_S), Receiver(), STAMP
        address = DetectionAddress("zmq+tcp://detector:1", "tcp://detector:1", None, 2.0)
        feed = DetectionFeed(address, self.clock, lambda: UNIX_NS + self.clock.now_ns(), zones)
        self.feed = feed.open(lambda: self.receiver)

    def say(
        self, *boxes: tuple[float, ...], label: str = "cat", score: float | None = None, **fields: Any
    ) -> list[Event]:
        """Notices of a message with these boxes."""
        objects = [{"box": box, "label": label, "score": score} for box in boxes]
        self.receiver.waiting.append([memoryview(json.dumps({"objects": objects, **fields}).encode())])
        return self.receive()

    def receive(self) -> list[Event]:
        """Notices of the next frame, whose picture is that of the last message."""
        return self.feed.receive(self.stamp)

    def cut(self, age_s: float = 0.0) -> None:
        """Begin an epoch with the next frame, which was captured `age_s` seconds ago."""
        captured_ns = self.clock.now_ns() - round(age_s * NS_PER_S)
        self.stamp = FrameStamp(self.stamp.frame_index + 1, captured_ns, captured_ns, self.stamp.epoch + 1)

    @property
    def new(self) -> tuple[bool, bool]:
        """Whether something is new since the last answer and the last check."""
        changes = self.feed.changes(0.25, 0.5)
        assert {*changes} <= {0.25, 0.5, 1.0}
        return changes[0] == 1.0, changes[1] == 1.0


def test_the_tiles_that_a_box_touches_are_raised_to_its_score() -> None:
    fed = Fed()
    assert fed.feed.floor(GRID) is None
    fed.say((33 / 120, 1 / 96, 64 / 120, 33 / 96), score=0.75)
    expected = np.zeros((3, 4), np.float32)
    expected[0:2, 1:2] = 0.75
    np.testing.assert_array_equal(fed.feed.floor(GRID), expected)
    fed.say((0.9, 0.9, 1.0, 1.0), (0.0, 0.0, 1.0, 1.0), score=0.5)
    np.testing.assert_array_equal(fed.feed.floor(GRID), np.full((3, 4), 0.5, np.float32))
    fed.say()
    assert fed.feed.floor(GRID) is None


def test_the_newest_message_counts_until_it_is_stale() -> None:
    fed = Fed()
    fed.say((0, 0, 0.1, 0.1), score=0.5)
    fed.clock.advance(HOLD_NS)
    fed.receive()
    assert fed.feed.floor(GRID) is not None
    fed.clock.advance(1)
    fed.receive()
    assert fed.feed.floor(GRID) is None


@pytest.mark.parametrize(
    ("age_s", "counts_s"), [(3.0, None), (1.5, 0.5), (-60.0, 2.0)], ids=["stale", "old", "clock ahead"]
)
def test_a_message_is_as_old_as_its_picture(age_s: float, counts_s: float | None) -> None:
    fed = Fed()
    fed.say((0, 0, 1, 1), unix_ns=UNIX_NS + fed.clock.now_ns() - round(age_s * NS_PER_S))
    assert (fed.feed.floor(GRID) is not None) == (counts_s is not None)
    if counts_s is not None:
        fed.clock.advance(round(counts_s * NS_PER_S))
        fed.receive()
        assert fed.feed.floor(GRID) is not None
        fed.clock.advance(1)
        fed.receive()
        assert fed.feed.floor(GRID) is None


def test_a_message_that_was_overtaken_is_left_out() -> None:
    fed, now_ns = Fed(), UNIX_NS + 100 * NS_PER_S
    fed.say((0, 0, 1, 1), score=0.5, unix_ns=now_ns)
    fed.say((0, 0, 1, 1), score=0.75, unix_ns=now_ns - NS_PER_S)
    floor = fed.feed.floor(GRID)
    assert floor is not None
    assert floor.max() == 0.5


def test_a_new_thing_is_a_change_until_it_is_answered_about_and_checked() -> None:
    fed = Fed()
    assert fed.new == (False, False)
    fed.say((0.1, 0.1, 0.3, 0.3))
    assert fed.new == (True, True)
    fed.feed.mark_answered()
    assert fed.new == (False, True)
    fed.feed.mark_looked()
    assert fed.new == (False, False)
    for step in range(1, 6):  # it moves, and is the same
        fed.say((0.1 + step / 10, 0.1, 0.3 + step / 10, 0.3))
        assert fed.new == (False, False)
    fed.say()  # missed once
    fed.say((0.6, 0.1, 0.8, 0.3))
    assert fed.new == (False, False)
    fed.say((0.6, 0.1, 0.8, 0.3), (0.6, 0.1, 0.8, 0.3))  # a second one at the same place
    assert fed.new == (True, True)


LEFT = box_polygon((0.0, 0.0, 0.5, 1.0))


@pytest.mark.parametrize(
    ("zones", "left", "right"),
    [
        (ZoneOptions(((LEFT, 0.0),)), False, True),
        (ZoneOptions(((LEFT, 0.5),)), True, True),
        (ZoneOptions(focus=(LEFT,)), True, False),
    ],
    ids=["masked", "light", "question"],
)
def test_a_thing_in_a_zone_that_counts_for_nothing_is_no_change(zones: ZoneOptions, left: bool, right: bool) -> None:
    for counts, box in ((left, (0.1, 0.1, 0.6, 0.3)), (right, (0.4, 0.1, 0.9, 0.3))):
        fed = Fed(zones)
        fed.say(box)
        assert fed.new == (counts, counts)
        assert fed.feed.floor(GRID) is not None, "the weights of tiles decide what it draws"


def test_a_run_s_feed_knows_its_zones() -> None:
    zones = {"left": ZoneConfig(box=(0.0, 0.0, 0.5, 1.0), mask=True)}
    config = configured("tcp://127.0.0.1:5559", zones=zones)
    receiver = Receiver()
    feed = RunPlan.of(config, WATCHED_INFO).make_box_feed(FakeClock(NS_PER_S))
    assert feed is not None
    feed.open(lambda: receiver)
    for left, share in ((0.1, 0.25), (0.7, 1.0)):
        receiver.waiting.append([memoryview(json.dumps({"objects": [{"box": (left, 0, left + 0.2, 1)}]}).encode())])
        feed.receive(STAMP)
        assert feed.changes(0.25, 0.25) == (share, share)


@pytest.mark.parametrize("other", [{"label": "dog"}, {}], ids=["another label", "another place"])
def test_another_thing_is_new(other: dict[str, str]) -> None:
    fed = Fed()
    fed.say((0.1, 0.1, 0.3, 0.3))
    fed.feed.mark_answered()
    fed.say((0.1, 0.1, 0.3, 0.3) if other else (0.7, 0.7, 0.9, 0.9), **other)  # type: ignore[arg-type]
    assert fed.new[0]


def test_a_thing_that_was_gone_is_new_again() -> None:
    fed = Fed()
    fed.say((0.1, 0.1, 0.3, 0.3))
    fed.feed.mark_answered()
    fed.clock.advance(HOLD_NS + 1)
    fed.say((0.1, 0.1, 0.3, 0.3))
    assert fed.new[0]


def test_a_cut_forgets_boxes_and_things() -> None:
    fed = Fed()
    fed.say((0.1, 0.1, 0.3, 0.3))
    fed.feed.mark_answered()
    fed.feed.mark_looked()
    fed.cut()
    fed.receive()
    assert fed.feed.floor(GRID) is None
    assert fed.new == (False, False)
    fed.say((0.1, 0.1, 0.3, 0.3))
    assert fed.feed.floor(GRID) is not None
    assert fed.new == (True, True), "in another shot it is another thing"


@pytest.mark.parametrize(
    ("age_s", "counts"), [(None, False), (0.5, False), (0.25, True), (0.0, True)], ids=["untimed", "old", "at", "new"]
)
def test_a_message_with_the_first_frame_of_a_shot_counts_if_its_picture_is_of_that_shot(
    age_s: float | None, counts: bool
) -> None:
    fed = Fed()
    fed.receive()
    fed.cut(0.25)
    fields: dict[str, Any] = (
        {} if age_s is None else {"unix_ns": UNIX_NS + fed.clock.now_ns() - round(age_s * NS_PER_S)}
    )
    fed.say((0.1, 0.1, 0.3, 0.3), **fields)
    assert (fed.feed.floor(GRID) is not None, fed.new) == (counts, (counts, counts))


def test_a_message_about_the_shot_before_a_cut_does_not_count_later_either() -> None:
    fed = Fed()
    fed.receive()
    fed.cut()
    fed.receive()
    fed.clock.advance(NS_PER_S)
    fed.say((0, 0, 1, 1), unix_ns=UNIX_NS + fed.clock.now_ns() - NS_PER_S - 1)
    assert fed.feed.floor(GRID) is None
    fed.say((0, 0, 1, 1))
    assert fed.feed.floor(GRID) is not None


def test_each_notice_comes_once() -> None:
    fed = Fed()
    for code, box in ((DETECTIONS_UNREADABLE, (0, 0, 1)), (DETECTIONS_CUT, None)):
        boxes = [(0, 0, 1, 1)] * 300 if box is None else [box]
        (notice,) = fed.say(*boxes)
        assert isinstance(notice, Notice)
        assert (notice.code, notice.message.startswith("zmq+tcp://detector:1: a message ")) == (code, True)
        assert fed.say(*boxes) == []
    fed.receiver.is_refused = True
    (notice,) = fed.receive()
    assert isinstance(notice, Notice)
    assert (notice.code, "keys" in notice.message) == (DETECTIONS_REFUSED, True)
    assert fed.receive() == []
    fed.feed.close()
    assert fed.receiver.closed


@contextmanager
def detector(endpoint: str, network: NetworkConfig | None = None) -> Iterator[zmq.Socket[bytes]]:
    """A PUB socket, with the keys of `network`."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.PUB) as socket:
        socket.linger = 0
        curve = None if network is None else server_curve(network, endpoint)
        if curve is not None:
            curve.apply(socket)
        socket.bind(endpoint)
        yield socket


MESSAGE = b'{"objects": [{"box": [0.0, 0.5, 0.25, 1.0], "label": "cat"}]}'


@pytest.mark.parametrize("parts", [[MESSAGE], [b"detections", MESSAGE]], ids=["alone", "with a topic"])
def test_messages_come_over_a_socket(parts: list[bytes]) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    feed = DetectionFeed(DetectionAddress(f"zmq+{endpoint}", endpoint, None, 60.0), FakeClock())
    with detector(endpoint) as socket, closing(feed.open()):

        def seen() -> bool:
            socket.send_multipart(parts)
            assert feed.receive(STAMP) == []
            return feed.floor(GRID) is not None

        until(seen)


def test_a_million_detections_are_not_even_received() -> None:
    """The connection is closed, and made again: what comes after counts."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    clock = FakeClock()
    feed = DetectionFeed(DetectionAddress(f"zmq+{endpoint}", endpoint, None, 60.0), clock)
    million = b'{"objects": [' + b'{"box": [0, 0, 1, 1]},' * 1_000_000 + b"]}"
    with detector(endpoint) as socket, closing(feed.open()):
        until(lambda: feed.receive(STAMP) or feed.floor(GRID) is not None or socket.send(MESSAGE))
        fresh = b'{"objects": [{"box": [0.0, 0.0, 1.0, 1.0], "score": 0.5}]}'
        socket.send(million)
        codes: list[str] = []

        def seen() -> bool:
            socket.send(fresh)
            clock.advance(NS_PER_S // 10)
            codes.extend(notice.code for notice in feed.receive(STAMP) if isinstance(notice, Notice))
            floor = feed.floor(GRID)
            return floor is not None and bool((floor == 0.5).all())

        until(seen)
        assert codes == [DETECTIONS_LOST]


def test_a_detector_that_is_gone_is_tried_again_after_a_while() -> None:
    fed, opened = Fed(), []
    fed.feed.open(lambda: opened.append(fed.clock.now_ns()) or fed.receiver)  # type: ignore[func-returns-value]
    fed.receiver.is_lost = True
    notices = [notice for _ in range(25) for notice in (fed.clock.advance(NS_PER_S // 10), *fed.receive())[1:]]
    assert [notice.code for notice in notices if isinstance(notice, Notice)] == [DETECTIONS_LOST]
    assert len(opened) == 4


def test_a_detector_with_other_keys_is_reported(tmp_path: Any) -> None:
    endpoint, own_keys, other_keys = (
        f"tcp://127.0.0.1:{free_port()}",
        keyed(tmp_path, "mine"),
        keyed(tmp_path, "others"),
    )
    feed = DetectionFeed(
        DetectionAddress(f"zmq+{endpoint}", endpoint, client_curve(own_keys, endpoint), 1.0), FakeClock()
    )
    with detector(endpoint, other_keys), closing(feed.open()):
        notices: list[Event] = []
        until(lambda: notices.extend(feed.receive(STAMP)) or notices)
    assert isinstance(notices[0], Notice)
    assert notices[0].code == DETECTIONS_REFUSED


def test_an_address_without_a_host_is_refused() -> None:
    feed = DetectionFeed(DetectionAddress("zmq+tcp://nowhere:x", "tcp://nowhere:x", None, 1.0), FakeClock())
    with pytest.raises(TransportError, match="check the address"):
        feed.open()


def configured(endpoint: str, *, realtime: bool = True, **sections: Any) -> Config:
    """A drawn scene that is played again and again."""
    return Config.model_validate(
        {
            "source": "scene:demo",
            "capture": CaptureConfig(realtime=realtime, loop=realtime),
            **sections_of(detections__address=f"zmq+{endpoint}"),
            **sections_of(zeromq__publish="tcp://127.0.0.1:*"),
            **sections,
        }
    )


def test_boxes_draw_the_tokens_of_a_run_and_make_an_answer_due() -> None:
    """The tiles of the box are the most relevant, and the answer comes on change alone."""
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    answer = {"every_s": None, "on_change": 0.999, "on_cut": False}
    pipeline = {"single_process": True}
    config = configured(endpoint, answer=answer, pipeline=pipeline)
    run = run_in_threads(config, model_loader="tests.support.answer_models:FakeAnswerModel")
    raised: list[bool] = []
    triggers: list[str] = []
    end_s = time.monotonic() + 100
    with detector(endpoint) as socket:
        for event in run.run():
            if isinstance(event, FrameReady) and event.map is not None:
                relevance = np.frombuffer(event.map.relevance, np.uint8).reshape(event.map.rows, event.map.cols)
                raised.append(bool((relevance[6:, :5] == 255).all()))
                if triggers:  # only once the first frame was answered about
                    socket.send(MESSAGE)
            elif trigger := getattr(event, "trigger", None):
                triggers.append(trigger)
            if ("change" in triggers and raised[-1]) or time.monotonic() > end_s:
                run.end(FOUND)
    assert triggers[:2] == ["start", "change"]
    assert not raised[0]
    assert raised[-1]


@pytest.mark.parametrize(
    ("endpoint", "realtime", "reason"),
    [
        ("tcp://127.0.0.1:5559", False, "needs a live source.*give --realtime"),
        ("tcp://127.0.0.1:70000", True, "a port is a number from 1 to 65535"),
        ("tcp://detector", True, "is not a socket address; write tcp://HOST:PORT"),
        ("tcp://10.0.0.2:5559", True, "leaves this machine without keys"),
    ],
)
def test_an_address_that_cannot_work_is_one_line(endpoint: str, realtime: bool, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        run_in_threads(
            configured(endpoint, realtime=realtime), model_loader="tests.support.answer_models:FakeAnswerModel"
        )
    assert "\n" not in str(refused.value)


def test_another_form_of_address_is_refused_by_its_key() -> None:
    with pytest.raises(ValueError, match="address"):
        DetectionsSection(address="http://127.0.0.1")


def test_a_flood_of_things_is_bounded() -> None:
    """New labels and places in each message: what is kept in mind stays as small, and the newest are in it."""
    tracker, random = ThingTracker(), np.random.default_rng(0)
    for second in range(30):
        places = np.sort(random.random((OBJECTS_MAX, 2, 2)), axis=1).reshape(-1, 4)
        names = tuple(f"{second} {number}" for number in range(OBJECTS_MAX))
        detections = DetectedBoxes(places, names, (1.0,) * OBJECTS_MAX, None, cut=False)
        tracker.update(detections, second * NS_PER_S)
        assert not tracker.answered[-OBJECTS_MAX:].any()
        tracker.answered[:] = True
        tracker.update(detections, second * NS_PER_S)
        assert tracker.answered.all()
        assert len(tracker.answered) <= TRACKS_MAX
