"""Pictures of the pages for the documents, taken from running ones: `python -m scripts.screenshots [--source …]`.

Needs Chromium (Debian: chromium-headless-shell). The source, or else the drawn demo again and again, is played at its
own pace with the bundled model, which describes it right. `--only live`, `sources`, `compare` or `past` takes the
pictures of one page, and `--only real` the recording of the README, of a real clip ($ARR_COC_CLIPS).
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import av
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError
from websockets.sync.client import ClientConnection, connect

from benchmarks.live import make_clip
from benchmarks.support.clips import CLIPS, clips_here

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
COLOURS = 256
LIMIT_MS = 300_000
FRAME_LIMIT_MS = 3000

RECORDED, GIF_MS, GIF_COLOURS, GIF_SIZE = 22, 250, 64, (800, 450)
"""Pictures of the recording, the time of each, its colours and size: it stays below 2 MB."""

REAL_CLIP = "static_cars_topdown.mp4"
"""Real clip of the README: car-detection.mp4 of intel-iot-devkit/sample-videos, CC BY 4.0."""

REAL_FRAMES = slice(184, 248, 2)
"""Its frames in which two cars pass."""

REAL_GIF_MS, REAL_COLOURS, REAL_WIDTH = 160, 80, 640
"""Time of a frame in the recording, as in the clip, its colours and width: it stays below 2.5 MB."""

TILE_AT = (0.24, 0.42)
"""Place of the tile under the microscope, in parts of the picture."""

SHOTS = (
    ("web-live.png", (1280, 800), "light", "?layers=t", 0.0),
    ("web-layers.png", (1280, 800), "dark", "?layers=thd&op=70&scale=relative", 0.5),
    ("web-phone.png", (400, 860), "light", "?layers=td", 0.0),
)
"""Name, size, colours, layers, and the place of the pointer, in parts of the picture; 0 for none."""


@contextmanager
def served_page(folder: Path, *arguments: str) -> Iterator[str]:
    """A command with a page, run in `folder`; gives the page's address."""
    command = [sys.executable, str(ROOT / "run_stream.py"), *arguments]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        try:
            for line in run.stderr:
                match = re.match(r"web page at (\S+)", line)
                if match is not None:
                    break
            else:
                raise SystemExit("the run has ended without a page")
            yield match[1]
        finally:
            run.terminate()
            run.stderr.read()


def take(browser: Browser, address: str, shot: tuple[str, tuple[int, int], str, str, float], answers: int) -> None:
    name, (width, height), scheme, layers, pointer = shot
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page.set_default_timeout(LIMIT_MS)
    page.goto(address + layers)
    page.wait_for_function("(count) => window.live && window.live.answers.answers.length >= count", arg=answers)
    page.wait_for_function("() => window.live.figures.rows.length >= 12 && window.live.run.health?.status === 'ok'")
    if pointer:
        _point(page, pointer)
    page.wait_for_function("() => !document.getElementById('stage').classList.contains('stale')")
    save(page, name, full=height > width)


def record(browser: Browser, address: str) -> None:
    """Take a short recording as GIF."""
    page = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme="light")
    page.set_default_timeout(LIMIT_MS)
    page.goto(address + "?layers=td")
    page.wait_for_function("() => window.live && window.live.answers.answers.length >= 6")
    frames = []
    for _ in range(RECORDED):
        frame_number = page.evaluate("() => window.live.stage.shown")
        page.wait_for_function("(shown) => window.live.stage.shown > shown", arg=frame_number)
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").resize(GIF_SIZE, Image.Resampling.LANCZOS)
        frames.append(picture.quantize(GIF_COLOURS, dither=Image.Dither.NONE))
    path = IMAGES / "web-live.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=GIF_MS, loop=0, optimize=True)
    page.close()


def record_real(browser: Browser, folder: Path) -> None:
    """Take a recording of the picture over a real clip, with its tiles and heat map.

    The model knows drawn scenes only, so its answers are left out. It was not trained for the chosen tokens and has no
    allocator: tiles are chosen as for any Qwen-VL. The run gets one frame after the other as from a browser's camera,
    each once the one before was taken, so a busy machine loses none.
    """
    paths = clips_here(CLIPS, [REAL_CLIP])
    if not paths:
        raise SystemExit(f"no {REAL_CLIP}; $ARR_COC_CLIPS names its folder")
    with av.open(paths[0]) as clip:
        decoded = islice(clip.decode(video=0), REAL_FRAMES.start, REAL_FRAMES.stop, REAL_FRAMES.step)
        messages = [_camera_message(frame.to_image()) for frame in decoded]
    model = str(ROOT / "models" / "scenes-stock")
    options = ("-m", model, "-q", "Where are the cars?", "--web", "0", "--stats-every", "none")
    frames = []
    with (
        served_page(folder, "watch", "browser:", *options) as address,
        connect(address.replace("http", "ws") + "camera", compression=None) as camera,
    ):
        page = browser.new_page(viewport={"width": 1180, "height": 720}, color_scheme="light")
        page.goto(address + "?layers=th&op=70&scale=relative")
        page.wait_for_function("() => window.live")
        for message in messages:
            _show_frame(page, camera, message)
            picture = Image.open(io.BytesIO(page.locator(".watch").screenshot())).convert("RGB")
            picture.thumbnail((REAL_WIDTH, REAL_WIDTH), Image.Resampling.LANCZOS)
            frames.append(picture.quantize(REAL_COLOURS, dither=Image.Dither.NONE))
    path = IMAGES / "real-video.gif"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=REAL_GIF_MS, loop=0, optimize=True)


def _camera_message(picture: Image.Image) -> bytes:
    """A picture as a browser's camera sends it."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=95)
    return struct.pack("<HH", *picture.size) + file.getvalue()


def _show_frame(page: Page, camera: ClientConnection, message: bytes) -> None:
    """Send a frame, again and again as long as the model is loaded, until the page shows it."""
    shown = page.evaluate("() => window.live.stage.shown")
    for _ in range(LIMIT_MS // FRAME_LIMIT_MS):
        camera.send(message)
        camera.recv()
        with suppress(PlaywrightTimeoutError):
            page.wait_for_function("(shown) => window.live.stage.shown > shown", arg=shown, timeout=FRAME_LIMIT_MS)
            return
    raise SystemExit("the page shows no picture")


def _point(page: Page, at: float) -> None:
    box = page.locator("#picture").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + at * box["width"], box["y"] + at * box["height"])


def take_live(browser: Browser, folder: Path, source: str | None) -> None:
    """Take the live page of `source`, or of the drawn demo."""
    if source is None:
        source = "demo.mp4"
        make_clip(folder / source, LIMIT_MS / 1000, "demo")
    page_options = ("--web", "0", "--web-rate", "10", "--every", "2", "--stats-every", "none", "--why", "reasons.jsonl")
    with served_page(folder, "watch", source, "--restart", *page_options) as address:
        for number, shot in enumerate(SHOTS):
            take(browser, address, shot, 3 + number)
        record(browser, address)


def take_microscope(browser: Browser, folder: Path, source: str | None) -> None:
    """Take the texture microscope over `source`, or over the drawn demo, with a tile that stays."""
    if source is None:
        source = "demo.mp4"
        make_clip(folder / source, LIMIT_MS / 1000, "demo")
    with served_page(folder, "watch", source, "--restart", "--web", "0", "--stats-every", "none") as address:
        page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        page.set_default_timeout(LIMIT_MS)
        page.goto(f"{address}microscope?op=70")
        page.locator("#mips-box summary").click()
        page.wait_for_function("() => window.scope.rounds >= 3")
        box = page.locator("#picture").bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + TILE_AT[0] * box["width"], box["y"] + TILE_AT[1] * box["height"])
        page.locator("#freeze").click()
        save(page, "web-microscope.png", full=True)


def take_sources(browser: Browser, folder: Path) -> None:
    """Take the page in which a source is chosen."""
    sources = (
        "door=rtsp://user:password@door.local/stream",
        "yard=rtsp://yard.local/stream",
        "lesson=clips/lesson.mp4",
    )
    with served_page(folder, "web", "0", *sources) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 640}, color_scheme="light")
        page.goto(address)
        page.locator("#source-choices").wait_for()
        save(page, "web-sources.png")


def take_compare(browser: Browser, folder: Path) -> None:
    """Take the page that compares answers."""
    with served_page(folder, "web", "0") as address:
        page = browser.new_page(viewport={"width": 1280, "height": 1250}, color_scheme="light")
        page.set_default_timeout(LIMIT_MS)
        page.goto(f"{address}compare?example=shapes&c=full,auto,auto&c=sparse,auto,auto&c=sparse,auto,32")
        page.wait_for_function("() => window.compare.picture")
        page.get_by_role("button", name="Compare", exact=True).click()
        page.locator(".verdict").nth(2).wait_for()
        save(page, "web-compare.png")


def take_past(browser: Browser, folder: Path, source: str | None) -> None:
    """Take what the page shows of the past of `source`, or of the drawn demo."""
    if source is None:
        source = "demo.mp4"
        make_clip(folder / source, LIMIT_MS / 1000, "demo")
    past_options = ("--remember", "past.sqlite", "--set", "past.camera=yard", "--every", "2")
    with served_page(
        folder, "watch", source, "--restart", "--web", "0", "--stats-every", "none", *past_options
    ) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        page.set_default_timeout(LIMIT_MS)
        page.goto(address)
        page.wait_for_function("() => window.live && window.live.answers.answers.length >= 12")
        past = page.locator("#past")
        past.scroll_into_view_if_needed()
        page.get_by_label("Time", exact=True).select_option("the last hour")
        page.wait_for_function("() => document.querySelectorAll('.moments img').length >= 8")
        page.wait_for_function("() => [...document.querySelectorAll('.moments img')].every((one) => one.complete)")
        save(page, "web-past.png", past)


def save(page: Page, name: str, part: Locator | None = None, *, full: bool = False) -> None:
    """Save what a page, or a part of it, shows, and close it."""
    png = page.screenshot(full_page=full) if part is None else part.screenshot()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(COLOURS, Image.Quantize.FASTOCTREE).save(IMAGES / name, optimize=True)
    page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", help="a file or a camera")
    parser.add_argument(
        "--only",
        choices=("live", "real", "microscope", "sources", "compare", "past"),
        help="the page to take, else all",
    )
    options = parser.parse_args()
    browser_path = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser_path is None:
        raise SystemExit("no Chromium: apt-get install --no-install-recommends chromium-headless-shell")
    source = options.source and str(Path(options.source).resolve())
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path)
        if options.only in (None, "live"):
            take_live(browser, Path(folder), source)
        if options.only in (None, "real"):
            record_real(browser, Path(folder))
        if options.only in (None, "microscope"):
            take_microscope(browser, Path(folder), source)
        if options.only in (None, "sources"):
            take_sources(browser, Path(folder))
        if options.only in (None, "compare"):
            take_compare(browser, Path(folder))
        if options.only in (None, "past"):
            take_past(browser, Path(folder), source)
        browser.close()


if __name__ == "__main__":
    main()
