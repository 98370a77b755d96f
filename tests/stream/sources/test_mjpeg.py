"""MJPEG over HTTP as cameras send it, with their faults."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stream.errors import SourceError
from stream.sources.mjpeg import AddressRequest, HttpOpening, close_container
from tests.support.mjpeg_cameras import CAMERAS, MjpegCamera
from tests.support.network import LIMIT_S, until
from tests.support.senders import Handler, Reading, Server, frames_of, jpegs, opened
from tests.support.video import moving_square

COUNT = 10


@pytest.fixture(scope="module")
def pictures() -> list[bytes]:
    return jpegs(list(moving_square(COUNT)))


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server


@pytest.mark.parametrize("name", CAMERAS)
def test_every_camera_plays_on_one_connection(web: Server, pictures: list[bytes], name: str) -> None:
    camera = CAMERAS[name]
    web.live["video"] = camera.serve(pictures)
    with opened(f"{web.url}/video") as source:
        assert source.describe().live
        items = Reading(source).until(lambda items: len(frames_of(items)) == 2 * COUNT)
    assert len(frames_of(items)) == len(items), "no outages"
    assert len(web.requests) == 2, "FFmpeg finds out what it is"
    assert sum(len(frame.skipped) for frame in frames_of(items)) == 0
    times_ns = [frame.media_ns for frame in frames_of(items)]
    assert times_ns == sorted(set(times_ns))


def test_the_pictures_are_those_that_were_sent(web: Server) -> None:
    flat = [np.full((48, 64, 3), value, np.uint8) for value in (20, 120, 220)]
    web.live["video"] = CAMERAS["too long a length"].serve(jpegs(flat))
    with opened(f"{web.url}/video") as source:
        means = {round(float(frame.planes.planes[0].mean()), -1) for frame in Reading(source).frames(9)}
    assert means == {20, 120, 220}


def test_a_closed_source_leaves_the_camera(web: Server, pictures: list[bytes]) -> None:
    web.live["video"] = CAMERAS["no type"].serve(pictures)
    source = opened(f"{web.url}/video")
    Reading(source).frames(2)
    source.close()
    until(lambda: not web.clients)


def test_an_outage_ends_with_one_request_an_attempt(web: Server, pictures: list[bytes]) -> None:
    web.live["video"] = MjpegCamera(before=b"--frame\r\n\r\n", count=5).serve(pictures)
    with opened(f"{web.url}/video") as source:
        reading = Reading(source)
        assert reading.lost().reason == "the connection broke"
        reading.back()
    assert len(web.requests) in (3, 4)  # the next outage may have begun


def test_another_resource_is_asked_for_twice_and_refused(web: Server) -> None:
    sent_bytes = []

    def page(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        count = 0
        try:
            while not handler.server.stopped.is_set() and count < 1 << 26:
                handler.wfile.write(b"<p>no video</p>" * 1000)
                count += 15_000
        finally:
            sent_bytes.append(count)

    web.live["page"] = page
    with pytest.raises(SourceError, match="sends nothing that FFmpeg can read as video"):
        opened(f"{web.url}/page")
    until(lambda: len(sent_bytes) == 2)
    assert max(sent_bytes) < 1 << 26, "it is not read to its end"


def test_silence_is_an_outage(web: Server, pictures: list[bytes]) -> None:
    web.live["video"] = MjpegCamera(before=b"--frame\r\n\r\n", count=5, then_silent=True).serve(pictures)
    with opened(f"{web.url}/video", stall_s=1.5) as source:
        reading = Reading(source)
        assert reading.lost().reason == "no picture for 1.5 s"
        reading.back()


def test_each_opening_has_its_own_connection(web: Server, pictures: list[bytes]) -> None:
    web.live["video"] = CAMERAS["motion"].serve(pictures)
    opening, request = HttpOpening(), AddressRequest(f"{web.url}/video", {}, LIMIT_S, LIMIT_S)
    late = opening.open(request)
    newer = opening.open(request)
    until(lambda: len(web.clients) == 2)
    assert len([frame for frame, _ in zip(late.decode(video=0), range(50), strict=False)]) == 50, "opening left it"
    close_container(late)
    until(lambda: len(web.clients) == 1)
    assert len([frame for frame, _ in zip(newer.decode(video=0), range(50), strict=False)]) == 50, "closing left it"
    close_container(newer)
    until(lambda: not web.clients)


def test_attempts_that_took_too_long_read_on_while_others_open() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.silent_reconnect"], capture_output=True, text=True, timeout=2 * LIMIT_S
    )
    assert process.stdout.count("does not answer within 0.1 s") == 3
    assert process.stderr == "64 pixels wide after 6 requests\n"
