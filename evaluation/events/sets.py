"""Two sets of clips from different seeds: one for choosing among candidates, one for the figures that are reported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from evaluation.errors import SuiteError
from evaluation.events.asking import TEXT_TURNS, TURNS, points
from evaluation.events.clips import (
    EVENT_SHAPES,
    EVENTS,
    EVERY_FRAMES,
    FRAMES_A_SECOND,
    GAINS,
    GRAINS,
    POINTS,
    SCENE,
    SIZES_PX,
    EventClip,
    EventKind,
    event_clip,
)
from evaluation.suites import SetName
from training.clips.scenes import clip_rng

FIRST_SEEDS: dict[SetName, int] = {"choose": 5_000_000, "report": 5_100_000}
"""Test seeds of each set, beyond those of the other suites."""

CLIPS_A_KIND = 24
_SEEDS_A_KIND = 1000


def set_clips(
    name: SetName, kinds: tuple[EventKind, ...] = EVENTS, count: int = CLIPS_A_KIND
) -> Iterator[tuple[int, EventClip]]:
    """Yield the first `count` clips of each kind, with their numbers, not yet drawn. The same on every call.

    Raises SuiteError for another set, or a count out of range.
    """
    if name not in FIRST_SEEDS:
        raise SuiteError(f"unknown set {name!r}; there are {', '.join(FIRST_SEEDS)}")
    if not 1 <= count <= CLIPS_A_KIND:
        raise SuiteError(f"a set has 1 to {CLIPS_A_KIND} clips of a kind, got {count}")
    for kind in kinds:
        first = FIRST_SEEDS[name] + _SEEDS_A_KIND * EVENTS.index(kind)
        for number in range(count):
            yield number, event_clip(clip_rng("test", first + number), kind)


def set_parameters(name: SetName) -> dict[str, Any]:
    """Return what the clips of a set are drawn from, fit for JSON."""
    return {
        "first_seed": FIRST_SEEDS[name],
        "kinds": list(EVENTS),
        "clips_a_kind": CLIPS_A_KIND,
        "asks": list(TURNS),
        "asks_of_text": list(TEXT_TURNS),
        "points": list(POINTS),
        "every_frames": list(EVERY_FRAMES),
        "frames_a_second": FRAMES_A_SECOND,
        "sizes_px": [list(size) for size in SIZES_PX],
        "gains": list(GAINS),
        "grains": list(GRAINS),
        "shapes": list(EVENT_SHAPES),
        "options": asdict(SCENE),
    }


def set_hash(name: SetName) -> str:
    """Return SHA-256 over a set's parameters, and over questions, answers and places (whole pixels) of all its clips.

    Pixels are not in it, as in `evaluation.suites.suite_hash`.
    """
    digest = hashlib.sha256(json.dumps(set_parameters(name), sort_keys=True).encode())
    for number, clip in set_clips(name):
        for point in points(clip, number):
            boxes = [[round(edge) for edge in thing.box_px] for thing in clip.there(point.frame)]
            gain = round(clip.gains[point.frame], 3)
            digest.update(json.dumps([clip.kind, point.question, point.answer, point.frame, boxes, gain]).encode())
    return digest.hexdigest()
