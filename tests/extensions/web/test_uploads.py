"""Pictures of viewers: accepted ones, those refused in one line, and how many are kept."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import zlib
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stream.extensions.web.uploads import decoder, receiver
from stream.extensions.web.uploads.decoder import PictureRefused
from stream.extensions.web.uploads.store import KEPT, PictureStore, Rgb, keyed
from tests.support.guards import TimeUp
from tests.support.network import LIMIT_S, until
from tests.support.web import ServedPage, ask, png, served, written
from tests.test_imports import imports_of

LONGEST_PX = 1024


def read_picture(data: bytes) -> Rgb:
    return np.asarray(decoder.read_picture(data, LONGEST_PX))


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def of_size(width: int, height: int) -> bytes:
    """A PNG that claims that size, and has hardly any pixels."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_usual_formats_are_read(form: str) -> None:
    rgb = read_picture(written(Image.new("RGB", (64, 32), (200, 40, 40)), form))
    assert rgb.shape == (32, 64, 3)
    assert rgb.dtype == np.uint8
    assert np.abs(rgb.astype(int) - (200, 40, 40)).max() < 8


def test_a_large_picture_is_shrunk_and_a_small_one_is_not() -> None:
    assert read_picture(written(Image.new("L", (4000, 1000)))).shape == (LONGEST_PX // 4, LONGEST_PX, 3)
    assert read_picture(written(Image.new("1", (7, 5)))).shape == (5, 7, 3)


def test_a_phone_s_picture_is_upright_and_transparency_is_white() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    assert read_picture(written(Image.new("RGB", (64, 32)), "JPEG", exif=exif)).shape == (64, 32, 3)
    assert (read_picture(written(Image.new("RGBA", (8, 8), (0, 0, 0, 0)))) == 255).all()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no picture"),
        (written(Image.effect_noise((64, 64), 90))[:2000], "damaged"),
        (of_size(20_000, 100), "20000×100 pixels; a side has at most 16384"),
        (of_size(12_000, 12_000), "50 million"),
        (of_size(60_000, 60_000), "50 million"),
        (of_size(5_000, 4), "too narrow"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_anything_else_is_refused_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(PictureRefused, match=message) as refused:
        read_picture(data)
    assert "\n" not in str(refused.value)


def test_the_picture_unused_for_longest_goes() -> None:
    store = PictureStore()
    pictures = [keyed(np.full((4, 4, 3), grey, np.uint8)) for grey in range(KEPT + 1)]
    for picture in pictures[:KEPT]:
        store.keep(picture)
    assert store.get(pictures[0].key) is pictures[0]
    store.keep(pictures[KEPT])
    assert store.get(pictures[0].key) is not None
    assert store.get(pictures[1].key) is None
    assert keyed(pictures[3].rgb).key == pictures[3].key
    assert keyed(pictures[3].rgb.reshape(2, 8, 3)).key != pictures[3].key


def post(page: ServedPage, data: bytes) -> tuple[int, str]:
    """Send a picture to the microscope; return the status, and why it is refused."""
    reply = ask(page, "/microscope/picture", data)
    return reply.status, "" if reply.status == 200 else reply.json["error"]


def start_upload(page: ServedPage, stack: ExitStack, bytes_sent: int) -> socket.socket:
    """Begin an upload of 8 MB, and stop after `bytes_sent` bytes."""
    upload = stack.enter_context(socket.create_connection(("127.0.0.1", page.port), LIMIT_S))
    head = f"POST /microscope/picture HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nContent-Length: 8000000\r\n\r\n"
    upload.sendall(head.encode() + bytes(bytes_sent))
    return upload


def uploads_of(monkeypatch: pytest.MonkeyPatch) -> list[receiver.PictureUploads]:
    """The limits of pages that are made from here on."""
    uploads: list[receiver.PictureUploads] = []

    class Noted(receiver.PictureUploads):
        def __init__(self) -> None:
            super().__init__()
            uploads.append(self)

    monkeypatch.setattr("stream.extensions.web.application.PictureUploads", Noted)
    return uploads


def test_uploads_have_one_limit_of_number_and_give_their_places_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "UPLOADS_AT_ONCE", 100.0)
    uploads = uploads_of(monkeypatch)
    with served() as page:
        with ExitStack() as stack:
            for _ in range(receiver.UPLOADS_MAX):
                start_upload(page, stack, 1000)
            until(lambda: uploads[0]._count == receiver.UPLOADS_MAX)
            status, error = post(page, of_size(8, 8))
            assert (status, "8 pictures are on their way" in error) == (503, True)
        until(lambda: (uploads[0]._count, uploads[0]._bytes) == (0, 0))
        assert post(page, png(8, 8))[0] == 200


def test_uploads_have_one_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "ALL_BYTES_MAX", 150_000)
    uploads = uploads_of(monkeypatch)
    with served() as page, ExitStack() as stack:
        start_upload(page, stack, 100_000)
        until(lambda: uploads[0]._bytes == 100_000)
        status, error = post(page, bytes(100_000))
        assert (status, "other pictures are on their way" in error) == (503, True)
        until(lambda: uploads[0]._bytes == 100_000)


def test_an_upload_that_stalls_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "SILENCE_LIMIT_S", 0.01)
    time_up = TimeUp(connections=100)
    with served(guard=time_up.guard) as page, ExitStack() as stack:
        upload = start_upload(page, stack, 1000)
        reply = upload.recv(65536)
        reply += time_up.received(upload)  # and the connection is closed
    assert reply.startswith(b"HTTP/1.1 400")
    assert b"no part of the picture came" in reply


def test_one_picture_is_decoded_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    decoding, most = 0, 0
    go = threading.Event()

    async def decoded(data: bytearray, longest_px: int) -> Rgb:
        nonlocal decoding, most
        decoding += 1
        most = max(most, decoding)
        while not go.is_set():
            await asyncio.sleep(0)
        decoding -= 1
        return np.zeros((8, 8, 3), np.uint8)

    monkeypatch.setattr(receiver, "_decode", decoded)
    uploads = uploads_of(monkeypatch)
    statuses: list[int] = []
    with served() as page:
        sending = [threading.Thread(target=lambda: statuses.append(post(page, b"x")[0])) for _ in range(3)]
        for thread in sending:
            thread.start()
        until(lambda: uploads[0]._bytes == 3)
        go.set()
        for thread in sending:
            thread.join(LIMIT_S)
    assert (statuses, most) == ([200] * 3, 1)


def test_a_decoder_that_dies_or_takes_too_long_costs_one_picture(
    run: ServedPage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(decoder, "__file__", str(tmp_path / "decoder.py"))
    (tmp_path / "decoder.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert post(run, b"x") == (400, "the picture cannot be read: its decoder ended with status -11")
    monkeypatch.setattr(receiver, "DECODE_LIMIT_S", 0.01)
    (tmp_path / "decoder.py").write_text("import signal; signal.pause()")
    assert "took more than" in post(run, b"x")[1]
    monkeypatch.undo()
    assert post(run, png(8, 8))[0] == 200


def test_the_decoder_is_held_to_its_memory(run: ServedPage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = Path(decoder.__file__).read_text(encoding="utf-8")
    (tmp_path / "decoder.py").write_text(text.replace("MEMORY_BYTES_MAX = 1 << 30", "MEMORY_BYTES_MAX = 100 << 20"))
    monkeypatch.setattr(decoder, "__file__", str(tmp_path / "decoder.py"))
    assert "too much memory" in post(run, written(Image.new("RGBA", (5000, 5000))))[1]


def test_the_decoder_imports_nothing_of_the_product() -> None:
    assert "stream" not in {name.split(".")[0] for name in imports_of(Path(decoder.__file__))}
