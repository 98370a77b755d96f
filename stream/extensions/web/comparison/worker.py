"""Process that answers comparisons, one job at a time."""

from __future__ import annotations

import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from arr_coc.errors import ArrCocError
from arr_coc.types import TileGrid
from stream.answer.agreement import text_agreement, words_of
from stream.control import describe
from stream.extensions.web.comparison.messages import (
    ENDED,
    ColumnSettings,
    CompareJob,
    CompareOrder,
    CompareWorkerConfig,
)
from stream.extensions.web.comparison.models import LoadedModels, QwenLoader
from stream.scenes.stills import KnownAnswer

if TYPE_CHECKING:
    from arr_coc.model import ARRCOCQwen, Generation
    from arr_coc.types import Encode

_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
"""Unit of a process's greatest memory."""


class Comparer:
    """Answers jobs with loaded models. `report` takes each message for the viewer; `is_over` ends the job if true."""

    def __init__(self, models: LoadedModels) -> None:
        self._models = models
        self._warm: set[tuple[str, ...]] = set()

    def answer(self, job: CompareJob, report: Callable[[dict[str, Any]], None], is_over: Callable[[], bool]) -> None:
        """Answer in every column, and compare the answers with the first one's."""
        picture = np.frombuffer(job.pixels, np.uint8).reshape(job.height, job.width, 3)
        results: list[dict[str, Any] | None] = []
        for number, column in enumerate(job.request.columns):
            if is_over():
                break
            try:
                results.append(self._column(job, number, column, picture, report, is_over))
            except ArrCocError as error:
                results.append(None)
                report({"topic": "column", "column": number, "error": str(error)})
        report({"topic": ENDED, "cancelled": is_over(), "verdicts": _verdicts(results)})

    def _column(
        self,
        job: CompareJob,
        number: int,
        column: ColumnSettings,
        picture: np.ndarray,
        report: Callable[[dict[str, Any]], None],
        is_over: Callable[[], bool],
    ) -> dict[str, Any]:
        request = job.request
        if not self._models.is_loaded(column.model):
            report({"topic": "progress", "column": number, "state": "loading"})
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
                cast("Encode", column.encode),  # checked when the request was read
                column.strategy,
                seed=request.seed,
                on_text=on_text,
                # time after which an answer is cut short
                should_stop=lambda: is_over() or time.monotonic() - began_s > 600.0,
            )

        first_call = kind not in self._warm
        if first_call and request.warm:
            report({"topic": "progress", "column": number, "state": "warming up"})
            # text of an answer that is made once before it is timed: enough for a captured decode step
            answer(min(4, request.max_tokens), None)
            first_call = False
        self._warm.add(kind)
        report({"topic": "progress", "column": number, "state": "answering"})
        memory = DeviceMemory(model)
        generation = answer(request.max_tokens, lambda text: report({"topic": "text", "column": number, "text": text}))
        result = {
            **_describe(generation),
            "first_call": first_call,
            "memory": memory.figures(generation),
            "device": str(model.device),
            "dtype": model.qwen.weights_dtype,
            "right": None if job.known is None else is_right(generation.text, job.known),
        }
        report({"topic": "column", "column": number, **result})
        return result


class DeviceMemory:
    """Memory of an answer: on CUDA the peak since this was made, elsewhere that of the process."""

    def __init__(self, model: ARRCOCQwen) -> None:
        import torch

        self._device = model.device if model.device.type == "cuda" else None
        if self._device is not None:
            torch.cuda.reset_peak_memory_stats(self._device)

    def figures(self, generation: Generation) -> dict[str, int | str]:
        """Return the memory kept after the answer, and the peak, in bytes."""
        import torch

        if self._device is not None:
            peak = torch.cuda.max_memory_allocated(self._device)
            of = "GPU"
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES
            of = "process"
        return {"kept_bytes": generation.kept_bytes, "peak_bytes": peak, "of": of}


def _describe(generation: Generation) -> dict[str, Any]:
    """Return an answer's text, allocation and times for the page."""
    times = generation.timings
    rows, cols = generation.heatmap.shape
    first_ms = times.allocate_ms + times.glance_ms + times.encode_ms + times.prefill_ms
    return {
        "text": generation.text,
        "tokens": generation.tokens_used,
        "tiles": rows * cols,
        "rows": rows,
        "cols": cols,
        "relevance": np.rint(generation.heatmap.clip(0, 1) * 255).astype(int).ravel().tolist(),
        "regions": generation.regions.ravel().tolist(),
        "overview": generation.overview,
        "text_tokens": generation.text_tokens,
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


def is_right(text: str, reference: KnownAnswer) -> bool:
    """Return True if an answer has every part of the known one, and nothing that it denies."""
    padded = f" {' '.join(words_of(text))} "
    return all(any(f" {way} " in padded for way in part.split("|")) for part in reference.parts) and not any(
        f" {words} " in padded for words in reference.denied
    )


def _verdicts(results: list[dict[str, Any] | None]) -> list[dict[str, Any] | None]:
    """Compare each answer with the first column's; None if either is missing, and for the first one itself."""
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
    """Lines on stdin, read in a separate thread: jobs wait, and a cancellation counts at once.

    The end of stdin ends the process: its parent is gone, or stops it.
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
        for line in self._stream:
            order = msgspec.json.decode(line, type=CompareOrder)
            if order.cancel is not None:
                self._cancelled = order.cancel
            if order.job is not None:
                self.jobs.put(order.job)
        os._exit(0)


def main() -> int:
    """Entry point of the process: answers jobs until stdin ends."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 1
    os.nice(5)  # of this process: a run beside it goes first
    worker = msgspec.json.decode(line, type=CompareWorkerConfig)
    orders = Orders(sys.stdin.buffer)
    replies = os.fdopen(worker.replies, "wb")
    options = worker.options
    models = [choice.model for choice in options.models]
    comparer = Comparer(LoadedModels(options, QwenLoader(options.device, options.dtype, models)))

    def report(message: dict[str, Any]) -> None:
        replies.write(msgspec.json.encode(message) + b"\n")
        replies.flush()

    while True:
        job = orders.jobs.get()
        try:
            comparer.answer(job, report, lambda: orders.is_over(job))  # noqa: B023
        except Exception as error:  # a bug in one answer ends that job only
            report({"topic": ENDED, "error": f"unexpected {describe(error)}"})


if __name__ == "__main__":
    sys.exit(main())
