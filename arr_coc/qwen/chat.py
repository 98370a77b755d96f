"""Whole prompts, from chat messages and from the output of a transformers processor.

A message is a mapping of `role` to a name and of `content` to text, or to a list of parts: `{"type": "text", "text":
…}` and `{"type": "image", "image": …}`, with any picture that `arr_coc.texture.pictures.to_rgb` accepts. Text from
messages is plain: `<|im_end|>` in it is ten characters, not the end of a turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from arr_coc.errors import ModelError, OptionError
from arr_coc.qwen.pieces import Ids
from arr_coc.qwen.processor_inputs import ModelPicture, ProcessorInputs, check_places, picture_places, unpack
from arr_coc.qwen.prompt import IMAGE, TEMPLATE_ERRORS, render_chat
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.resize import pad_to_max_aspect
from arr_coc.texture.pictures import Rgb, to_rgb

Message: TypeAlias = Mapping[str, Any]

PICTURE_KEYS = ("image", "path", "url", "image_url")
"""Keys of a picture's part that may hold it: those of transformers, qwen-vl-utils and OpenAI."""

REMOTE = ("http://", "https://", "data:")


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A whole prompt: `pieces`, token ids and pictures uint8 [H, W, 3] in order, and `query`, the text of its last
    question, empty if it has no text. `fitted`: the pictures already have the size of the model's image processor.
    """

    pieces: tuple[Ids | Rgb, ...]
    query: str
    fitted: bool = False


def prompt_of_messages(qwen: QwenVL, messages: Sequence[Message], *, thinking: bool = False) -> ChatPrompt:
    """Return the prompt of a chat, in the model's own template, up to the beginning of the assistant's answer;
    `thinking` as `arr_coc.qwen.prompt.render_chat`.

    Raises OptionError for invalid messages and for content other than text and pictures, errors of `to_rgb`, and
    ModelError if the template cannot be used.
    """
    texts: list[str] = []
    pictures: list[Rgb] = []
    if not isinstance(messages, (list, tuple)) or not messages:
        raise OptionError(
            f"messages must be a list of at least one message, got {type(messages).__name__}",
            'give such as [{"role": "user", "content": "Say what happens."}]',
        )
    templates = [_marked(message, texts, pictures) for message in messages]
    try:
        prompt = render_chat(qwen, templates, thinking=thinking)
    except TEMPLATE_ERRORS as error:
        raise ModelError(
            f"the chat template of {qwen.model_id} does not take these messages ({error})", "check roles and order"
        ) from error
    pieces = tuple(_pieces(qwen, prompt, texts, pictures))
    if sum(not isinstance(piece, tuple) for piece in pieces) != len(pictures):
        raise ModelError(
            f"the chat template of {qwen.model_id} does not show every picture", "use an instruct version of the model"
        )
    turns = [message for message in messages if message["role"] == "user"]
    return ChatPrompt(pieces, " ".join(_texts_of(turns[-1])) if turns else "")


def prompts_of_inputs(qwen: QwenVL, inputs: ProcessorInputs) -> list[ChatPrompt]:
    """Return the prompts of a batch of sequences from the model's processor; padding is left out.

    Raises ShapeError if the tensors do not match or hold video, OptionError, and NonFiniteError.
    """
    inputs.check(int(qwen.model.config.get_text_config().vocab_size))
    prep = qwen.preprocessing
    if inputs.pixel_values is None:
        pictures = []
    else:
        pictures = unpack(inputs.pixel_values, inputs.image_grid_thw, prep)
    places = picture_places(inputs.input_ids, inputs.token_mask, qwen.model.config)
    check_places(places, [picture.grid.tiles for picture in pictures])
    prompts = []
    for sequence, (ids, token_mask) in enumerate(zip(inputs.input_ids.cpu(), inputs.token_mask.cpu(), strict=True)):
        pieces: list[Ids | Rgb] = []
        begin = 0
        for place, picture in zip(places, pictures, strict=True):
            if place.sequence == sequence:
                pieces += [_attended(ids, token_mask, begin, place.first), _image(picture)]
                begin = place.end
        pieces.append(_attended(ids, token_mask, begin, len(ids)))
        prompts.append(ChatPrompt(tuple(pieces), _last_question(qwen, ids[token_mask].tolist()), fitted=True))
    return prompts


def fitted_model(qwen: QwenVL) -> QwenVL:
    """Return the model with preprocessing that does not resize, for pictures that already have their size."""
    return replace(qwen, preprocessing=replace(qwen.preprocessing, min_px=0, max_px=1 << 62))


def _attended(ids: torch.Tensor, token_mask: torch.Tensor, begin: int, end: int) -> Ids:
    return tuple(ids[begin:end][token_mask[begin:end]].tolist())


def _image(picture: ModelPicture) -> Rgb:
    """Join tiles [rows * cols, 3, S, S] in 0..255 to a picture uint8 [rows * S, cols * S, 3]."""
    tiles = picture.tiles.detach().cpu().float().round().clamp(0, 255).byte()
    return tiles.unflatten(0, picture.grid.shape).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1).numpy()


def _last_question(qwen: QwenVL, ids: list[int]) -> str:
    """Return the text of the last user turn that has text; if none has, that of all tokens."""
    special = {*qwen.tokenizer.all_special_ids, qwen.model.config.image_token_id}
    heading = qwen.token_ids("<|im_start|>user")
    close_id = qwen.tokenizer.convert_tokens_to_ids("<|im_end|>")
    starts = [at + len(heading) for at in range(len(ids)) if ids[at : at + len(heading)] == heading]
    turns = [ids[at : ids.index(close_id, at) if close_id in ids[at:] else len(ids)] for at in reversed(starts)]
    for turn in (*turns, ids):
        text: str = qwen.tokenizer.decode([token for token in turn if token not in special]).strip()
        if text:
            return text
    return ""


def _marked(message: Message, texts: list[str], pictures: list[Rgb]) -> dict[str, Any]:
    """Return the message with marks in place of its texts; append its texts to `texts`, its pictures to `pictures`."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or message.get("content") is None:
        raise OptionError(
            f"a message has a role and a content, got {message!r}",
            'give such as {"role": "user", "content": "Say what happens."}',
        )
    content = message["content"]
    if isinstance(content, str):
        texts.append(content)
        return {"role": message["role"], "content": _mark(len(texts) - 1)}
    if not isinstance(content, (list, tuple)):
        raise OptionError(f"a message's content is text or a list of parts, got {type(content).__name__}")
    parts: list[dict[str, str]] = []
    for part in content:
        if isinstance(part, Mapping):
            kind = part.get("type")
        else:
            kind = None
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
            parts.append({"type": "text", "text": _mark(len(texts) - 1)})
        elif kind in ("image", "image_url"):
            pictures.append(pad_to_max_aspect(to_rgb(_source(part))))
            parts.append({"type": "image"})
        else:
            raise OptionError(
                f"a part of a message is text or an image, got {kind or part!r}",
                "give a video's frames as a list of pictures with a question",
            )
    return {"role": message["role"], "content": parts}


def _source(part: Message) -> object:
    """Return the picture of an image part: a file's path, or another input of `to_rgb`."""
    source = next((part[key] for key in PICTURE_KEYS if part.get(key) is not None), None)
    if isinstance(source, Mapping):
        source = source.get("url")
    if source is None:
        raise OptionError("an image in a message holds no picture", 'give {"type": "image", "image": picture}')
    if isinstance(source, str) and source.startswith(REMOTE):
        raise OptionError(
            f"pictures are not fetched from addresses, got {source[:60]}", "load it first, and give the picture"
        )
    if isinstance(source, str):
        return source.removeprefix("file://")
    return source


def _texts_of(message: Message) -> list[str]:
    content = message["content"]
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content if part["type"] == "text"]


def _mark(index: int) -> str:
    return f"\u2042text {index}\u2042"


def _pieces(qwen: QwenVL, prompt: str, texts: list[str], pictures: list[Rgb]) -> Iterator[Ids | Rgb]:
    """Yield token ids and pictures of a prompt whose texts are marks; text between pictures is one piece."""
    opening = qwen.token_ids("<|vision_start|>")
    closing = qwen.token_ids("<|vision_end|>")
    waiting = iter(pictures)
    ids = list[int]()
    for piece in re.split(f"({re.escape(IMAGE)}|\u2042text \\d+\u2042)", prompt):
        if piece == IMAGE:
            yield tuple([*ids, *opening])
            if (picture := next(waiting, None)) is None:
                raise ModelError(f"the chat template of {qwen.model_id} shows a picture that no message has")
            yield picture
            ids = [*closing]
        elif piece.startswith("\u2042"):
            ids += qwen.plain_token_ids(texts[int(piece[6:-1])])
        else:
            ids += qwen.token_ids(piece)
    yield tuple(ids)
