"""The library's face: pictures and frames in, an answer, a heatmap and statistics out."""

from __future__ import annotations

import io
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arr_coc.allocation.allocator import StreamAllocator
from arr_coc.budget import TokenLimits
from arr_coc.errors import BudgetError, ContextLengthError, OptionError, ShapeError, StrategyError
from arr_coc.model import ARRCOCQwen
from arr_coc.types import Encode
from tests.support.image_processor import ExactImageProcessor
from tests.support.models import FAMILIES, tiny_folder, tiny_qwen

QUERY = "Is the cat sleeping?"


@pytest.fixture(scope="module")
def model() -> ARRCOCQwen:
    return ARRCOCQwen(tiny_qwen())


@pytest.fixture
def picture() -> np.ndarray:
    """A bright square on a dull ground, 150x230 so that it must be resized."""
    image = np.random.default_rng(3).integers(90, 110, (150, 230, 3), dtype=np.uint8)
    image[70:100, 150:180] = (250, 20, 20)
    return image


def stock_answer(model: ARRCOCQwen, picture: np.ndarray, max_tokens: int) -> str:
    prep, tokenizer = model.qwen.preprocessing, model.qwen.tokenizer
    processor = ExactImageProcessor(
        patch_size=prep.patch_px,
        size={"shortest_edge": prep.min_px, "longest_edge": prep.max_px},
        image_mean=prep.scale.mean,
        image_std=prep.scale.std,
    )
    inputs = dict(processor(picture, return_tensors="pt"))
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUERY}]}
    text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    tokens = int(inputs["image_grid_thw"].prod()) // 4
    ids = tokenizer(text.replace("<|image_pad|>", "<|image_pad|>" * tokens), return_tensors="pt")["input_ids"]
    mm_types = (ids == model.qwen.model.config.image_token_id).int()
    generated = model.qwen.model.generate(
        input_ids=ids, mm_token_type_ids=mm_types, max_new_tokens=max_tokens, do_sample=False, **inputs
    )
    return tokenizer.decode(generated[0, ids.shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("encode", ["full", "prune", "sparse", "incremental"])
@torch.no_grad()
def test_all_tokens_answer_as_the_stock_model(family: str, encode: Encode, picture: np.ndarray) -> None:
    model = ARRCOCQwen(tiny_qwen(family))
    result = model.generate(picture, QUERY, max_tokens=12, budget=1000, encode=encode)
    assert result.text == stock_answer(model, picture, 12)
    assert result.tokens_used == result.heatmap.size == len(result.regions)


def test_an_answer_is_streamed_as_it_is_decoded_and_can_be_stopped(model: ARRCOCQwen, picture: np.ndarray) -> None:
    pieces: list[str] = []
    full = model.generate(picture, QUERY, max_tokens=12, on_text=pieces.append)
    assert "".join(pieces) == full.text
    calls = []

    def stop_after_three() -> bool:
        calls.append(True)
        return len(calls) >= 3

    stopped = model.generate(picture, QUERY, max_tokens=12, should_stop=stop_after_three)
    assert stopped.text_tokens == 3
    assert full.text_tokens > 3
    assert full.text.startswith(stopped.text)
    assert stopped.tokens_used == full.tokens_used


@pytest.mark.parametrize("encode", ["sparse", "incremental"])
def test_caches_can_be_cleared(picture: np.ndarray, encode: Encode) -> None:
    model = ARRCOCQwen(tiny_qwen())
    first = model.generate(picture, QUERY, max_tokens=4, encode=encode)
    prefilled = model._session.last.work.prefilled_tokens
    assert first.kept_bytes > 0
    model.generate(picture, QUERY, max_tokens=4, encode=encode)
    assert model._session.last.work.prefilled_tokens < prefilled
    model.forget()
    last = model.generate(picture, QUERY, max_tokens=4, encode=encode)
    assert model._session.last.work.prefilled_tokens == prefilled
    assert last.text == first.text


@pytest.mark.parametrize("budget", ["auto", "adaptive"])
def test_limits_bound_a_budget_that_adapts(model: ARRCOCQwen, picture: np.ndarray, budget: str) -> None:
    limits = TokenLimits(3, 5)
    assert 3 <= model.generate(picture, QUERY, 1, budget, strategy="topk", glance=False, limits=limits).tokens_used <= 5


def test_a_budget_is_kept_and_spent_on_content(model: ARRCOCQwen, picture: np.ndarray) -> None:
    result = model.generate(picture, QUERY, max_tokens=4, budget=9, strategy="topk", glance=False)
    assert result.tokens_used == 9
    assert result.heatmap.shape == (5, 7)
    assert 0 <= result.heatmap.min() <= result.heatmap.max() <= 1
    assert {(2, 4), (2, 5)} & {(row, col) for _, row, col in result.regions.tolist()}
    assert min(result.timings.allocate_ms, result.timings.encode_ms, result.timings.prefill_ms) > 0


@pytest.mark.parametrize("encode", ["full", "prune", "sparse", "incremental", "weighted"])
@pytest.mark.parametrize("strategy", ["auto", "foveated", "grid"])
def test_every_way_of_encoding_answers(model: ARRCOCQwen, picture: np.ndarray, encode: Encode, strategy: str) -> None:
    result = model.generate(picture, QUERY, max_tokens=3, budget=12, encode=encode, strategy=strategy)
    assert result.tokens_used == (35 if encode in ("full", "weighted") else len(result.regions))


def test_an_older_family_takes_coarse_regions(picture: np.ndarray) -> None:
    result = ARRCOCQwen(tiny_qwen("qwen2_vl")).generate(picture, QUERY, budget=12, strategy="foveated", max_tokens=3)
    assert len({level for level, _, _ in result.regions.tolist()}) > 1


def test_every_kind_of_picture_is_the_same_picture(model: ARRCOCQwen, picture: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    Image.fromarray(picture).save(path)
    tensor = torch.from_numpy(picture)
    kinds: list[Any] = [
        picture,
        path,
        str(path),
        Image.fromarray(picture),
        tensor,
        tensor.permute(2, 0, 1),
        tensor / 255,
    ]
    results = [model.generate(kind, QUERY, max_tokens=6) for kind in kinds]
    assert len({result.text for result in results}) == 1


def test_frames_are_encoded_each_on_its_own(model: ARRCOCQwen, picture: np.ndarray) -> None:
    frames = [picture, np.roll(picture, 20, axis=1), np.roll(picture, 40, axis=1)]
    expected = model.generate(frames, QUERY, max_tokens=8, budget=10)
    assert expected.tokens_used == 30
    stacked = model.generate(np.stack(frames), QUERY, max_tokens=8, budget=10)
    assert stacked.text == expected.text
    single = model.generate(frames[-1:], QUERY, max_tokens=8, budget=10)
    assert single.tokens_used == 10


def test_sampling_repeats_with_its_seed(model: ARRCOCQwen, picture: np.ndarray) -> None:
    def sampled(seed: int) -> str:
        return model.generate(picture, QUERY, max_tokens=12, temperature=1.5, top_p=0.9, seed=seed).text

    assert sampled(1) == sampled(1)
    assert len({sampled(seed) for seed in range(4)}) > 1


def test_from_pretrained_reads_a_folder(tmp_path: Path, picture: np.ndarray) -> None:
    model = ARRCOCQwen.from_pretrained(tiny_folder(tmp_path / "tiny"), dtype="bfloat16")
    assert model.qwen.model.dtype == torch.bfloat16
    assert model.generate(picture, QUERY, max_tokens=2).tokens_used == 35


def test_a_failed_allocation_shows_all_tokens(
    model: ARRCOCQwen, picture: np.ndarray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise FloatingPointError("relevance is broken")

    before = model.fallbacks
    monkeypatch.setattr(StreamAllocator, "allocate", fail)
    with caplog.at_level(logging.WARNING):
        result = model.generate(picture, QUERY, max_tokens=6, budget=5)
    assert model.fallbacks == before + 1
    assert "relevance is broken" in caplog.text
    assert result.tokens_used == 35
    assert result.text == model.generate(picture, QUERY, max_tokens=6, encode="full").text


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"budget": 0}, BudgetError, "0"),
        ({"strategy": "best"}, StrategyError, "best"),
        ({"encode": "quick"}, OptionError, "full, prune, sparse, incremental, weighted, got 'quick'"),
        ({"max_tokens": 0}, OptionError, "max_tokens"),
        ({"top_p": 0.0}, OptionError, "top_p"),
        ({"times_s": [1.0, 2.0]}, OptionError, "one time for each frame, 1 in order"),
    ],
)
def test_bad_options_are_named(
    model: ARRCOCQwen, picture: np.ndarray, options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        model.generate(picture, QUERY, **options)


@pytest.mark.parametrize(
    ("thing", "match"),
    [
        ([], "no frame"),
        (7, "got int"),
        (np.zeros((4, 4, 3), complex), "complex128"),
        (None, "got None"),
        ([np.zeros((4, 4, 3), np.uint8), None], "got None"),
        (np.zeros((0, 4, 3), np.uint8), r"\[0, 4, 3\]"),
        (torch.full((3, 8, 8), 7.0), "values from 7 to 7"),
    ],
)
def test_invalid_pictures_are_named(model: ARRCOCQwen, thing: Any, match: str) -> None:
    with pytest.raises(ShapeError, match=match):
        model.generate(thing, QUERY)


@pytest.mark.parametrize("query", [None, "", "  ", 7, b"what?"])
def test_invalid_questions_are_named(model: ARRCOCQwen, picture: np.ndarray, query: Any) -> None:
    with pytest.raises(
        OptionError, match=rf"a question is text that is not empty, got {re.escape(repr(query))}; give one such as"
    ):
        model.generate(picture, query)


@pytest.mark.parametrize("shape", [(50, 12_000), (12_000, 50), (1, 500), (1, 1)])
def test_narrow_pictures_are_padded(model: ARRCOCQwen, shape: tuple[int, int]) -> None:
    narrow = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    result = model.generate(narrow, QUERY, max_tokens=1, budget=16)
    assert result.tokens_used >= 1
    assert result.picture is not None
    assert max(result.picture.shape[:2]) <= 200 * min(result.picture.shape[:2])
    assert np.array_equal(result.picture[: shape[0], : shape[1]], narrow)


def test_frames_may_be_of_several_sizes(model: ARRCOCQwen, picture: np.ndarray) -> None:
    result = model.generate([picture, picture[:64, :96], picture], QUERY, max_tokens=1, budget=4, strategy="topk")
    assert result.tokens_used == 12
    assert result.heatmap.shape == (5, 7)


@pytest.mark.parametrize("times_s", [[float("nan")], ["soon"], [None]])
def test_times_are_finite_numbers(model: ARRCOCQwen, picture: np.ndarray, times_s: Any) -> None:
    with pytest.raises(OptionError, match="times_s must hold finite numbers of seconds"):
        model.generate(picture, QUERY, times_s=times_s)


def test_a_result_is_one_line_and_a_picture(model: ARRCOCQwen, picture: np.ndarray) -> None:
    result = model.generate(picture, QUERY, max_tokens=2, budget=9, strategy="topk")
    assert repr(result) == str(result)
    assert repr(result).startswith(f"Generation({result.text!r}, 9 visual tokens, heat map 5x7, ")
    assert "\n" not in repr(result)
    png = result._repr_png_()
    assert png is not None
    image = np.asarray(Image.open(io.BytesIO(png)))
    assert image.shape[1] == 640
    assert image.shape[0] > 640 * picture.shape[0] / picture.shape[1] + 20
    assert "prefill_ms=2.0, decode_ms=0.3, " in repr(replace(result.timings, prefill_ms=2, decode_ms=1 / 3))
    assert replace(result, picture=None)._repr_png_() is None


def test_files_that_are_no_pictures(model: ARRCOCQwen, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(ShapeError, match=r"text\.png is not an image"):
        model.generate(tmp_path / "text.png", QUERY)
    with pytest.raises(FileNotFoundError, match="nothing"):
        model.generate(tmp_path / "nothing.png", QUERY)


def test_a_long_question_is_refused_with_numbers(model: ARRCOCQwen, picture: np.ndarray) -> None:
    with pytest.raises(ContextLengthError, match=r"the question takes .* tokens, .*context of 4096"):
        model.generate(picture, "why? " * 2000)
