"""Watches of a run that goes on, which programs list, add and remove over the page."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import asdict

from stream.config import WatchConfig
from stream.control import AddWatch
from stream.events import StandingQuestion, WatchesChanged
from stream.extensions.web.chat import questions
from stream.extensions.web.chat.agents import WATCH_BODY_BYTES_MAX
from tests.support.events import look, summary
from tests.support.network import LIMIT_S, until
from tests.support.web import Reply, ServedPage, SharedPage, ask, served, viewing

WATCHES = "/api/watches"
DOOR = {"question": "Is the door open?"}


@pytest.fixture
def run() -> Iterator[ServedPage]:
    with served(watches=(WatchConfig(name="car", question="is there a car?"),)) as page:
        yield page


def add(page: ServedPage | SharedPage, fields: Any, **headers: str) -> Reply:
    return ask(page, WATCHES, json.dumps(fields).encode(), **headers)


def remove(page: ServedPage | SharedPage, name: str) -> Reply:
    with closing(http.client.HTTPConnection("127.0.0.1", page.port, timeout=LIMIT_S)) as connection:
        connection.request("DELETE", f"{WATCHES}?name={name}")
        reply = connection.getresponse()
        return Reply(reply.status, {}, reply.read())


def names(reply: Reply) -> list[str]:
    assert reply.status == 200, reply.text
    return [watch["name"] for watch in reply.json["watches"]]


def test_programs_list_add_and_remove_watches(run: ServedPage) -> None:
    assert ask(run, WATCHES).json == {"watches": [{"name": "car", "question": "is there a car?"}]}
    reply = add(run, {**DOOR, "threshold": 0.8, "hold_s": 2, "cooldown_s": 60})
    assert (reply.json["watch"], names(reply)) == ("is_the_door_open", ["car", "is_the_door_open"])
    assert run.run.commands == [AddWatch("is_the_door_open", "Is the door open?", 0.8, 2.0, 60.0)]
    assert names(add(run, {**DOOR, "name": "door"})) == ["car", "is_the_door_open", "door"]
    assert names(remove(run, "is_the_door_open")) == ["car", "door"]
    assert names(ask(run, WATCHES)) == ["car", "door"]


def test_a_name_is_made_that_no_other_watch_has(run: ServedPage) -> None:
    assert add(run, {"question": "Car?"}).json["watch"] == "car_2"


def test_the_camera_is_named(run: ServedPage) -> None:
    with closing(SharedPage(("yard", "door"))) as page:
        assert add(page, {**DOOR, "camera": "yard"}).status == 200
        assert names(ask(page, f"{WATCHES}?camera=yard")) == ["is_the_door_open"]
        assert names(ask(page, f"{WATCHES}?camera=door")) == []
        assert add(page, DOOR).status == 404


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "missing required field `question`"),
        ({"question": " "}, "question"),
        ({"question": "x" * 1_001}, "length <= 1000"),
        ({**DOOR, "threshold": 0}, "threshold"),
        ({**DOOR, "threshold": 2}, "threshold"),
        ({**DOOR, "hold_s": -1}, "hold_s"),
        ({**DOOR, "cooldown_s": 1e300}, "cooldown_s"),
        ({**DOOR, "name": "../x"}, "name"),
        ({**DOOR, "name": "x\n"}, "name"),
        ({**DOOR, "on_match": "rm -r /"}, "unknown field `on_match`"),
        ({**DOOR, "ends_run": True}, "unknown field `ends_run`"),
        ([], "Expected `object`"),
    ],
)
def test_invalid_watches_are_refused_in_one_line(run: ServedPage, fields: Any, words: str) -> None:
    reply = add(run, fields)
    assert reply.status == 400
    message = reply.json["error"]["message"]
    assert message.startswith("not a watch: ")
    assert words in message
    assert "\n" not in message
    assert run.run.commands == []


def test_a_body_that_is_too_large_is_refused(run: ServedPage) -> None:
    assert ask(run, WATCHES, b"x" * (WATCH_BODY_BYTES_MAX + 1)).status == 413


def test_a_refusal_of_the_run_is_the_reply(run: ServedPage) -> None:
    run.run.refuses = "no watch is named 'nix'; there are: car"
    reply = remove(run, "nix")
    assert (reply.status, reply.json["error"]["message"]) == (409, run.run.refuses)
    assert names(ask(run, WATCHES)) == ["car"]


def test_a_page_that_only_shows_and_another_site_change_nothing(run: ServedPage) -> None:
    assert add(run, DOOR, Origin="http://evil.example").status == 403
    with served(web__control=False) as page:
        reply = add(page, DOOR)
        assert (reply.status, reply.json["error"]["message"].partition(";")[0]) == (403, "this page only shows")
        assert remove(page, "car").status == 403
        assert page.run.commands == []
    assert run.run.commands == []


def test_too_many_changes_are_refused(run: ServedPage) -> None:
    statuses = [add(run, {**DOOR, "name": f"w{number}"}).status for number in range(16)]
    assert (statuses[0], statuses[-1]) == (200, 429)


def test_a_change_that_waits_ends_with_the_run(run: ServedPage) -> None:
    run.run.ends = False
    replies: list[Reply] = []
    asking = threading.Thread(target=lambda: replies.append(add(run, DOOR)))
    asking.start()
    until(lambda: bool(run.run.commands))
    run.emit(summary())
    asking.join(LIMIT_S)
    assert (replies[0].status, replies[0].json["error"]["message"]) == (409, "the run has ended")


def test_a_run_that_says_nothing_is_given_up(run: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "REPLY_LIMIT_S", 0.01)
    run.run.ends = False
    assert add(run, DOOR).status == 504


def test_viewers_see_the_watches_of_now_and_no_look_of_one_that_is_gone(run: ServedPage) -> None:
    run.emit(look(1.0, watch="car"))
    with viewing(run) as viewer:
        assert [watch["name"] for watch in viewer.next("hello")["watches"]] == ["car"]
        door = StandingQuestion("door", "Is the door open?", threshold=0.8)
        run.emit(WatchesChanged(watch="door", watches=[door]))
        assert viewer.next("watches")["watches"] == [asdict(door)]
    with viewing(run) as second_viewer:
        assert [watch["name"] for watch in second_viewer.next("hello")["watches"]] == ["door"]
    assert not run.hub._state_messages["look"]
