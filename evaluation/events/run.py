"""What is wrong in answers after something happened: `python -m evaluation.events.run --strategy memory,snapshot`."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import typer

from arr_coc.errors import ArrCocError
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import TILE_PX
from evaluation.errors import ChoiceError, EvaluationError
from evaluation.events.asking import COUNT, DESCRIBE, Point, judge, points, zone_of
from evaluation.events.clips import EVENTS, FRAMES_A_SECOND, EventClip, EventKind
from evaluation.events.report import report, table
from evaluation.events.sets import CLIPS_A_KIND, set_clips, set_hash
from evaluation.events.strategies import CONDITIONS, Condition, EventStream, begin
from evaluation.runner import split
from evaluation.strategies.base import Budget
from evaluation.suites import SetName
from training.clips.truth import Box

BAD_INPUT = 2

DEFAULT_TOKENS = "64"
"""What a run with defaults spends on pictures of this size: 27 %, but 64 to 400."""


@dataclass(frozen=True, slots=True)
class Way:
    """How clips are answered about: a strategy at a budget, and what happens beside the answers."""

    strategy: str
    budget: Budget
    condition: Condition


def answer_clip(qwen: QwenVL, way: Way, clip: EventClip, number: int) -> list[dict[str, Any]]:
    """Return a row for every answer point of a clip; none if the condition is a zone and the clip has none."""
    zone_px = zone_of(clip, TILE_PX) if way.condition == "zone" else None
    if way.condition == "zone" and zone_px is None:
        return []
    points_by_frame = {point.frame: point for point in points(clip, number, zone_px)}
    question = next(iter(points_by_frame.values())).question
    stream = begin(qwen, way.strategy, way.budget, way.condition, _zone_shares(clip, zone_px), _watched(clip))
    stream.ask(question)
    between = _between(clip) if way.condition in ("watch", "other") else set()
    rows = []
    for frame, image in enumerate(clip.draw()):
        stream.show(image, frame / FRAMES_A_SECOND)
        if frame in between:
            _interject(stream, way.condition, question)
        if point := points_by_frame.get(frame):
            if way.condition == "watch":
                stream.check()
            rows.append(_row(way, clip, number, point, stream.answer()))
        stream.idle()
    stream.close()
    return rows


def _between(clip: EventClip) -> set[int]:
    """Return the frames in the middle between two answer points."""
    answers = clip.schedule.answers
    return {(first + second) // 2 for first, second in pairwise(answers)}


def _interject(stream: EventStream, condition: Condition, question: str) -> None:
    """Check the watch, or ask another question once."""
    if condition == "watch":
        stream.check()
        return
    stream.ask(COUNT if question in DESCRIBE else DESCRIBE[0])
    stream.answer()
    stream.ask(question)


def _watched(clip: EventClip) -> str:
    return f"Is there a {clip.actor or clip.after}?"


def _zone_shares(clip: EventClip, zone_px: Box | None) -> tuple[tuple[float, float], ...] | None:
    """Return a zone's corners in shares of the picture."""
    if zone_px is None:
        return None
    left, top, right, bottom = zone_px
    width, height = clip.plan.size_px
    return tuple((x / width, y / height) for x, y in ((left, top), (right, top), (right, bottom), (left, bottom)))


def _row(way: Way, clip: EventClip, number: int, point: Point, text: str) -> dict[str, Any]:
    verdict = judge(point, text)
    return {
        "strategy": way.strategy,
        "budget": str(way.budget),
        "condition": way.condition,
        "kind": clip.kind,
        "clip": number,
        "asks": point.asks,
        "after": point.is_after,
        "frame": point.frame,
        "question": point.question,
        "right_answer": point.answer,
        "text": text,
        "right": verdict.is_right,
        **asdict(verdict),
    }


def _rows(qwen: QwenVL, ways: Sequence[Way], clips: Sequence[tuple[int, EventClip]]) -> Iterator[dict[str, Any]]:
    for way in ways:
        began_s = time.perf_counter()
        for number, clip in clips:
            yield from answer_clip(qwen, way, clip, number)
        took_s = time.perf_counter() - began_s
        print(f"{way.strategy}, {way.condition}: {took_s:.0f} s", file=sys.stderr)


def _known(text: str, choices: Sequence[str], option: str) -> list[Any]:
    names = split(text, option)
    for name in names:
        if name not in choices:
            raise ChoiceError(f"{option} knows {', '.join(choices)}; got {name!r}")
    return names


def main(
    strategy: Annotated[str, typer.Option(help="memory, snapshot, or those of evaluation.run.")] = "memory,snapshot",
    condition: Annotated[str, typer.Option(help=", ".join(CONDITIONS))] = "plain",
    set_name: Annotated[str, typer.Option("--set", help="choose, or report.")] = "choose",
    kind: Annotated[str, typer.Option(help="Kinds of events.")] = ",".join(EVENTS),
    limit: Annotated[int, typer.Option(help="Clips of each kind, from the first.")] = CLIPS_A_KIND,
    budget: Annotated[str, typer.Option(help="Visual tokens of a snapshot.")] = DEFAULT_TOKENS,
    model: Annotated[str | None, typer.Option(help="A folder or a name on the hub; the bundled one if absent.")] = None,
    device: Annotated[str, typer.Option(help="Device of the model.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Figures and answers, as JSON.")] = None,
) -> None:
    """Ask a model about clips in which something happens, and count what is wrong in its answers."""
    torch.set_num_threads(1)
    logging.getLogger("arr_coc").setLevel(logging.ERROR)
    try:
        (chosen_set,) = _known(set_name, get_args(SetName), "--set")
        kinds: tuple[EventKind, ...] = tuple(_known(kind, EVENTS, "--kind"))
        ways = [
            Way(name, Budget.parse(budget), way_condition)
            for way_condition in _known(condition, CONDITIONS, "--condition")
            for name in split(strategy, "--strategy")
        ]
        clips = list(set_clips(chosen_set, kinds, limit))
        qwen = load_qwen(model, device=device)
        rows = list(_rows(qwen, ways, clips))
    except (EvaluationError, ArrCocError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(BAD_INPUT) from None
    cells = report(rows)
    print(table(cells))
    if out is not None:
        figures = {
            "set": chosen_set,
            "hash": set_hash(chosen_set),
            "model": qwen.model_id,
            "cells": cells,
            "rows": rows,
        }
        out.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)
