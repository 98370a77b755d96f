"""Replies of an OpenAI-compatible server, read without one."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from stream.extensions.api.replies import LINE_BYTES_MAX, ChatPiece, events_of, first_bytes, piece_of


def test_an_event_that_is_longer_than_any_answer_is_not_kept() -> None:
    with pytest.raises(httpx2.RemoteProtocolError, match="longer than any answer"):
        list(events_of([b"data: ", b"x" * LINE_BYTES_MAX, b"x"]))


def test_events_are_found_wherever_the_chunks_are_cut() -> None:
    stream = b": hello\r\nevent: x\r\ndata: {1}\r\n\r\ndata:{2}\n\n"
    for size in (1, 2, 5, 100):
        chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert list(events_of(chunks)) == ["{1}", "{2}"]


@pytest.mark.parametrize(
    ("end", "events"),
    [
        (b"data: [DONE]", ["{1}", "[DONE]"]),
        (b'data: {"a": 2}', ["{1}", '{"a": 2}']),
        (b'data: {"a": "b', ["{1}"]),
        (b"event: {}", ["{1}"]),
    ],
)
def test_the_last_event_needs_no_line_break(end: bytes, events: list[str]) -> None:
    assert list(events_of([b"data: {1}\n\n", end])) == events


@pytest.mark.parametrize("size", [1, 2, 3, 4, 100])
def test_a_reply_begins_after_a_byte_order_mark_and_white_space(size: int) -> None:
    reply = b"\xef\xbb\xbf\r\n data: x"
    chunks = iter([reply[at : at + size] for at in range(0, len(reply), size)])
    assert first_bytes(chunks) + b"".join(chunks) == b"data: x"


@pytest.mark.parametrize("blank", [b"", b" \n", b"\xef\xbb\xbf"])
def test_a_blank_reply_has_no_first_bytes(blank: bytes) -> None:
    assert first_bytes(iter([blank])) == b""


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": "a red "}, {"type": "text", "text": "circle"}],
        [{"text": "a red circle"}, {"type": "image_url", "text": 3}, None, 4],
        ["a red ", {"type": "output_text", "text": "circle"}],
        {"type": "text", "text": "a red circle"},
    ],
)
def test_a_content_may_be_a_list_of_parts(content: object) -> None:
    assert piece_of({"choices": [{"delta": {"content": content}}]})[0].text == "a red circle"


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": 3}, "logprobs": {"content": [{"top_logprobs": [{"token": 1}, 2]}]}}]},
        {"choices": "x", "usage": {"prompt_tokens": -1, "completion_tokens": "many"}, "model": 4},
        {"usage": {"prompt_tokens": True, "completion_tokens": False}},
        {"usage": {"prompt_tokens": 1e9, "completion_tokens": float("nan")}},
        {"usage": {"prompt_tokens": 2**70, "completion_tokens": []}},
        {"choices": [{"logprobs": {"content": [{"token": "yes", "logprob": False}]}}]},
        {"choices": [{"logprobs": {"content": [{"token": "yes", "logprob": float("nan")}]}}]},
    ],
)
def test_fields_that_are_not_as_expected_count_as_absent(event: dict[str, Any]) -> None:
    assert piece_of(event) == (ChatPiece(), False)


@pytest.mark.parametrize("chance", [-(10**400), float("-inf"), -1e308])
def test_no_probability_is_too_small(chance: float) -> None:
    piece, _ = piece_of({"choices": [{"logprobs": {"content": [{"token": "yes", "logprob": chance}]}}]})
    assert piece.likely == (("yes", -10_000.0),)
