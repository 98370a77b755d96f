"""Messages of an answer stage that are well made and not true, or beyond all measure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from arr_coc.types import Work
from stream.protocol.codec import specs_of
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    CheckScore,
    Embedded,
    ErrorReply,
    GlanceReply,
    KeepAlive,
    ServerHello,
    TurnExpired,
    TurnGrant,
    YesNoReply,
    encode,
)
from tests.hostile.nasty import NASTY

Sent: TypeAlias = list[bytes]
"""A message as its parts."""

WORK = Work(1, 1, 1.0, 1.0, 1.0)
HUGE = 40_000_000

NUMBERS: tuple[Any, ...] = (-1, 2**63 - 1, 2**64 - 1, 1e308, float("nan"), float("inf"), "1", None, [], True)


def fields_of(parts: Sent) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.msgpack.decode(parts[0])
    return fields


def answered(number: int, text: str = "well") -> Sent:
    return [encode(AnswerReply(answer=number, text=text, work=WORK))]


def glanced(number: int, **fields: Any) -> Sent:
    return [encode(GlanceReply(glance=number, work=WORK, **fields))]


def greeting(*, can_glance: bool = False) -> Sent:
    return [encode(ServerHello(model_id="liar", knows_levels=True, known_world=None, can_glance=can_glance))]


def embedded(text: str, *, is_check: bool = False) -> Sent:
    embedding = np.full((1, 8), 0.5, np.float32)
    reply = Embedded(text=text, is_check=is_check, model_id="liar", arrays=specs_of(embedding))
    return [encode(reply), embedding.tobytes()]


def changed(parts: Sent, **fields: Any) -> Sent:
    return [msgspec.msgpack.encode({**fields_of(parts), **fields}), *parts[1:]]


def worked(parts: Sent, **fields: Any) -> Sent:
    return changed(parts, work={**fields_of(parts)["work"], **fields})


LIES: dict[str, Callable[[int], list[Sent]]] = {
    "an answer of 40 MB": lambda number: [answered(number, text="x" * HUGE)],
    "a text of 40 MB": lambda number: [changed([encode(AnswerDelta(answer=number, text=""))], text="x" * HUGE)],
    "an error of 40 MB": lambda number: [[encode(ErrorReply(error="E", message="x" * HUGE, details="y" * HUGE))]],
    "parts without end": lambda number: [[*answered(number), *[b"z"] * 10_000]],
    "a part of 40 MB": lambda number: [[*answered(number), b"z" * HUGE]],
    "an error with orders for the terminal": lambda number: [
        [encode(ErrorReply(error="E", message=NASTY, details=NASTY))]
    ],
    "answers to others": lambda number: [answered(n) for n in range(100, 3000)],
    "other questions": lambda number: [*[embedded("What did the other one ask?")] * 10, answered(number)],
    "invalid numbers": lambda number: [worked(answered(number), encode_ms=value) for value in NUMBERS],
    "invalid counts": lambda number: [worked(answered(number), frames=value) for value in NUMBERS],
    "invalid times": lambda number: [worked(answered(number), oldest_frame_ns=value) for value in NUMBERS[:5]],
    "arrays that are not there": lambda number: [
        changed(answered(number), arrays=[["float32", [2**31, 2**31]]] * 3, feedback_stamp=[0, 0, 0, 0])
    ],
    "nonsense": lambda number: [[random.Random(n).randbytes(40)] for n in range(3000)],
    "what only clients say": lambda number: [[encode(TurnGrant(turn=1))], [encode(TurnExpired(turn=1))]] * 50,
    "empty messages": lambda number: [[b""]] * 100,
}

LOOKS: dict[str, Callable[[int], list[Sent]]] = {
    "a look at nothing": lambda number: [
        changed(glanced(number), arrays=[["float32", [2**31, 2**31]]] * 3, feedback_stamp=[0, 0, 0, 0])
    ],
    "a look at what no frame has": lambda number: [
        [
            *changed(
                glanced(number),
                arrays=[["int32", [1, 3]], ["float32", [1]], ["float32", [1]]],
                feedback_stamp=[0, 0, 0, 0],
            ),
            np.array([[0, 999, 999]], np.int32).tobytes(),
            np.full(1, np.nan, np.float32).tobytes(),
            np.zeros(1, np.float32).tobytes(),
        ]
    ],
    "looks of others": lambda number: [glanced(n) for n in range(100, 400)] + [glanced(number)],
    "a look again and again": lambda number: [glanced(number)] * 500,
    "invalid costs": lambda number: [worked(glanced(number), prefill_ms=value) for value in NUMBERS],
    "a turn in the middle": lambda number: [
        [encode(TurnGrant(turn=5))],
        [encode(TurnExpired(turn=3))],
        glanced(number),
    ],
    "a turn that expires": lambda number: [[encode(TurnExpired(turn=turn))] for turn in range(50)],
    "an answer instead": lambda number: [answered(number), glanced(number)],
}
"""Messages about an overview, by the number of the glance."""


def lie(rng: random.Random, number: int) -> Sequence[Sent]:
    """Some message of an answer stage with some of its fields changed."""
    seeds: list[Sent] = [
        answered(number),
        [encode(AnswerDelta(answer=number, text="a"))],
        [encode(TurnGrant(turn=rng.randrange(5)))],
        [encode(TurnExpired(turn=1))],
        [encode(KeepAlive())],
        glanced(number),
        [encode(YesNoReply(answer=number, scores=(CheckScore(0.5, 0.5),), work=WORK))],
        greeting(),
        embedded("What?"),
    ]
    parts = rng.choice(seeds)
    fields = fields_of(parts)
    name = rng.choice([name for name in fields if name != "kind"] or ["kind"])
    value = rng.choice([*NUMBERS, "x" * rng.randrange(100), NASTY, {"a": 1}, b"bytes"])
    altered = [msgspec.msgpack.encode({**fields, name: value}), *parts[1:]]
    if rng.random() < 0.2:
        rng.shuffle(altered)
    if rng.random() < 0.2:
        altered += [rng.randbytes(rng.randrange(64)) for _ in range(rng.randrange(8))]
    return [altered]
