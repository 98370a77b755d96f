"""A viewer's camera as the source: from the browser to frames that a ZeroMQ source reads; every way to be refused."""

from __future__ import annotations

import re
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from stream.errors import TransportError
from stream.extensions.web import connection
from stream.extensions.web.camera import FRAMES_A_SECOND, BrowserCamera
from stream.extensions.web.viewer import MessageRefused
from stream.extensions.zeromq.source import FrameDecoder
from stream.protocol.picture_files import encode_jpeg
from stream.transport.links import FrameSubscriber
from tests.support.network import LIMIT_MS, LIMIT_S, until
from tests.support.web import ServedPage, Visit, closing_code, sampled, served

ROOT = Path(__file__).resolve().parents[3]
JPEG = encode_jpeg(sampled().images[0])
FRAME = struct.pack("<HH", 512, 256) + JPEG


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/camera"


@pytest.fixture
def page(endpoint: str) -> Iterator[ServedPage]:
    with served(web__camera=endpoint) as page:
        yield page


def camera_of(page: ServedPage) -> ClientConnection:
    return connect(page.url.replace("http", "ws") + "camera", compression=None, max_size=None)


def test_frames_of_a_camera_are_those_of_a_source(page: ServedPage, endpoint: str) -> None:
    with closing(FrameSubscriber(endpoint)) as source, camera_of(page) as camera:
        parts = None
        while parts is None:
            camera.send(FRAME)
            assert camera.recv(timeout=LIMIT_S) == "ok"
            parts, _ = source.receive(50)
        header, planes, _ = FrameDecoder().read(parts)
    assert (header.width, header.height, header.format) == (512, 256, "jpeg")
    assert (planes.width_px, planes.height_px) == (512, 256)


@pytest.mark.parametrize(
    "message",
    [b"", b"\x00", struct.pack("<HH", 0, 256) + JPEG, struct.pack("<HH", 65535, 9) + JPEG, FRAME[:4] + b"PNG", "x"],
)
def test_invalid_frames_end_the_connection(page: ServedPage, message: bytes | str) -> None:
    with camera_of(page) as camera:
        camera.send(message)
        assert closing_code(camera) == connection.REFUSED
    with camera_of(page) as camera:
        camera.send(FRAME)
        assert camera.recv(timeout=LIMIT_S) == "ok"


def test_one_camera_at_a_time(page: ServedPage) -> None:
    with camera_of(page) as first:
        first.send(FRAME)
        first.recv(timeout=LIMIT_S)
        with camera_of(page) as second:
            assert closing_code(second) == connection.CAMERA_IN_USE

    def is_free() -> bool:
        with camera_of(page) as camera:
            try:
                camera.send(FRAME)
                return camera.recv(timeout=LIMIT_S) == "ok"
            except ConnectionClosed:
                return False

    until(is_free)


def test_a_run_of_another_source_takes_no_camera() -> None:
    with served() as page, camera_of(page) as camera:
        assert closing_code(camera) == connection.REFUSED


def test_viewers_who_may_only_look_give_no_camera(endpoint: str) -> None:
    with served(web__camera=endpoint, web__control=False) as page, camera_of(page) as camera:
        assert closing_code(camera) == connection.REFUSED


def test_a_camera_that_is_too_quick_loses_frames(endpoint: str) -> None:
    with closing(BrowserCamera(endpoint)) as camera:
        for _ in range(5 * FRAMES_A_SECOND):
            camera.publish(FRAME)
        assert camera._frames < 5 * FRAMES_A_SECOND
        with pytest.raises(MessageRefused, match="at most"):
            camera.publish(bytes(5_000_000))


def test_an_endpoint_that_cannot_be_bound_is_one_error() -> None:
    with (
        closing(BrowserCamera("ipc:///no/such/folder/camera")) as camera,
        pytest.raises(TransportError, match="cannot open"),
    ):
        camera.publish(FRAME)


def test_a_browser_sends_its_camera(page: ServedPage, endpoint: str, visit: Visit) -> None:
    visit.page.goto(page.url)
    visit.page.get_by_role("button", name="Start this browser’s camera").click()
    with closing(FrameSubscriber(endpoint)) as source:
        parts, _ = source.receive(LIMIT_MS)
        assert parts is not None
        header, planes, _ = FrameDecoder().read(parts)
        assert (header.width, header.height) == (640, 360)
        assert (planes.width_px, planes.height_px) == (640, 360)
    assert visit.page.locator("#camera-device option").count() >= 1
    visit.page.get_by_role("button", name="Stop the camera").click()
    assert visit.page.locator("#camera-state").inner_text() == "The camera is off."


def test_a_mirrored_camera_keeps_its_tiles(page: ServedPage, visit: Visit) -> None:
    visit.see(page.url)
    mirror = visit.page.get_by_role("button", name="Mirror")
    for pressed, place, beyond in (("false", 1.5 / 16, "ArrowRight"), ("true", 14.5 / 16, "ArrowLeft")):
        assert mirror.get_attribute("aria-pressed") == pressed
        box = visit.page.locator("#picture").bounding_box()
        assert box is not None
        visit.page.mouse.move(box["x"] + box["width"] * place, box["y"] + box["height"] * 0.5 / 8)
        assert "full resolution · row 0, column 1" in visit.page.locator("#tip").inner_text()
        visit.page.locator("#stage").focus()
        visit.page.keyboard.press(beyond)
        assert "row 0, column 2" in visit.page.locator("#tip").inner_text()
        mirror.click()
    assert "mirror" not in visit.page.url
    mirror.click()
    assert visit.page.url.endswith("?mirror=1")
    transform = visit.page.evaluate("() => getComputedStyle(window.live.stage.picture).transform")
    assert transform == "matrix(-1, 0, 0, 1, 0, 0)"


THROWS = "navigator.mediaDevices.getUserMedia = async () => {{ throw new DOMException('', '{}'); }}"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (THROWS.format("NotAllowedError"), "was not allowed"),
        (THROWS.format("NotFoundError"), "has no camera"),
        (THROWS.format("NotReadableError"), "another program"),
        ("Object.defineProperty(navigator, 'mediaDevices', { value: undefined })", "secure pages only.*ssh -L"),
    ],
)
def test_a_camera_that_cannot_be_used_is_explained(page: ServedPage, visit: Visit, script: str, words: str) -> None:
    visit.page.add_init_script(script)
    visit.page.goto(page.url)
    visit.page.get_by_role("button", name="Start this browser’s camera").click()
    visit.page.wait_for_function(
        "(words) => document.getElementById('camera-state').textContent.match(words)", arg=words
    )


def test_the_camera_of_another_viewer_is_left_alone(page: ServedPage, visit: Visit) -> None:
    visit.page.goto(page.url)
    with camera_of(page) as first:
        first.send(FRAME)
        first.recv(timeout=LIMIT_S)
        visit.page.get_by_role("button", name="Start this browser’s camera").click()
        visit.page.wait_for_function(
            "() => document.getElementById('camera-state').textContent.includes('Another viewer')"
        )


@pytest.mark.slow
def test_a_container_s_command_watches_the_camera_of_a_laptop(browser: Browser, tmp_path: Path) -> None:
    """The command of docs/desktop.md: all addresses, a token, and the page opened at localhost."""
    options = ("watch", "browser:", "--web", "0.0.0.0:0", "--web-token", "auto", "--web-control")
    command = [sys.executable, str(ROOT / "run_stream.py"), *options]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        try:
            address = next(line.split()[-1] for line in run.stderr if line.startswith("web page at "))
            context = browser.new_context()
            context.set_default_timeout(LIMIT_S * 1000)
            page = context.new_page()
            page.goto(re.sub(r"//[^:/]+", "//localhost", address))
            page.get_by_role("button", name="Start this browser’s camera").click()
            page.wait_for_function("() => window.live?.answers.answers.length >= 1 && window.live.stage.shown >= 1")
            assert "tokens" in page.locator("#lines").inner_text()
            context.close()
        finally:
            run.send_signal(signal.SIGINT)
            run.stderr.read()
