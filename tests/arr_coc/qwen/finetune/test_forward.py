"""The forward of a batch: the stock model's logits with all tokens, and gradients to model and allocator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.qwenvl import QwenVL
from tests.support.models import FAMILIES, tiny_qwen

QUESTIONS = ("Is the cat sleeping?", "What is the number in the upper left? there are two green squares below")
ANSWERS = (" a red circle", " two")


def pictures() -> list[np.ndarray]:
    """Two pictures of different sizes."""
    rng = np.random.default_rng(3)
    first = rng.integers(90, 110, (150, 230, 3), dtype=np.uint8)
    first[70:100, 150:180] = (250, 20, 20)
    return [first, rng.integers(0, 256, (100, 90, 3), dtype=np.uint8)]


def processed(qwen: QwenVL, images: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """The stock processor's `pixel_values` and `image_grid_thw`."""
    prep = qwen.preprocessing
    processor = Qwen2VLImageProcessorPil(
        patch_size=prep.patch_px,
        size={"shortest_edge": prep.min_px, "longest_edge": prep.max_px},
        image_mean=prep.scale.mean,
        image_std=prep.scale.std,
    )
    return dict(processor(images, return_tensors="pt"))


def stock_batch(qwen: QwenVL, side: str = "right") -> dict[str, torch.Tensor]:
    """A batch of two as transformers makes it, padded, with labels on the answers."""
    inputs = processed(qwen, pictures())
    tokens = (inputs["image_grid_thw"].prod(dim=1) // 4).tolist()
    rows, labels = [], []
    for question, answer, count in zip(QUESTIONS, ANSWERS, tokens, strict=True):
        message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}
        text = qwen.tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        asked = qwen.token_ids(text.replace("<|image_pad|>", "<|image_pad|>" * count))
        said = qwen.token_ids(answer + "<|im_end|>")
        rows.append(torch.tensor(asked + said))
        labels.append(torch.tensor([-100] * len(asked) + said))

    def padded(parts: list[torch.Tensor], value: int) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=value, padding_side=side)

    ids = padded(rows, qwen.tokenizer.pad_token_id)
    return {
        "input_ids": ids,
        "attention_mask": padded([torch.ones_like(row) for row in rows], 0),
        "labels": padded(labels, -100),
        **inputs,
    }


def stock_forward(qwen: QwenVL, batch: dict[str, torch.Tensor]) -> Any:
    kinds = (batch["input_ids"] == qwen.model.config.image_token_id).int()
    return qwen.model(**batch, mm_token_type_ids=kinds)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("encode", ["sparse", "prune", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_all_tokens_it_is_the_stock_model(family: str, encode: Any, side: str) -> None:
    qwen = tiny_qwen(family)
    batch = stock_batch(qwen, side)
    stock = stock_forward(qwen, batch)
    model = ARRCOCQwen(qwen, encode)
    model.allocator.configure(budget="100%")
    for train in (False, True):
        ours = model.train(train)(**batch)
        assert ours.logits.shape == stock.logits.shape
        there = batch["attention_mask"].bool()
        torch.testing.assert_close(ours.logits[there], stock.logits[there], atol=1e-4, rtol=0)
        torch.testing.assert_close(ours.loss, stock.loss, atol=1e-5, rtol=0)
