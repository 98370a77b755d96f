"""Half an hour in which the processes of a fleet are killed and stopped at random: what is left, lost or doubled.

    python -m tests.soak.chaos [--minutes 30] [--seed 1] [--every 8] [--folder FOLDER] [--out FILE]

`fleet` watches four cameras with the bundled model, an answer every 2 s: two ask two answer servers (`serve-answers`),
two the answer process of the command. Each camera plays a clip at its own pace and has a WebVTT and an MCAP file; all
of them share a file of JSON lines. Every 8 s on average a frame process, the answer process or a server is killed
(SIGKILL), asked to end (SIGTERM), or stopped and continued (SIGSTOP, SIGCONT) after up to 12 s, by a seed. A server
that has died is started again after up to 5 s. Towards the end the fork server is killed, too. The command is ended by
Ctrl-C. Then three short runs are killed whole, by SIGKILL of the command.

Faults: a process that is left; the command has grown; a file that cannot be read; an answer that is in one file and not
in another, or twice; an answer to another camera's question; a camera that has no answer for SILENCE_MAX_S although its
processes and a server are there. That counts from its last answer, from the last signal to one of its processes, and
from the moment at which a server was ready again, whichever is latest.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from mcap.reader import make_reader

from benchmarks.soak import Samples, process_figures
from benchmarks.support.answer_servers import COMMAND, AnswerServerProcess, free_port, make_clip
from benchmarks.support.harness import write_report
from stream.monitor.machine import machine

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "chaos.json"
QUESTIONS = {
    "asks1": "Say what happens.",
    "asks2": "What do you see?",
    "own1": "What is there?",
    "own2": "What happens now?",
}
"""Cameras, and the question of each; the first two ask servers."""

MARK = "ARR_COC_KILLS"
"""Environment variable that marks the processes of a run, orphans included."""

EVERY_S = 2.0
STOPPED_MAX_S, DOWN_MAX_S = 12.0, 5.0
SAMPLE_S = 5.0
TICK_S = 0.1
SILENCE_MAX_S = 30.0
"""A frame process that is stopped is killed after 5 s, and the model loads for a while on a busy machine."""
END_LIMIT_S = 60.0
GONE_LIMIT_S = 5.0
"""The processes of a run end within 3 s (docs/robustness.md); this limit is for a busy machine."""
FORKS_DIE_AT = 0.9


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes that live and were started with this mark."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


class FleetCommand:
    """`fleet` with its cameras, and its answers so far."""

    def __init__(self, folder: Path, servers: Sequence[str], environment: Mapping[str, str], seconds: float) -> None:
        self.folder = folder
        folder.mkdir()
        clip = folder / "clip.mp4"
        make_clip(clip, seconds)
        tables = []
        for name, question in QUESTIONS.items():
            os.link(clip, folder / f"{name}.mp4")
            server = f'answer.server = "{",".join(servers)}"\n' if name.startswith("asks") else ""
            tables.append(f'[cameras.{name}]\nsource = "{name}.mp4"\nanswer.query = "{question}"\n{server}')
        outputs = '"day.jsonl", "{camera}.vtt", "{camera}.mcap"'
        head = f"[answer]\nevery_s = {EVERY_S}\n[pipeline]\nrestart_limit = 100000\n[output]\npaths = [{outputs}]\n"
        (folder / "fleet.toml").write_text(head + "\n".join(tables), encoding="utf-8")
        with (folder / "log").open("wb") as log:
            command = [sys.executable, str(COMMAND), "fleet", "fleet.toml"]
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        self.process_info = psutil.Process(self.process.pid)
        self._mark = environment[MARK]
        self.answered_s: dict[str, list[float]] = {name: [] for name in QUESTIONS}
        self._bytes_read = 0

    def follow(self, now_s: float) -> None:
        """Note when answers have come since the last call."""
        path = self.folder / "day.jsonl"
        if not path.exists():
            return
        with path.open("rb") as lines:
            lines.seek(self._bytes_read)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self._bytes_read += len(line)
                event = json.loads(line)
                if event["type"] == "answer":
                    self.answered_s[event["camera"]].append(now_s)

    def children(self) -> dict[str, psutil.Process]:
        """Return its frame processes by camera, the answer process, and the fork server, as far as they exist.

        Those that were forked have another parent once the fork server is gone.
        """
        children: dict[str, psutil.Process] = {}
        for child in marked(self._mark):
            with suppress(psutil.Error):
                if child.pid != self.process_info.pid and "serve-answers" not in child.cmdline():
                    children[self._name(child)] = child
        return children

    def _name(self, child: psutil.Process) -> str:
        if child.children():
            return "forks"
        names = {Path(opened.path).stem for opened in child.open_files()}
        return next((name for name in QUESTIONS if name in names), "answers")


class Silences:
    """For how long each camera had no answer while it was not disturbed and a server could answer."""

    def __init__(self, command: FleetCommand, servers: Mapping[str, AnswerServerProcess]) -> None:
        self._command = command
        self._servers = servers
        self._disturbed_s = dict.fromkeys(QUESTIONS, 0.0)
        self.longest_s = dict.fromkeys(QUESTIONS, 0.0)

    def disturb(self, victim: str, now_s: float) -> None:
        """Something was done to a process: a camera's own, or the answer process of two."""
        for name in QUESTIONS:
            if victim in (name, "forks") or (victim == "answers" and not name.startswith("asks")):
                self._disturbed_s[name] = now_s

    def update(self, now_s: float) -> None:
        """Look again; to be called often."""
        if not any(server.serves for server in self._servers.values()):
            self._disturbed_s |= {name: now_s for name in QUESTIONS if name.startswith("asks")}
        for name, answered_s in self._command.answered_s.items():
            if answered_s:
                since_s = max(answered_s[-1], self._disturbed_s[name])
                self.longest_s[name] = max(self.longest_s[name], now_s - since_s)


@dataclass
class Kills:
    """Signals to processes, and their times; by a seed."""

    command: FleetCommand
    servers: dict[str, AnswerServerProcess]
    silences: Silences
    chance: random.Random
    every_s: float
    signals: list[tuple[str, str]] = field(default_factory=list)
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: Iterator[int] = field(default_factory=itertools.count)

    def step(self, now_s: float) -> None:
        """Send the due signals; start servers again that have died."""
        while self._due and self._due[0][0] <= now_s:
            heapq.heappop(self._due)[2]()

    def begin(self, now_s: float) -> None:
        self._later(now_s + self.chance.expovariate(1 / self.every_s), self._kill)
        for name in self.servers:
            self._later(now_s, lambda name=name: self._keep(name))  # type: ignore[misc]

    def kill_forks(self) -> None:
        """Kill the fork server: from then on processes are started afresh."""
        if (forks := self.command.children().get("forks")) is not None:
            self._send(forks, "forks", signal.SIGKILL)

    def _later(self, at_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at_s, next(self._number), action))

    def _keep(self, name: str) -> None:
        server = self.servers[name]
        if server.lives:
            self._later(time.monotonic() + 2 * TICK_S, lambda: self._keep(name))
            return

        def start() -> None:
            server.start()
            self._keep(name)

        self._later(time.monotonic() + self.chance.uniform(0, DOWN_MAX_S), start)

    def _kill(self) -> None:
        self._later(time.monotonic() + self.chance.expovariate(1 / self.every_s), self._kill)
        name = self.chance.choices([*self.servers, *QUESTIONS, "answers"], [2, 2, 1.5, 1.5, 1.5, 1.5, 3])[0]
        number = self.chance.choices([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM], [2, 2, 1])[0]
        stopped_s = self.chance.uniform(0.5, STOPPED_MAX_S)
        if name in self.servers:
            server = self.servers[name]
            victim = psutil.Process(server.process.pid) if server.lives else None
        else:
            victim = self.command.children().get(name)
        if victim is None:
            return
        self._send(victim, name, number)
        if number == signal.SIGSTOP:
            self._later(time.monotonic() + stopped_s, lambda: self._send(victim, name, signal.SIGCONT))

    def _send(self, victim: psutil.Process, name: str, number: signal.Signals) -> None:
        with suppress(psutil.Error):
            victim.send_signal(number)
            self.signals.append((name, number.name))
        self.silences.disturb(name, time.monotonic())
        if name in self.servers and number in (signal.SIGSTOP, signal.SIGCONT):
            self.servers[name].stopped = number == signal.SIGSTOP

    def release(self) -> None:
        """Resume all stopped processes, without doing anything else."""
        for name, server in self.servers.items():
            if server.lives:
                self._send(psutil.Process(server.process.pid), name, signal.SIGCONT)
        for name, child in self.command.children().items():
            self._send(child, name, signal.SIGCONT)


def end(process: subprocess.Popen[bytes], number: signal.Signals) -> int | None:
    """Ask a process to end; return its status, None if it had to be killed."""
    process.send_signal(number)
    try:
        return process.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def left_over(mark: str) -> list[str]:
    """Return the processes of a run that are still there after a while, and kill them."""
    until_s = time.monotonic() + GONE_LIMIT_S
    while (left := marked(mark)) and time.monotonic() < until_s:
        time.sleep(TICK_S)
    commands = []
    for process in left:
        with suppress(psutil.Error):
            commands.append(" ".join(process.cmdline())[:200])
            process.kill()
    return commands


def merged(texts: Sequence[str]) -> list[str]:
    """Return texts without line breaks and without repetitions of the text before; as captions show them."""
    words = [" ".join(text.split()) for text in texts]
    return [text for text, _ in itertools.groupby(words) if text]


def cues(path: Path) -> list[str]:
    """Return the texts of a WebVTT file. Raises ValueError if it is none, or its cues are not in order."""
    head, *blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    if head != "WEBVTT":
        raise ValueError("it does not begin with WEBVTT")
    texts, last = [], ""
    for number, block in enumerate(blocks, 1):
        name, times, *lines = block.split("\n")
        match = re.fullmatch(r"(\d\d:\d\d:\d\d\.\d{3}) --> (\d\d:\d\d:\d\d\.\d{3})", times)
        if name != str(number) or match is None or not last <= match[1] < match[2]:
            raise ValueError(f"cue {number} is {block!r}")
        texts.append(" ".join(lines))
        last = match[2]
    return texts


def mcap_answers(path: Path) -> list[dict[str, Any]]:
    """Return the answers of an MCAP file. Raises if it is damaged."""
    answers = []
    with path.open("rb") as file:
        for _, channel, message in make_reader(file).iter_messages():
            if channel.message_encoding == "json":
                event = json.loads(message.data)
                if event.get("type") == "answer":
                    answers.append(event)
    return answers


def check_outputs(folder: Path, *, ended: bool) -> tuple[list[str], dict[str, dict[str, float]]]:
    """Return the faults of a run's files, and for each camera its answers, numbers without one, restarts, lost answers.

    A number without an answer is one that was lost with its server, or was open when the frame process died.

    `ended`: the run was ended well, so each file is complete; else a last line may be cut off.
    """
    faults: list[str] = []
    day = folder / "day.jsonl"
    lines = day.read_bytes().split(b"\n") if day.exists() else [b""]  # a run may end before its first event
    if lines.pop() and ended:
        faults.append("day.jsonl: the last line is cut off")
    events = [json.loads(line) for line in lines]
    counts: dict[str, dict[str, float]] = {}
    for name, question in QUESTIONS.items():
        camera_events = [event for event in events if event["camera"] == name]
        answers = [event for event in camera_events if event["type"] == "answer"]
        numbers = [answer["answer"] for answer in answers]
        times = [answer["pts_s"] for answer in answers]
        if any(after <= before for before, after in itertools.pairwise(numbers)):
            faults.append(f"{name}: an answer is there twice, or out of order")
        if any(after <= before for before, after in itertools.pairwise(times)):
            faults.append(f"{name}: two answers are about the same frame, or out of order")
        if {answer["query"] for answer in answers} - {question}:
            faults.append(f"{name}: it has an answer to another question")
        faults += _file_faults(folder, name, answers, ended=ended)
        counts[name] = {
            "answers": len(answers),
            "numbers_without_answer": (numbers[-1] + 1 if numbers else 0) - len(answers),
            "restarts": sum(event["type"] == "restarted" for event in camera_events),
            "of_these_frames": sum(
                event["type"] == "restarted" and event["process"] == "frames" for event in camera_events
            ),
        }
        summaries = [event for event in camera_events if event["type"] == "summary"]
        if ended and len(summaries) != 1:
            faults.append(f"{name}: it has {len(summaries)} summaries")
        for summary in summaries:
            counts[name]["answers_lost"] = lost_answers = summary["dropped"].get("answer.lost", 0)
            if counts[name]["numbers_without_answer"] > lost_answers + counts[name]["of_these_frames"]:
                faults.append(f"{name}: more answers are missing than were lost or died with a frame process")
    return faults, counts


def _file_faults(folder: Path, name: str, answers: Sequence[dict[str, Any]], *, ended: bool) -> list[str]:
    """Return the faults of a camera's own files, beside its JSON lines."""
    faults = []
    texts = [answer["text"] for answer in answers]
    try:
        captions = cues(folder / f"{name}.vtt")
        same = merged(captions) == merged(texts)
    except (ValueError, OSError) as error:
        faults.append(f"{name}.vtt: {error}")
    else:
        # a run that was killed may have written a line to one file and not yet to the other
        if not same and (ended or abs(len(merged(captions)) - len(merged(texts))) > 1):
            faults.append(f"{name}.vtt: {len(merged(captions))} captions, {len(merged(texts))} in day.jsonl")
    if not ended:
        return faults  # an MCAP file that was not closed has no index
    try:
        file_answers = [(answer["answer"], answer["text"]) for answer in mcap_answers(folder / f"{name}.mcap")]
    except Exception as error:
        faults.append(f"{name}.mcap: {type(error).__name__}: {error}")
    else:
        if file_answers != [(answer["answer"], answer["text"]) for answer in answers]:
            faults.append(f"{name}.mcap: {len(file_answers)} answers, {len(answers)} in day.jsonl")
    return faults


def long_run(folder: Path, seconds: float, every_s: float, seed: int) -> dict[str, Any]:
    """Run, kill, and return the findings."""
    mark = secrets.token_hex(8)
    temporary = folder / "tmp"
    temporary.mkdir()
    environment = {**os.environ, MARK: mark, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    servers = {
        name: AnswerServerProcess(free_port(), environment, folder / f"{name}.log") for name in ("server1", "server2")
    }
    command = FleetCommand(
        folder / "run", [server.address for server in servers.values()], environment, seconds + 2 * END_LIMIT_S
    )
    silences = Silences(command, servers)
    kills = Kills(command, servers, silences, random.Random(seed), every_s)
    samples, faults = Samples(), []
    begin_s = time.monotonic()
    has_begun = forks_killed = False
    next_sample_s = begin_s
    while (now_s := time.monotonic()) - begin_s < seconds and command.process.poll() is None:
        command.follow(now_s)
        if not has_begun and all(command.answered_s.values()):
            has_begun = True
            kills.begin(now_s)
        if not forks_killed and now_s - begin_s > FORKS_DIE_AT * seconds:
            forks_killed = True
            kills.kill_forks()
        kills.step(now_s)
        silences.update(now_s)
        if now_s >= next_sample_s:
            next_sample_s += SAMPLE_S
            if has_begun:
                samples.add(round(now_s - begin_s), _figures(command, temporary))
            print(f"{now_s - begin_s:.0f} s: {len(kills.signals)} signals,", _counts(command), flush=True)
        time.sleep(TICK_S)
    kills.release()
    ended_early = command.process.poll()
    if ended_early is not None:
        faults.append(f"the command ended by itself with status {ended_early}")
    else:
        time.sleep(2 * EVERY_S)
        command.follow(time.monotonic())
        status = end(command.process, signal.SIGINT)
        if status != 130:
            faults.append(f"the command ended with status {status} after Ctrl-C")
    for server in servers.values():
        if server.lives and end(server.process, signal.SIGTERM) != 0:
            faults.append(f"{server.address} did not drain")
    faults += [f"left: {process}" for process in left_over(mark)]
    faults += [f"left in the temporary folder: {name}" for name in os.listdir(temporary)]
    output_faults, cameras = check_outputs(command.folder, ended=True)
    faults += output_faults + samples.faults()
    for name, silent_s in silences.longest_s.items():
        cameras[name] |= {
            "longest_silence_s": round(longest(command.answered_s[name]), 1),
            "longest_unexplained_s": round(silent_s, 1),
        }
        if silent_s > SILENCE_MAX_S:
            faults.append(f"{name}: no answer for {silent_s:.0f} s, although a server could answer")
    return {
        "seconds": round(time.monotonic() - begin_s),
        "signals": _by_victim(kills.signals),
        "server_starts": {name: server.starts for name, server in servers.items()},
        "cameras": cameras,
        "growth": samples.growths(),
        "most": {name: max(values) for name, values in samples.series.items()},
        "faults": faults,
    }


def _figures(command: FleetCommand, temporary: Path) -> dict[str, float]:
    figures = {f"command {name}": value for name, value in process_figures(command.process_info).items()}
    return {**figures, "temporary files": len(os.listdir(temporary))}


def _counts(command: FleetCommand) -> dict[str, int]:
    return {name: len(answered) for name, answered in command.answered_s.items()}


def _by_victim(signals: Sequence[tuple[str, str]]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {}
    for victim, number in signals:
        counts.setdefault(victim, Counter())[number] += 1
    return {victim: dict(sorted(numbers.items())) for victim, numbers in sorted(counts.items())}


def longest(times_s: Sequence[float]) -> float:
    """Return the longest time between two answers."""
    return max((after - before for before, after in itertools.pairwise(times_s)), default=float("inf"))


def killed_whole(folder: Path, chance: random.Random) -> list[str]:
    """Kill a command at a random moment; return the faults."""
    mark = secrets.token_hex(8)
    temporary = folder / "tmp"
    temporary.mkdir()
    environment = {**os.environ, MARK: mark, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    server = AnswerServerProcess(free_port(), environment, folder / "server.log")
    command = FleetCommand(folder / "run", [server.address], environment, 3 * END_LIMIT_S)
    until_s = time.monotonic() + 2 * END_LIMIT_S
    while not all(command.answered_s.values()) and time.monotonic() < until_s and command.process.poll() is None:
        command.follow(time.monotonic())
        time.sleep(TICK_S)
    time.sleep(chance.uniform(0, 5))
    command.process.kill()
    command.process.wait()
    end(server.process, signal.SIGTERM)
    left = [*left_over(mark), *os.listdir(temporary)]
    faults, _ = check_outputs(command.folder, ended=False)
    return [*(f"killed whole: left: {name}" for name in left), *faults]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=8.0, help="mean seconds between two signals")
    parser.add_argument("--folder", type=Path, help="keep all files there, which is made anew")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=options.folder is None)
    load = machine()["load_1min"]
    findings = long_run(folder, 60 * options.minutes, options.every, options.seed)
    faults = []
    for number in range(3):
        (folder / f"whole{number}").mkdir()
        faults += killed_whole(folder / f"whole{number}", random.Random(options.seed + number))
    findings["faults"] += faults
    print(json.dumps(findings, indent=2))
    about = {"benchmark": "chaos", "seed": options.seed, "every_s": options.every, "load_1min_before": load}
    write_report(options.out, {**about, **findings, "machine": machine()})
    if options.folder is None:
        shutil.rmtree(folder)
    return 1 if findings["faults"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
