"""Replies of an OpenAI-compatible server: events and their pieces, lists of models, and errors. No input or output.

The events are those of https://platform.openai.com/docs/api-reference/chat-streaming. Fields that are not as expected
count as absent.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2

from arr_coc.bounded_json import parse_json
from stream.untrusted import replace_surrogates

LINE_BYTES_MAX = 1 << 20
"""Longest event, in bytes."""

QUOTED_CHARS_MAX = 300
"""Length to which texts of a server, such as error messages, are cut."""

THOUGHT_FIELDS = ("reasoning_content", "reasoning")
"""Fields of thoughts: of DeepSeek, SGLang, llama.cpp and older vLLM, and of vLLM, Ollama and OpenRouter."""

LOGPROB_MIN = -10_000.0
"""Log-probability that servers send for impossible tokens; as a float its probability is 0."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Model that a server lists, and its owner as the server reports it: `vllm`, `sglang`, `llamacpp`, a company."""

    name: str
    owner: str


@dataclass(frozen=True, slots=True)
class ChatPiece:
    """Piece of a reply, and of the thoughts before it, if the server separates them.

    `likely`: tokens that could stand in place of its first one, with log-probabilities. `prompt_tokens`,
    `cached_tokens` of them, `text_tokens` and `thought_tokens` of those as the server counts them; `model` is the
    server's name of the model.
    """

    text: str = ""
    thought: str = ""
    likely: tuple[tuple[str, float], ...] = ()
    model: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    text_tokens: int | None = None
    thought_tokens: int | None = None


def first_bytes(chunks: Iterable[bytes]) -> bytes:
    """Return a reply's first bytes after a byte order mark and white space; empty if there are none."""
    beginning = b""
    for chunk in chunks:
        beginning += chunk
        if len(beginning) < len(BOM_UTF8) and BOM_UTF8.startswith(beginning):
            continue
        if beginning := beginning.removeprefix(BOM_UTF8).lstrip():
            break
    return beginning


def events_of(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the data of server-sent events, one line each. Raises HTTPError for a line that is too long."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise httpx2.RemoteProtocolError("an event is longer than any answer")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[len(b"data:") :].decode("utf-8", "replace").strip()
    # Some servers end without a line break. A line that is cut off is no event.
    if rest.startswith(b"data:"):
        data = rest[len(b"data:") :].strip()
    else:
        data = b""
    if data == b"[DONE]" or data.endswith(b"}"):
        yield data.decode("utf-8", "replace")


def json_object(text: str) -> dict[str, Any]:
    """Return the object of a JSON text, or the only one of its list. Raises HTTPError if there is none."""
    try:
        event = parse_json(text.removeprefix("\ufeff"))
    except ValueError:
        event = None
    if isinstance(event, list) and len(event) == 1:  # Google's errors
        event = event[0]
    if not isinstance(event, dict):
        raise httpx2.RemoteProtocolError("the reply holds something that is no JSON object")
    return event


def holds_choices(event: dict[str, Any]) -> bool:
    """Return whether an event holds a part of an answer, with or without text."""
    return bool(_first(event.get("choices")))


def error_in(event: dict[str, Any]) -> str | None:
    """Return the text of the error that an event reports, itself or for its answer; None if it reports none."""
    choice = _first(event.get("choices"))
    if "error" in (event.get("object"), event.get("type")):
        reported = event
    else:
        reported = None
    for error in (event.get("error"), choice.get("error"), reported):
        if error:
            return message_of(error) or json.dumps(error)
    if choice.get("finish_reason") == "error":
        return "an error ended the answer"
    return None


def piece_of(event: dict[str, Any]) -> tuple[ChatPiece, bool]:
    """Return the piece that an event holds, and whether it ends the text. Fields that are not as expected count as
    absent."""
    choice = _first(event.get("choices"))
    message = choice.get("delta") or choice.get("message")
    message = _dict(message)
    content = message.get("content")
    thoughts = [message.get(name) for name in THOUGHT_FIELDS]
    usage = _dict(event.get("usage"))
    model = event.get("model")
    piece = ChatPiece(
        text=_text(content),
        thought=next((text for text in thoughts if isinstance(text, str) and text), "") or _part_thought(content),
        likely=tuple(_likely(_first(_dict(choice.get("logprobs")).get("content")))),
        model=replace_surrogates(model[:QUOTED_CHARS_MAX]) if isinstance(model, str) else "",
        prompt_tokens=_count(usage.get("prompt_tokens")),
        cached_tokens=_count(_dict(usage.get("prompt_tokens_details")).get("cached_tokens")),
        text_tokens=_count(usage.get("completion_tokens")),
        thought_tokens=_count(_dict(usage.get("completion_tokens_details")).get("reasoning_tokens")),
    )
    return piece, choice.get("finish_reason") is not None


def _text(content: object) -> str:
    """Return the text of a content, which may be a list of parts."""
    if isinstance(content, list):
        return "".join(_text(part) for part in content if isinstance(part, str | dict))
    if isinstance(content, dict):
        if content.get("type") in (None, "text", "output_text"):
            content = content.get("text")
        else:
            content = None
    return content if isinstance(content, str) else ""


def _part_thought(content: object) -> str:
    """Return the thoughts among the parts of a content, as text or as the JSON of a list."""
    if isinstance(content, list):
        parts = [_dict(part) for part in content]
    else:
        parts = []
    thoughts = [part.get(kind) for part in parts for kind in ("thinking", "reasoning") if part.get("type") == kind]
    return "".join(thought if isinstance(thought, str) else json.dumps(thought) for thought in thoughts if thought)


def _likely(token: dict[str, Any]) -> Iterator[tuple[str, float]]:
    entries = token.get("top_logprobs")
    for entry in entries if isinstance(entries, list) and entries else [token]:
        name = _dict(entry).get("token")
        chance = _dict(entry).get("logprob")
        if isinstance(name, str) and isinstance(chance, int | float) and chance is not False and chance <= 0:
            yield name, float(max(chance, LOGPROB_MIN))


def whole_characters(text: str) -> tuple[str, str]:
    """Return text with its surrogate pairs as characters, and the half of one at its end, whose other half may come
    with the next piece. Other halves become U+FFFD."""
    if "\ud800" <= text[-1:] <= "\udbff":
        half = text[-1:]
    else:
        half = ""
    text = text[: len(text) - len(half)]
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"), half


def served_models(text: str) -> list[ServedModel]:
    """Return the models of a list; none if the text is no such list."""
    try:
        entries = _dict(parse_json(text.removeprefix("\ufeff"))).get("data")
    except ValueError:
        return []
    return [
        ServedModel(replace_surrogates(entry["id"][:QUOTED_CHARS_MAX]), str(entry.get("owned_by"))[:QUOTED_CHARS_MAX])
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and isinstance(entry.get("id"), str)
    ]


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _first(values: object) -> dict[str, Any]:
    if isinstance(values, list) and values:
        return _dict(values[0])
    return {}


def _count(value: object) -> int | None:
    if type(value) is int and 0 <= value < 1 << 40:
        return value
    return None


def message_in(text: str) -> str:
    """Return the message in the body of an error; "" if there is none."""
    try:
        body = json_object(text)
    except httpx2.HTTPError:
        return ""
    detail = body.get("detail")
    return message_of(body.get("error")) or message_of(body) or message_of(detail) or _details(detail)


def message_of(error: object) -> str:
    """Return the text of an error, with the field that it is about."""
    message, param = (error, None) if isinstance(error, str) else map(_dict(error).get, ("message", "param"))
    if not isinstance(message, str):
        return ""
    if isinstance(param, str) and param and param not in message:
        return f"{message} ({param})"
    return message


def _details(detail: object) -> str:
    """Return the first of the faults that a server of FastAPI lists, after the field that has it."""
    fault = _first(detail)
    place = fault.get("loc")
    message = fault.get("msg")
    if isinstance(place, list):
        path = ".".join(str(part) for part in place if part != "body")
    else:
        path = ""
    if isinstance(message, str):
        return f"{path}: {message}"
    return ""
