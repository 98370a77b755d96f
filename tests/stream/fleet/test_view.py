"""The live view of cameras on a terminal, and the same as lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from stream.display.input import PendingQuestions
from stream.events import AnswerDeltaEvent, Notice, QueryChanged, Restarted, Started
from stream.fleet import view as view_module
from stream.fleet.display import FleetDisplay, FleetJson, FleetLines
from stream.fleet.questions import FleetQuestions
from stream.fleet.view import FleetView
from tests.support.events import answer, frame, summary, turned
from tests.support.network import until
from tests.support.runs import ScriptedRun
from tests.support.terminal import Pty

STARTED = Started(source="a", model="tiny", query="What?", backend="cpu")


class Shown:
    """Two cameras that only the test drives."""

    def __init__(self, display: FleetDisplay) -> None:
        self.runs = {name: ScriptedRun([]) for name in ("door", "yard")}
        self.cameras = {name: display.camera(name) for name in self.runs}
        for name, run in self.runs.items():
            self.cameras[name].attach(run, None)
            self.cameras[name].write(STARTED)


@pytest.fixture
def pty() -> Iterator[Pty]:
    with closing(Pty(80, 16)) as made:
        yield made


def test_each_camera_has_its_pane_and_what_is_typed_goes_to_one_or_to_all(pty: Pty) -> None:
    with closing(FleetView(["door", "yard", "gone"], pty.program, pty.program)) as view:
        shown = Shown(view)
        pty.shows("opening")
        shown.cameras["door"].write(frame(0, 0.0))
        shown.cameras["door"].write(AnswerDeltaEvent(answer=0, text="a per", pts_s=0.0))
        pty.shows("0:00.0  a per")
        shown.cameras["door"].write(answer(0.0, "a person"))
        shown.cameras["door"].write(answer(2.0, "a person"))
        pty.shows("a person (×2, to 0:02.0)")
        view.show_failure("gone", "it is not there")
        pty.shows("3 cameras, 1 not well")
        pty.type("door: who?\r")
        until(lambda: shown.runs["door"].asked == ["who?"])
        pty.type("where is it?\r")
        until(lambda: shown.runs["yard"].asked == ["where is it?"])
        assert shown.runs["door"].asked == ["who?", "where is it?"]
        view.show_message("finishing")
        pty.shows("finishing")
        shown.cameras["door"].write(summary())
        pty.shows("finished")


def test_the_last_answers_of_each_camera_stay_on_the_terminal(pty: Pty, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(view_module, "print_answer", lambda at, text: written.append(f"{at}  {text}"))
    with closing(FleetView(["door", "yard"], pty.program, None)) as view:
        shown = Shown(view)
        for camera in shown.cameras.values():
            camera.write(Notice(code="model-world", message="knows scenes only"))
        for second in range(15):
            shown.cameras["door"].write(answer(float(second), f"answer {second}"))
        shown.cameras["yard"].write(answer(0.0, "nobody"))
        shown.cameras["yard"].write(answer(2.0, "word " * 20))
        pty.shows("note: knows scenes only")
        assert sum("knows scenes only" in row for row in pty.rows) == 1, "once for all cameras"
    assert written[:12] == [f"door  0:{second:02}.0  answer {second}" for second in range(3, 15)]
    assert written[12] == "yard  0:00.0  nobody"
    first, second = written[13].split("\n")
    assert first.startswith("yard  0:02.0  word word")
    assert second.startswith("              word")
    assert len(written) == 14


def test_lines_name_their_camera(capsys: pytest.CaptureFixture[str]) -> None:
    display = FleetLines(["door", "big-yard"], None)
    door, yard = display.camera("door"), display.camera("big-yard")
    for camera in (door, yard):
        camera.attach(ScriptedRun([]), None)
        camera.write(Notice(code="loading", message="loading tiny"))
        camera.write(Notice(code="model-world", message="knows scenes only"))
        camera.write(Restarted(process="answers", cause="x", count=1))
        for said in (answer(0.0, "nobody"), answer(2.0, "nobody"), answer(4.0, "nobody")):
            camera.write(said)
    door.write(turned(4.0))
    door.write(Restarted(process="frames", cause="it hung", count=1))
    door.write(QueryChanged(query="Who?"))
    yard.write(summary())
    display.show_failure("big-yard", "it broke")
    display.close()
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "door      0:00.0  nobody",
        "big-yard  0:00.0  nobody",
        "door      0:02.0 to 0:04.0  the same, 2 times",
        "door      0:04.0  yes (97 %): is it here?",
        "big-yard  0:02.0 to 0:04.0  the same, 2 times",
    ]
    lines = err.splitlines()
    assert lines[:2] == ["loading tiny …", "note: knows scenes only"], "once"
    assert lines[2:4] == ["door      restarting frames: it hung", "door      asked: Who?"]
    assert lines[4].startswith("big-yard  ")
    assert lines[5] == "error: big-yard: it broke"


def test_json_lines_name_their_camera(capsys: pytest.CaptureFixture[str]) -> None:
    display = FleetJson(["door"], captions=True)
    door = display.camera("door")
    door.attach(ScriptedRun([]), None)
    for event in (frame(0, 0.0), Notice(code="x", message="look"), answer(0.0, "nobody")):
        door.write(event)
    display.close()
    out, err = capsys.readouterr()
    told = [json.loads(line) for line in err.splitlines()]
    assert [(entry["event"], entry["camera"]) for entry in told] == [("notice", "door"), ("answer", "door")]
    assert out.splitlines() == ["door  0:00.0  nobody"]


def test_lines_are_read_as_questions_until_the_end() -> None:
    reader, writer = os.pipe()
    display = FleetLines(["door"], None, typed=reader)
    run = ScriptedRun([])
    display.camera("door").attach(run, None)
    os.write(writer, b"who?\n")
    until(lambda: run.asked == ["who?"])
    display.close()
    os.close(writer)
    os.close(reader)


def test_a_line_that_is_no_question_is_refused_once_for_all_cameras() -> None:
    questions = FleetQuestions(["door", "yard"])
    refused: list[str] = []
    questions.put("who?", refused.append)
    asked: list[str] = []
    for name in ("door", "yard"):
        questions.add(name, PendingQuestions(lambda text, name=name: asked.append(f"{name} {text}")))  # type: ignore[misc]
    questions.put("  ", refused.append)
    questions.put("door:", refused.append)
    questions.remove("yard")
    questions.put("who?", refused.append)
    assert refused == ["not asked: no camera runs", *["not asked: the question is empty"] * 2]
    assert asked == ["door who?"]


def test_a_question_to_a_camera_that_is_not_there_is_refused_with_the_names() -> None:
    questions = FleetQuestions(["door", "yard", "gate"])
    refused: list[str] = []
    asked: list[str] = []
    for name in ("door", "yard"):
        questions.add(name, PendingQuestions(lambda text, name=name: asked.append(f"{name} {text}")))  # type: ignore[misc]
    questions.put("nosuch: is it open?", refused.append)
    questions.put("gate:is it open?", refused.append)
    assert refused == [
        "not asked: no camera is called 'nosuch'; there are door, yard, gate",
        "not asked: gate does not run; running: door, yard",
    ]
    questions.remove("yard")
    questions.put("is it 10:30 there?", refused.append)
    questions.put("10:30 on the clock?", refused.append)
    assert asked == ["door is it 10:30 there?", "door 10:30 on the clock?"]
    assert len(refused) == 2
