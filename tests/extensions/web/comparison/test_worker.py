"""Answers of a comparison, in this process, so that the test can look at the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arr_coc.model import ARRCOCQwen
from stream.extensions.web.comparison.messages import (
    NO_ALLOCATOR,
    ColumnSettings,
    CompareJob,
    CompareOptions,
    ComparisonRequest,
    ModelChoice,
)
from stream.extensions.web.comparison.models import LoadedModels, QwenLoader
from stream.extensions.web.comparison.worker import Comparer
from tests.support.models import tiny_folder, tiny_qwen

PICTURE = np.random.default_rng(3).integers(0, 255, (128, 192, 3), dtype=np.uint8)


@pytest.fixture
def model() -> ARRCOCQwen:
    return ARRCOCQwen(tiny_qwen())


@pytest.fixture
def comparer(model: ARRCOCQwen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Comparer:
    loader = QwenLoader("cpu")
    monkeypatch.setattr(loader, "load", lambda _: model)
    choices = [ModelChoice("tiny", str(tiny_folder(tmp_path))), ModelChoice("bare", str(tmp_path), NO_ALLOCATOR)]
    return Comparer(LoadedModels(CompareOptions(choices), loader))


def answered(comparer: Comparer, number: int, *columns: ColumnSettings, warm: bool = True) -> list[dict[str, Any]]:
    request = ComparisonRequest("key", "Where?", list(columns), max_tokens=4, warm=warm)
    messages: list[dict[str, Any]] = []
    comparer.answer(CompareJob(number, PICTURE.tobytes(), 128, 192, request), messages.append, lambda: False)
    return messages


def test_nothing_that_an_answer_kept_makes_the_next_one_quicker(model: ARRCOCQwen, comparer: Comparer) -> None:
    column = ColumnSettings("tiny")  # all tiles, so that no glance comes between
    prefilled = []
    for number in range(3):
        answered(comparer, number, column, warm=False)
        prefilled.append(model._session.last.work.prefilled_tokens)
    assert prefilled[0] == prefilled[1] == prefilled[2]


def test_a_first_call_is_marked(comparer: Comparer) -> None:
    def first_calls(number: int, *columns: ColumnSettings, warm: bool) -> list[bool]:
        messages = answered(comparer, number, *columns, warm=warm)
        return [message["first_call"] for message in messages if message["topic"] == "column"]

    first, second = ColumnSettings("tiny", budget=8), ColumnSettings("tiny", budget=9)
    assert first_calls(1, first, first, second, warm=False) == [True, False, True]
    assert first_calls(2, first, ColumnSettings("tiny", "full"), warm=True) == [False, False]


def test_columns_of_one_model_load_it_once(comparer: Comparer) -> None:
    messages = answered(comparer, 1, ColumnSettings("tiny"), ColumnSettings("bare"), ColumnSettings("tiny", "full"))
    states = [(message["column"], message["state"]) for message in messages if message["topic"] == "progress"]
    assert [column for column, state in states if state == "loading"] == [0, 1]
    assert all("error" not in message for message in messages)
    assert len(comparer._models._loaded) == 1
