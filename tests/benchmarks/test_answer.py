"""The parts of the answer benchmark that judge, and that every way answers about the same pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.untrained import LANGUAGE_LAYERS, VISION_BLOCKS
from benchmarks.answer import compare, extrapolate, gpu_targets, row, summary, table
from benchmarks.support.answer_ways import AnswerTimes, Stock, pictures, plot, speak_on, way_named


class Named:
    def __init__(self, name: str, visual_tokens: int) -> None:
        self.name, self.visual_tokens = name, visual_tokens

    def take(self, picture: Any, index: int) -> AnswerTimes:
        raise NotImplementedError


def took(scale: float) -> AnswerTimes:
    return AnswerTimes(1 * scale, 4 * scale, 2 * scale, 7 * scale, 11 * scale, 18 * scale)


def rows() -> list[dict[str, Any]]:
    stock = row(Named("stock 1024", 1024), summary([took(10)]), 12)
    return [stock, row(Named("sparse 273", 271), summary([took(1), took(2), took(30)]), 12)]


def test_medians_are_compared_with_the_stock_model() -> None:
    stock, sparse = rows()
    assert (stock["answers_hz"], stock["tokens_hz"]) == (pytest.approx(1000 / 180, abs=1e-3), 100.0)
    assert sparse["first_token_ms"] == 14
    assert sparse["first_token_ms_p99"] > 200
    assert compare(rows()) == {"sparse 273": {"answers": 5.0, "first_token": 5.0, "tokens": 5.0}}


def test_the_whole_model_from_one_and_two_blocks() -> None:
    """What does not depend on the blocks counts once."""
    one_block = {"prepare_ms": 5.0, "encode_ms": 30.0, "prefill_ms": 50.0, "decode_ms": 40.0}
    two_blocks = {"prepare_ms": 5.0, "encode_ms": 40.0, "prefill_ms": 70.0, "decode_ms": 43.0}
    total = extrapolate(one_block, two_blocks)
    assert total["encode_ms"] == 20 + 10 * VISION_BLOCKS
    assert total["prefill_ms"] == 30 + 20 * LANGUAGE_LAYERS
    assert total["decode_ms"] == 37 + 3 * LANGUAGE_LAYERS
    assert total["answer_ms"] == sum(total[name] for name in one_block)


def test_a_gpu_is_judged_by_its_slow_answers_too() -> None:
    figures = {"first_token_ms": 9.0, "first_token_ms_p99": 16.0, "answer_ms": 30.0, "tokens_hz": 700.0}
    assert list(gpu_targets(figures).values()) == [True, False, True, True]


def test_it_prints_and_draws_what_it_found(tmp_path: Path) -> None:
    report = {"model": "one", "dtype": "float32", "ways": rows(), "whole": False}
    lines = table(report).splitlines()
    assert lines[0] == "one, float32, extrapolated"
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80
    plot({"bundled": report, "qwen3_vl_2b": report}, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_stock_and_sparse_answer_about_the_same_picture() -> None:
    qwen = speak_on(load_qwen(None))
    (picture,) = pictures(1)
    stock, sparse = (way_named(qwen, name) for name in (Stock.name, "sparse 102"))
    slow, fast = stock.take(picture, 0), sparse.take(picture, 0)
    assert stock.visual_tokens == 1024
    assert 95 <= sparse.visual_tokens <= 102
    for times in (slow, fast):
        parts = times.prepare_ms + times.encode_ms + times.prefill_ms
        assert times.first_token_ms == pytest.approx(parts, rel=0.1, abs=5)
        assert times.answer_ms > times.first_token_ms
    assert fast.encode_ms < slow.encode_ms
