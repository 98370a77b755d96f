"""Process that answers comparisons: one job at a time, read from stdin, each piece of an answer told on stdout."""

from __future__ import annotations

import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

import msgspec
import numpy as np

from arr_coc.errors import ArrCocError
from arr_coc.types import TileGrid
from stream.answer.request import text_agreement, words_of
from stream.compare.messages import WorkerOptions, WorkerOrder, read_frame, write_frame
from stream.compare.models import LoadedModels, QwenLoader
from stream.control import describe
from stream.scenes.stills import KnownAnswer
from stream.web.compare_job import ColumnSettings, CompareJob

if TYPE_CHECKING:
    from arr_coc.model import ARRCOCQwen, Generation
    from arr_coc.types import Encode

NICENESS = 5
"""Of this process: a run beside it goes first."""

WARM_UP_TOKENS = 4
"""Text of an answer that is made once before it is timed: enough for a captured decode step."""

COLUMN_LIMIT_S = 600.0
"""Time after which an answer is cut short."""

RELEVANCE_MAX = 255

_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
"""Unit of a process's greatest memory."""


class Comparer:
    """Answers jobs with loaded models. `tell` is called with each message for the viewer; `is_over` says whether the
    job is to end."""

    def __init__(self, models: LoadedModels) -> None:
        self._models = models
        self._warm: set[tuple[str, ...]] = set()

    def answer(self, job: CompareJob, tell: Callable[[dict[str, Any]], None], is_over: Callable[[], bool]) -> None:
        """Answer in every column, and say how far the answers agree with the first one's."""
        picture = np.frombuffer(job.pixels, np.uint8).reshape(job.height, job.width, 3)
        results: list[dict[str, Any] | None] = []
        for number, column in enumerate(job.request.columns):
            if is_over():
                break
            try:
                results.append(self._column(job, number, column, picture, tell, is_over))
            except ArrCocError as error:
                results.append(None)
                tell({"topic": "column", "column": number, "error": str(error)})
        tell({"topic": "ended", "cancelled": is_over(), "verdicts": _verdicts(results)})

    def _column(
        self,
        job: CompareJob,
        number: int,
        column: ColumnSettings,
        picture: np.ndarray,
        tell: Callable[[dict[str, Any]], None],
        is_over: Callable[[], bool],
    ) -> dict[str, Any]:
        request = job.request
        if not self._models.is_loaded(column.model):
            tell({"topic": "progress", "column": number, "state": "loading"})
        model = self._models.get(column.model, TileGrid.of(job.height, job.width).tiles)
        self._warm = {kind for kind in self._warm if self._models.is_loaded(kind[0])}
        kind = (column.model, column.encode, column.strategy, str(column.budget), f"{job.height}×{job.width}")

        def answer(max_tokens: int, on_text: Callable[[str], None] | None) -> Generation:
            began_s = time.monotonic()
            model.forget()
            return model.generate(
                picture,
                request.question,
                max_tokens,
                column.budget,
                _encode(column.encode),
                column.strategy,
                seed=request.seed,
                on_text=on_text,
                should_stop=lambda: is_over() or time.monotonic() - began_s > COLUMN_LIMIT_S,
            )

        first_call = kind not in self._warm
        if first_call and request.warm:
            tell({"topic": "progress", "column": number, "state": "warming up"})
            answer(min(WARM_UP_TOKENS, request.max_tokens), None)
            first_call = False
        self._warm.add(kind)
        tell({"topic": "progress", "column": number, "state": "answering"})
        memory = DeviceMemory(model)
        made = answer(request.max_tokens, lambda text: tell({"topic": "text", "column": number, "text": text}))
        result = {**_described(made), "first_call": first_call, "memory": memory.figures(made), **_device_of(model)}
        result["right"] = None if job.known is None else is_right(made.text, job.known)
        tell({"topic": "column", "column": number, **result})
        return result


class DeviceMemory:
    """Memory of an answer: on CUDA the peak since this was made, elsewhere that of the process."""

    def __init__(self, model: ARRCOCQwen) -> None:
        import torch

        self._device = model.device if model.device.type == "cuda" else None
        if self._device is not None:
            torch.cuda.reset_peak_memory_stats(self._device)

    def figures(self, made: Generation) -> dict[str, int | str]:
        """Return what is kept of the answer, and the peak, in bytes."""
        import torch

        if self._device is not None:
            peak, of = torch.cuda.max_memory_allocated(self._device), "GPU"
        else:
            peak, of = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES, "process"
        return {"kept_bytes": made.kept_bytes, "peak_bytes": peak, "of": of}


def _encode(name: str) -> Encode:
    return name  # type: ignore[return-value]  # checked when the request was read


def _described(made: Generation) -> dict[str, Any]:
    """Return an answer's text, allocation and times for the page."""
    times = made.timings
    rows, cols = made.heatmap.shape
    first_ms = times.allocate_ms + times.glance_ms + times.encode_ms + times.prefill_ms
    return {
        "text": made.text,
        "tokens": made.tokens_used,
        "tiles": rows * cols,
        "rows": rows,
        "cols": cols,
        "relevance": np.rint(made.heatmap.clip(0, 1) * RELEVANCE_MAX).astype(int).ravel().tolist(),
        "regions": made.regions.ravel().tolist(),
        "overview": made.overview,
        "text_tokens": made.text_tokens,
        "ms": {
            "allocate": times.allocate_ms,
            "glance": times.glance_ms,
            "encode": times.encode_ms,
            "prefill": times.prefill_ms,
            "decode": times.decode_ms,
            "first_token": first_ms,
            "total": times.total_ms,
        },
    }


def _device_of(model: ARRCOCQwen) -> dict[str, str]:
    return {"device": str(model.device), "dtype": str(model.dtype).removeprefix("torch.")}


def is_right(text: str, known: KnownAnswer) -> bool:
    """Return True if an answer has every part of the known one, and nothing that it denies."""
    said = f" {' '.join(words_of(text))} "
    return all(any(f" {way} " in said for way in part.split("|")) for part in known.parts) and not any(
        f" {words} " in said for words in known.denied
    )


def _verdicts(results: list[dict[str, Any] | None]) -> list[dict[str, Any] | None]:
    """Compare each answer with the first column's; None where either is missing, and for the first one itself."""
    base = results[0] if results else None
    verdicts: list[dict[str, Any] | None] = []
    for result in results:
        if base is None or result is None or result is base:
            verdicts.append(None)
            continue
        agreement = text_agreement(base["text"], result["text"])
        verdicts.append(
            {
                "same": agreement.same,
                "words": agreement.words,
                "faster": base["ms"]["total"] / max(result["ms"]["total"], 1e-6),
                "token_share": result["tokens"] / max(base["tokens"], 1),
            }
        )
    return verdicts


class Orders:
    """Messages to this process, read in a thread of their own: jobs wait, and a cancellation counts at once.

    The end of stdin ends the process: its parent is gone, or wants it to go.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._cancelled = 0
        self.jobs: queue.SimpleQueue[CompareJob] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def is_over(self, job: CompareJob) -> bool:
        """Return whether a job has been cancelled."""
        return job.number <= self._cancelled

    def _read(self) -> None:
        while (body := read_frame(self._stream)) is not None:
            order = msgspec.msgpack.decode(body, type=WorkerOrder)
            if order.cancel is not None:
                self._cancelled = order.cancel
            if order.job is not None:
                self.jobs.put(order.job)
        os._exit(0)


def main() -> None:
    """Answer jobs until stdin ends. What libraries print goes to stderr."""
    os.nice(NICENESS)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    first = read_frame(sys.stdin.buffer)
    if first is None:
        return
    options = msgspec.msgpack.decode(first, type=WorkerOptions)
    orders = Orders(sys.stdin.buffer)
    models = [choice.model for choice in options.models]
    comparer = Comparer(LoadedModels(options, QwenLoader(options.device, options.dtype, models)))

    def tell(message: dict[str, Any]) -> None:
        write_frame(replies, msgspec.msgpack.encode(message))

    while True:
        job = orders.jobs.get()
        try:
            comparer.answer(job, tell, lambda: orders.is_over(job))  # noqa: B023
        except Exception as error:  # a bug in one answer ends that job only
            tell({"topic": "ended", "error": f"unexpected {describe(error)}"})


if __name__ == "__main__":
    main()
