"""The prompt as token ids, in the order [system] [frames…] [query] [assistant], so that what comes first can be kept.

Frames are introduced as the model's chat template introduces images; several frames, as Qwen3-VL introduces
the frames of a video, each with its time as text ("<3.2 seconds>"; Qwen3-VL technical report, arXiv:2511.21631).
"""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import TemplateError

from arr_coc.errors import ModelError
from arr_coc.qwen.qwenvl import QwenVL

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
_QUERY = "\u2042query\u2042"


@dataclass(frozen=True, slots=True)
class PromptIds:
    """Token ids of everything but the frames' own tokens and the query's."""

    head: tuple[int, ...]
    frame_open: tuple[int, ...]
    frame_close: tuple[int, ...]
    before_query: tuple[int, ...]
    after_query: tuple[int, ...]


def prompt_ids(qwen: QwenVL, system: str | None) -> PromptIds:
    """The pieces of the chat template around frames and query. `system` None: the template's own system prompt, if any.

    Raises ModelError where the tokenizer has no chat template, or one that shows no images.
    """
    content = [{"type": "image"}, {"type": "text", "text": _QUERY}]
    messages: list[dict[str, object]] = [{"role": "user", "content": content}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    if not qwen.tokenizer.chat_template:
        raise ModelError(f"the tokenizer of {qwen.model_id} has no chat template", "download the model again")
    try:
        text = qwen.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(
            f"the chat template of {qwen.model_id} cannot be used ({error})", "download the model again"
        ) from error
    head, image, rest = text.partition(IMAGE)
    before_query, query, after_query = rest.partition(_QUERY)
    if not image or not query:
        raise ModelError(f"the chat template of {qwen.model_id} shows no image", "use an instruct version of the model")
    ids = (qwen.token_ids(piece) for piece in (head, "<|vision_start|>", "<|vision_end|>", before_query, after_query))
    return PromptIds(*(tuple(piece) for piece in ids))


def time_text(media_ns: int) -> str:
    """How Qwen3-VL writes the time of a video frame."""
    return f"<{media_ns / 1e9:.1f} seconds>"
