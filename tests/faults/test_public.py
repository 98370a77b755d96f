"""Garbage at the sockets that other programs reach: requests, subscriptions, and frames that come in over ZeroMQ."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from fractions import Fraction

import av
import msgspec
import numpy as np
import pytest
import zmq

from stream.config import Config
from stream.extensions.zeromq.services import REQUEST_BYTES_MAX, Publisher, RequestServer, request
from stream.extensions.zeromq.sinks import ControlHandler, ask_request
from stream.extensions.zeromq.source import FrameDecoder, InvalidFrameMessage
from stream.monitor.health import RunMonitor
from tests.support.faults import many
from tests.support.network import listening
from tests.support.runs import WatchedRun

COUNTS = [1000, pytest.param(100_000, marks=pytest.mark.slow)]
ANYWHERE = "tcp://127.0.0.1:*"
GROWTH_MAX_BYTES = 256 << 20
"""Above what one decoder of JPEG holds for the largest picture that its header may claim."""

pytestmark = pytest.mark.growth_max_bytes(GROWTH_MAX_BYTES)

STATUS = b'{"v": 1, "status": true}'
REQUESTS = [
    ask_request("Where is it?"),
    STATUS,
    msgspec.msgpack.encode({"v": 1, "ask": "Who?"}),
    b"[[[[",
]


@pytest.fixture
def replies() -> ControlHandler:
    monitor = RunMonitor(Config(source="a.mp4"))
    monitor.follow(WatchedRun())
    return ControlHandler(monitor)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as zmq_context:
        yield zmq_context


@pytest.mark.parametrize("count", COUNTS)
def test_every_request_gets_a_reply(replies: ControlHandler, count: int) -> None:
    refused = 0
    for body in many(REQUESTS, count):
        json_like = body.lstrip()[:1] in (b"{", b"[", b'"', b"")
        reply = (msgspec.json if json_like else msgspec.msgpack).decode(replies.handle(body))
        refused += not reply["ok"]
    assert 0 < refused < count


@pytest.mark.parametrize("count", COUNTS)
def test_a_garbage_client_does_not_disturb_requests(
    replies: ControlHandler, context: zmq.Context[zmq.Socket[bytes]], count: int
) -> None:
    with closing(RequestServer(ANYWHERE, None, replies.handle)) as server, ExitStack() as stack:
        bad = context.socket(zmq.DEALER)
        stack.callback(bad.close, linger=0)
        bad.setsockopt(zmq.SNDTIMEO, 10_000)
        bad.connect(server.endpoint)
        rng = random.Random(5)
        for number, data in enumerate(many(REQUESTS, count)):
            bad.send_multipart([b""] * rng.randrange(3) + [data] * rng.randrange(1, 3))
            while bad.poll(0):
                bad.recv_multipart()
            if number % (count // 5) == 0:
                assert json.loads(request(server.endpoint, None, ask_request("Who?"), 10.0))["ok"]
        too_large = context.socket(zmq.DEALER)
        stack.callback(too_large.close, linger=0)
        too_large.connect(server.endpoint)
        too_large.send(bytes(REQUEST_BYTES_MAX + 1))
        assert json.loads(request(server.endpoint, None, STATUS, 10.0))["ok"]


@pytest.mark.parametrize("count", COUNTS)
def test_a_garbage_subscriber_does_not_disturb_the_others(context: zmq.Context[zmq.Socket[bytes]], count: int) -> None:
    with closing(Publisher(ANYWHERE, None, retained_topics=("state",))) as publisher, ExitStack() as stack:
        bad = context.socket(zmq.XSUB)
        stack.callback(bad.close, linger=0)
        bad.setsockopt(zmq.SNDTIMEO, 10_000)
        bad.connect(publisher.endpoint)
        good = stack.enter_context(listening(publisher.endpoint, "state"))
        publisher.publish("state", msgspec.msgpack.encode("first"))
        assert good.next() == "first", "it is connected before the garbage comes"
        for number, data in enumerate(many([b"\x01state", b"\x00state", b"\x01", b"\x02x"], count)):
            bad.send_multipart([data, b"more"][: 1 + number % 2])
            while bad.poll(0):
                bad.recv_multipart()
        publisher.publish("state", msgspec.msgpack.encode("well"))
        while (last := good.next()) != "well":
            assert last == "first", "kept for a new subscriber, and published"


def frame_messages() -> list[list[bytes]]:
    picture = np.arange(64 * 48 * 3, dtype=np.uint32).astype(np.uint8).reshape(48, 64, 3)
    codec = av.VideoCodecContext.create("mjpeg", "w")
    codec.width, codec.height, codec.pix_fmt, codec.time_base = 64, 48, "yuvj420p", Fraction(1, 25)
    (jpeg,) = codec.encode(av.VideoFrame.from_ndarray(picture, format="rgb24"))
    sizes = {"rgb24": picture.tobytes(), "gray": bytes(64 * 48), "yuv420p": bytes(64 * 72), "jpeg": bytes(jpeg)}
    header = {"v": 1, "width": 64, "height": 48, "t_ns": 5, "seq": 1}
    return [[msgspec.msgpack.encode({**header, "format": name}), data] for name, data in sizes.items()]


@pytest.mark.parametrize("count", COUNTS)
def test_frames_are_read_or_refused(count: int) -> None:
    rng = random.Random(6)
    reader = FrameDecoder()
    messages = frame_messages()
    decoded_count = 0
    for data in many([part for parts in messages for part in parts], count):
        parts = list(rng.choice(messages))
        parts[rng.randrange(2)] = data
        with suppress(InvalidFrameMessage):
            _, planes, picture = reader.read([memoryview(part) for part in parts])
            assert picture().shape == (planes.height_px, planes.width_px, 3)
            decoded_count += 1
    assert 0 < decoded_count < count
    for parts in messages:
        reader.read([memoryview(part) for part in parts])
