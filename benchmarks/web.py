"""The live page: pictures shown and their age in a browser, and what viewers cost a run.

    python -m benchmarks.web [--seconds 10] [--rounds 3] [--out FILE]

A supervised run of the scene `paced-720p30` with the bundled model answering every two seconds, as `watch --restart
--web PORT --web-rate 30`. In each round there is no viewer, then one, then four of which one never confirms a
picture, so that all see the same machine; medians are over the rounds. Viewers are separate processes. A browser
(headless Chromium, if there is one) comes last: it draws the picture with its tiles, on the same cores. The age of a
picture is from its capture to when the page has drawn it, by the one clock of this host.

Targets: at least 20 pictures a second shown of 30, with a median age of at most 100 ms; at most 8 ms of the frame
process's CPU time for a picture, and 1 ms of the sinks' process for each further viewer; allocation keeps 95 % of its
rate with four viewers; the page at most 120 kB.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.support.harness import percentiles, write_report
from stream.config import AnswerConfig, CaptureConfig, Config, PipelineConfig
from stream.events import Answer, FrameReady
from stream.extensions.web.application import PAGE
from stream.extensions.web.section import WebSection
from stream.extensions.web.sink import WebPage, WebSink
from stream.monitor.health import RunMonitor
from stream.monitor.machine import machine
from stream.runtime.frame_process import run_in_child
from stream.sinks.factory import MonitorSink

RESULTS = Path(__file__).parent / "results" / "web.json"

VIEWERS = (0, 1, 4)
SETTLE_S = 1.5
SHOWN, AGE_MS, PICTURE_MS, VIEWER_MS, KEPT_PERCENT, PAGE_BYTES = 20.0, 100.0, 8.0, 1.0, 95.0, 120_000
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")


class WatchedScene:
    """A run with its page; other threads read how many frames it has given."""

    def __init__(self, rate: float = 30.0, *, keeps_times: bool = True) -> None:
        self._keeps_times = keeps_times
        config = Config(
            source="scene:paced-720p30",
            capture=CaptureConfig(realtime=True),
            answer=AnswerConfig(every_s=2.0),
            pipeline=PipelineConfig(answers="newest", restart=True),
            web=WebSection(address="127.0.0.1:0", rate=rate),
        )
        self.page = WebPage(config)
        self.address = self.page.address
        self.monitor = RunMonitor(config)
        self.sinks = [MonitorSink(self.monitor), WebSink(config, self.monitor, self.page.camera)]
        self.run = run_in_child(config)
        self.monitor.follow(self.run)
        self.ready_ns: list[tuple[int, int]] = []
        self.answered = threading.Event()

    def follow(self) -> None:
        """Pass every event to the sinks, until the run has ended."""
        for event in self.run.run():
            for sink in self.sinks:
                sink.write(event)
            if isinstance(event, FrameReady) and self._keeps_times:
                self.ready_ns.append((event.capture_ns, event.ready_ns))
            elif isinstance(event, Answer):
                self.answered.set()

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
        self.page.close()
        self.run.close()


def measure_phase(scene: WatchedScene, viewers: int, seconds: float) -> dict[str, float]:
    """Rates and CPU time with `viewers` viewers, one of four of them without confirming anything."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.web", "--view", scene.address, "--seconds", str(seconds + SETTLE_S)]
            + (["--stalled"] if number == 3 else []),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(viewers)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()  # it sees something
    time.sleep(SETTLE_S)
    before, cpu_before, begin_s = len(scene.ready_ns), _cpu_s(scene), time.monotonic()
    time.sleep(seconds)
    after, cpu_after, passed_s = len(scene.ready_ns), _cpu_s(scene), time.monotonic() - begin_s
    measured = [json.loads(child.communicate()[0].splitlines()[-1]) for child in children]
    frames = np.array(scene.ready_ns[before:after]).reshape(-1, 2)
    figures = {
        "allocated_per_s": (after - before) / passed_s,
        "frame_p50_ms": float(np.median(frames[:, 1] - frames[:, 0])) / 1e6,
        "frames_cpu_ms_per_s": 1000 * (cpu_after["frames"] - cpu_before["frames"]) / passed_s,
        "sinks_cpu_ms_per_s": 1000 * (cpu_after["main"] - cpu_before["main"]) / passed_s,
    }
    if measured:
        figures["pictures_per_s"] = measured[0]["pictures_per_s"]
        figures["picture_kb"] = measured[0]["picture_kb"]
        figures["age_p50_ms"] = measured[0]["age_ms"]["p50"]
    return figures


def _cpu_s(scene: WatchedScene) -> dict[str, float]:
    return {name: sum(psutil.Process(pid).cpu_times()[:2]) for name, pid in scene.run.processes().items()}


def view(address: str, seconds: float, stalled: bool) -> None:
    """View as a page does; print a line with the first picture, and the figures at the end."""
    from websockets.sync.client import connect

    from stream.protocol.pictures import HEADER

    ages, sizes = [], []
    with connect(address.replace("http", "ws") + "live", max_size=None, compression=None) as socket:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            try:
                message = socket.recv(timeout=max(0.01, end_s - time.monotonic()))
            except TimeoutError:
                break
            if isinstance(message, str):
                continue
            if not sizes:
                print("sees", flush=True)
                end_s = time.monotonic() + seconds
            ages.append(time.time() * 1000 - HEADER.unpack_from(message)[5])  # capture, ms since 1970
            sizes.append(len(message))
            if not stalled:
                socket.send('{"ok": 1}')
    figures = {"pictures_per_s": len(sizes) / seconds, "picture_kb": statistics.median(sizes) / 1000}
    print(json.dumps({**figures, "age_ms": percentiles(ages, 1)}))


WATCH = """(seconds) => new Promise((done) => {
    const { stage } = window.live, ages = [], show = stage.show.bind(stage);
    stage.show = (frame) => { show(frame); ages.push(stage.lastAgeMs); };
    setTimeout(() => done(ages), 1000 * seconds);
})"""


def browse(address: str, seconds: float) -> None:
    """View with a browser; print the figures."""
    from playwright.sync_api import sync_playwright

    browser_path = next(path for name in BROWSERS if (path := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path)
        page = browser.new_page(viewport={"width": 1280, "height": 820})
        begin_s = time.monotonic()
        page.goto(address)
        page.wait_for_function("() => window.live && window.live.stage.shown >= 1")
        first_s = time.monotonic() - begin_s
        page.wait_for_timeout(2000)
        heap = "() => performance.memory ? performance.memory.usedJSHeapSize / 1e6 : null"
        ages = page.evaluate(WATCH, seconds)
        figures = {
            "first_picture_s": round(first_s, 2),
            "shown_per_s": round(len(ages) / seconds, 1),
            "age_ms": percentiles(ages, 1),
            "heap_mb": page.evaluate(heap),
            "browser": browser.version,
        }
        browser.close()
    print(json.dumps(figures))


def measured_in_browser(scene: WatchedScene, seconds: float) -> dict[str, Any] | None:
    if not any(shutil.which(name) for name in BROWSERS):
        return None
    command = [sys.executable, "-m", "benchmarks.web", "--browse", scene.address, "--seconds", str(seconds)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures: dict[str, Any] = json.loads(output.splitlines()[-1])
    return figures


def costs(rounds: Sequence[dict[int, dict[str, float]]]) -> dict[str, float]:
    """Cost of a picture to the frame process, and of a further viewer to the sinks' one, in ms of CPU time; medians."""
    picture, viewer, kept_percent = [], [], []
    for figures in rounds:
        no_viewer, one_viewer, four_viewers = (figures[viewers] for viewers in VIEWERS)
        base_cpu_ms = no_viewer["frames_cpu_ms_per_s"] / no_viewer["allocated_per_s"] * one_viewer["allocated_per_s"]
        picture.append((one_viewer["frames_cpu_ms_per_s"] - base_cpu_ms) / one_viewer["pictures_per_s"])
        further = (
            four_viewers["sinks_cpu_ms_per_s"]
            - one_viewer["sinks_cpu_ms_per_s"] * four_viewers["pictures_per_s"] / one_viewer["pictures_per_s"]
        )
        viewer.append(further / (2 * four_viewers["pictures_per_s"]))  # the stalled one gets none
        kept_percent.append(100 * four_viewers["allocated_per_s"] / no_viewer["allocated_per_s"])
    return {
        "picture_frames_cpu_ms": round(statistics.median(picture), 2),
        "further_viewer_sinks_cpu_ms": round(statistics.median(viewer), 2),
        "allocation_kept_percent": round(statistics.median(kept_percent), 1),
    }


def targets(cost: dict[str, float], page: dict[str, Any] | None, page_bytes: int) -> dict[str, Any]:
    """Targets beside the measured values."""
    limits: dict[str, tuple[float | None, float, bool]] = {
        "shown per s, in the browser": (page and page["shown_per_s"], SHOWN, True),
        "age p50 in the browser, ms": (page and page["age_ms"]["p50"], AGE_MS, False),
        "CPU of the frame process for a picture, ms": (cost["picture_frames_cpu_ms"], PICTURE_MS, False),
        "CPU for a further viewer's picture, ms": (cost["further_viewer_sinks_cpu_ms"], VIEWER_MS, False),
        "allocation kept with four viewers, %": (cost["allocation_kept_percent"], KEPT_PERCENT, True),
        "page, bytes": (page_bytes, PAGE_BYTES, False),
    }
    return {
        name: {"value": value, "target": target, "met": None if value is None else (value >= target) is least}
        for name, (value, target, least) in limits.items()
    }


def parts_of(name: str) -> set[str]:
    """The files that a page loads: by its own markup, and by imports of its scripts."""
    parts, todo = set(), [name]
    while todo:
        parts.add(part := todo.pop())
        text = (PAGE / part).read_text(encoding="utf-8")
        references = re.findall(r'(?:"/page/|from "\./)([\w.]+)"', text)
        todo += [other for other in references if other not in parts]
    return parts


def measure(seconds: float, rounds: int) -> dict[str, Any]:
    with closing(WatchedScene()) as scene:
        following = threading.Thread(target=scene.follow, daemon=True)
        following.start()
        assert scene.answered.wait(300), "no answer came"
        phases = [{viewers: measure_phase(scene, viewers, seconds) for viewers in VIEWERS} for _ in range(rounds)]
        page = measured_in_browser(scene, seconds)
        scene.run.end()
        following.join(60)
    page_bytes = sum((PAGE / name).stat().st_size for name in parts_of("live.html"))
    cost = costs(phases)
    medians = {
        str(viewers): {
            name: round(statistics.median(figures[viewers][name] for figures in phases), 2)
            for name in phases[0][viewers]
        }
        for viewers in VIEWERS
    }
    return {"targets": targets(cost, page, page_bytes), "by_viewers": medians, "browser": page}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--view", help=argparse.SUPPRESS)
    parser.add_argument("--stalled", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--browse", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.view:
        view(options.view, options.seconds, options.stalled)
        return
    if options.browse:
        browse(options.browse, options.seconds)
        return
    load_before = machine()["load_1min"]
    result = {"benchmark": "web", "seconds": options.seconds, "rounds": options.rounds, "load_1min_before": load_before}
    result |= measure(options.seconds, options.rounds)
    print(json.dumps({key: result[key] for key in ("targets", "by_viewers", "browser")}, indent=2))
    write_report(options.out, {**result, "machine": machine()})


if __name__ == "__main__":
    main()
