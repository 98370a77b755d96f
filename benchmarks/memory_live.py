"""The visual memory in `watch`, as a user runs it: first tokens, frames in time, and processor time, live at 1080p30.

    python -m benchmarks.memory_live [--only PART …] [--seconds 20] [--rounds 2] [--size 1920x1080] [--out FILE]

A clip as H.264 (`support/moving_camera.py`) plays at its own pace, the bundled model answers every two seconds, and
questions are typed into the command. The runs are the command itself, looked at from outside; they take turns.

- `quiet`: a still street, and `moving`: something moves over it, so that 1 % of the tiles differ from those of the
  answer before; with the defaults, with `--no-memory`, and with `--memory-idle 0`. `due` are answers by the clock,
  whose first token counts from the capture of the frame; `typed` are those to a typed question, from its last letter.
  The first answer is not counted. Processor time is of all processes, from the first answer to the last.
- `neighbour`: two runs share a `serve-answers`. One looks at a still street and has much to read ahead; the other one
  has no memory and asks. Its wait for a turn and first token, with idle work in the server and without.

Targets: the first token of a typed question in a quiet scene at most TYPED_TARGETS of one without memory; deadline
misses at most 0.1 %, or as many as without memory; a neighbour waits at most a piece of idle work and a step longer.
"""

from __future__ import annotations

import argparse
import json
import re
import select
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.support.answer_servers import READY, free_port
from benchmarks.support.harness import percentiles, write_report
from benchmarks.support.memory_ways import PIECE_MS
from benchmarks.support.moving_camera import SIZE_PX, MovingCamera
from stream.monitor.machine import machine
from stream.runtime.child import python_command, python_environment

RESULTS = Path(__file__).parent / "results" / "memory_live.json"
PARTS = ("quiet", "moving", "neighbour")
DEFAULTS = "defaults"
WAYS: dict[str, tuple[str, ...]] = {
    DEFAULTS: (),
    "no memory": ("--no-memory",),
    "no idle": ("--memory-idle", "0"),
}
SERVERS: dict[str, tuple[str, ...]] = {"idle": (), "no idle": ("--memory-idle", "0")}

TYPED = ("Which colours are there?", "Is anything moving?", "What does the text say?", "Say what happens.")
TYPED_FROM_S, TYPED_EVERY_S = 3.3, 3.1
"""Since the first answer; not a multiple of the time between two answers."""

SPARE_S = 3.0
"""Before the end nothing is typed."""

LIMIT_S = 60.0
"""Longest time of a command, beside that of its clip."""

TYPED_TARGETS = {"p50": 0.2, "p95": 0.4}
MISSES_PERCENT = 0.1
STEP_MS = 10.0
"""Longest step of the bundled model, by which a piece may be longer."""

Event = Mapping[str, Any]


@dataclass
class LiveRun:
    """What one command did: its answers, the first tokens of typed questions, and its processor time."""

    due: list[Event] = field(default_factory=list)
    typed_ms: list[float] = field(default_factory=list)
    typed_answers: list[Event] = field(default_factory=list)
    summary: Event = field(default_factory=dict)
    cpu_s_a_minute: float = 0.0
    deadline_misses: int = 0


class WatchCommand:
    """`watch` in its own process, with its events as lines, and questions typed into it."""

    def __init__(self, clip: Path, seconds: float, options: Sequence[str], *, types: bool) -> None:
        self._port = free_port()
        command = python_command(
            *("run_stream", "watch", str(clip), "--for", f"{seconds:g}s", "--ask-stdin", "-o", "-"),
            *("--metrics-port", str(self._port), *options),
        )
        pipe = subprocess.PIPE
        environment = python_environment()
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment)
        self._tree = psutil.Process(self.process.pid)
        self._seconds = seconds
        self._types = types
        self._began_s: float | None = None
        self._waiting: dict[str, float] = {}
        self._numbers = 0
        self._cpu: list[tuple[float, float]] = []
        self.run = LiveRun()

    def watch(self) -> LiveRun:
        """Follow it to its end."""
        with self.process:
            try:
                return self._watch()
            finally:
                self.process.kill()

    def _watch(self) -> LiveRun:
        assert self.process.stdout is not None
        limit_s = time.monotonic() + self._seconds + LIMIT_S
        rest = b""
        while True:
            ready, _, _ = select.select([self.process.stdout], [], [], 0.02)
            now_s = time.monotonic()
            if now_s > limit_s:
                raise TimeoutError(f"watch did not end within {self._seconds + LIMIT_S:g} s")
            if ready:
                data = self.process.stdout.read1(1 << 16)  # type: ignore[attr-defined]
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._take(json.loads(line), now_s)
                if not data:
                    break
            self._act(now_s)
        if self.process.wait(LIMIT_S):
            raise SystemExit(f"watch ended with status {self.process.returncode}")
        (begin_s, begin_cpu_s), (end_s, end_cpu_s) = self._cpu[0], self._cpu[-1]
        self.run.cpu_s_a_minute = 60 * (end_cpu_s - begin_cpu_s) / max(1e-9, end_s - begin_s)
        return self.run

    def _take(self, event: Event, now_s: float) -> None:
        if event["type"] == "summary":
            self.run.summary = event
        if event["type"] != "answer":
            return
        self._look()
        if self._began_s is None:
            self._began_s = now_s
            return
        if event["trigger"] == "every":
            self.run.due.append(event)
        typed_s = self._waiting.pop(event["query"], None) if event["trigger"] == "asked" else None
        if typed_s is not None:
            timing = event["timing"]
            after_first_ms = timing["total_ms"] - timing["ttft_ms"]
            self.run.typed_answers.append(event)
            self.run.typed_ms.append((now_s - typed_s) * 1e3 - after_first_ms)

    def _act(self, now_s: float) -> None:
        """Type the next question if it is time."""
        if self._began_s is None or not self._types:
            return
        at_s = now_s - self._began_s
        if TYPED_FROM_S + self._numbers * TYPED_EVERY_S <= at_s < self._seconds - SPARE_S:
            assert self.process.stdin is not None
            question = TYPED[self._numbers % len(TYPED)]
            self._numbers += 1
            self._waiting[question] = time.monotonic()
            self.process.stdin.write(question.encode() + b"\n")
            self.process.stdin.flush()

    def _look(self) -> None:
        """Note processor time and deadline misses so far, unless the run has just ended."""
        with suppress(OSError, psutil.Error):
            self._cpu.append((time.monotonic(), self._cpu_s()))
            self.run.deadline_misses = self._metric("deadline_misses_total")

    def _cpu_s(self) -> float:
        """Return the processor time of all its processes."""
        times = [process.cpu_times() for process in [self._tree, *self._tree.children(recursive=True)]]
        return sum(usage.user + usage.system for usage in times)

    def _metric(self, name: str) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as reply:
            text = reply.read().decode()
        match = re.search(rf"^\w*{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        return 0 if match is None else round(float(match[1]))


def figures(runs: Sequence[LiveRun]) -> dict[str, Any]:
    """Figures of all runs of one way."""
    due = [answer for run in runs for answer in run.due]
    answers = [answer for run in runs for answer in run.typed_answers]
    memories = [run.summary["memory"] for run in runs if run.summary.get("memory")]
    idles = [memory.get("idle") or {} for memory in memories]
    dropped: dict[str, int] = {}
    for run in runs:
        for name, count in run.summary["dropped"].items():
            dropped[name] = dropped.get(name, 0) + count
    return {
        "due": {"answers": len(due), **_timings(due, [answer["timing"]["ttft_ms"] for answer in due])},
        "typed": {"answers": len(answers), **_timings(answers, [ms for run in runs for ms in run.typed_ms])},
        "frames": sum(run.summary["frames"] for run in runs),
        "deadline_misses": sum(run.deadline_misses for run in runs),
        "dropped": dropped,
        "cpu_s_a_minute": round(sum(run.cpu_s_a_minute for run in runs) / len(runs), 1),
        "idle_tokens": sum(idle.get("tokens", 0) for idle in idles),
        "idle_s": round(sum(idle.get("seconds", 0.0) for idle in idles), 2),
        "rebuilt": sum(idle.get("rebuilt", 0) for idle in idles),
    }


def _timings(answers: Sequence[Event], first_ms: Sequence[float]) -> dict[str, Any]:
    """Return percentiles of the first token, of the wait for a turn, and of encoding, and of the tokens prefilled."""
    if not answers:
        return {}
    parts = {
        "first_token_ms": first_ms,
        **{name: [answer["timing"][name] for answer in answers] for name in ("turn_ms", "encode_ms", "prefill_ms")},
        "prefilled_tokens": [answer["prefilled_tokens"] for answer in answers],
    }
    return {name: percentiles(values, 1) for name, values in parts.items()}


def measure_runs(clip: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """Each way in each round."""
    runs: dict[str, list[LiveRun]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, options in WAYS.items():
            runs[name].append(WatchCommand(clip, seconds, options, types=True).watch())
    ways = {name: figures(measured) for name, measured in runs.items()}
    return {"ways": ways, "against_no_memory": against(ways, "no memory")}


def against(ways: Mapping[str, Mapping[str, Any]], base: str) -> dict[str, dict[str, float]]:
    """Ratios of first tokens and of processor time to those of one way; of a kind of which all have answers."""
    return {
        name: {
            **{
                f"{kind} {figure}": round(way[kind]["first_token_ms"][figure] / other, 3)
                for kind in ("due", "typed")
                for figure in ("p50", "p95")
                if way[kind]["answers"] and (other := ways[base][kind].get("first_token_ms", {}).get(figure))
            },
            "cpu": round(way["cpu_s_a_minute"] / ways[base]["cpu_s_a_minute"], 3),
        }
        for name, way in ways.items()
        if name != base
    }


def start_server(folder: Path, options: Sequence[str], stack: ExitStack) -> str:
    """Start a `serve-answers` that lasts as long as the stack, and return its address."""
    address = f"tcp://127.0.0.1:{free_port()}"
    log = folder / "server.log"
    with log.open("wb") as output:
        command = python_command("run_stream", "serve-answers", address, *options)
        server = subprocess.Popen(command, stdout=output, stderr=output, env=python_environment())
    stack.callback(server.wait, LIMIT_S)
    stack.callback(server.terminate)
    limit_s = time.monotonic() + LIMIT_S
    while READY not in log.read_text(encoding="utf-8", errors="replace"):
        if time.monotonic() > limit_s or server.poll() is not None:
            raise SystemExit(f"the server does not serve: {log.read_text(encoding='utf-8', errors='replace')}")
        time.sleep(0.05)
    return address


def measure_neighbour(still: Path, moving: Path, folder: Path, seconds: float) -> dict[str, Any]:
    """A run without memory beside one that has much to read ahead, both at one server."""
    servers: dict[str, dict[str, Any]] = {}
    for name, options in SERVERS.items():
        with ExitStack() as stack:
            address = start_server(folder, options, stack)
            idler = WatchCommand(still, seconds, ("--server", address), types=False)
            asker = WatchCommand(moving, seconds, ("--server", address, "--no-memory"), types=False)
            with ThreadPoolExecutor() as threads:
                asker_run, idler_run = (
                    future.result() for future in [threads.submit(run.watch) for run in (asker, idler)]
                )
        servers[name] = figures([asker_run]) | {"idle_s": figures([idler_run])["idle_s"]}
    later_ms = {
        key: {
            figure: round(servers["idle"]["due"][key][figure] - servers["no idle"]["due"][key][figure], 1)
            for figure in ("p50", "p95")
        }
        for key in ("turn_ms", "first_token_ms")
    }
    return {
        "servers": servers,
        "turn_later_ms": later_ms["turn_ms"],
        "first_token_later_ms": later_ms["first_token_ms"],
    }


def judge(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the targets of the parts that were measured."""
    targets: dict[str, dict[str, Any]] = {}

    def check(name: str, value: float, target: float) -> None:
        targets[name] = {"value": value, "target": target, "met": value <= target}

    for part in ("quiet", "moving"):
        if part not in report:
            continue
        ways, ratios = report[part]["ways"], report[part]["against_no_memory"][DEFAULTS]
        for figure, target in TYPED_TARGETS.items() if part == "quiet" else ():
            if f"typed {figure}" in ratios:
                check(f"{part}, typed, {figure}, against no memory", ratios[f"typed {figure}"], target)
        if "due p50" in ratios:
            check(f"{part}, due, p50, against no memory", ratios["due p50"], 1.0)
        misses = {name: 100 * way["deadline_misses"] / max(1, way["frames"]) for name, way in ways.items()}
        most = max(MISSES_PERCENT, round(misses["no memory"], 3))
        check(f"{part}, deadline misses, %", round(misses[DEFAULTS], 3), most)
    if "neighbour" in report:
        for figure, later_ms in report["neighbour"]["turn_later_ms"].items():
            check(f"neighbour's turn later, ms, {figure}", later_ms, PIECE_MS + STEP_MS)
    return targets


def table(ways: Mapping[str, Mapping[str, Any]]) -> str:
    """As it is printed: one line for each way."""
    heads = ("due", "p95", "turn p95", "typed", "p95", "misses", "cpu s/min", "idle s", "rebuilt")
    lines = [f"{'':12}" + "".join(f"{head:>10}" for head in heads)]
    for name, way in ways.items():
        due, question = (way[kind].get("first_token_ms", {"p50": 0, "p95": 0}) for kind in ("due", "typed"))
        turn = way["due"].get("turn_ms", {"p95": 0})
        values = (due["p50"], due["p95"], turn["p95"], question["p50"], question["p95"], way["deadline_misses"])
        cells = (*values, way["cpu_s_a_minute"], way["idle_s"], way["rebuilt"])
        lines.append(f"{name:12}" + "".join(f"{cell:10.1f}" for cell in cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=PARTS, metavar="PART")
    parser.add_argument("--seconds", type=float, default=20.0, help="of a run")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--size", default="x".join(map(str, SIZE_PX)), help="of the clips")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    width_px, height_px = map(int, arguments.size.split("x"))
    report: dict[str, Any] = {"benchmark": "memory_live"}
    if set(arguments.only) < set(PARTS) and arguments.out.is_file():
        report = json.loads(arguments.out.read_text(encoding="utf-8"))
    report |= {"size": arguments.size, "seconds": arguments.seconds, "rounds": arguments.rounds, "machine": machine()}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        moving, still = folder / "moving.mp4", folder / "still.mp4"
        clips = {"quiet": still, "moving": moving}
        MovingCamera("1 %", (width_px, height_px)).write_clip(moving, arguments.seconds + 2)
        MovingCamera("still street", (width_px, height_px)).write_clip(still, arguments.seconds + 2)
        for part in (part for part in clips if part in arguments.only):
            report[part] = measure_runs(clips[part], arguments.seconds, arguments.rounds)
            print(f"\n{part}\n{table(report[part]['ways'])}", flush=True)
            write_report(arguments.out, report | {"targets": judge(report)})
        if "neighbour" in arguments.only:
            report["neighbour"] = measure_neighbour(still, moving, folder, arguments.seconds)
            print("\nbeside a client that has much to read ahead, at a server")
            print(table(report["neighbour"]["servers"]), flush=True)
    report["targets"] = judge(report)
    write_report(arguments.out, report)
    print()
    for target_name, target in report["targets"].items():
        verdict = "" if target["met"] else "  missed"
        print(f"{target_name:40}{target['value']:8.3f} <= {target['target']:g}{verdict}")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
