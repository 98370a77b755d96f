"""Programs that ask a camera: the OpenAI-compatible endpoint with OpenAI's client, and what agents read."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from openai import APIError, APIStatusError, OpenAI
from PIL import Image

from stream.control import SIDE_QUESTIONS_MAX
from stream.events import Restarted, SideRefused
from stream.extensions.web.chat import questions
from stream.extensions.web.chat.completions import BODY_BYTES_MAX, TURNS_MAX
from stream.protocol.pictures import unpack_picture
from stream.untrusted import QUERY_LIMIT_CHARS
from tests.support.events import answer, side_answer, summary
from tests.support.network import until
from tests.support.web import COLS, HEIGHT, REGIONS, ROWS, WIDTH, ServedPage, SharedPage, ask, served

COMPLETIONS = "/v1/chat/completions"


def client(page: ServedPage | SharedPage, key: str = "none") -> OpenAI:
    return OpenAI(base_url=f"{page.url}v1", api_key=key, max_retries=0)


def user(text: str, *addresses: str) -> dict[str, Any]:
    parts = [{"type": "video_url", "video_url": {"url": url}} for url in addresses]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def question(page: ServedPage | SharedPage, *messages: dict[str, Any], model: str = "camera", **options: Any) -> Any:
    return client(page).chat.completions.create(model=model, messages=list(messages), **options)  # type: ignore[call-overload]


@pytest.fixture
def yard() -> Iterator[SharedPage]:
    with closing(SharedPage(("yard", "front door"))) as page:
        yield page


def test_the_cameras_are_the_models(run: ServedPage, yard: SharedPage) -> None:
    assert [model.id for model in client(run).models.list()] == ["camera"]
    assert [model.id for model in client(yard).models.list()] == ["yard", "front door"]


def test_an_answer_comes_with_its_usage_and_what_was_shown(run: ServedPage) -> None:
    reply = question(run, user("What is it?"))
    assert reply.choices[0].message.content == "a red car"
    assert reply.choices[0].finish_reason == "stop"
    assert (reply.model, reply.usage.prompt_tokens, reply.usage.completion_tokens) == ("camera", 80, 3)
    assert reply.model_extra["arr_coc"] == {
        "frame_index": 7,
        "frames": 2,
        "start_s": 1.0,
        "end_s": 3.0,
        "reaches_back": True,
        "tokens_used": 64,
        "tokens_total": 240,
    }
    assert [side_question.query for side_question in run.run.commands] == ["What is it?"]


def test_an_answer_comes_in_pieces(run: ServedPage) -> None:
    chunks = list(question(run, user("What?"), stream=True, stream_options={"include_usage": True}))
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert texts == ["", "a red ", "car", None]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.total_tokens == 83


def test_text_that_came_in_no_piece_comes_last(run: ServedPage) -> None:
    run.run.replies, run.run.late_text = ("a red ",), "car"
    texts = [chunk.choices[0].delta.content for chunk in question(run, user("What?"), stream=True)]
    assert texts == ["", "a red ", "car", None]


def test_text_in_place_of_pieces_that_are_stale_comes_whole(run: ServedPage) -> None:
    run.run.replies, run.run.ends = ("a red ",), False
    with question(run, user("What?"), stream=True) as chunks:
        texts = [next(chunks).choices[0].delta.content for _ in range(2)]
        run.emit(side_answer(run.run.commands[0], "two dogs"))
        texts += [chunk.choices[0].delta.content for chunk in chunks]
    assert texts == ["", "a red ", "\n\ntwo dogs", None]


def _request(**fields: Any) -> bytes:
    return json.dumps({"model": "camera", "messages": [user("What?")], **fields}).encode()


def test_the_camera_is_the_model_or_in_the_address(yard: SharedPage) -> None:
    assert question(yard, user("What?"), model="yard").model == "yard"
    reply = question(yard, user("What?", "camera://front%20door?last=10s"), model="gpt-6")
    assert reply.model == "front door"
    assert reply.model_extra["arr_coc"]["reaches_back"] is False
    assert len(yard.cameras["yard"].run.commands) == len(yard.cameras["front door"].run.commands) == 1


def test_a_conversation_is_put_before_the_question_as_far_as_it_fits(run: ServedPage) -> None:
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "x" * QUERY_LIMIT_CHARS},
        {"role": "assistant", "content": "<think>\nA dog?\n</think>\n\nA cat."},
    ]
    question(run, *turns, user("Which colour?"))
    assert run.run.commands[-1].query == "assistant: A cat.\nuser: Which colour?"


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"model": "nix"}, 404, "no camera is called 'nix'; the cameras are: camera"),
        ({"messages": []}, 400, "the last message has to be the user's question"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, 400, "the last message has to be the user's question"),
        ({"messages": [user("x" * (QUERY_LIMIT_CHARS + 1))]}, 400, "a question has at most 4000 characters"),
        ({"messages": [user("a")] * (TURNS_MAX + 1)}, 400, "at most 100 messages"),
        ({"messages": [user("a", "https://example.com/a.mp4")]}, 400, "this endpoint shows its own cameras"),
        ({"messages": [user("a", "camera://")]}, 400, "this endpoint shows its own cameras"),
        ({"messages": [user("a", "camera://[")]}, 400, "not an address"),
        ({"messages": [user("a", "camera://camera?last=now")]}, 400, "last=now is not a time in seconds"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "'image_url' is not taken"),
        ({"messages": 3}, 400, "not a chat request"),
        ({"n": 2}, 400, "leave n out"),
        ({"tools": [{}]}, 400, "leave tools out"),
        ({"response_format": {"type": "json_object"}}, 400, "leave response_format out"),
    ],
)
def test_a_request_that_cannot_be_followed_is_refused_in_one_line(
    run: ServedPage, changes: dict[str, Any], status: int, words: str
) -> None:
    reply = ask(run, COMPLETIONS, _request(**changes), Content_Type="application/json")
    assert reply.status == status
    assert words in reply.json["error"]["message"]
    assert "\n" not in reply.json["error"]["message"]
    assert run.run.commands == []


def test_a_body_that_is_too_large_or_no_json_is_refused(run: ServedPage) -> None:
    assert ask(run, COMPLETIONS, b"x" * (BODY_BYTES_MAX + 1)).status == 413
    assert ask(run, COMPLETIONS, b"[" * 100_000).status == 400
    assert ask(run, COMPLETIONS, b"\xff").status == 400


def test_too_many_questions_at_once_are_refused(run: ServedPage) -> None:
    statuses = [ask(run, COMPLETIONS, _request()).status for _ in range(SIDE_QUESTIONS_MAX + 4)]
    assert statuses[0] == 200
    assert statuses[-1] == 429


def test_a_refusal_of_the_run_is_the_reply(run: ServedPage) -> None:
    run.run.replies = ()
    stream = _later(run, SideRefused(question=1, error="the answer was lost"))
    with pytest.raises(APIStatusError, match="the answer was lost") as caught:
        question(run, user("What?"))
    stream.join()
    assert caught.value.status_code == 503


def test_a_refusal_in_the_middle_of_a_text_ends_it_with_an_error(run: ServedPage) -> None:
    run.run.replies = ("a red ",)
    run.run.ends = False
    with question(run, user("What?"), stream=True) as chunks:
        texts = [next(chunks).choices[0].delta.content for _ in range(2)]
        run.emit(SideRefused(question=1, error="the answer was lost"))
        with pytest.raises(APIError, match="the answer was lost"):
            next(chunks)
    assert texts == ["", "a red "]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Restarted(process="frames", cause="killed", count=1), questions.RESTARTED),
        (summary(), questions.ENDED),
    ],
)
def test_questions_that_are_open_as_the_run_ends_or_restarts_are_refused(
    run: ServedPage, event: Any, words: str
) -> None:
    run.run.replies = ()
    stream = _later(run, event)
    with pytest.raises(APIStatusError, match=words):
        question(run, user("What?"))
    stream.join()


def _later(run: ServedPage, event: Any) -> Any:
    def emit() -> None:
        until(lambda: bool(run.run.commands))
        run.emit(event)

    thread = threading.Thread(target=emit)
    thread.start()
    return thread


def test_a_silent_run_is_given_up(run: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "REPLY_LIMIT_S", 0.01)
    run.run.replies = ()
    assert ask(run, COMPLETIONS, _request()).status == 504


def test_before_the_run_and_after_it_nothing_can_be_asked(run: ServedPage) -> None:
    run.emit(summary())
    reply = ask(run, COMPLETIONS, _request())
    assert (reply.status, reply.json["error"]["message"]) == (409, "the run has ended")
    run.hub.finish()
    until(lambda: ask(run, "/api/cameras").json["cameras"][0]["state"] in ("idle", "ended"))


def test_the_token_is_the_key_and_a_page_that_only_shows_takes_no_questions() -> None:
    with served(web__token="secret-token", web__control=False) as page:
        with pytest.raises(APIStatusError) as caught:
            client(page, "wrong").models.list()
        assert caught.value.status_code == 401
        with pytest.raises(APIStatusError, match="this page only shows") as caught:
            client(page, "secret-token").chat.completions.create(model="camera", messages=[user("What?")])  # type: ignore[list-item]
        assert caught.value.status_code == 403


def test_another_site_s_page_cannot_ask(run: ServedPage) -> None:
    assert ask(run, COMPLETIONS, _request(), Origin="http://other.test").status == 403
    assert run.run.commands == []


def test_an_agent_reads_the_cameras_and_their_answers(run: ServedPage, yard: SharedPage) -> None:
    (camera,) = ask(run, "/api/cameras").json["cameras"]
    assert (camera["name"], camera["state"], camera["query"]) == ("camera", "running", "What?")
    run.emit(answer(1.0, "one"))
    run.emit(answer(2.0, "two"))
    until(lambda: len(ask(run, "/api/answers").json["events"]) == 2)
    (newest,) = ask(run, "/api/answers?limit=1").json["events"]
    assert newest["text"] == "two"
    assert ask(yard, "/api/answers").status == 404
    assert ask(yard, "/api/answers?camera=yard").status == 200
    for wrong in ("0", "101", "-1", "x", "%C2%B2", "00000000199", "000000001" + "9" * 5_000):
        assert ask(run, f"/api/answers?limit={wrong}").status == 400


def test_an_agent_sees_the_newest_picture(run: ServedPage) -> None:
    reply = ask(run, "/api/picture?width=640")
    assert reply.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(reply.body)).size == (WIDTH, HEIGHT)
    picture = unpack_picture(ask(run, "/api/picture?map=1").body)
    assert (picture.map.rows, picture.map.cols, picture.map.regions) == (ROWS, COLS, REGIONS.tobytes())
    assert run.hub.viewers == 0


def test_without_a_frame_there_is_no_picture(run: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.extensions.web.chat.agents.PICTURE_LIMIT_S", 0.01)
    run.pictures.silent = True
    reply = ask(run, "/api/picture")
    assert (reply.status, reply.json["error"]["message"][:17]) == (503, "no frame has come")
