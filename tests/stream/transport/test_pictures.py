"""Sockets of live pictures: one picture per request, without waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stream.errors import TransportError
from stream.protocol.pictures import PictureRequest
from stream.transport import PictureReceiver, PictureSender, Transport
from tests.support.network import LIMIT_MS, until


@pytest.fixture
def transport() -> Iterator[Transport]:
    with closing(Transport()) as transport:
        yield transport


@pytest.fixture
def ends(transport: Transport, tmp_path: Path) -> Iterator[tuple[PictureSender, PictureReceiver]]:
    endpoint = f"ipc://{tmp_path}/picture"
    receiver = transport.picture_receiver(endpoint)
    sender = transport.picture_sender(endpoint)
    until(lambda: receiver.request(PictureRequest((1,))))
    assert sender.receive(LIMIT_MS) == PictureRequest((1,))
    yield sender, receiver
    sender.close()
    receiver.close()


def test_a_request_is_answered_with_pictures_by_width(ends: tuple[PictureSender, PictureReceiver]) -> None:
    sender, receiver = ends
    assert receiver.request(PictureRequest((320, 1280)))
    assert sender.receive(LIMIT_MS) == PictureRequest((320, 1280))
    assert sender.send([(320, b"small"), (1280, b"large")])
    assert receiver.receive(LIMIT_MS) == {320: b"small", 1280: b"large"}
    assert receiver.receive(0) is None


def test_the_newest_request_counts(ends: tuple[PictureSender, PictureReceiver]) -> None:
    sender, receiver = ends
    assert receiver.request(PictureRequest((320,)))
    assert receiver.request(PictureRequest((640,)))
    received: list[PictureRequest] = []
    while received[-1:] != [PictureRequest((640,))]:
        request = sender.receive(LIMIT_MS)
        assert request is not None
        received.append(request)
    assert sender.receive(0) is None


def test_a_sender_never_waits_for_a_blocked_receiver(ends: tuple[PictureSender, PictureReceiver]) -> None:
    sender, _ = ends
    until(lambda: not sender.send([(1280, bytes(1 << 20))]))


def test_without_a_frame_process_a_request_is_not_kept(transport: Transport, tmp_path: Path) -> None:
    with closing(transport.picture_receiver(f"ipc://{tmp_path}/picture")) as receiver:
        assert not receiver.request(PictureRequest((640,)))


def test_a_wait_can_be_ended_from_another_thread(ends: tuple[PictureSender, PictureReceiver]) -> None:
    _, receiver = ends
    threading.Timer(0.0, receiver.wake).start()
    assert receiver.receive(LIMIT_MS) is None
    receiver.wake()
    receiver.wake()
    assert receiver.receive(LIMIT_MS) is None


def test_an_address_that_cannot_be_bound_is_one_error(transport: Transport, tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="cannot open"):
        transport.picture_receiver(f"ipc://{tmp_path}/absent/picture")
