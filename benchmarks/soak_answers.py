"""Growth and accuracy of a stream that is answered about for long.

    python -m benchmarks.soak_answers [--frames 100000] [--answer-every 10] [--looped | --one-epoch] [--out FILE]

One thread reads drawn worlds of 256x160 pixels, a cut every 40 frames, one shot of 440 in a thousand; every frame goes
through texture and allocation, every `--answer-every`th gets an answer, and so does each cut. The model keeps a visual
memory, encodes what changed, and teaches the allocator. Questions are about colour, shape, number and presence of what
is drawn, so answers can be held against the truth.

The same worlds and questions come again every thousand frames: *accuracy* is the share of right answers in a thousand,
*same* the share of answers whose text is that of the same frame of the first thousand. With `--looped` times begin
again with each thousand, and no text may differ. With `--one-epoch` cuts are not looked for, so that what belongs to an
epoch has the whole run to grow in.

Memory is sampled every 500 frames. Growth is the slope of a straight line through the samples after the first fifth,
times the frames that it covers. Target: no growth in counts, at most 8 MiB of memory over the run, and equal accuracy
in the first and the last thousand: within chance, as many answers have become wrong that were right as the other way
round (McNemar's test, 5 %).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.allocation.group import GroupOfPictures
from arr_coc.hub import bundled_model_path
from arr_coc.layer_weights import deserialize_realiser
from arr_coc.types import NS_PER_S, FramePlanes, FrameStamp, Question
from arr_coc.video.picture_allocator import FrameAllocator
from arr_coc.video.texture_updater import TextureOptions
from benchmarks.soak import GROWTH_MAX_MIB, Samples, process_figures, round_values
from benchmarks.support.harness import write_report
from benchmarks.support.reel import FPS, HEIGHT_PX, REEL_FRAMES, WIDTH_PX, Reel
from stream.answer.agreement import words_of
from stream.answer.model import AnswerModel, ClientQuestion, ask_alone
from stream.answer.qwen import load_qwen_model
from stream.answer.triggers import AnswerTriggers, TriggerReason
from stream.config import AllocateConfig, AnswerConfig, Config, MemoryConfig
from stream.monitor.machine import machine
from stream.recording.identity import fingerprint

RESULTS = Path(__file__).parent / "results" / "soak_answers.json"
BUDGET = 20
"""Tokens a frame, of 40."""

MEMORY = MemoryConfig(enabled=True)
MAX_TOKENS = 12
SAMPLE_FRAMES = 500
CHANCE = 1.96
"""Standard deviations between which chance stays in 95 of 100 cases."""


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """Length of a run, and how often it answers. `looped`: times begin again; `one_epoch`: cuts are not noticed."""

    frames: int
    answer_every: int = 10
    looped: bool = False
    one_epoch: bool = False
    sample_frames: int = SAMPLE_FRAMES


@dataclass(frozen=True, slots=True)
class ChainAnswer:
    """One answer, and why it was given. `kept_bytes` is what the model keeps in memory since."""

    text: str
    trigger: TriggerReason
    kept_bytes: int


@dataclass
class Thousand:
    """A thousand frames: number of answers; those that are right, the same as in the first thousand, wrong while that
    was right (`losses`) and right while that was wrong (`gains`)."""

    answers: int = 0
    right: int = 0
    same: int = 0
    losses: int = 0
    gains: int = 0
    answer_ms: list[float] = field(default_factory=list)
    kept_bytes: int = 0

    def as_json(self) -> dict[str, Any]:
        """Its figures."""
        count = max(1, self.answers)
        return {
            "answers": self.answers,
            "accuracy": round(self.right / count, 4),
            "same": round(self.same / count, 4),
            "lost": self.losses,
            "gained": self.gains,
            "answer_ms": round(statistics.median(self.answer_ms), 1) if self.answer_ms else None,
            "kept_mb": round(self.kept_bytes / 1e6, 3),
        }


class Run:
    """One long run, thousand by thousand, of one stream and one model. `cuts` counts those that were noticed."""

    def __init__(self, plan: SoakPlan, model: AnswerModel) -> None:
        self.plan = plan
        self.samples = Samples()
        self.thousands: list[Thousand] = []
        self.cuts = 0
        self._model = model
        self._stream = FrameAllocator(
            AllocatorOptions(budget=BUDGET),
            deserialize_realiser(model.allocator, model.model_id),
            TextureOptions(cuts=not plan.one_epoch),
        )
        self._triggers = AnswerTriggers(AnswerConfig(every_s=plan.answer_every / FPS))
        self._group = GroupOfPictures()
        self._query = ""
        self._reel = Reel.random()
        self._first: dict[int, tuple[str, bool]] = {}
        self._kept_bytes = 0

    def go(self) -> Iterator[Thousand]:
        """Run; yields each thousand frames when they are over, a shorter last one likewise."""
        process = psutil.Process()
        for index in range(self.plan.frames):
            if index % REEL_FRAMES == 0:
                self.thousands.append(Thousand())
            time_index = index % REEL_FRAMES if self.plan.looped else index
            stamp = FrameStamp(index, time_index * NS_PER_S // FPS, time.monotonic_ns())
            began_s = time.perf_counter()
            answer = self.step(self._reel.planes(index), stamp, self._reel.question(index).text)
            if answer is not None:
                self._judge(index, answer, 1e3 * (time.perf_counter() - began_s))
            if (index + 1) % self.plan.sample_frames == 0:
                self.samples.add(index + 1, process_figures(process) | {"kept MiB": self._kept_bytes / 2**20})
            if (index + 1) % REEL_FRAMES == 0 or index + 1 == self.plan.frames:
                yield self.thousands[-1]
        self._stream.close()

    def step(self, planes: FramePlanes, stamp: FrameStamp, query: str) -> ChainAnswer | None:
        """Show the next frame under the question `query`; returns the answer if one was due."""
        if query != self._query:
            self._query = query
            self._stream.allocator.set_query(self._model.embed_query(query))
            self._group.ask_anew()
            self._triggers.ask()
        frame = self._stream.allocate(planes, stamp)
        cut = frame.update.epoch_reason == "cut"
        self.cuts += cut
        if self._triggers.observe(stamp.media_ns, change=frame.allocation.change_since, cut=cut) is None:
            return None
        trigger = self._triggers.fire()
        packet, memory = frame.packet, self._model.memory
        if memory is not None:
            with self._stream.texture.lease() as view:
                packet = self._group.packet(view, frame.allocation, memory.next_place(b""))
            memory.add(b"", packet)
        question = ClientQuestion(b"", packet, Question(query))
        text = ask_alone(self._model, question)
        assert question.stats is not None
        self._stream.on_answer(question.stats.feedback)
        return ChainAnswer(text, trigger, question.stats.work.kept_bytes)

    def _judge(self, index: int, answer: ChainAnswer, took_ms: float) -> None:
        thousand, place = self.thousands[-1], index % REEL_FRAMES
        self._kept_bytes = answer.kept_bytes
        right = words_of(answer.text) == words_of(self._reel.question(index).answer)
        first_text, was_right = self._first.setdefault(place, (answer.text, right))
        thousand.answers += 1
        thousand.right += right
        thousand.same += answer.text == first_text
        thousand.losses += was_right and not right
        thousand.gains += right and not was_right
        thousand.answer_ms.append(took_ms)
        thousand.kept_bytes = max(thousand.kept_bytes, answer.kept_bytes)


def open_model(name: str | None) -> AnswerModel:
    """The model as a run opens it, with a visual memory."""
    answer = AnswerConfig(model=name, memory=MEMORY, max_tokens=MAX_TOKENS)
    return load_qwen_model(Config(allocate=AllocateConfig(budget=BUDGET), answer=answer))


def verdict(thousands: list[dict[str, Any]], faults: list[str], *, looped: bool = False) -> dict[str, Any]:
    """The first thousand held against the last one, both whole; and whether everything is as it should be."""
    first, last = thousands[0], thousands[-1]
    equal = abs(last["gained"] - last["lost"]) <= CHANCE * math.sqrt(last["gained"] + last["lost"])
    same_least = min(thousand["same"] for thousand in thousands)
    return {
        "accuracy_first": first["accuracy"],
        "accuracy_last": last["accuracy"],
        "accuracy_equal": equal,
        "same_least": same_least,
        "faults": faults,
        "met": equal and not faults and (same_least == 1 or not looped),
    }


def document(run: Run, model: str | None, seconds: float) -> dict[str, Any]:
    """All figures up to now."""
    thousands = [thousand.as_json() for thousand in run.thousands]
    full_thousands = thousands[: max(1, run.plan.frames // REEL_FRAMES)]
    return {
        "machine": machine() | {"threads": torch.get_num_threads()},
        "model": model or "bundled",
        "weights": None if model else fingerprint(bundled_model_path() / "model.safetensors"),
        "plan": asdict(run.plan),
        "settings": {"size_px": [WIDTH_PX, HEIGHT_PX], "fps": FPS, "budget": BUDGET, "memory": MEMORY.model_dump()},
        "seconds": round(seconds, 1),
        "answers": sum(thousand["answers"] for thousand in thousands),
        "cuts": run.cuts,
        "verdict": verdict(full_thousands, run.samples.faults(), looped=run.plan.looped),
        "growth": run.samples.growths(),
        "growth_max_mib": GROWTH_MAX_MIB,
        "thousands": thousands,
        "samples": {"frames": run.samples.frames, **round_values(run.samples.series)},
    }


def plot(report: dict[str, Any], path: Path) -> None:
    """Memory of all and of what is kept, and accuracy, by frames."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    memory_panel, kept_panel, accuracy_panel = figure.subplots(3, sharex=True)
    frames = report["samples"]["frames"]
    memory_panel.plot(frames, report["samples"]["MiB"], color="tab:blue", label="the whole process")
    kept_panel.plot(frames, report["samples"]["kept MiB"], color="tab:green", label="kept of frames and prompt")
    memory_panel.set_ylabel("MiB")
    kept_panel.set_ylabel("MiB")
    ends = [REEL_FRAMES * (number + 1) for number in range(len(report["thousands"]))]
    for name, colour in (("accuracy", "tab:orange"), ("same", "tab:purple")):
        shares = [100 * thousand[name] for thousand in report["thousands"]]
        accuracy_panel.plot(
            ends, shares, color=colour, label={"accuracy": "right", "same": "as in the first 1000"}[name]
        )
    accuracy_panel.set_ylabel("answers, %")
    accuracy_panel.set_xlabel("frames")
    for panel in (memory_panel, kept_panel, accuracy_panel):
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    figure.savefig(path, dpi=120, format="png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--answer-every", type=int, default=10, metavar="FRAMES")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--looped", action="store_true", help="begin times again every thousand frames")
    ways.add_argument("--one-epoch", action="store_true", help="do not look for cuts")
    parser.add_argument("--model", help="folder or hub name; the bundled model when absent")
    parser.add_argument("--out", type=Path, default=RESULTS, help="path of the JSON, with a PNG beside it")
    options = parser.parse_args()
    if options.frames < REEL_FRAMES or options.answer_every < 1:
        parser.error(f"--frames must be at least {REEL_FRAMES}, --answer-every at least 1")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    plan = SoakPlan(options.frames, options.answer_every, options.looped, options.one_epoch)
    run = Run(plan, open_model(options.model))
    began_s = time.monotonic()
    for number, thousand in enumerate(run.go()):
        print(f"{REEL_FRAMES * (number + 1)}: {thousand.as_json()}", flush=True)
        report = document(run, options.model, time.monotonic() - began_s)
        write_report(options.out, report)
    plot(report, options.out.with_suffix(".png"))
    print(json.dumps(report["verdict"], indent=2))


if __name__ == "__main__":
    main()
