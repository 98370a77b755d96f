"""Runs whose answers come from a server with an API."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from arr_coc.hub import bundled_model_path
from stream.config import (
    AnswerConfig,
    CaptureConfig,
    Config,
    MemoryConfig,
    OutputConfig,
    PipelineConfig,
    WatchConfig,
)
from stream.errors import ConfigError
from stream.events import (
    ANSWERS_LOST,
    Answer,
    AnswerInvalid,
    Event,
    FrameReady,
    Notice,
    Started,
    Summary,
    VerdictChanged,
    YesNoResult,
)
from stream.extension.registry import section_models
from stream.extensions.api.address import ApiAddress
from stream.extensions.api.section import ApiSection
from stream.extensions.record.format import Recording
from stream.extensions.record.provenance import parse_provenance
from stream.extensions.record.replay import Replay, answered_by, open_recorded, replay_config
from stream.extensions.record.section import RecordSection
from stream.recording.identity import answer_provenance, run_fingerprint
from stream.runtime.frame_stages import run_in_threads
from tests.support import api_server as fake
from tests.support.api_server import ApiHandler, FakeApiServer, api_server
from tests.support.network import LIMIT_S
from tests.support.vllm_plugin import TokenServer

FRAMES = 48
SECRET = "sk-a-secret"


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with api_server() as fake_server:
        yield fake_server


def config(server: FakeApiServer, *, output: OutputConfig | None = None, **options: Any) -> Config:
    options.setdefault("api", ApiSection(url=server.url))
    sections = {name: options.pop(name) for name in section_models().keys() & options.keys()}
    answer = AnswerConfig(encode="picture", model=fake.MODEL, every_s=0.25)
    return Config(
        source="scene:demo",
        capture=CaptureConfig(max_frames=FRAMES),
        answer=answer.model_copy(update=options.pop("answer", {})),
        output=output or OutputConfig(),
        pipeline=PipelineConfig(**options),
        **sections,
    )


def texts(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Answer)]


def losses(events: list[Event]) -> list[str]:
    return [event.message for event in events if isinstance(event, Notice) and event.code == ANSWERS_LOST]


def fail_every_fifth() -> Any:
    """Behaviour of a server that loses a fifth of its requests."""
    counter = itertools.count(1)

    def behave(handler: ApiHandler, body: dict[str, Any]) -> None:
        if next(counter) % 5:
            fake.speak(handler, body)
        else:
            fake.refuse(503, "busy", Retry_After="0")(handler, body)

    return behave


def test_every_answer_is_one_request_from_a_process_without_torch(server: FakeApiServer) -> None:
    pipeline = run_in_threads(config(server))
    events, mapped, rss = [], "", 0
    for event in pipeline.run():
        events.append(event)
        if isinstance(event, Answer):
            process = psutil.Process(pipeline.processes()["answers"])
            rss = max(rss, process.memory_info().rss)
            mapped = " ".join(mapping.path for mapping in process.memory_maps())
    assert set(texts(events)) == {"a red circle"}
    assert len(server.bodies) == len(texts(events)) >= 8
    assert "libtorch" not in mapped
    assert rss < 150e6
    assert next(event for event in events if isinstance(event, Started)).model == f"tiny at {server.url}"


def test_frames_never_wait_for_a_server_that_hangs(server: FakeApiServer) -> None:
    server.behaviour = fake.hang
    events: list[Event] = []
    for event in run_in_threads(config(server, answers="newest")).run():
        events.append(event)
        if isinstance(event, FrameReady) and event.frame_index == FRAMES - 1:
            assert server.arrivals.acquire(timeout=LIMIT_S)  # the process that asks may be slower than all frames
            assert len(server.bodies) == 1
            server.behaviour = fake.speak
            server.released.set()
    assert sum(isinstance(event, FrameReady) for event in events) == FRAMES


def test_lost_requests_lose_no_frame_and_each_is_reported(server: FakeApiServer) -> None:
    server.behaviour = fail_every_fifth()
    events = list(run_in_threads(config(server, answers="newest")).run())
    failed = len(server.bodies) // 5
    assert sum(isinstance(event, FrameReady) for event in events) == FRAMES
    assert len(losses(events)) == failed
    assert len(texts(events)) == len(server.bodies) - failed
    summary = events[-1]
    assert isinstance(summary, Summary)
    assert summary.dropped.get("answer.lost", 0) == failed


def test_if_no_answer_is_left_out_lost_requests_are_sent_again(server: FakeApiServer) -> None:
    unbroken = texts(list(run_in_threads(config(server)).run()))
    server.bodies.clear()
    server.behaviour = fail_every_fifth()
    events = list(run_in_threads(config(server)).run())
    assert texts(events) == unbroken
    assert len(losses(events)) == len(server.bodies) - len(unbroken) > 0
    assert all(f"{server.url}: 503 busy; asking again" in loss for loss in losses(events))


def test_a_request_that_the_server_refuses_ends_the_run_with_advice(server: FakeApiServer) -> None:
    server.behaviour = fake.show_page
    with pytest.raises(ConfigError, match="answers with a web page"):
        list(run_in_threads(config(server)).run())


def test_watches_are_answered(server: FakeApiServer) -> None:
    watches = tuple(WatchConfig(question=f"is there a {thing}?", name=thing) for thing in ("star", "ring"))
    events = list(run_in_threads(config(server).model_copy(update={"watch": watches})).run())
    assert [(event.watch, event.to) for event in events if isinstance(event, VerdictChanged)] == [
        ("star", "yes"),
        ("ring", "yes"),
    ]


def test_a_recorded_run_can_be_replayed_and_holds_no_key(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARR_COC_API_KEY", SECRET)
    folder = tmp_path / "run"
    events = list(run_in_threads(config(server, record=RecordSection(folder=str(folder)))).run())
    assert server.headers["Authorization"] == f"Bearer {SECRET}"
    assert SECRET not in "".join(map(repr, events))
    assert all(SECRET.encode() not in path.read_bytes() for path in folder.iterdir())
    recording = Recording(str(folder))
    provenance = answered_by(recording)
    assert provenance.weights == f"served at {server.url}"
    replay = Replay(open_recorded(provenance, replay_config(provenance, None, None, None)), provenance)
    for record in recording.records():
        list(replay.take(record))
    summary = replay.summary([])
    assert (summary.answers, summary.differing) == (len(texts(events)), 0)


def test_the_model_is_known_by_its_name_and_its_server() -> None:
    first = Config(
        source="scene:demo", answer=AnswerConfig(encode="picture", model="a"), api=ApiSection(url="http://h/v1")
    )
    other = first.model_copy(update={"answer": first.answer.model_copy(update={"model": "b"})})
    assert run_fingerprint(first) != run_fingerprint(other)
    assert run_fingerprint(first) != run_fingerprint(first.with_values({"api.quality": 50}))
    assert run_fingerprint(first) == run_fingerprint(first.with_values({"api.first_s": 9.0, "api.key_env": "KEY"}))
    assert parse_provenance(answer_provenance(first)).model == "a"
    assert ApiAddress.of(first).base == "http://h/v1"


HOSTILE: tuple[Any, ...] = (
    True,
    -1,
    2**70,
    -(10**400),
    1e308,
    float("nan"),
    "\ud800",
    "\x1b[2J",
    "x" * 70_000,
    [],
    {},
    None,
)


def hostile_events(value: Any) -> list[dict[str, Any]]:
    """Events of a reply with this value in each of the fields that are read."""
    likely = [{"content": [{"token": value, "logprob": value, "top_logprobs": value}]}, {"content": value}, value]
    return [
        *(fake.event(value, logprobs=logprobs, finish_reason=value) for logprobs in likely),
        fake.event(value) | {"model": value, "usage": {"prompt_tokens": value, "completion_tokens": value}},
        {**fake.event(), "choices": [value], "usage": value, "error": None},
        {"choices": [{"delta": value}]},
    ]


@pytest.mark.parametrize("question", [None, "is there a star?"])
def test_no_field_of_a_reply_ends_a_run(server: FakeApiServer, question: str | None) -> None:
    values = itertools.cycle(HOSTILE)

    def behave(handler: ApiHandler, body: dict[str, Any]) -> None:
        handler.begin()
        for event in hostile_events(next(values)):
            handler.send(event)
        handler.send(fake.event("fine", finish_reason="stop"))
        handler.send("[DONE]")

    server.behaviour = behave
    watches = () if question is None else (WatchConfig(question=question, name="star"),)
    hostile_config = config(server, answer={"max_tokens": 4000}).model_copy(update={"watch": watches})
    events = list(run_in_threads(hostile_config).run())
    assert isinstance(events[-1], Summary)
    assert events[-1].error is None
    assert "answer.refused" not in events[-1].dropped
    answered = [event for event in events if isinstance(event, (Answer, YesNoResult))]
    assert len(answered) + len(losses(events)) >= 8
    assert question is not None or any("fine" in text for text in texts(events))


def test_a_server_that_ignores_the_schema_gives_no_captions(server: FakeApiServer) -> None:
    """Answers that fit are answers, whatever the server did; the others are events without their text."""
    counter = itertools.count()

    def behave(handler: ApiHandler, body: dict[str, Any]) -> None:
        assert body["response_format"]["type"] == "json_schema"
        number, text = next(counter), '{"people": 2, "weather": "sun"}'
        handler.begin()
        for piece in (text[:9], text[9:] if number % 3 == 0 else text[9:-3] if number % 3 == 1 else "NaN}"):
            handler.send(fake.event(piece))
        handler.send(fake.event(finish_reason="stop" if number % 3 else "length"))
        handler.send("[DONE]")

    server.behaviour = behave
    schema = {"json_schema": '{"people": "integer", "weather": ["sun", "rain"]}'}
    events = list(run_in_threads(config(server, answer=schema)).run())
    points = [event for event in events if isinstance(event, (Answer, AnswerInvalid))]
    assert [isinstance(point, Answer) for point in points] == [number % 3 == 0 for number in range(len(points))]
    assert {str(point.fields) for point in points if isinstance(point, Answer)} == {"{'people': 2, 'weather': 'sun'}"}
    assert len(points) > 3
    assert set(texts(events)) == {"people: 2, weather: sun"}


def test_tokens_of_a_run_reach_the_plugin_and_the_question_chooses_them(server: FakeApiServer) -> None:
    plugin = TokenServer(server)
    answer = {
        "encode": "sparse",
        "model": str(bundled_model_path()),
        "memory": MemoryConfig(frames=4),
        "query": "is there a green star?",
    }
    api = ApiSection(url=server.url, picture="tokens")
    events = list(run_in_threads(config(server, answer=answer, api=api)).run())
    answers = [event for event in events if isinstance(event, Answer)]
    assert {event.text for event in answers} == {"a red circle"}
    assert len(plugin.requests) == len(answers) >= 8
    for packets, event in zip(plugin.requests, answers, strict=True):
        assert sum(len(packet.regions) for packet in packets) == event.tokens_used
        assert event.frames == len(packets) <= 4
    assert max(event.frames for event in answers) > 1
    before = [packet.content_id for packet in plugin.requests[0]]
    for packets in plugin.requests[1:]:  # frames are appended, or the oldest ones have left
        now = [packet.content_id for packet in packets]
        assert now[:-1] == before[len(before) - len(now) + 1 :] or len(now) == 1
        before = now
