"""Pictures for model servers: within the budget, with their texts, read as stock."""

from __future__ import annotations

from typing import Any
from unittest import mock

import cv2
import numpy as np
import pytest

from arr_coc.qwen.qwenvl import QwenVL
from evaluation.strategies import pictures
from evaluation.strategies.base import Ask, Budget, Reply
from evaluation.strategies.catalogue import STRATEGIES, strategy_named
from stream.extensions.api.pictures import COMPOSITE, PART, WHOLE
from tests.support.evaluation import ask
from tests.support.models import tiny_qwen

KINDS = ("scaled", "composite", "parts")


@pytest.fixture(scope="module")
def qwen() -> QwenVL:
    return tiny_qwen()


def two_things() -> Ask:
    """One detailed thing far from another, on plain ground."""
    picture = np.full((384, 640, 3), 90, np.uint8)
    for left in (40, 520):
        picture[40:120, left : left + 80] = np.random.default_rng(left).integers(0, 256, (80, 80, 3))
    return Ask((picture,), (0.0,), "what?", Budget.parse("27%"), "full", max_tokens=2)


def asked(qwen: QwenVL, kind: str, query: Ask) -> tuple[Reply, list[slice], str]:
    """The reply, where pictures stand in the prompt, and the prompt's own texts."""
    places: list[Any] = []
    real, texts = pictures.staged_prefill, list[str]()

    def noting(*arguments: Any) -> Any:
        places.append(arguments[2])
        return real(*arguments)

    ids = QwenVL.plain_token_ids
    with (
        mock.patch.object(pictures, "staged_prefill", noting),
        mock.patch.object(QwenVL, "plain_token_ids", lambda self, text: texts.append(text) or ids(self, text)),
    ):
        reply = strategy_named(f"picture-{kind}").answer(qwen, query)
    return reply, places[0], "|".join(texts)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frames", [1, 3])
def test_they_spend_the_budget(qwen: QwenVL, kind: str, frames: int) -> None:
    reply, places, _ = asked(qwen, kind, ask("40%", frames, encode="full"))
    assert len(places) >= frames
    assert 0.5 * 14 * frames <= reply.tokens <= 14 * frames
    assert sum(place.stop - place.start for place in places) == reply.tokens
    assert reply.of_tokens == 35 * frames


def test_each_kind_has_its_own_words(qwen: QwenVL) -> None:
    query = two_things()
    for kind, pictures_there, words in (("scaled", 1, None), ("composite", 1, COMPOSITE), ("parts", 2, PART)):
        reply, places, texts = asked(qwen, kind, query)
        assert len(places) == 1 if pictures_there == 1 else len(places) >= 2, kind
        assert reply.tokens <= 64
        assert (COMPOSITE in texts, PART in texts, WHOLE in texts) == (
            words == COMPOSITE,
            words == PART,
            words == PART,
        )


def test_scaled_shows_the_whole_view(qwen: QwenVL) -> None:
    """With all tokens the picture is the one that the stock model gets, but for JPEG."""
    query = ask("100%", 1, encode="full")
    smooth = cv2.GaussianBlur(query.frames[0], (0, 0), 8)
    query = Ask((smooth,), query.times_s, query.text, query.budget, "full", max_tokens=4)
    reply, _, _ = asked(qwen, "scaled", query)
    assert reply.tokens == reply.of_tokens
    assert reply.text == STRATEGIES["full"].answer(qwen, query).text


def test_they_are_asked_for_by_name_only() -> None:
    assert not any(name.startswith("picture-") for name in STRATEGIES)
