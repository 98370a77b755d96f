"""Batches made by background processes."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from arr_coc.types import NS_PER_S, TileGrid, time_text
from training.model.lessons import BatchPlan, Lesson, Teacher
from training.model.tokenizer import scenes_tokenizer
from training.model.views import UNKNOWN, TokenView, Viewer, place_on_grid
from training.model.whole_pictures import WholePictures

TOKENS_A_BATCH = 1024
"""Visual tokens of all frames of a batch that is only looked at: 16 frames of 64 tokens, or 4 of 256."""

TOKENS_ASKED = 1200
"""Of a batch that asks: visual tokens, and TEXT_TOKENS for every question."""

TEXT_TOKENS = 5
"""Cost of a question in visual tokens. It has three times as many, which no vision encoder sees."""

IGNORED = -100

ASKED_THINGS = 2
"""Of what a question is about, as many things are asked for their places."""

_QUEUED = 8
_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Batch:
    """C clips of F frames of K tokens, and Q questions about every one, one after the other in T tokens.

    `pixels` uint8 [C, F, K, 3, 32, 32]; `regions` int64 [C, F, K, 3] on `grid`; `targets` int8 [C, F, K, 15]; `times`
    int64 [C, F, H] introduces each frame (H is 0 if a clip has one); `ids` int64 [C, T] (of each question: query,
    template, answer, end of turn; padding at the end); `question_numbers` int64 [C, T] has the number of the question
    that a token belongs to, Q for padding; `labels` like `ids`, `IGNORED` but on the answers; `places` int8 [C, Q, 8]
    of `asked_places`. T is 0 if nothing is asked. `overview`: the first of the K tokens, which show the whole frame;
    they and the others are encoded apart. `grids`: of frames of several sizes, the grid of each, all of whose tiles are
    shown; K is then the most, and what is left over is padding that no target is about.
    """

    grid: TileGrid
    pixels: torch.Tensor
    regions: torch.Tensor
    targets: torch.Tensor
    times: torch.Tensor
    ids: torch.Tensor
    question_numbers: torch.Tensor
    labels: torch.Tensor
    places: torch.Tensor
    overview: int = 0
    grids: tuple[TileGrid, ...] = ()

    @classmethod
    def of(
        cls, grid: TileGrid, tensors: Sequence[torch.Tensor], overview: int, grids: tuple[TileGrid, ...] = ()
    ) -> Batch:
        """From `tensors` in the order of the property."""
        pixels, regions, targets, times, ids, question_numbers, labels, places = tensors
        return cls(grid, pixels, regions, targets, times, ids, question_numbers, labels, places, overview, grids)

    def with_tensors(self, tensors: Sequence[torch.Tensor]) -> Batch:
        """The same with other `tensors`, in the order of the property."""
        return Batch.of(self.grid, tensors, self.overview, self.grids)

    @property
    def frames(self) -> tuple[tuple[TileGrid, int], ...]:
        """Grid and number of tokens of each frame."""
        if self.grids:
            return tuple((grid, grid.tiles) for grid in self.grids)
        return ((self.grid, self.regions.shape[2]),) * self.regions.shape[1]

    def clips(self, count: int) -> Batch:
        """Only the first `count` clips."""
        return self.with_tensors([tensor[:count] for tensor in self.tensors])

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        visual = self.pixels, self.regions, self.targets, self.times
        return (*visual, self.ids, self.question_numbers, self.labels, self.places)

    def to(self, device: torch.device | str) -> Batch:
        return self.with_tensors([tensor.to(device) for tensor in self.tensors])


class Prompter:
    """Token ids of questions with their answers, as the chat template writes them after the picture."""

    def __init__(self) -> None:
        self._tokenizer = scenes_tokenizer()
        self._after_query = self.ids("<|im_end|>\n<|im_start|>assistant\n")
        self.head = self.ids("<|im_start|>user\n")
        self.open = self.ids("<|vision_start|>")
        self.close = self.ids("<|vision_end|>")

    def ids(self, text: str) -> list[int]:
        token_ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return token_ids

    def dialogue(self, question: str, answer: str) -> tuple[list[int], list[int]]:
        """Ids from the question to the end of the answer's turn, and which of them to learn."""
        prompt = self.ids(question) + self._after_query
        reply = self.ids(answer + "<|im_end|>")
        return prompt + reply, [IGNORED] * len(prompt) + reply

    def times(self, lesson: Lesson) -> list[list[int]]:
        """Text that introduces each frame of a lesson's clip; empty for a single frame, and for pictures."""
        clip = lesson.clip
        if len(clip.frames) == 1 or not lesson.timed:
            return [[]] * len(clip.frames)
        return [self.ids(time_text(round(at_s * NS_PER_S))) for at_s in clip.times_s]


def random_batches(seed: int, progress: Any, *, whole: bool = False) -> Iterator[Batch]:
    """Endless batches. `progress.value` in [0, 1] is the progress of training: it goes from seeing to answering.

    `whole`: pictures are shown whole, as a stock model's are.
    """
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    rng = np.random.default_rng(seed)
    prompter = Prompter()
    if whole:
        pictures = WholePictures(rng)
        while True:
            yield make_batch(pictures.plan(progress.value), pictures, pictures, prompter, rng)
    teacher, viewer = Teacher(rng), Viewer(rng)
    while True:
        yield make_batch(teacher.plan(progress.value), teacher, viewer, prompter, rng)


def make_batch(plan: BatchPlan, teacher: Any, viewer: Any, prompter: Prompter, rng: np.random.Generator) -> Batch:
    """Return clips by one plan, as many as fit, each frame with equally many tokens.

    Args:
        plan: Plan of the batch.
        teacher: Draws clips and questions: a `Teacher`, or `WholePictures`.
        viewer: Chooses the tokens of frames: a `Viewer`, or `WholePictures`.
        prompter: Tokenizes questions and times.
        rng: Chooses the tokens that are dropped.
    """
    lessons: list[Lesson] = []
    views: list[list[TokenView]] = []
    most, text = (TOKENS_ASKED, TEXT_TOKENS * plan.questions) if plan.asks else (TOKENS_A_BATCH, 0)
    while not views or len(views) * (sum(len(view.regions) for view in views[0]) + text) < most - plan.budget // 2:
        lesson = teacher.lesson(plan)
        clip = lesson.clip
        lessons.append(lesson)
        views.append(
            [
                viewer.look(image, clip.things[frame], plan.showing, lesson.asked_in(frame))
                for frame, image in enumerate(clip.frames)
            ]
        )
    grids = tuple(view.grid for view in views[0])
    if len(set(grids)) == 1:
        grids = ()
        tokens = min(len(view.regions) for clip_views in views for view in clip_views)
        equal_views = [[_dropped(rng, view, tokens) for view in clip_views] for clip_views in views]
    else:
        tokens = max(grid.tiles for grid in grids)
        equal_views = [[_padded(view, tokens) for view in clip_views] for clip_views in views]
    ids, question_numbers, labels = _in_rows(prompter, lessons)
    return Batch(
        views[0][0].grid,
        pixels=_stacked([[view.pixels for view in clip_views] for clip_views in equal_views]),
        regions=_stacked([[view.regions for view in clip_views] for clip_views in equal_views]),
        targets=_stacked([[view.targets for view in clip_views] for clip_views in equal_views]),
        times=torch.tensor([prompter.times(lesson) for lesson in lessons], dtype=torch.long),
        ids=ids,
        question_numbers=question_numbers,
        labels=labels,
        places=torch.tensor([asked_places(lesson) for lesson in lessons], dtype=torch.int8),
        overview=views[0][0].overview,
        grids=grids,
    )


def asked_places(lesson: Lesson) -> list[list[int]]:
    """For every question, places across and down of the one or two things that it is about: those in the first frame,
    then those in the last, in 24ths; `UNKNOWN` if nothing is; `IGNORED` if it is not known or there are more things.
    """
    width, height = lesson.clip.size_px
    coordinates = 2 * ASKED_THINGS
    rows = []
    for boxes in lesson.about or [()] * len(lesson.questions):
        if not boxes or max(map(len, boxes)) > ASKED_THINGS:
            rows.append([IGNORED] * (2 * coordinates))
            continue
        places = [
            [at for box in frame_boxes for at in place_on_grid(box, (height, width))]
            for frame_boxes in (boxes[0], boxes[-1])
        ]
        rows.append([at for row in places for at in row + [UNKNOWN] * (coordinates - len(row))])
    return rows


def _stacked(rows: list[list[npt.NDArray[Any]]]) -> torch.Tensor:
    return torch.from_numpy(np.stack([np.stack(row) for row in rows]))


def _dropped(rng: np.random.Generator, view: TokenView, tokens: int) -> TokenView:
    """The view without as many tokens, background first, as it has above `tokens`. Its overview stays."""
    excess = len(view.regions) - tokens
    if excess == 0:
        return view
    importance = (view.targets[:, 0] >= 0) + rng.random(len(view.regions))
    importance[: view.overview] = np.inf
    return view.kept(np.sort(np.argsort(importance)[excess:]))


def _padded(view: TokenView, tokens: int) -> TokenView:
    """The view with blank tokens, which have no target, up to as many as `tokens`."""
    missing = tokens - len(view.regions)

    def fill(rows: npt.NDArray[Any], value: int) -> npt.NDArray[Any]:
        return np.concatenate([rows, np.full((missing, *rows.shape[1:]), value, rows.dtype)])

    pixels, regions, targets = fill(view.pixels, 0), fill(view.regions, 0), fill(view.targets, IGNORED)
    return replace(view, regions=regions, pixels=pixels, targets=targets)


def _in_rows(prompter: Prompter, lessons: Sequence[Lesson]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The questions about each clip one after the other: ids, the question each belongs to, and labels, each [C, T]."""
    rows: list[tuple[list[int], list[int], list[int]]] = []
    for lesson in lessons:
        row: tuple[list[int], list[int], list[int]] = ([], [], [])
        for number, pair in enumerate(lesson.questions):
            tokens, targets = prompter.dialogue(*pair)
            for column, values in zip(row, (tokens, [number] * len(tokens), targets), strict=True):
                column += values
        rows.append(row)
    length = max(len(row[0]) for row in rows)
    fills = 0, len(lessons[0].questions), IGNORED
    ids, question_numbers, labels = (
        torch.tensor([row[part] + [fill] * (length - len(row[part])) for row in rows], dtype=torch.long)
        for part, fill in enumerate(fills)
    )
    return ids, question_numbers, labels


class BackgroundBatches:
    """Batches made by other processes while this one trains; at most eight wait. Close it when done."""

    def __init__(self, seed: int, workers: int = 1, *, whole: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self.progress = context.Value("d", 0.0)
        self._queue: Any = context.Queue(_QUEUED)
        self._processes = [
            context.Process(target=_produce, args=(seed + number, self.progress, self._queue, whole), daemon=True)
            for number in range(workers)
        ]
        for process in self._processes:
            process.start()

    def next(self) -> Batch:
        """The next batch. Raises RuntimeError if the other processes have died or hang."""
        try:
            fields: list[Any] = self._queue.get(timeout=_WAIT_S)
        except queue.Empty as error:
            raise RuntimeError("the processes that draw pictures have stopped; see their traceback above") from error
        grid, overview, grids, *arrays = fields
        return Batch.of(grid, [torch.from_numpy(array) for array in arrays], overview, grids)

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join(timeout=10)


def _produce(seed: int, progress: Any, batches: Any, whole: bool) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for batch in random_batches(seed, progress, whole=whole):
        batches.put((batch.grid, batch.overview, batch.grids, *(tensor.numpy() for tensor in batch.tensors)))


def _end_with_parent() -> None:
    """Kill this process with its parent: a killed trainer cannot end its processes."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)
