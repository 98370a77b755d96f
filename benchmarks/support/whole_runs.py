"""One process of the benchmark `whole_model`: a run of the pipeline, or stock transformers, over one clip.

    python -m benchmarks.support.whole_runs MODEL CLIP stock FRAME …
    python -m benchmarks.support.whole_runs MODEL CLIP "sparse 27%" ANSWERS
    python -m benchmarks.support.whole_runs MODEL CLIP "sparse 27% int8" ANSWERS

`stock` answers about the frames of these numbers; an encoding with a budget, and a dtype, makes ANSWERS answers, as a
run does. The last line of the output is a `RunFigures` as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import psutil
from transformers import AutoImageProcessor

from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.preprocess import Rgb
from benchmarks.support.answer_ways import QUERY, TEXT_TOKENS, Stock, speak_on
from benchmarks.support.harness import resident_mib
from stream.config import AllocateConfig, AnswerConfig, CaptureConfig, Config
from stream.events import Answer
from stream.runtime.frame_stages import run_in_threads

EVERY_S = 0.5
"""Media time between answers."""

STOCK = "stock"
MEASURED_MS = ("encode_ms", "prefill_ms", "first_token_ms", "decode_ms", "answer_ms")


@dataclass(frozen=True)
class RunFigures:
    """Figures of the answers of one process. The first is not counted: everything is new then, and a glance may come
    before it.

    `answers`: their times in milliseconds, from the decoded frame on, by the names of MEASURED_MS. `gaps_s`: from the
    end of one answer to the end of the next, with all frames in between, and `cpu_s` the time of all processes on
    processors meanwhile. `peak_mib`: the largest resident size of each process, weights included. `frames`: numbers of
    all frames that were answered about.
    """

    way: str
    visual_tokens: int
    answers: list[dict[str, float]]
    gaps_s: list[float]
    cpu_s: list[float]
    peak_mib: dict[str, float]
    frames: list[int]


def processor_s(processes: Iterable[int]) -> float:
    """Time that processes have had on processors."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in processes)


def differences(values: Sequence[float]) -> list[float]:
    return [round(end - start, 3) for start, end in pairwise(values)]


def run_pipeline(model: str, clip: str, way: str, count: int) -> RunFigures:
    """The real run, lossless and in lockstep as `caption` makes it: frame stages here, the model in its process.

    The last answer is about the last frame of the part that is read.

    Args:
        model: Folder of the model.
        clip: The video.
        way: "ENCODE BUDGET", such as "sparse 27%", and a dtype or none.
        count: Number of answers; the first one is not counted.
    """
    encode, budget, *dtype = way.split()
    settings = {"encode": encode, "max_tokens": TEXT_TOKENS, "every_s": EVERY_S, "on_cut": False, "query": QUERY}
    settings["memory"] = {"enabled": False}  # what is compared is one answer by itself
    config = Config(
        source=clip,
        capture=CaptureConfig(duration_s=EVERY_S * (count - 1)),
        allocate=AllocateConfig(budget=budget),
        answer=AnswerConfig(model=model, dtype=dtype[0] if dtype else "auto", **settings),  # type: ignore[arg-type]
    )
    run, answers = run_in_threads(config), list[Answer]()
    ends_s, cpu_s = list[float](), list[float]()
    peak_mib: dict[str, float] = {}
    for event in run.run():
        if isinstance(event, Answer):
            answers.append(event)
            ends_s.append(time.monotonic())
            cpu_s.append(processor_s(run.processes().values()))
            peak_mib = {name: round(resident_mib(pid), 1) for name, pid in run.processes().items()}
    return RunFigures(
        way=way,
        visual_tokens=answers[1].tokens_used,
        answers=[_times(answer) for answer in answers[1:]],
        gaps_s=differences(ends_s),
        cpu_s=differences(cpu_s),
        peak_mib=peak_mib,
        frames=[answer.frame_index for answer in answers],
    )


def _times(answer: Answer) -> dict[str, float]:
    timing = answer.timing
    if timing is None or answer.text_tokens != TEXT_TOKENS:
        raise RuntimeError(f"an answer of {answer.text_tokens} tokens")
    values = (timing.encode_ms, timing.prefill_ms, timing.ttft_ms, timing.decode_ms, timing.total_ms)
    return dict(zip(MEASURED_MS, values, strict=True))


def run_stock(model: str, clip: str, numbers: Sequence[int]) -> RunFigures:
    """Stock image processor and `generate` on the same frames of the clip, in one process with all cores."""
    qwen = speak_on(load_qwen(model))
    processor = AutoImageProcessor.from_pretrained(model, trust_remote_code=False)
    stock: Stock | None = None
    answers, ends_s, cpu_s = [], [], []
    for index, picture in enumerate(pictures(Path(clip), numbers)):
        stock = stock or Stock(qwen, processor, visual_tokens(processor, picture))
        figures = asdict(stock.take(picture, index))
        answers.append({name: figures[name] for name in MEASURED_MS})
        ends_s.append(time.monotonic())
        cpu_s.append(processor_s([os.getpid()]))
    return RunFigures(
        way=STOCK,
        visual_tokens=stock.visual_tokens if stock else 0,
        answers=answers[1:],
        gaps_s=differences(ends_s),
        cpu_s=differences(cpu_s),
        peak_mib={STOCK: round(resident_mib("self"), 1)},
        frames=list(numbers),
    )


def visual_tokens(processor: Any, picture: Rgb) -> int:
    """Visual tokens that the stock model makes of a picture."""
    grid = processor(images=[picture], return_tensors="pt")["image_grid_thw"]
    return int(grid.prod()) // 4


def pictures(clip: Path, numbers: Sequence[int]) -> Iterator[Rgb]:
    """Frames of a clip by number, as RGB."""
    with av.open(str(clip)) as container:
        for index, frame in enumerate(container.decode(video=0)):
            if index in numbers:
                yield np.ascontiguousarray(frame.to_ndarray(format="rgb24"))
            if index >= max(numbers):
                return


def main() -> None:
    model, clip, way, *numbers = sys.argv[1:]
    counts = [int(number) for number in numbers]
    figures = run_stock(model, clip, counts) if way == STOCK else run_pipeline(model, clip, way, *counts)
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main()
