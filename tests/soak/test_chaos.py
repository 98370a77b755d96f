"""Fleets whose processes die: in virtual time, and the checks of the files that they leave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.soak import chaos_simulated
from tests.soak.chaos import QUESTIONS, check_outputs
from tests.soak.chaos_fleet import ChaosFleet

SELDOM_S = 1e9


@pytest.fixture
def quiet() -> Iterator[ChaosFleet]:
    """A fleet to which nothing happens by itself, with a server for each half of its cameras."""
    with closing(ChaosFleet(4, 2, every_s=SELDOM_S, seed=1)) as fleet:
        fleet.run(40)
        assert clients(fleet) == [2, 2]
        yield fleet


def clients(fleet: ChaosFleet) -> list[int]:
    return [server.clients for server in fleet.servers]


def answers(fleet: ChaosFleet) -> list[int]:
    return [camera.answers for camera in fleet.cameras]


def test_after_any_death_all_are_served_again_and_hear_nothing_of_each_other() -> None:
    with closing(ChaosFleet(4, 2, every_s=6.0, seed=5)) as fleet:
        fleet.run(120)
        assert sum(fleet.deeds.values()) > 10
        assert min(answers(fleet)) > 10
        assert fleet.faults() == []


def test_a_server_that_stands_still_is_left_within_seconds_and_taken_back(quiet: ChaosFleet) -> None:
    stopped, other = quiet.servers
    before = answers(quiet)
    stopped.process.stop()
    quiet.run(12)
    assert all(new > old for new, old in zip(answers(quiet), before, strict=True))
    assert other.clients == 4
    assert sum(camera.notices["lifeless"] for camera in quiet.cameras) == 2
    stopped.process.go_on()
    quiet.run(40)
    assert clients(quiet) == [2, 2]
    assert quiet.faults() == []


def test_a_server_that_stands_still_alone_is_waited_for(quiet: ChaosFleet) -> None:
    for server in quiet.servers:
        server.process.stop()
    quiet.run(30)
    assert [camera.process.dead for camera in quiet.cameras] == [False] * 4
    assert sum(camera.notices["lifeless"] for camera in quiet.cameras) == 0
    before = answers(quiet)
    quiet.servers[0].process.go_on()
    quiet.run(12)
    assert all(new > old for new, old in zip(answers(quiet), before, strict=True))


def test_a_simulation_may_be_shorter_than_an_hour(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    assert chaos_simulated.main(["--hours", "0.02", "--cameras", "2", "--servers", "1", "--out", str(out)]) == 0
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["faults"] == []
    assert len(report["hours"]) == 1
    assert min(report["hours"][0]["answers"]) > 0


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_simulation_of_no_length_is_refused_in_one_line(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        chaos_simulated.main([f"--hours={value}"])
    assert capsys.readouterr().err.endswith(f"error: --hours is a positive number, got {value}\n")


def leave(folder: Path, answers: dict[str, list[dict[str, Any]]], captions: dict[str, list[str]]) -> None:
    """Write the files of a run."""
    lines = [
        json.dumps({"type": "answer", "camera": name, "query": QUESTIONS[name], **fields})
        for name, all_given in answers.items()
        for fields in all_given
    ]
    (folder / "day.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for name in QUESTIONS:
        cues = [
            f"{number}\n00:00:{number:02}.000 --> 00:00:{number + 1:02}.000\n{text}"
            for number, text in enumerate(captions.get(name, []), 1)
        ]
        (folder / f"{name}.vtt").write_text("\n\n".join(["WEBVTT", *cues]) + "\n\n", encoding="utf-8")


def given(number: int, text: str, **changes: Any) -> dict[str, Any]:
    return {"answer": number, "pts_s": float(number), "text": text, **changes}


def test_lost_and_doubled_lines_are_found(tmp_path: Path) -> None:
    good = [given(0, "a"), given(1, "a"), given(3, "b\nc")]
    leave(tmp_path, {"own1": good}, {"own1": ["a", "b c"]})
    faults, counts = check_outputs(tmp_path, ended=False)
    assert faults == []
    assert counts["own1"] == {"answers": 3, "numbers_without_answer": 1, "restarts": 0, "of_these_frames": 0}
    leave(tmp_path, {"own1": [*good, good[-1]], "own2": [given(0, "x", query="?")]}, {"own1": ["a", "b c"]})
    assert check_outputs(tmp_path, ended=False)[0] == [
        "own1: an answer is there twice, or out of order",
        "own1: two answers are about the same frame, or out of order",
        "own2: it has an answer to another question",
    ]
    (tmp_path / "day.jsonl").unlink()
    assert "own2: it has 0 summaries" in check_outputs(tmp_path, ended=True)[0]
    leave(tmp_path, {"own1": good}, {})
    assert check_outputs(tmp_path, ended=False)[0] == ["own1.vtt: 0 captions, 2 in day.jsonl"]
    (tmp_path / "own1.vtt").write_text("WEBVTT\n\n1\n00:00:02.000 --> 00:00:01.000\na\n\n", encoding="utf-8")
    assert check_outputs(tmp_path, ended=False)[0][0].startswith("own1.vtt: cue 1 is ")
