"""Growth of `watch`: memory, threads and descriptors of each of its processes, from outside.

    python -m benchmarks.watch_memory [--minutes 60] [--outputs] [--out FILE]

The command itself, with nothing in it that measures: `watch --restart`, so frames, answers and what is shown have a
process each and a spare frame process waits, as with a camera. The drawn scene `demo` as H.264 at its own pace, 24
frames a second, three cuts in twelve seconds, an answer every two seconds. Every ten seconds each process is looked at.
With `--outputs` it is a picture of 1080 lines at ten frames a second, and has all that a household would switch on: the
live page with a viewer, zones with a mask, a watch with clips, the past, and reasons.
Growth is the slope of a straight line through the samples after the first sixth of the run, an hour.
Target: no process grows by more than 8 MiB of resident memory an hour, and no count grows.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil

from benchmarks.live import make_clip
from benchmarks.soak import Samples, process_figures, round_values
from benchmarks.support.answer_servers import free_port
from benchmarks.support.harness import write_report
from stream.monitor.machine import machine
from stream.runtime.child import python_command, python_environment

RESULTS = Path(__file__).parent / "results"
ZONES = Path(__file__).parents[1] / "examples" / "zones.toml"
SAMPLE_S = 10.0
WARM_SHARE = 1 / 6
GROWTH_MAX_MIB_PER_HOUR = 8.0
COUNT_GROWTH_MAX = 0.5
ROLES = ("fork server", "answers", "frames", "spare")
"""Processes below the command, in the order in which they are started."""


def roles(command: psutil.Process) -> dict[str, psutil.Process]:
    """The processes of the command by what they do. All are forked from one, whose arguments they have."""
    children = [child for child in command.children(recursive=True) if "stream.runtime.fork_server" in child.cmdline()]
    children.sort(key=lambda process: (process.create_time(), process.pid))
    return {"command": command, **dict(zip(ROLES, children, strict=False))}


def look(command: psutil.Process) -> dict[str, float]:
    """Resources of each process; one that ends meanwhile is left out."""
    figures: dict[str, float] = {}
    try:
        for name, process in roles(command).items():
            figures |= {f"{name} {resource}": value for resource, value in process_figures(process).items()}
    except (psutil.NoSuchProcess, psutil.ZombieProcess, IndexError):
        return {}
    return figures


def outputs(folder: Path, port: int) -> list[str]:
    """Options of what keeps or shows something."""
    return [
        *("--web", str(port), "--config", str(ZONES), "--zone", "porch"),
        *("--until", "Is there a red circle?", "--go-on", "--force", "--clips", str(folder / "clips")),
        *("--remember", str(folder / "past.sqlite"), "--why", str(folder / "why.jsonl")),
    ]


class Viewer:
    """A process that looks at the live page as a browser does, and comes back when the page was not there yet."""

    def __init__(self, port: int) -> None:
        self._command = python_command("benchmarks.web", "--view", f"http://127.0.0.1:{port}/", "--seconds", "86400")
        self._process = self._start()

    def look_again(self) -> None:
        if self._process.poll() is not None:
            self._process = self._start()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def watch(minutes: float, folder: Path, *, with_outputs: bool = False) -> Samples:
    """Run the command for `minutes`; the samples are taken at seconds since its start."""
    clip = folder / "scene.mp4"
    if with_outputs:
        make_clip(clip, 60 * minutes + 30, "hd", step=3)
    else:
        make_clip(clip, 60 * minutes + 30, "demo")
    port = free_port()
    options = [str(clip), "--restart", "--for", f"{60 * minutes:g}s", *(outputs(folder, port) if with_outputs else [])]
    samples, seconds = Samples(warm_share=WARM_SHARE), 0.0
    with open(folder / "watch.log", "wb") as log, ExitStack() as viewers:
        command = python_command("run_stream", "watch", *options)
        started = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=python_environment())
        viewer = viewers.enter_context(closing(Viewer(port))) if with_outputs else None
        while True:
            try:
                started.wait(SAMPLE_S)
                break
            except subprocess.TimeoutExpired:
                seconds += SAMPLE_S
            if viewer is not None:
                viewer.look_again()
            figures = look(psutil.Process(started.pid))
            if len(figures) == 3 * (1 + len(ROLES)):
                samples.add(round(seconds), figures)
    if started.returncode:
        raise SystemExit(f"watch ended with status {started.returncode}: {(folder / 'watch.log').read_text()[-500:]}")
    return samples


def faults(samples: Samples, hours: float) -> list[str]:
    """Series that have grown beyond noise."""
    return [
        f"{name} grows by {growth / hours:.1f} an hour"
        for name, growth in samples.growths().items()
        if (growth / hours if name.endswith("MiB") else growth)
        > (GROWTH_MAX_MIB_PER_HOUR if name.endswith("MiB") else COUNT_GROWTH_MAX)
    ]


def document(samples: Samples, minutes: float) -> dict[str, Any]:
    covered_s = samples.frames[-1] - samples.frames[round(len(samples.frames) * WARM_SHARE)]
    hours = covered_s / 3600
    return {
        "benchmark": "watch_memory",
        "minutes": minutes,
        "growth_over_s": covered_s,
        "growth_per_hour": {name: round(growth / hours, 2) for name, growth in samples.growths().items()},
        "growth_max_mib_per_hour": GROWTH_MAX_MIB_PER_HOUR,
        "faults": faults(samples, hours),
        "samples": {"at_s": samples.frames, **round_values(samples.series)},
        "machine": machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--outputs", action="store_true", help="also page, zones, watch, clips, past and reasons")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    out = options.out or RESULTS / ("watch_memory_outputs.json" if options.outputs else "watch_memory.json")
    with tempfile.TemporaryDirectory() as folder:
        samples = watch(options.minutes, Path(folder), with_outputs=options.outputs)
    report = document(samples, options.minutes)
    for name, growth in report["growth_per_hour"].items():
        print(f"{name}: {samples.series[name][-1]:.1f} at the end, {growth:+.2f} an hour")
    print("; ".join(report["faults"]) or "nothing grew")
    write_report(out, report)


if __name__ == "__main__":
    main()
