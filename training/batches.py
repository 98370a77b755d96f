"""Batches for training: pictures as tokens, several questions about each, made by a background process."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from arr_coc.types import TileGrid
from training.demo_worlds import KINDS, LARGE_SIZES_PX, SIZES_PX, Kind, World, ask, random_world
from training.tokenizer import train_tokenizer
from training.views import HOWS, View, Viewer

TOKENS_A_BATCH = 1024
"""Visual tokens of all pictures of a batch together: 16 pictures of 64 tokens, or 4 of 240."""

QUESTIONS = 3
"""Questions about each picture; the first asks for a caption."""

FEW_TOKENS = (36, 48, 64)
ALL_BUDGETS = (36, 48, 64, 64, 64, 64, 100, 240)
"""Tokens a picture, in the first part of training and then."""

IGNORED = -100

_HOW_SHARES = (0.6, 0.3, 0.06, 0.04)
_LARGE_SHARE = 0.04
_QUEUED = 8
_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Batch:
    """B pictures of K tokens, and Q questions of at most S tokens each about every one.

    `pixels` uint8 [B, K, 3, 32, 32]; `regions` int64 [B, K, 3] on `grid`; `targets` int8 [B, K, 7]; `ids` int64
    [B, Q, S] (query, template, answer, end of turn, padding), `labels` like it, `IGNORED` but on the answer.
    """

    grid: TileGrid
    pixels: torch.Tensor
    regions: torch.Tensor
    targets: torch.Tensor
    ids: torch.Tensor
    labels: torch.Tensor


class Prompter:
    """Token ids of questions with their answers, as the chat template writes them after the picture."""

    def __init__(self) -> None:
        self._tokenizer = train_tokenizer()
        self._after_query = self.ids("<|im_end|>\n<|im_start|>assistant\n")
        self.head = self.ids("<|im_start|>user\n<|vision_start|>")
        self.close = self.ids("<|vision_end|>")

    def ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    def dialogue(self, question: str, answer: str) -> tuple[list[int], list[int]]:
        """Ids from the question to the end of the answer's turn, and which of them to learn."""
        asked = self.ids(question) + self._after_query
        said = self.ids(answer + "<|im_end|>")
        return asked + said, [IGNORED] * len(asked) + said


def random_batches(seed: int, progress: Any) -> Iterator[Batch]:
    """Endless batches. `progress.value` in [0, 1] says how far training is: pictures hold one thing at first."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    rng = np.random.default_rng(seed)
    viewer, prompter = Viewer(rng), Prompter()
    while True:
        yield _batch(rng, viewer, prompter, Stage.at(progress.value))


@dataclass(frozen=True, slots=True)
class Stage:
    """What pictures are like: few things and few tokens at first."""

    most_things: int
    all_budgets: bool

    @classmethod
    def at(cls, progress: float) -> Stage:
        return cls(1 if progress < 0.08 else 2 if progress < 0.2 else 3, progress >= 0.8)


def _batch(rng: np.random.Generator, viewer: Viewer, prompter: Prompter, stage: Stage) -> Batch:
    sizes = LARGE_SIZES_PX if stage.all_budgets and rng.random() < _LARGE_SHARE else SIZES_PX
    size_px = sizes[int(rng.integers(len(sizes)))]
    budget = int(rng.choice(ALL_BUDGETS if stage.all_budgets else FEW_TOKENS))
    how = HOWS[int(rng.choice(len(HOWS), p=_HOW_SHARES))]
    worlds: list[World] = []
    views: list[View] = []
    while not views or len(views) < TOKENS_A_BATCH // len(views[0].regions):
        world = random_world(rng, size_px, stage.most_things)
        worlds.append(world)
        views.append(viewer.look(world, budget, how))
    dialogues = [prompter.dialogue(*pair) for world in worlds for pair in _questions(rng, world)]
    ids, labels = (_padded([dialogue[k] for dialogue in dialogues], fill) for k, fill in ((0, 0), (1, IGNORED)))
    least = min(len(view.regions) for view in views)
    kept = [_dropped(rng, view, least) for view in views]
    return Batch(
        views[0].grid,
        torch.from_numpy(np.stack([view.pixels for view in kept])),
        torch.from_numpy(np.stack([view.regions for view in kept])),
        torch.from_numpy(np.stack([view.targets for view in kept])),
        ids.view(len(worlds), QUESTIONS, -1),
        labels.view(len(worlds), QUESTIONS, -1),
    )


def _questions(rng: np.random.Generator, world: World) -> list[tuple[str, str]]:
    kinds: list[Kind] = [
        "caption",
        *(KINDS[int(k)] for k in rng.permutation(np.arange(1, len(KINDS)))[: QUESTIONS - 1]),
    ]
    asked = [ask(rng, world.facts, kind) for kind in kinds]
    return [(question.text, question.answer) for question in asked]


def _dropped(rng: np.random.Generator, view: View, tokens: int) -> View:
    """The view without as many tokens, background first, as it has above `tokens`."""
    excess = len(view.regions) - tokens
    if excess == 0:
        return view
    importance = (view.targets[:, 0] >= 0) + rng.random(len(view.regions))
    kept = np.sort(np.argsort(importance)[excess:])
    return View(view.grid, view.regions[kept], view.pixels[kept], view.targets[kept])


def _padded(rows: list[list[int]], fill: int) -> torch.Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows], dtype=torch.long)


class BackgroundBatches:
    """Batches made by another process while this one trains; at most eight wait. Close it when done."""

    def __init__(self, seed: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.progress = context.Value("d", 0.0)
        self._queue: Any = context.Queue(_QUEUED)
        self._process = context.Process(target=_produce, args=(seed, self.progress, self._queue), daemon=True)
        self._process.start()

    def next(self) -> Batch:
        """The next batch. Raises RuntimeError where the other process has died or hangs."""
        try:
            fields: list[npt.NDArray[Any]] = self._queue.get(timeout=_WAIT_S)
        except queue.Empty as error:
            raise RuntimeError("the process that draws pictures has stopped; see its traceback above") from error
        grid, *arrays = fields
        return Batch(grid, *(torch.from_numpy(array) for array in arrays))  # type: ignore[arg-type]

    def close(self) -> None:
        self._process.terminate()
        self._process.join(timeout=10)


def _produce(seed: int, progress: Any, batches: Any) -> None:
    for batch in random_batches(seed, progress):
        tensors = (batch.pixels, batch.regions, batch.targets, batch.ids, batch.labels)
        batches.put((batch.grid, *(tensor.numpy() for tensor in tensors)))
