"""Model behind an API: its requests, and the handling of replies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from arr_coc.errors import ModelError
from arr_coc.types import FramePacket, FrameStamp, Question, TileGrid
from stream.answer.model import CONFIGURED, LOOPED, ClientQuestion, ask_alone, load_answer_model
from stream.config import AnswerConfig, Config, MemoryConfig
from stream.errors import AnswerLost, ConnectionRefused
from stream.extensions.api.model import load_api_model, yes_no_of
from stream.extensions.api.section import ApiSection
from tests.support import api_server as fake
from tests.support.answer_models import OneClient
from tests.support.api_server import ApiHandler, FakeApiServer, api_server

MS = 1_000_000
WAIT_S = 60.0


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with api_server() as fake_server:
        yield fake_server


def config(server: FakeApiServer, api: dict[str, Any] | None = None, **answer: Any) -> Config:
    section = ApiSection(url=server.url, **(api or {}))
    return Config(answer=AnswerConfig(**{"encode": "picture", "model": fake.MODEL, **answer}), api=section)


def loaded(server: FakeApiServer, api: dict[str, Any] | None = None, **answer: Any) -> OneClient:
    return OneClient(load_api_model(config(server, api, **answer)))


def packet(index: int = 0, epoch: int = 0) -> FramePacket:
    grid = TileGrid.of(384, 640)
    stamp = FrameStamp(index, index * 500 * MS, 0, epoch)
    return FramePacket(
        stamp, grid, np.zeros((60, 3), np.int32), np.ones(grid.shape, np.float32), np.zeros((384, 640, 3), np.uint8)
    )


def answer_text(model: OneClient, index: int = 0, query: str = "what?", epoch: int = 0) -> str:
    return model.answer(packet(index, epoch), query)


def notice(model: OneClient) -> str:
    assert model.stats is not None
    return model.stats.notice


def test_one_answer_is_one_request_with_the_picture_before_the_question(server: FakeApiServer) -> None:
    model = OneClient(load_answer_model(CONFIGURED, config(server, max_tokens=20)))
    assert answer_text(model) == "a red circle"
    (body,) = server.bodies
    assert {key: value for key, value in body.items() if key != "messages"} == {
        "model": fake.MODEL,
        "max_tokens": 20,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    (message,) = body["messages"]
    assert [part["type"] for part in message["content"]] == ["image_url", "text"]
    assert server.texts() == ["what?"]
    (picture,) = server.pictures()
    assert picture.shape == (192, 320, 3)
    stats = model.stats
    assert stats is not None
    assert (stats.work.tokens_used, stats.work.text_tokens, stats.work.frames, stats.feedback) == (60, 4, 1, None)


def test_a_system_prompt_comes_first(server: FakeApiServer) -> None:
    answer_text(loaded(server, system="Answer in one word.", api={"uuids": True}))
    system, question = server.bodies[0]["messages"]
    assert system == {"role": "system", "content": "Answer in one word."}
    assert [part["type"] for part in question["content"]] == ["image_url", "text"]
    assert "uuid" in question["content"][0]


def test_sampling_is_asked_for_only_with_a_temperature(server: FakeApiServer) -> None:
    answer_text(loaded(server, temperature=0.5, top_p=0.9, seed=3))
    body = server.bodies[0]
    assert (body["temperature"], body["top_p"], body["seed"]) == (0.5, 0.9, 3)


def test_options_of_decoding_are_sent_if_they_are_set(server: FakeApiServer) -> None:
    penalties = {"repetition_penalty": 1.05, "presence_penalty": 1.5, "frequency_penalty": -0.5}
    model = loaded(server, temperature=0.7, top_p=1.0, top_k=20, min_p=0.1, **penalties)
    answer_text(model)
    body = server.bodies[0]
    assert {name: body.get(name) for name in (*penalties, "top_p", "top_k", "min_p")} == {
        **penalties,
        "top_p": None,
        "top_k": 20,
        "min_p": 0.1,
    }
    answer_text(loaded(server, top_k=20, min_p=0.1, repetition_penalty=1.0))
    assert {"top_k", "min_p", "repetition_penalty", "presence_penalty"}.isdisjoint(server.bodies[1])


def test_an_answer_that_repeats_itself_is_ended(server: FakeApiServer) -> None:
    """The client hangs up, and says so once."""
    server.behaviour = fake.speak_in_a_loop
    model = loaded(server)
    for noticed in (LOOPED, ""):
        assert answer_text(model) == "Two men. a red car, a red car,"
        assert server.hung_up.acquire(timeout=WAIT_S)
        assert notice(model) == noticed
        assert model.stats is not None
        assert model.stats.work.looped
        assert model.stats.work.text_tokens == 4, "of 7 characters each"
    server.behaviour = fake.speak
    assert answer_text(model) == "a red circle"
    assert model.stats is not None
    assert not model.stats.work.looped


def test_a_loop_goes_on_if_it_may(server: FakeApiServer) -> None:
    text = "a red car, " * 40
    server.behaviour = fake.send_events(fake.event(text), fake.event(finish_reason="stop"))
    assert answer_text(loaded(server, stop_loops=False)) == text
    question = ClientQuestion(b"one", packet(), Question("what?", schema='{"what": "string"}'))
    assert ask_alone(load_api_model(config(server)), question) == text
    assert question.stats is not None
    assert not question.stats.work.looped
    cut = loaded(server)
    assert answer_text(cut) == "a red car, a red car, a"
    assert notice(cut) == LOOPED


def test_a_yes_no_check_has_no_penalties(server: FakeApiServer) -> None:
    loaded(server, presence_penalty=1.5).score(packet(), "is it red?")
    assert "presence_penalty" not in server.bodies[0]


def test_a_server_that_knows_no_penalty_is_asked_without(server: FakeApiServer) -> None:
    server.behaviour = fake.refuse_fields({"repetition_penalty": "Unrecognized request argument: repetition_penalty"})
    model = loaded(server, repetition_penalty=1.05)
    assert answer_text(model) == "a red circle"
    assert model.stats is not None
    assert model.stats.notice == "the server refuses repetition_penalty, which it then chooses by itself"
    assert ["repetition_penalty" in body for body in server.bodies] == [True, False]


def test_the_only_model_of_a_server_needs_no_name(server: FakeApiServer) -> None:
    assert loaded(server, model=None).model.model_id == fake.MODEL


@pytest.mark.parametrize(("models", "names"), [(["a", "b"], "a, b"), ([], "it lists none")])
def test_a_server_with_several_models_or_none_needs_a_name(
    server: FakeApiServer, models: list[str], names: str
) -> None:
    server.models = models
    with pytest.raises(ModelError, match=rf"no single model \({names}\); name one with -m"):
        loaded(server, model=None)


def test_a_missing_server_is_refused(server: FakeApiServer) -> None:
    server.close()
    with pytest.raises(ConnectionRefused, match="start it, or correct the address"):
        loaded(server)


def test_yes_and_no_are_read_from_log_probabilities(server: FakeApiServer) -> None:
    model = loaded(server)
    yes, mass = model.score(packet(), "is it red?")
    assert yes == pytest.approx(0.948, abs=0.001)
    assert mass == pytest.approx(0.955, abs=0.001)
    body = server.bodies[0]
    assert (body["logprobs"], body["top_logprobs"], body["max_tokens"]) == (True, 20, 3)
    assert server.texts() == ["is it red? Answer yes or no."]
    assert notice(model) == ""


def test_without_log_probabilities_the_word_decides_which_is_reported_once(server: FakeApiServer) -> None:
    def say_no(handler: ApiHandler, body: dict[str, Any]) -> None:
        handler.begin()
        handler.send(fake.event("No,"))
        handler.send("[DONE]")

    server.behaviour = say_no
    model = loaded(server, {"yes_no": ""})
    assert model.score(packet(), "is it red?") == (0.0, 1.0)
    assert "yes and no are read from the first word" in notice(model)
    assert server.texts() == ["is it red?"]
    model.score(packet(), "is it red?")
    assert notice(model) == ""


def test_a_server_that_refuses_log_probabilities_is_not_asked_for_them_again(server: FakeApiServer) -> None:
    server.behaviour = fake.refuse_fields({"logprobs": "logprobs is not supported"})
    model = loaded(server)
    model.score(packet(), "is it red?")
    model.score(packet(), "is it red?")
    assert ["logprobs" in body for body in server.bodies] == [True, False, False]


@pytest.mark.parametrize(
    ("text", "likely", "expected"),
    [
        ("Yes, it is", (), (1.0, 1.0)),
        ("**No**", (), (0.0, 1.0)),
        ("perhaps", (), (0.5, 0.0)),
        ("", (), (0.5, 0.0)),
        ("x", ((" Yes", np.log(0.3)), ("▁yes", np.log(0.3)), ("NO", np.log(0.2))), (0.75, 0.8)),
    ],
)
def test_yes_and_no_in_any_spelling(text: str, likely: Any, expected: tuple[float, float]) -> None:
    assert yes_no_of(text, likely) == pytest.approx(expected)


def test_an_answer_without_an_end_is_lost(server: FakeApiServer) -> None:
    server.behaviour = fake.speak_for_ever
    with pytest.raises(AnswerLost, match="an answer without an end: more than 2048 characters for 64 tokens"):
        answer_text(loaded(server))


def test_tokens_that_the_server_counts_beyond_the_budget_are_reported_once(server: FakeApiServer) -> None:
    model = loaded(server)
    answer_text(model)
    assert notice(model) == ""

    def count_much(handler: ApiHandler, body: dict[str, Any]) -> None:
        usage = {"prompt_tokens": 500, "completion_tokens": 1}
        handler.reply(200, {"model": "other", "choices": [{"message": {"content": "x"}}], "usage": usage})

    server.behaviour = count_much
    answer_text(model)
    assert "counts 500 tokens for a question with pictures of 60" in notice(model)
    assert "asked for tiny, the server answers as other" in notice(model)
    answer_text(model)
    assert notice(model) == ""


def test_the_newest_frames_are_shown_with_their_times(server: FakeApiServer) -> None:
    model = loaded(server, memory=MemoryConfig(frames=2))
    for index in range(3):
        answer_text(model, index)
    assert server.texts(0) == ["what?"]
    assert server.texts(2) == ["<0.5 seconds>", "<1.0 seconds>", "what?"]
    assert len(server.pictures(2)) == 2
    stats = model.stats
    assert stats is not None
    assert (stats.work.frames, stats.work.oldest_frame_ns, stats.work.tokens_used) == (2, 500 * MS, 120)
    model.score(packet(3), "is it?")
    assert len(server.pictures()) == 2


def drawn(index: int) -> FramePacket:
    """Packet with a unique picture."""
    frame = packet(index)
    return replace(frame, image=np.full_like(frame.image, 20 * index))


def answered(model: OneClient, index: int) -> str:
    return model.answer(drawn(index))


def sent(server: FakeApiServer, request: int = -1) -> list[bool]:
    """For each picture of a request: True if it was sent, False if only named."""
    parts = server.bodies[request]["messages"][0]["content"]
    return [part["image_url"] is not None for part in parts if part["type"] == "image_url"]


def test_vllm_is_sent_a_picture_once(server: FakeApiServer) -> None:
    server.owner = "vllm"
    model = loaded(server, memory=MemoryConfig(frames=3))
    for index in range(3):
        assert answered(model, index) == "a red circle"
    assert model.score(drawn(2), "is it red?")[1] > 0.9
    assert [sent(server, request) for request in range(4)] == [
        [True],
        [False, True],
        [False, False, True],
        [False, False],
    ]
    assert [round(picture.mean()) for picture in server.pictures()] == [20, 40]


def test_a_picture_that_vllm_has_forgotten_is_sent_again(server: FakeApiServer) -> None:
    server.owner = "vllm"
    model = loaded(server, memory=MemoryConfig(frames=2))
    answered(model, 0)
    server.cache.clear()
    assert answered(model, 1) == "a red circle"
    assert [sent(server, request) for request in (1, 2)] == [[False, True], [True, True]]
    server.behaviour = fake.refuse(500)
    with pytest.raises(AnswerLost):
        answered(model, 2)
    server.behaviour = fake.speak
    answered(model, 2)
    assert sent(server) == [True, True]


def test_names_that_a_server_does_not_take_are_left_out(server: FakeApiServer) -> None:
    assert answered(loaded(server), 0) == "a red circle"
    assert len(server.bodies) == 1
    model = loaded(server, {"uuids": True})
    assert answered(model, 1) == answered(model, 2) == "a red circle"
    has_uuid = ["uuid" in body["messages"][0]["content"][0] for body in server.bodies]
    assert has_uuid == [False, True, False, False]
    server.owner = "vllm"
    answered(loaded(server, {"uuids": False}), 3)
    assert "uuid" not in server.bodies[-1]["messages"][0]["content"][0]


def test_a_cut_drops_the_frames_before_it(server: FakeApiServer) -> None:
    model = loaded(server, memory=MemoryConfig(frames=2))
    answer_text(model, 0)
    answer_text(model, 1, epoch=1)
    assert len(server.pictures()) == 1


def test_each_client_has_its_own_frames_until_it_leaves(server: FakeApiServer) -> None:
    model = loaded(server, memory=MemoryConfig(frames=2))
    answer_text(model, 0)
    model.client = b"two"
    answer_text(model, 1)
    assert len(server.pictures()) == 1
    model.client = b"one"
    model.model.drop_client(b"one")
    answer_text(model, 2)
    assert len(server.pictures()) == 1


def test_a_model_behind_an_api_has_no_feedback(server: FakeApiServer) -> None:
    model = loaded(server)
    assert model.model.check_watch("is it?") == ()
    assert not model.model.embed_query("what?").tokens.any()
    with pytest.raises(ModelError, match="cannot glance"):
        model.model.glance(b"", None, "what?")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "api", "extent"),
    [
        ("Qwen/Qwen3-VL-2B-Instruct", {}, (1000, 1000)),
        ("a-name-of-my-own", {}, (1000, 1000)),
        ("qwen2.5vl:7b", {}, (308, 196)),  # 320x192 as its processor resizes it
        ("a-name-of-my-own", {"coordinates": "pixels"}, (308, 196)),
        ("qwen2.5vl:7b", {"coordinates": "thousandths"}, (1000, 1000)),
        ("Qwen/Qwen3-VL-2B-Instruct", {"picture": "composite"}, None),
        ("Qwen/Qwen3-VL-2B-Instruct", {"picture": "parts"}, None),
    ],
)
def test_places_in_answers_belong_to_the_picture_that_was_sent(
    server: FakeApiServer, name: str, api: dict[str, Any], extent: tuple[int, int] | None
) -> None:
    model = loaded(server, api, model=name)
    frame = packet()
    relevance = np.zeros_like(frame.relevance)
    relevance[2:5, 2:5] = 1
    model.answer(replace(frame, relevance=relevance))
    assert model.stats is not None
    assert model.stats.extent == extent


def test_a_picture_that_is_too_narrow_to_resize_has_places_in_its_own_pixels(server: FakeApiServer) -> None:
    grid = TileGrid.of(1, 6400)
    image = np.zeros((32, 6400, 3), np.uint8)
    narrow = FramePacket(
        FrameStamp(0, 0, 0), grid, np.zeros((999, 3), np.int32), np.ones(grid.shape, np.float32), image
    )
    model = loaded(server, model="qwen2.5vl:7b")
    model.answer(narrow)
    assert model.stats is not None
    assert model.stats.extent == (6400, 1)
