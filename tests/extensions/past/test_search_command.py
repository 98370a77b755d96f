"""`search` for a user: what is printed at 80 columns and as JSON, exit statuses, and mistakes in one line."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stream.cli import main
from stream.commands.outcome import BAD_INPUT
from stream.extensions.past.commands.search import NOTHING_FOUND, local_time
from stream.extensions.past.moments import MATCH, MomentExtension
from stream.extensions.past.store import PastStore
from tests.support.past import BEGIN_MS, DOOR, YARD, moment, written


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a file of the default name."""
    path = written(
        tmp_path / "past.sqlite",
        [
            moment(1, "a red car stops at the gate and " + "waits " * 20),
            moment(2, "gate: is it open?", kind=MATCH, watch="gate", yes=0.934, fields='{"cars": 1}'),
            moment(3, "a person\x1b[31m\nwith a red bag", DOOR),
        ],
    )
    store = PastStore(path)
    store.write([MomentExtension(YARD, 1, BEGIN_MS + 61_000, 61.0)])
    store.close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_moments_are_printed_in_eighty_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", ""]) == 0
    lines = printed(capsys)
    assert all(len(line) <= 80 for line in lines)
    heads = [line for line in lines if not line.startswith(" ")]
    assert heads == [
        f"{local_time(BEGIN_MS + 1000)}  yard  at 0:01.0, until 1:01.0 (2 times)",
        f"{local_time(BEGIN_MS + 2000)}  yard  match 93 %  at 0:02.0",
        f"{local_time(BEGIN_MS + 3000)}  door  at 0:03.0",
    ]
    assert "    gate: is it open?" in lines
    assert "    a person with a red bag" in lines


def test_words_cameras_times_and_kinds_narrow_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options in (
        ["red", "--camera", "door"],
        ["red", "past.sqlite", "--since", local_time(BEGIN_MS + 62_000 - 60_000 + 1000), "--camera", "door"],
        ["person"],
        ["", "--limit", "1"],
    ):
        assert main(["search", *options]) == 0
        assert printed(capsys)[-1] == "    a person with a red bag", options
    assert main(["search", "", "--kind", "match", "--before", local_time(BEGIN_MS + 3000)]) == 0
    assert printed(capsys)[-1] == "    gate: is it open?"


def test_json_lines_have_all_fields(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "open", "--json"]) == 0
    (line,) = printed(capsys)
    moment = json.loads(line)
    assert moment["time"] == moment["until"] == "2023-11-14T22:13:22.000Z"
    assert (moment["kind"], moment["camera"], moment["watch"], moment["fields"]) == (
        "match",
        "yard",
        "gate",
        {"cars": 1},
    )
    assert main(["search", "person", "--json"]) == 0
    (line,) = printed(capsys)
    assert line.isascii()
    assert json.loads(line)["text"] == "a person\x1b[31m\nwith a red bag"


def test_older_moments_are_announced_with_the_options_for_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", "", "--limit", "2"]) == 0
    before = local_time(BEGIN_MS + 2000)
    assert capsys.readouterr().err == f"note: there are older ones; give --limit, or --before {before}\n"


def test_nothing_found_has_a_status(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "truck"]) == NOTHING_FOUND
    assert capsys.readouterr() == ("", "nothing found\n")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["car", "none.sqlite"], "there is no file 'none.sqlite'; a run with --remember none.sqlite writes it"),
        (["car", "--camera", "gate"], "'past.sqlite' has no camera 'gate'; there are: door, yard"),
        (["car", "--kind", "cut"], "--kind is answer, match or outage; got 'cut'"),
        (["car", "--since", "soon"], "--since needs a time such as 2h"),
        (["car", "--since", "1h", "--before", "2h"], "--since 1h is not before --before 2h; change one of them"),
        (["car", "--limit", "0"], "--limit needs a whole number from 1 to 1000; got '0'"),
        (["?"], "there is no word in '?'"),
    ],
)
def test_mistakes_are_one_line(
    folder: Path, options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", *options]) == BAD_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {problem}")


def test_rows_that_no_run_writes_are_one_note(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect("past.sqlite")) as connection:
        connection.executescript("UPDATE moment SET fields = '{', unix_ms = 'x' WHERE number < 3")
    assert main(["search", "", "--json"]) == 0
    captured = capsys.readouterr()
    assert [json.loads(line)["camera"] for line in captured.out.splitlines()] == ["door"]
    assert captured.err == "note: 2 rows of 'past.sqlite', which no run has written, left out\n"
