"""Links between threads: whole messages in order, waits with limits, nothing that hangs."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from arr_coc.types import FrameStamp, TileGrid, TokenPacket
from stream.errors import TransportError
from stream.messages import AnswerDelta, Cancel, Credit, End, Message, TokenPacketMessage
from stream.packets import token_message, token_packet
from stream.transport import Link, Received, Transport, Waiter, ipc_endpoint, private_directory
from stream.transport import bus as bus_module
from stream.transport import link as link_module
from tests.waiting import LIMIT_MS


@contextmanager
def linked(endpoint: str = "inproc://test") -> Iterator[tuple[Link, Link]]:
    transport = Transport()
    ends = transport.link(endpoint, bind=True), transport.link(endpoint)
    try:
        yield ends
    finally:
        for end in ends:
            end.close()
        transport.close()


@pytest.fixture(params=["inproc", "ipc"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[Link, Link]]:
    with private_directory() as directory:
        endpoint = "inproc://test" if request.param == "inproc" else ipc_endpoint(directory)
        with linked(endpoint) as pair:
            yield pair


def test_messages_go_both_ways_in_order(ends: tuple[Link, Link]) -> None:
    bound, connected = ends
    for number in range(3):
        connected.send(AnswerDelta(answer=number, text="x"))
    for number in range(3):
        received = bound.receive(LIMIT_MS)
        assert received is not None
        assert received.message == AnswerDelta(answer=number, text="x")
    bound.send(Cancel())
    received = connected.receive(LIMIT_MS)
    assert received is not None
    assert received.message == Cancel()


class Notes:
    """A tap that notes kinds of messages and the sizes of their arrays."""

    def __init__(self) -> None:
        self.said_to: list[tuple[object, list[int]]] = []
        self.heard_from: list[tuple[object, list[int]]] = []

    def said(self, message: Message, arrays: Sequence[np.ndarray]) -> None:
        self.said_to.append((message, [array.nbytes for array in arrays]))

    def heard(self, received: Received) -> None:
        self.heard_from.append((received.message, [part.nbytes for part in received.parts]))


def test_a_tap_learns_what_was_sent_and_received_and_nothing_else() -> None:
    transport, notes = Transport(), Notes()
    lonely = transport.link("inproc://test", bind=True, tap=notes)
    assert not lonely.offer(Cancel()), "nobody is there to take it"
    other = transport.link("inproc://test")
    lonely.send(Credit(), [np.zeros(3, np.float32)])
    other.send(AnswerDelta(answer=0, text="x"), [np.zeros(5, np.uint8)])
    other.send(Cancel())
    assert lonely.receive(LIMIT_MS) is not None
    lonely.close()
    other.close()
    transport.close()
    assert notes.said_to == [(Credit(), [12])]
    assert notes.heard_from == [(AnswerDelta(answer=0, text="x"), [5])]


def test_a_packet_arrives_whole(ends: tuple[Link, Link]) -> None:
    bound, connected = ends
    rng = np.random.default_rng(0)
    packet = TokenPacket(
        FrameStamp(1, 2, 3, 4),
        TileGrid.of(1080, 1920),
        rng.integers(0, (6, 2, 2), (273, 3), dtype=np.int32),
        rng.random(273, dtype=np.float32),
        rng.integers(0, 256, (273, 3, 32, 32), dtype=np.uint8),
    )
    message, arrays = token_message(0, 0, packet)
    connected.send(message, arrays)
    received = bound.receive(LIMIT_MS)
    assert received is not None
    assert isinstance(received.message, TokenPacketMessage)
    np.testing.assert_array_equal(token_packet(received.message, received.parts).pixels, packet.pixels)


def test_arrays_that_are_not_contiguous_arrive_as_they_look(ends: tuple[Link, Link]) -> None:
    bound, connected = ends
    backwards = np.arange(12, dtype=np.float32)[::-2]
    connected.send(Cancel(), [backwards])
    received = bound.receive(LIMIT_MS)
    assert received is not None
    np.testing.assert_array_equal(np.frombuffer(received.parts[0], np.float32), backwards)


def test_receiving_waits_no_longer_than_its_limit() -> None:
    with linked() as (bound, _):
        assert bound.receive() is None
        assert bound.receive(1) is None


def test_waiting_for_any_of_several_links() -> None:
    with linked("inproc://one") as (first, _), linked("inproc://two") as (second, sender):
        waiter = Waiter(first, second)
        assert not waiter.wait(1)
        sender.send(Cancel())
        assert waiter.wait(LIMIT_MS)
        assert first.receive() is None
        assert second.receive() is not None


def test_what_was_sent_before_closing_arrives() -> None:
    transport = Transport()
    bound = transport.link("inproc://test", bind=True)

    def send_and_leave() -> None:
        link = transport.link("inproc://test")
        for _ in range(10):
            link.send(Credit())
        link.send(End(reason="finished"))
        link.close()

    thread = threading.Thread(target=send_and_leave)
    thread.start()
    thread.join(LIMIT_MS / 1000)
    kinds = [type(received.message) for _ in range(11) if (received := bound.receive(LIMIT_MS)) is not None]
    bound.close()
    transport.close()
    assert kinds == [Credit] * 10 + [End]


def test_a_peer_that_is_gone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SEND_LIMIT_MS", 1)
    monkeypatch.setattr(link_module, "SEND_SLICE_MS", 1)
    transport = Transport()
    lonely = transport.link("inproc://nobody", bind=True)
    with pytest.raises(TransportError, match="nobody takes messages from inproc://nobody"):
        lonely.send(Cancel())
    with pytest.raises(TransportError, match="nobody takes messages"):
        lonely.send(Cancel(), [np.zeros(1, np.uint8)])
    assert not lonely.offer(Credit())
    lonely.close()
    transport.close()


def test_a_sender_waits_for_room_until_its_owner_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "SEND_SLICE_MS", 1)
    monkeypatch.setattr(link_module, "SEND_LIMIT_MS", 1)
    patience = iter([None, None, None])

    def check() -> None:
        if next(patience, "over") == "over":
            raise InterruptedError

    transport = Transport()
    lonely = transport.link("inproc://nobody", bind=True, check=check)
    with pytest.raises(InterruptedError):
        lonely.send(Cancel())
    lonely.close()
    transport.close()


def test_an_offer_is_taken_where_somebody_is_there() -> None:
    with linked() as (bound, connected):
        assert bound.offer(Credit(count=2))
        received = connected.receive(LIMIT_MS)
        assert received is not None
        assert received.message == Credit(count=2)


def test_what_is_no_message_is_refused_whole() -> None:
    with linked() as (bound, connected):
        connected._socket.send_multipart([b"nonsense", b"and more"])
        connected.send(Cancel())
        with pytest.raises(TransportError, match="cannot be read"):
            bound.receive(LIMIT_MS)
        received = bound.receive(LIMIT_MS)
        assert received is not None
        assert received.message == Cancel()


def test_an_address_that_is_taken_is_refused() -> None:
    with linked() as _:
        transport = Transport()
        first = transport.link("inproc://same", bind=True)
        with pytest.raises(TransportError, match="cannot open inproc://same"):
            transport.link("inproc://same", bind=True)
        with pytest.raises(TransportError, match="cannot reach nonsense"):
            transport.link("nonsense")
        first.close()
        transport.close()


def test_events_arrive_in_order_and_the_sender_waits_for_room() -> None:
    transport = Transport()
    source, sink = transport.event_source("inproc://events"), transport.event_sink("inproc://events")
    sent = 0
    while sink.send(str(sent).encode(), 1):
        sent += 1
        assert sent <= bus_module.EVENT_QUEUE + 2
    assert sent >= bus_module.EVENT_QUEUE - 2
    assert [source.receive(LIMIT_MS) for _ in range(sent)] == [str(number).encode() for number in range(sent)]
    assert source.receive(1) is None
    sink.close()
    source.close()
    transport.close()


def test_the_directory_of_sockets_is_private_and_goes() -> None:
    with private_directory() as directory:
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        assert os.stat(directory).st_uid == os.getuid()
    assert not os.path.exists(directory)


def test_a_temporary_directory_with_too_long_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with pytest.raises(TransportError, match="set TMPDIR to a shorter path"), private_directory():
        pass
    assert not list(long.iterdir())
