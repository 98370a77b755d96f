"""Pictures of the live page for the documents, taken from a running page: `python -m scripts.screenshots [--source …]`.

Needs Chromium (Debian: chromium-headless-shell). The source, or else the drawn street again and again, is played at its
own pace with the bundled model.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.live import make_clip

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
COLOURS = 256
LIMIT_MS = 300_000

RECORDED, GIF_MS, GIF_COLOURS, GIF_SIZE = 22, 250, 64, (800, 450)
"""Pictures of the recording, the time of each, its colours and size: it stays below 2 MB."""

SHOTS = (
    ("web-live.png", (1280, 800), "light", "?layers=t", 0.0),
    ("web-layers.png", (1280, 800), "dark", "?layers=thd&op=70&scale=relative", 0.5),
    ("web-phone.png", (400, 860), "light", "?layers=td", 0.0),
)
"""Name, size, colours, layers, and the place of the pointer, in parts of the picture; 0 for none."""


@contextmanager
def served_run(source: str, reasons: Path) -> Iterator[str]:
    """A run with its page, whose `reasons` for tokens are written too; gives the page's address."""
    command = [
        sys.executable,
        str(ROOT / "run_stream.py"),
        "watch",
        source,
        "--restart",
        "--web",
        "0",
        "--web-rate",
        "10",
    ]
    command += ["--every", "2", "--stats-every", "none", "--why", str(reasons)]
    with subprocess.Popen(
        command, cwd=reasons.parent, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stderr is not None
        try:
            for line in run.stderr:
                found = re.match(r"web page at (\S+)", line)
                if found is not None:
                    break
            else:
                raise SystemExit("the run has ended without a page")
            yield found[1]
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
    data = page.screenshot(full_page=height > width)
    Image.open(io.BytesIO(data)).convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE).save(
        IMAGES / name, optimize=True
    )
    page.close()


def record(browser: Browser, address: str) -> None:
    """Take a short recording as GIF."""
    page = browser.new_page(viewport={"width": 1280, "height": 720}, color_scheme="light")
    page.set_default_timeout(LIMIT_MS)
    page.goto(address + "?layers=td")
    page.wait_for_function("() => window.live && window.live.answers.answers.length >= 6")
    taken = []
    for _ in range(RECORDED):
        shown = page.evaluate("() => window.live.stage.shown")
        page.wait_for_function("(shown) => window.live.stage.shown > shown", arg=shown)
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB").resize(GIF_SIZE, Image.Resampling.LANCZOS)
        taken.append(picture.quantize(GIF_COLOURS, dither=Image.Dither.NONE))
    path = IMAGES / "web-live.gif"
    taken[0].save(path, save_all=True, append_images=taken[1:], duration=GIF_MS, loop=0, optimize=True)
    page.close()


def _point(page: Page, at: float) -> None:
    box = page.locator("#picture").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + at * box["width"], box["y"] + at * box["height"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", help="a file or a camera")
    options = parser.parse_args()
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise SystemExit("no Chromium: apt-get install --no-install-recommends chromium-headless-shell")
    with tempfile.TemporaryDirectory() as folder:
        source = options.source and str(Path(options.source).resolve())
        if source is None:
            source = "street.mp4"
            make_clip(Path(folder) / source, LIMIT_MS / 1000, "street")
        take_all(found, source, Path(folder) / "reasons.jsonl")


def take_all(executable: str, source: str, reasons: Path) -> None:
    with served_run(source, reasons) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable)
        for number, shot in enumerate(SHOTS):
            take(browser, address, shot, 3 + number)
        record(browser, address)
        browser.close()


if __name__ == "__main__":
    main()
