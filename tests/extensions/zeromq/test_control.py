"""Requests change the question or ask for the status; an invalid request gets an error in reply."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from stream.config import Config
from stream.control import Ask, Command
from stream.errors import TransportError
from stream.extensions.zeromq.sinks import ControlHandler, ask_request, read_reply
from stream.monitor.health import RunMonitor
from tests.support.events import summary
from tests.support.runs import WatchedRun


def replies(run: WatchedRun | None) -> ControlHandler:
    monitor = RunMonitor(Config(source="a.mp4"))
    if run is not None:
        monitor.follow(run)
    return ControlHandler(monitor)


def reply_to(body: bytes, run: WatchedRun | None = None) -> dict[str, Any]:
    return json.loads(replies(run or WatchedRun()).handle(body))


def test_a_question_reaches_the_run() -> None:
    run = WatchedRun()
    assert reply_to(ask_request("Where is it?"), run) == {"v": 1, "ok": True}
    assert reply_to(b' {"ask": "Red?"}', run) == {"v": 1, "ok": True}
    assert run.commands == [Ask("Where is it?"), Ask("Red?")]


def test_msgpack_is_answered_in_msgpack() -> None:
    run = WatchedRun()
    reply = replies(run).handle(msgspec.msgpack.encode({"v": 1, "ask": "Who?", "added later": 1}))
    assert msgspec.msgpack.decode(reply) == {"v": 1, "ok": True}
    assert run.commands == [Ask("Who?")]


def test_the_status_is_the_published_one() -> None:
    reply = read_reply(replies(WatchedRun()).handle(b'{"v": 1, "status": true}'))
    assert reply.ok
    assert reply.status is not None
    assert reply.stats is not None
    assert (reply.status["topic"], reply.status["width_px"]) == ("status", 64)
    assert reply.stats["dropped"] == {"capture.replaced": 2}


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "not a request"),
        (b"{", "not a request"),
        (b"[]", "not a request"),
        (b'"ask"', "not a request"),
        (b"\xff\x00\x13nonsense", "not a request"),
        (b"\xc1" * 100, "not a request"),
        (b'{"ask": 3}', "not a request"),
        (b'{"ask": "\xff"}', "not a request"),
        (b'{"ask": "\\ud800"}', "not a request"),
        (b"[" * 10_000, "not a request"),
        (b"{}", "the request is empty"),
        (b'{"ask": "  "}', "the question is empty"),
        (b'{"v": 2, "ask": "What?"}', "version 2 is not known"),
        (b'{"ask": "' + b"x" * 4001 + b'"}', "at most 4000 characters"),
    ],
)
def test_an_invalid_request_gets_a_reply(body: bytes, error: str) -> None:
    run = WatchedRun()
    codec = msgspec.json if body[:1] in (b"{", b"[", b'"', b"") else msgspec.msgpack
    reply = codec.decode(replies(run).handle(body))
    assert reply["ok"] is False
    assert error in reply["error"]
    assert not run.commands


def test_questions_are_refused_before_and_after_the_run() -> None:
    assert "not begun" in json.loads(replies(None).handle(ask_request("What?")))["error"]
    monitor = RunMonitor(Config(source="a.mp4"))
    monitor.follow(WatchedRun())
    monitor.add(summary())
    assert json.loads(ControlHandler(monitor).handle(ask_request("What?")))["error"] == "the run has ended"


def test_a_fault_of_the_program_is_answered_too() -> None:
    class Broken(WatchedRun):
        def send(self, command: Command) -> None:
            raise KeyError("oops")

    assert reply_to(ask_request("What?"), Broken())["error"] == "unexpected KeyError"


def test_a_reply_that_is_none_is_reported() -> None:
    with pytest.raises(TransportError, match="the reply is invalid"):
        read_reply(b"HTTP/1.1 400")
