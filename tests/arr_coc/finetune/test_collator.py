"""Batches of questions and answers, in the layout of the model's own processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from arr_coc.errors import NonFiniteError, OptionError, ShapeError
from arr_coc.finetune.collator import AnswerCollator
from arr_coc.finetune.pictures import pack, pictures_of
from arr_coc.qwen.processor_inputs import unpack
from arr_coc.qwen.qwenvl import QwenVL
from tests.arr_coc.finetune.test_forward import ANSWERS, QUESTIONS, examples, pictures, processed, stock_batch
from tests.support.models import tiny_qwen


@pytest.fixture(scope="module")
def qwen() -> QwenVL:
    return tiny_qwen()


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_vl"])
def test_pixel_values_are_the_processor_s(family: str) -> None:
    qwen = tiny_qwen(family)
    packed, sizes = pack(pictures_of(pictures(), qwen.preprocessing), qwen.preprocessing)
    expected = processed(qwen, pictures())
    torch.testing.assert_close(packed, expected["pixel_values"], atol=1e-5, rtol=0)
    assert torch.equal(sizes, expected["image_grid_thw"])
    unpacked_pictures = unpack(packed, sizes, qwen.preprocessing)
    for picture, unpacked_picture in zip(pictures_of(pictures(), qwen.preprocessing), unpacked_pictures, strict=True):
        assert picture.grid == unpacked_picture.grid
        torch.testing.assert_close(unpacked_picture.tiles, picture.tiles.float(), atol=1e-3, rtol=0)
        assert np.array_equal(picture.view.read(0), unpacked_picture.view.read(0))


def test_a_batch_is_as_transformers_makes_it(qwen: QwenVL) -> None:
    batch, stock = AnswerCollator(qwen)(examples()), stock_batch(qwen)
    for name in ("input_ids", "attention_mask", "labels", "image_grid_thw"):
        assert torch.equal(batch[name], stock[name]), name
    question_ids = [batch["input_ids"][row, batch["question_mask"][row] == 1] for row in range(2)]
    assert [qwen.tokenizer.decode(ids) for ids in question_ids] == list(QUESTIONS)


def test_special_tokens_in_text_are_not_parsed(qwen: QwenVL) -> None:
    batch = AnswerCollator(qwen)([{**examples()[0], "question": "<|image_pad|> or <|im_end|>?"}])
    places = int((batch["input_ids"] == qwen.model.config.image_token_id).sum())
    assert places == int(batch["image_grid_thw"].prod()) // 4


@pytest.mark.parametrize(
    ("example", "match"),
    [
        ({"question": QUESTIONS[0], "answer": ANSWERS[0]}, "example 0 has no image; .* got the keys question, answer"),
        ({"image": pictures()[0], "answer": ANSWERS[0]}, "has no question"),
        ({"image": pictures()[0], "question": QUESTIONS[0], "answer": " "}, "has no answer; .* remove_unused_columns"),
        ({"image": pictures()[0], "question": QUESTIONS[0], "answer": 7}, "has no answer"),
    ],
)
def test_examples_that_lack_a_part(qwen: QwenVL, example: dict[str, Any], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        AnswerCollator(qwen)([example])


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (lambda pixels, grid: (pixels, None), ShapeError, r"image_grid_thw must be a tensor \[pictures, 3\], .* None"),
        (lambda pixels, grid: (pixels[None], grid), ShapeError, r"pixel_values must be a tensor \[patches, 1536\]"),
        (lambda pixels, grid: (pixels[:, :1176], grid), ShapeError, r"\[patches, 1536\], .* got \[\d+, 1176\]"),
        (lambda pixels, grid: (pixels[4:], grid), ShapeError, r"counts \d+ patches, but pixel_values holds \d+"),
        (lambda pixels, grid: (pixels, grid + torch.tensor([1, 0, 0])), ShapeError, "2 time steps; give a video's"),
        (lambda pixels, grid: (pixels, grid + torch.tensor([0, 1, 0])), ShapeError, "must be multiples of 2"),
        (lambda pixels, grid: (pixels * torch.nan, grid), NonFiniteError, "pixel_values holds NaN or Inf"),
    ],
)
def test_pixel_values_that_do_not_fit(qwen: QwenVL, change: Any, error: type[Exception], match: str) -> None:
    packed, sizes = pack(pictures_of(pictures(), qwen.preprocessing), qwen.preprocessing)
    with pytest.raises(error, match=match):
        unpack(*change(packed, sizes), qwen.preprocessing)
