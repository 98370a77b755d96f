"""`recap` for a user: with a server that summarises, with the bundled model, and mistakes in one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stream.answer.text_model import STATEMENT_TOKENS
from stream.cli import main
from stream.commands.outcome import BAD_INPUT, FAILED
from stream.extensions.api import text as api_text
from stream.extensions.past import recap as recapping
from stream.extensions.past.commands.search import NOTHING_FOUND, local_time
from tests.support.api_server import ApiHandler, FakeApiServer, api_server, event, hang, refuse, speak_for_ever
from tests.support.past import BEGIN_MS, DOOR, HOUR_MS, moment, written

SINCE = ["--since", "2023-11-14"]


def summarise(handler: ApiHandler, body: dict[str, Any]) -> None:
    """Answer with the number of notes and an invented time."""
    notes = [line for line in body["messages"][-1]["content"].splitlines() if line[2:3] == ":"]
    handler.begin()
    handler.send(event(f"{len(notes)} things "))
    handler.send(event("happened\nat 99:99."))
    handler.send(event(finish_reason="stop"))
    handler.send("[DONE]")


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with api_server() as fake_server:
        fake_server.behaviour = summarise
        yield fake_server


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a file of the default name."""
    moments = [moment(number, f"car {number}") for number in range(1, 4)]
    moments += [moment(9, "late", unix_ms=BEGIN_MS + 3 * HOUR_MS), moment(1, "a person", DOOR)]
    written(tmp_path / "past.sqlite", moments)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def test_statements_have_the_times_of_the_file(server: FakeApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recap", *SINCE, "--api", server.url]) == 0
    begin, end, late = (local_time(BEGIN_MS + ms) for ms in (1000, 3000, 3 * HOUR_MS))
    assert capsys.readouterr().out.splitlines() == [
        f"{begin} to {begin}  door  (1 moment)",
        "    1 things happened at 99:99.",
        f"{begin} to {end}  yard  (3 moments)",
        "    3 things happened at 99:99.",
        f"{late} to {late}  yard  (1 moment)",
        "    1 things happened at 99:99.",
        f"{begin} to {late}  all in all  (5 moments)",
        "    3 things happened at 99:99.",
    ]
    assert all(body["max_tokens"] == STATEMENT_TOKENS for body in server.bodies)
    assert "car 2" in server.bodies[1]["messages"][-1]["content"]


def test_json_lines_and_cameras(server: FakeApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--camera", "door", "--json", "--set", "answer.system=Answer in German.", "-m", "tiny"]
    assert main(["recap", "past.sqlite", *SINCE, "--api", server.url, *options]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {
        "since": "2023-11-14T22:13:21.000Z",
        "until": "2023-11-14T22:13:21.000Z",
        "camera": "door",
        "since_ms": BEGIN_MS + 1000,
        "until_ms": BEGIN_MS + 1000,
        "moments": 1,
        "text": "1 things happened at 99:99.",
        "level": "piece",
    }
    assert server.bodies[0]["messages"][0] == {"role": "system", "content": "Answer in German."}
    assert server.bodies[0]["model"] == "tiny"


def test_a_lost_answer_is_asked_for_again(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(api_text, "time", SimpleNamespace(sleep=waits.append))  # other threads sleep meanwhile
    behaviours = [refuse(503, "busy"), summarise]
    server.behaviour = lambda handler, body: behaviours.pop(0)(handler, body)
    assert main(["recap", *SINCE, "--camera", "door", "--api", server.url]) == 0
    assert len(waits) == 1
    assert "1 things happened" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        (refuse(503, "busy"), "503 busy"),
        (speak_for_ever, "an answer without an end"),
        (hang, "no text within"),
    ],
)
def test_a_server_that_fails_again_and_again_ends_the_recap(
    server: FakeApiServer,
    behaviour: Any,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(api_text, "time", SimpleNamespace(sleep=lambda _: None))
    server.behaviour = behaviour
    limit = ["--set", "api.first_s=0.2"]
    assert main(["recap", *SINCE, "--camera", "door", "--api", server.url, *limit]) == FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line
    assert len(server.bodies) == api_text.ATTEMPTS


def test_a_server_that_refuses_ends_the_recap_at_once(
    server: FakeApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.behaviour = refuse(400, "no chat template")
    assert main(["recap", *SINCE, "--api", server.url]) == BAD_INPUT
    assert "refuses the request (400 no chat template)" in capsys.readouterr().err
    assert len(server.bodies) == 1


def test_omitted_moments_are_reported(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recapping, "MOMENTS_MAX", 4)
    monkeypatch.setattr(recapping, "PIECES_MAX", 1)
    assert main(["recap", *SINCE, "--api", server.url]) == 0
    notes = capsys.readouterr().err.splitlines()
    assert notes == [
        "note: only the newest 4 moments are read; give a shorter time, or --camera",
        "note: 2 of 4 moments are left out; give a shorter time",
    ]


def test_progress_is_shown_at_a_terminal(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["recap", *SINCE, "--camera", "yard", "--api", server.url]) == 0
    assert capsys.readouterr().err.splitlines() == [
        *(f"asking the model, {number} of {total}" for number, total in ((1, 2), (2, 2), (3, 3))),
    ]


def test_the_bundled_model_is_asked_and_reported_to_be_of_no_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recap", *SINCE, "--camera", "door"]) == 0
    output = capsys.readouterr()
    assert "only knows drawn scenes and cannot summarise; name another model with -m" in output.err
    head, text = output.out.splitlines()
    assert head.endswith("door  (1 moment)")
    assert text.startswith("    ")


@pytest.mark.parametrize(
    ("options", "status", "line"),
    [
        ([], NOTHING_FOUND, "nothing found"),
        (["--camera", "gate"], BAD_INPUT, "error: 'past.sqlite' has no camera 'gate'; there are: door, yard"),
        (["none.sqlite"], BAD_INPUT, "error: there is no file 'none.sqlite'"),
        (["--since", "x"], BAD_INPUT, "error: --since needs a time"),
    ],
)
def test_other_ends_are_one_line(
    options: list[str], status: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recap", *options]) == status
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith(line)
