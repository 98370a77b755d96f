"""Runs with several answer servers: they fail over, and no data crosses from one camera to another."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from arr_coc.errors import OptionError
from stream.answer.connection import ANSWER_SERVER
from stream.answer.model import Packet
from stream.config import AnswerConfig, CaptureConfig, Config
from stream.errors import ConfigError, ConnectionRefused
from stream.events import ANSWERS_LOST, Answer, Event, Notice, Summary
from stream.runtime.answer_service import remote_endpoint
from stream.runtime.frame_stages import run_in_threads
from stream.transport import links
from tests.stream.runtime.test_answer_worker import Served, client, events_of, serving_at, without_clock, without_pieces
from tests.support import answer_models
from tests.support.answer_models import FakeAnswerModel, pixels_of
from tests.support.network import LIMIT_S, Relay, free_port, keyed, until
from tests.support.video import make_video

GREYS = (60, 180)
"""The secrets: data of one camera that must never reach the other."""


class RememberingModel(FakeAnswerModel):
    """Answers with every grey that a client has shown it, and every client that it ever had at once."""

    most: ClassVar[int] = 0

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._greys: dict[bytes, set[int]] = {}

    def drop_client(self, client: bytes) -> None:
        self._greys.pop(client, None)

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        for _ in super().answer(packet, query):
            pass
        grey = round(float(np.median(pixels_of(packet))))
        greys = self._greys.setdefault(self.client, set())
        greys.add(min(GREYS, key=lambda level: abs(level - grey)))
        RememberingModel.most = max(RememberingModel.most, len(self._greys))
        yield f"{query} {sorted(greys)}"


@pytest.fixture
def endpoints() -> list[str]:
    return [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]


@pytest.fixture
def cameras(tmp_path: Path) -> list[str]:
    """Two videos of one grey each, two minutes long."""
    paths = []
    for grey in GREYS:
        frames = (np.full((64, 64, 3), grey, np.uint8) for _ in range(600))
        paths.append(str(make_video(tmp_path / f"{grey}.mp4", frames, fps=5)))
    return paths


def camera(source: str, endpoints: list[str], query: str = "What?", **sections: Any) -> Config:
    answer = AnswerConfig(server=",".join(endpoints), query=query, every_s=0.2)
    return Config(source=source, answer=answer, capture=CaptureConfig(realtime=True), **sections)


class Watched:
    """A run in a thread, and its events."""

    def __init__(self, config: Config) -> None:
        self.events: list[Event] = []
        self._pipeline = run_in_threads(config)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for event in self._pipeline.run():
            self.events.append(event)

    @property
    def answers(self) -> list[str]:
        return [event.text for event in list(self.events) if isinstance(event, Answer)]

    def notices(self, code: str) -> list[str]:
        return [event.message for event in list(self.events) if isinstance(event, Notice) and event.code == code]

    def wait_for(self, answers: int) -> None:
        until(lambda: len(self.answers) >= answers or not self._thread.is_alive())
        assert self._thread.is_alive(), "the run ended by itself"

    def end(self) -> Summary:
        self._pipeline.end()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        last = self.events[-1]
        assert isinstance(last, Summary)
        return last


@pytest.fixture
def watch() -> Iterator[Callable[[Config], Watched]]:
    with ExitStack() as stack:

        def watching(config: Config) -> Watched:
            watched = Watched(config)
            stack.callback(watched.end)
            return watched

        yield watching


def served_by(watched: Watched) -> str:
    """The server that was named last."""
    endpoints = re.findall(r"answers come from (\S+)", "\n".join(watched.notices(ANSWER_SERVER)))
    return str(endpoints[-1])


def test_cameras_go_on_with_another_server_and_hear_nothing_of_each_other(
    endpoints: list[str],
    cameras: list[str],
    watch: Callable[[Config], Watched],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer_models, "RememberingModel", RememberingModel, raising=False)
    monkeypatch.setattr(RememberingModel, "most", 0)
    with ExitStack() as stack:
        servers: dict[str, Served] = {
            endpoint: stack.enter_context(serving_at(endpoint, model="RememberingModel")) for endpoint in endpoints
        }
        runs = [watch(camera(source, endpoints, f"{grey}?")) for source, grey in zip(cameras, GREYS, strict=True)]
        for run in runs:
            run.wait_for(2)
        stopped_server = served_by(runs[0])
        servers[stopped_server].stop()
        for run in runs:
            run.wait_for(len(run.answers) + 2)
            assert served_by(run) != stopped_server
        assert RememberingModel.most >= 2, "one server had both cameras"
        stack.enter_context(serving_at(stopped_server, model="RememberingModel"))
        (left,) = set(endpoints) - {stopped_server}
        servers[left].stop()
        for run in runs:
            run.wait_for(len(run.answers) + 2)
            assert served_by(run) == stopped_server
        for run, grey in zip(runs, GREYS, strict=True):
            assert run.end().ended == "interrupted"
            assert set(run.answers) == {f"{grey}? [{grey}]"}


def test_a_server_that_stands_still_is_left_and_taken_back(
    endpoints: list[str], cameras: list[str], watch: Callable[[Config], Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "HEARTBEAT_EVERY_MS", 200)
    monkeypatch.setattr(links, "HEARTBEAT_LIMIT_MS", 800)
    monkeypatch.setattr("stream.answer.connection.LIFELESS_S", 0.2)
    with ExitStack() as stack:
        servers = [stack.enter_context(serving_at(endpoint)) for endpoint in endpoints[:2]]
        relays = [stack.enter_context(Relay(endpoint)) for endpoint in endpoints[:2]]
        run = watch(camera(cameras[0], [relay.address for relay in relays]))
        run.wait_for(2)
        index = [relay.address for relay in relays].index(served_by(run))
        relays[index].hold()
        run.wait_for(len(run.answers) + 2)
        assert served_by(run) == relays[1 - index].address
        message = f"no answers: {relays[index].address} gives no sign of life; looking for another server"
        assert run.notices(ANSWERS_LOST)[-1] == message
        relays[index].go_on()
        servers[1 - index].stop()
        run.wait_for(len(run.answers) + 2)
        assert served_by(run) == relays[index].address


def test_a_server_that_drains_loses_no_answer(
    endpoints: list[str], cameras: list[str], watch: Callable[[Config], Watched]
) -> None:
    with serving_at(endpoints[0]) as first, serving_at(endpoints[1]):
        run = watch(camera(cameras[0], endpoints))
        run.wait_for(2)
        assert served_by(run) == endpoints[0]
        first.control.end()
        first.join()
        run.wait_for(len(run.answers) + 2)
        summary = run.end()
    assert run.notices(ANSWERS_LOST) == []
    assert run.notices(ANSWER_SERVER) == [
        f"answers come from {endpoints[0]}",
        f"answers come from {endpoints[1]} now ({endpoints[0]}: it is draining)",
    ]
    assert "answer.lost" not in summary.dropped


def test_a_file_read_frame_by_frame_is_answered_by_another_server_as_if_nothing_had_happened(
    endpoints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_at(endpoints[0]):
        unbroken = without_clock(without_pieces(events_of(client(endpoints[0]))))
    addresses = ",".join(endpoints)
    with ExitStack() as stack:
        first = stack.enter_context(serving_at(endpoints[0]))
        has_left = threading.Event()

        def go(frame_index: int) -> None:
            if frame_index and not has_left.is_set():
                stack.enter_context(serving_at(endpoints[1]))
                first.control.cancel()
                has_left.set()

        monkeypatch.setattr(answer_models, "on_packet", go)
        events = events_of(client(addresses))
    assert has_left.is_set()
    notices = [event for event in events if isinstance(event, Notice) and event.code in (ANSWERS_LOST, ANSWER_SERVER)]
    assert [event.message for event in notices] == [
        f"answers come from {endpoints[0]}",
        "no answers: the connection was lost; looking for another server",
        f"answers come from {endpoints[1]}",
    ]
    left = without_clock(without_pieces(event for event in events if event not in notices))
    assert [str(event).replace(addresses, endpoints[0]) for event in left] == [str(event) for event in unbroken]


def test_a_server_with_another_key_or_encoding_is_named_and_another_one_answers(
    endpoints: list[str], tmp_path: Path
) -> None:
    keys, others = keyed(tmp_path, "ours"), keyed(tmp_path, "others")
    third = f"tcp://127.0.0.1:{free_port()}"
    full = Config(network=keys, answer=AnswerConfig(encode="full"))
    with ExitStack() as stack:
        for endpoint, config in zip(
            [*endpoints, third], [Config(network=others), full, Config(network=keys)], strict=True
        ):
            stack.enter_context(serving_at(endpoint, config))
        events = events_of(client(",".join([*endpoints, third]), network=keys))
        messages = "\n".join(
            event.message for event in events if isinstance(event, Notice) and event.code == ANSWER_SERVER
        )
        assert f"answers come from {third}" in messages
        capture = CaptureConfig(max_frames=20, size="128x96", open_timeout_s=0.5)
        with pytest.raises(ConnectionRefused, match=f"{endpoints[0]} turns this end away: give --keys"):
            events_of(client(f"{endpoints[0]},tcp://127.0.0.1:{free_port()}", network=keys, capture=capture))
        with pytest.raises(OptionError, match="the answer server encodes full, not sparse; give --encode full here"):
            events_of(client(endpoints[1].replace("127.0.0.1", "localhost") + "," + endpoints[1], network=keys))


def test_without_a_server_all_addresses_are_named(endpoints: list[str]) -> None:
    capture = CaptureConfig(max_frames=20, size="128x96", open_timeout_s=0.2)
    addresses = ",".join(endpoints)
    with pytest.raises(ConnectionRefused, match=rf"no answer server at {addresses} within 0\.2 s; start one there"):
        events_of(client(addresses, capture=capture))


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ("tcp://127.0.0.1:5555,", "has an empty address; write tcp://HOST:PORT,tcp://HOST:PORT"),
        ("tcp://127.0.0.1:5555, tcp://127.0.0.1:5555", "tcp://127.0.0.1:5555 stands twice in"),
        ("tcp://127.0.0.1:5555,localhost:5556", "'localhost:5556' is not a socket address"),
        ("tcp://127.0.0.1:5555,tcp://10.0.0.2:5555", "tcp://10.0.0.2:5555 leaves this machine without keys"),
        ("tcp://127.0.0.1:5555,tcp://127.0.0.1:99999", "a port is a number from 1 to 65535"),
    ],
)
def test_a_list_that_is_no_good_is_refused(server: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        remote_endpoint(Config(answer=AnswerConfig(server=server)))
