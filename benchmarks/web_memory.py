"""Memory growth of the live page and its server under half an hour of viewing.

    python -m benchmarks.web_memory [--minutes 30] [--out FILE]

The run of `benchmarks.web` (`paced-720p30`, an answer every two seconds, 15 pictures a second) with a browser that has
the live page and the texture microscope open. Every fifteen seconds: resident memory of the process of the sinks, of
the frame process and of the answer process, and the used heap of both pages after a garbage collection. The browser is
a separate process and is not counted. Growth is the slope of a straight line through the samples of the second
half.
Target: no more than 8 MiB an hour of any process, and 1 MiB an hour of a page.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.soak import Samples, round_values
from benchmarks.support.harness import write_report
from benchmarks.web import BROWSERS, WatchedScene
from stream.monitor.machine import machine

RESULTS = Path(__file__).parent / "results" / "web_memory.json"
SAMPLE_S = 15.0
WARM_SHARE = 0.5
GROWTH_MAX_MIB_PER_HOUR, PAGE_GROWTH_MAX_MIB_PER_HOUR = 8.0, 1.0
PAGES = {"live page": "?layers=thd", "microscope": "microscope"}
READY = {"live page": "() => window.live?.stage.shown >= 1", "microscope": "() => window.scope?.rounds >= 1"}
MIB = 2**20


def browse(address: str) -> None:
    """Keep the pages open; for each line on stdin, print the used heap of each in bytes, and what each has shown."""
    from playwright.sync_api import sync_playwright

    browser_path = next(path for name in BROWSERS if (path := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path)
        sessions = {}
        for name, path in PAGES.items():
            page = browser.new_page(viewport={"width": 1280, "height": 820})
            page.set_default_timeout(120_000)
            page.goto(address + path)
            page.wait_for_function(READY[name])
            sessions[name] = page, page.context.new_cdp_session(page)
        print("ready", flush=True)
        for _ in sys.stdin:
            figures: dict[str, float] = {}
            for name, (_page, session) in sessions.items():
                session.send("HeapProfiler.collectGarbage")
                figures[f"{name} MiB"] = session.send("Runtime.getHeapUsage")["usedSize"] / MIB
            figures["pictures shown"] = sessions["live page"][0].evaluate("() => window.live.stage.shown")
            figures["inspections shown"] = sessions["microscope"][0].evaluate("() => window.scope.rounds")
            print(json.dumps(figures), flush=True)
        browser.close()


class Pages:
    """The browser's process."""

    def __init__(self, address: str) -> None:
        command = [sys.executable, "-m", "benchmarks.web_memory", "--browse", address]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def look(self) -> dict[str, float]:
        """Used heap in MiB, and what was shown."""
        assert self._process.stdin is not None
        self._process.stdin.write("look\n")
        self._process.stdin.flush()
        figures: dict[str, float] = json.loads(self._read())
        return figures

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the browser has ended")
        return line


@contextmanager
def watched_scene() -> Iterator[WatchedScene]:
    with closing(WatchedScene(rate=15.0, keeps_times=False)) as scene:
        following = threading.Thread(target=scene.follow, daemon=True)
        following.start()
        assert scene.answered.wait(300), "no answer came"
        yield scene
        scene.run.end()
        following.join(60)


def watch(minutes: float) -> tuple[Samples, dict[str, float]]:
    """The samples at seconds since the pages were there, and what was shown in all."""
    samples, waiting, figures = Samples(warm_share=WARM_SHARE), threading.Event(), {}
    with watched_scene() as scene, closing(Pages(scene.address)) as pages:
        for number in range(round(60 * minutes / SAMPLE_S)):
            waiting.wait(SAMPLE_S)
            resident = {
                f"{name} process MiB": psutil.Process(pid).memory_info().rss / MIB
                for name, pid in scene.run.processes().items()
            }
            figures = pages.look()
            heaps = {name: figures.pop(f"{name} MiB") for name in PAGES}
            samples.add(round((number + 1) * SAMPLE_S), resident | {f"{name} MiB": heaps[name] for name in PAGES})
    return samples, figures


def document(samples: Samples, counts: dict[str, float], minutes: float) -> dict[str, Any]:
    first = round(len(samples.frames) * WARM_SHARE)
    hours = (samples.frames[-1] - samples.frames[first]) / 3600
    growths = {name: round(growth / hours, 2) for name, growth in samples.growths().items()}

    def limit(name: str) -> float:
        return GROWTH_MAX_MIB_PER_HOUR if "process" in name else PAGE_GROWTH_MAX_MIB_PER_HOUR

    return {
        "benchmark": "web_memory",
        "minutes": minutes,
        "growth_mib_per_hour": growths,
        "targets": {
            name: {"value": growth, "target": limit(name), "met": growth <= limit(name)}
            for name, growth in growths.items()
        },
        "shown": counts,
        "samples": {"at_s": samples.frames, **round_values(samples.series)},
        "machine": machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--browse", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.browse:
        browse(options.browse)
        return
    samples, counts = watch(options.minutes)
    report = document(samples, counts, options.minutes)
    for name, growth in report["growth_mib_per_hour"].items():
        series = samples.series[name]
        print(
            f"{name}: {series[0]:.1f} at first, {series[-1]:.1f} at the end, {growth:+.2f} an hour in the second half"
        )
    write_report(options.out, report)


if __name__ == "__main__":
    main()
