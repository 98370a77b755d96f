"""Several watches of a camera: cost of a check against that of one question, and accuracy with shared tokens.

    OMP_NUM_THREADS=1 python -m benchmarks.watch [--model FOLDER] [--scenes 120] [--frames 24] [--out FILE]

*Cost*: the same frames are checked with 1, 4 and 8 questions, one number after the other frame by frame, each by
another session and allocator. Times are processor time of encoding and prefill, as ratios to one question; `alone` asks
the same questions one by one, each with separate tokens.

- `memory`: a visual memory is kept, and a check appends what is new. `still`: a static camera; `moving`: a thing always
  moves; `cuts`: every frame is another picture, so that all of its tokens are read.
- `no memory`: each check reads the tokens of its frame.
- `allocate`: choice of the tokens for all questions, in the same unit.

*Accuracy*: held-out drawn scenes with a question of each kind. `shared`: all questions of a scene share the tokens of
one packet; `separate`: each has the tokens that it would have alone. `true_yes` is of present things, `false_yes` of
absent ones and of words that the model has never seen. The difference is within noise if the questions that only one of
the two answers with yes are as even as chance would have them: |b - c| ≤ 2 √(b + c).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.allocation.group import GroupOptions
from arr_coc.hub import bundled_model_path
from arr_coc.qwen.encoding import Packet
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import NS_PER_S, FrameStamp
from arr_coc.video.picture_allocator import PictureAllocator
from benchmarks.support.harness import write_report
from stream.config import WatchConfig
from stream.monitor.machine import machine
from stream.recording.identity import fingerprint
from stream.scenes.catalogue import SLATE
from stream.scenes.drawing import gradient
from stream.scenes.scene import Actor, Scene, Shot
from training.questions.presence import PresenceScene, presence_scenes

RESULTS = Path(__file__).parent / "results" / "watch.json"
SEED = 34
COUNTS = (1, 4, 8)
QUESTIONS = tuple(
    f"is there a {thing}?"
    for thing in (
        *("red circle", "green star", "blue square", "yellow triangle"),
        *("purple ring", "orange cross", "white diamond", "black arrow"),
    )
)
FPS = 10
WANTED = 1.3
"""Time of a check with four questions against one, at most, with a visual memory."""

Picture = npt.NDArray[np.uint8]


def moving_pictures(frames: int) -> list[Picture]:
    """A camera before which one thing always moves, and others rest."""
    path = tuple((float(at), 0.2 + 0.6 * (at % 2), 0.7) for at in range(frames // FPS + 2))
    actors = (Actor("circle", "red", 0.22, path), Actor("square", "blue", 0.2, ((0.0, 0.72, 0.3),)))
    scene = Scene("moving", 640, 384, FPS, (Shot(frames / FPS, lambda w, h: gradient(w, h, *SLATE), actors),))
    return [scene.render(index) for index in range(frames)]


class Checker:
    """Session and allocator of some questions about one stream; its times, in milliseconds of the processor."""

    def __init__(self, qwen: QwenVL, questions: Sequence[str], *, memory: bool) -> None:
        self.questions, self.memory = questions, memory
        self.session = AnswerSession(qwen, AnswerOptions())
        options = AllocatorOptions(memory=GroupOptions() if memory else None)
        self.allocator = PictureAllocator(qwen, questions[0], options)
        self.allocator.set_query(*map(qwen.embed_query, questions))
        self.check_ms: list[float] = []
        self.allocate_ms: list[float] = []

    def check(self, picture: Picture, index: int, epoch: int) -> None:
        """Choose the frame's tokens, and score all questions.

        Args:
            picture: uint8 RGB [H, W, 3].
            index: Number of the frame.
            epoch: Number of its epoch.
        """
        stamp = FrameStamp(index, index * NS_PER_S // FPS, 0, epoch)
        packet = self._time(self.allocate_ms, lambda: self.allocator.allocate(picture, stamp))
        packets: Packet | Sequence[Packet] = list(self.allocator.group) if self.memory else packet
        self._time(self.check_ms, lambda: self.session.score_all(packets, self.questions))

    def _time(self, times_ms: list[float], work: Callable[[], Any]) -> Any:
        began_ns = time.process_time_ns()
        result = work()
        times_ms.append((time.process_time_ns() - began_ns) / 1e6)
        return result


def cost(qwen: QwenVL, pictures: Sequence[Picture], *, memory: bool) -> dict[str, Any]:
    """Times of the checks of some pictures.

    Args:
        qwen: The model.
        pictures: uint8 RGB [H, W, 3] each; the first one warms up, and does not count.
        memory: With a visual memory.
    """
    shared = {count: Checker(qwen, QUESTIONS[:count], memory=memory) for count in COUNTS}
    separate = [Checker(qwen, [question], memory=memory) for question in QUESTIONS[: COUNTS[1]]]
    for index, picture in enumerate(pictures):
        for checker in (*shared.values(), *separate):
            checker.check(picture, index, 0)
    base = shared[1]
    separate_ms = [sum(times) for times in zip(*(checker.check_ms for checker in separate), strict=True)]
    return {
        "check": {str(count): ratio(checker.check_ms, base.check_ms) for count, checker in shared.items()},
        "alone": {str(COUNTS[1]): ratio(separate_ms, base.check_ms)},
        "allocate": {str(count): ratio(checker.allocate_ms, base.allocate_ms) for count, checker in shared.items()},
    }


def ratio(times_ms: Sequence[float], of_ms: Sequence[float]) -> float:
    """Ratio of the sums, without the first of each."""
    return round(sum(times_ms[1:]) / sum(of_ms[1:]), 2)


def chances(qwen: QwenVL, scenes: Sequence[PresenceScene], *, shared: bool) -> list[tuple[str, float]]:
    """Kind of each question, and its probability of yes."""
    session, result = AnswerSession(qwen, AnswerOptions(feedback=False)), []
    for number, scene in enumerate(scenes):
        texts = [question.question for question in scene.questions]
        groups = [texts] if shared else [[question] for question in texts]
        yes = []
        for questions in groups:
            allocator = PictureAllocator(qwen, questions[0], AllocatorOptions(explore=0.0))
            allocator.set_query(*map(qwen.embed_query, questions))
            packet = allocator.allocate(scene.image, FrameStamp(number, 0, 0))
            yes += [score.yes for score in session.score_all(packet, questions)]
        result += [(question.kind, chance) for question, chance in zip(scene.questions, yes, strict=True)]
    return result


def compare_ways(shared: Sequence[tuple[str, float]], separate: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """True and false yes of both ways, by kind of question, and whether they differ by more than chance."""
    threshold, kinds = WatchConfig(question="is it?").threshold, list(dict.fromkeys(kind for kind, _ in shared))
    figures: dict[str, Any] = {}
    for kind in kinds:
        pairs = [
            (chance >= threshold, other >= threshold)
            for (of, chance), (_, other) in zip(shared, separate, strict=True)
            if of == kind
        ]
        only_shared, only_separate = (
            sum(pair == outcome for pair in pairs) for outcome in ((True, False), (False, True))
        )
        figures[kind] = {
            "questions": len(pairs),
            "is": "true_yes" if kind == "present" else "false_yes",
            "shared": round(statistics.fmean(pair[0] for pair in pairs), 3),
            "separate": round(statistics.fmean(pair[1] for pair in pairs), 3),
            "only_shared": only_shared,
            "only_separate": only_separate,
            "within_noise": abs(only_shared - only_separate) <= 2 * math.sqrt(only_shared + only_separate),
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub name; the bundled model when absent")
    parser.add_argument("--scenes", type=int, default=120, help="of the accuracy")
    parser.add_argument("--frames", type=int, default=24, help="of each stream of the cost")
    parser.add_argument("--out", type=Path, default=RESULTS, help="path of the JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    qwen = load_qwen(options.model)
    scenes = list(presence_scenes(max(options.scenes, options.frames), "test", SEED))
    streams = {
        "still": moving_pictures(1) * options.frames,
        "moving": moving_pictures(options.frames),
        "cuts": [scene.image for scene in scenes if scene.image.shape == scenes[0].image.shape][: options.frames],
    }
    measured = {name: cost(qwen, pictures, memory=True) for name, pictures in streams.items()}
    held_out = scenes[: options.scenes]
    result = {
        "machine": machine() | {"threads": 1},
        "model": options.model or "bundled",
        "weights": None if options.model else fingerprint(bundled_model_path() / "model.safetensors"),
        "wanted": {"check": {"4": WANTED}},
        "met": all(figures["check"]["4"] <= WANTED for figures in measured.values()),
        "cost": {"memory": measured, "no memory": {"moving": cost(qwen, streams["moving"], memory=False)}},
        "scenes": len(held_out),
        "seed": SEED,
        "accuracy": compare_ways(chances(qwen, held_out, shared=True), chances(qwen, held_out, shared=False)),
    }
    write_report(options.out, result)
    print(json.dumps({key: result[key] for key in ("met", "cost", "accuracy")}, indent=2))


if __name__ == "__main__":
    main()
