"""The estimate of hours: its operations are those that the product counts."""

from __future__ import annotations

import pytest
import torch

from arr_coc.qwen.flops import Costs
from arr_coc.qwen.untrained import qwen3_vl_2b
from evaluation.public.estimate import HEAD, LOADS, MODELS, rows


def test_operations_are_those_of_an_answer() -> None:
    costs, estimated = Costs(qwen3_vl_2b("meta", torch.bfloat16)), MODELS[0]
    assert estimated.encode(144) == pytest.approx(costs.encode(144))
    assert estimated.prefill(9000) == pytest.approx(costs.prefill([9000] * costs.layers))


def test_an_answer_of_known_size_takes_known_time() -> None:
    small, large = MODELS
    seconds = (small.encode(300) + small.prefill(330)) / 60e12 + 3 * 4.3 / 600 + 0.1
    assert small.answer_s(1, 300, 30, 3) == pytest.approx(seconds)
    assert large.answer_s(1, 300, 30, 3) > small.answer_s(1, 300, 30, 3)
    assert small.cached_bytes == 114_688


def test_fewer_tokens_take_fewer_hours() -> None:
    for load in LOADS:
        assert all(load.hours(model, 0.27) < load.hours(model, 1.0) for model in MODELS)
    assert {len(row) for row in rows()} == {len(HEAD)}
