"""The pieces of the chat template."""

from __future__ import annotations

import pytest

from arr_coc.errors import ModelError
from arr_coc.qwen.prompt import prompt_ids
from arr_coc.types import time_text
from tests.support.models import tiny_qwen


@pytest.mark.parametrize("system", [None, "You are a helpful assistant."])
def test_the_pieces_make_the_whole_template(system: str | None) -> None:
    qwen = tiny_qwen()
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Say what happens."}]}]
    if system:
        messages.insert(0, {"role": "system", "content": system})  # type: ignore[dict-item]
    text = qwen.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = prompt_ids(qwen, system)
    query = qwen.plain_token_ids("Say what happens.")
    image = qwen.token_ids("<|image_pad|>")
    joined_ids = [*ids.head, *ids.frame_open, *image, *ids.frame_close, *ids.before_query, *query, *ids.after_query]
    assert joined_ids == qwen.token_ids(text)


def test_times_are_written_as_qwen3_does() -> None:
    assert time_text(3_249_000_000) == "<3.2 seconds>"


@pytest.mark.parametrize(
    ("template", "match"),
    [
        (None, "no chat template"),
        ("{% for message in messages %}{{ message.role }}{% endfor %}", "shows no image"),
        ("<|vision_start|><|image_pad|><|vision_end|>", "shows no image"),
    ],
)
def test_a_template_without_images_is_named(template: str | None, match: str) -> None:
    qwen = tiny_qwen()
    qwen.tokenizer.chat_template = template
    with pytest.raises(ModelError, match=f"tiny-qwen3_vl.*{match}|{match}"):
        prompt_ids(qwen, None)
