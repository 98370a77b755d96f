"""Picture messages, and the exchange of frames between a stage and the thread that encodes them."""

from __future__ import annotations

import struct
import threading

import pytest

from stream.protocol.pictures import HEADER, PictureExchange, PictureRequest, level_for, pack_picture
from tests.support.pictures import picture_fields
from tests.support.web import COLS, REGIONS, ROWS, sampled


def test_a_message_holds_the_picture_and_the_map_of_its_frame() -> None:
    frame = sampled(7, (1280,))
    fields = picture_fields(pack_picture(frame, 0, b"jpeg", 1_500_000_000, first_frame=100))
    assert (fields["frame_index"], fields["level"], fields["tokens"]) == (107, 0, len(REGIONS))
    assert (fields["capture_unix_ms"], fields["media_s"]) == (1500.0, 0.7)
    assert (fields["map"].rows, fields["map"].cols, fields["map"].overview) == (ROWS, COLS, 0)
    assert fields["map"] == frame.map
    assert fields["picture"] == b"jpeg"


def test_the_header_is_laid_out_as_it_is_documented() -> None:
    assert HEADER.size == 48
    message = pack_picture(sampled(1), 0, b"jpeg", 0)
    assert message[:4] == b"P\x00\x00\x00"
    assert struct.unpack_from("<HHHH", message, 24) == (512, 256, ROWS, COLS)


@pytest.mark.parametrize(
    ("width", "greatest", "level"),
    [(1280, 1280, 0), (1281, 1280, 1), (1920, 1280, 1), (3840, 1280, 2), (640, 1280, 0), (16_384, 64, 5)],
)
def test_a_wide_frame_is_halved_until_it_fits(width: int, greatest: int, level: int) -> None:
    assert level_for(width, greatest) == level


def test_a_frame_is_wanted_once_and_the_newest_is_taken() -> None:
    exchange = PictureExchange()
    assert exchange.request is None
    assert exchange.take(0) is None
    exchange.want(PictureRequest((640, 1280)))
    assert exchange.request == PictureRequest((640, 1280))
    exchange.put(sampled(1))
    assert exchange.request is None
    exchange.put(sampled(2))
    newest = exchange.take(0)
    assert newest is not None
    assert newest.frame_index == 2
    assert exchange.take(0) is None


def test_the_number_of_widths_is_limited() -> None:
    exchange = PictureExchange()
    exchange.want(PictureRequest(tuple(range(100, 200))))
    assert exchange.request is not None
    assert len(exchange.request.widths) == 4


def test_a_waiting_thread_is_woken() -> None:
    exchange, frames = PictureExchange(), []
    waiting = threading.Thread(target=lambda: frames.append(exchange.take(60.0)))
    waiting.start()
    exchange.put(sampled(3))
    waiting.join(60.0)
    assert [frame.frame_index for frame in frames if frame is not None] == [3]
