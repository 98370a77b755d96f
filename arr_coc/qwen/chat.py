"""Whole prompts, from chat messages and from the output of a transformers processor.

A message is a mapping of `role` to a name and of `content` to text, or to a list of parts: `{"type": "text", "text":
…}` and `{"type": "image", "image": …}`, with any picture that `arr_coc.texture.pictures.to_rgb` accepts. The template
gets the texts as they are, so that it trims them and leaves out earlier thoughts as its model expects. But text from
messages is plain: `<|im_end|>` in it is ten characters, not the end of a turn. Only the marks of thoughts in the
assistant's own turns are those of the template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch

from arr_coc.errors import ModelError, OptionError
from arr_coc.qwen.checkpoint import THINKING_MARKS
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

_ESCAPE = "\u2042"
"""Character around the number of a mark."""


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
    pictures: list[Rgb] = []
    if not isinstance(messages, (list, tuple)) or not messages:
        raise OptionError(
            f"messages must be a list of at least one message, got {type(messages).__name__}",
            'give such as [{"role": "user", "content": "Say what happens."}]',
        )
    marks = _PlainMarks(qwen)
    templates = [_escaped(message, marks, pictures) for message in messages]
    try:
        prompt = render_chat(qwen, templates, thinking=thinking)
    except TEMPLATE_ERRORS as error:
        raise ModelError(
            f"the chat template of {qwen.model_id} does not take these messages ({error})", "check roles and order"
        ) from error
    pieces = tuple(_pieces(qwen, prompt, marks, pictures))
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


class _PlainMarks:
    """Marks that stand in the texts of messages for the characters that begin special tokens, so that neither template
    nor tokenizer sees such tokens, even if two texts meet in one.

    `special`: pattern of the tokenizer's special tokens, and of a picture.
    """

    def __init__(self, qwen: QwenVL) -> None:
        added = qwen.tokenizer.added_tokens_decoder.values()
        tokens = [token.content for token in added if token.special or token.content in THINKING_MARKS]
        tokens.sort(key=len, reverse=True)  # of two that begin alike, the longer one counts
        self.special = re.compile("|".join(map(re.escape, (IMAGE, *tokens))))
        self._characters = "".join(sorted({_ESCAPE, *(token[0] for token in tokens)}))
        self._pattern = re.compile(f"{'|'.join(THINKING_MARKS)}|[{re.escape(self._characters)}]")

    def escape(self, text: str, *, keeps_thoughts: bool) -> str:
        """Return text with marks; with `keeps_thoughts`, the marks of thoughts stay as they are."""

        def mark(match: re.Match[str]) -> str:
            if keeps_thoughts and match[0] in THINKING_MARKS:
                return match[0]
            return f"{_ESCAPE}{self._characters.index(match[0][0])}{_ESCAPE}{match[0][1:]}"

        return self._pattern.sub(mark, text)

    def restore(self, text: str) -> str:
        """Return the text of `escape`."""
        return re.sub(f"{_ESCAPE}(\\d+){_ESCAPE}", lambda match: self._characters[int(match[1])], text)


def _escaped(message: Message, marks: _PlainMarks, pictures: list[Rgb]) -> dict[str, Any]:
    """Return the message for the template, with its texts escaped; append its pictures to `pictures`."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or message.get("content") is None:
        raise OptionError(
            f"a message has a role and a content, got {message!r}",
            'give such as {"role": "user", "content": "Say what happens."}',
        )
    escape = partial(marks.escape, keeps_thoughts=message["role"] == "assistant")
    content = message["content"]
    turn = {"role": message["role"]}
    if isinstance(message.get("reasoning_content"), str):
        turn["reasoning_content"] = escape(message["reasoning_content"])
    if isinstance(content, str):
        return turn | {"content": escape(content)}
    if not isinstance(content, (list, tuple)):
        raise OptionError(f"a message's content is text or a list of parts, got {type(content).__name__}")
    parts: list[dict[str, str]] = []
    for part in content:
        if isinstance(part, Mapping):
            kind = part.get("type")
        else:
            kind = None
        if kind == "text" and isinstance(part.get("text"), str):
            parts.append({"type": "text", "text": escape(part["text"])})
        elif kind in ("image", "image_url"):
            pictures.append(pad_to_max_aspect(to_rgb(_source(part))))
            parts.append({"type": "image"})
        else:
            raise OptionError(
                f"a part of a message is text or an image, got {kind or part!r}",
                "give a video's frames as a list of pictures with a question",
            )
    return turn | {"content": parts}


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


def _pieces(qwen: QwenVL, prompt: str, marks: _PlainMarks, pictures: list[Rgb]) -> Iterator[Ids | Rgb]:
    """Yield token ids and pictures of a prompt with escaped texts; text between pictures is one piece."""
    opening = qwen.token_ids("<|vision_start|>")
    closing = qwen.token_ids("<|vision_end|>")
    waiting = iter(pictures)
    ids = list[int]()
    end = 0
    for special in marks.special.finditer(prompt):
        ids += qwen.plain_token_ids(marks.restore(prompt[end : special.start()]))
        end = special.end()
        if special[0] != IMAGE:
            ids += qwen.token_ids(special[0])
            continue
        yield tuple([*ids, *opening])
        if (picture := next(waiting, None)) is None:
            raise ModelError(f"the chat template of {qwen.model_id} shows a picture that no message has")
        yield picture
        ids = [*closing]
    yield tuple([*ids, *qwen.plain_token_ids(marks.restore(prompt[end:]))])
