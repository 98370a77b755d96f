"""Panes of cameras in a number of rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from stream.clock import MonotonicClock
from stream.display.layout import Row
from stream.display.panes import compose_several
from stream.display.state import CameraSnapshot, TranscriptEntry
from stream.monitor.statistics import RunStatistics

FIGURES = replace(RunStatistics(MonotonicClock()).snapshot({"q": 3}), fps=24.96, answers=7, ttft_ms=120.4)


def camera(name: str, text: str = "nothing", **fields: object) -> CameraSnapshot:
    snapshot = CameraSnapshot(
        name, "", model="tiny", query="Who?", figures=FIGURES, entries=[TranscriptEntry("12:00:01", text)]
    )
    return replace(snapshot, **fields)  # type: ignore[arg-type]


def texts(rows: list[Row]) -> list[str]:
    return ["".join(text for _, text in row).rstrip() for row in rows]


def composed(*cameras: CameraSnapshot, width: int = 70, height: int = 12, message: str = "") -> list[str]:
    rows = texts(compose_several(cameras, ["a note"], 65.0, message, width, height))
    assert len(rows) == height
    return rows


def test_each_camera_has_a_pane_with_its_figures_and_its_newest_answer() -> None:
    entry = TranscriptEntry("12:00:00", "a cat", count=3, until="12:00:09")
    rows = composed(camera("door"), camera("yard", entries=[entry]))
    assert rows[0].startswith(" 2 cameras  tiny  Who?")
    assert rows[0].endswith("running 1:05")
    assert rows[1] == f" door  25.0 fps · 7 answers · first token 120 ms · 3 dropped {'─' * 9}"
    assert rows[2] == " 12:00:01  nothing"
    assert rows[7] == " 12:00:00  a cat (×3, to 12:00:09)"
    assert rows[-1] == " a note"
    assert composed(camera("door"), message="finishing")[-1] == " finishing"


def test_a_problem_stands_in_its_pane_beside_the_last_answer_and_in_the_header() -> None:
    outage = camera("yard", state="source lost for 3s: " + "no frame comes " * 8, has_problem=True)
    new = camera("new", state="opening", figures=None, entries=[], query="")
    rows = composed(camera("door"), outage, new, height=14)
    assert rows[0].startswith(" 3 cameras, 1 not well  tiny")
    assert rows[6].startswith(" yard  source lost for 3s: no frame comes")
    assert rows[7].startswith("       comes no frame")
    assert rows[9] == " 12:00:01  nothing"
    assert rows[10].startswith(" new   opening ──")


def test_different_questions_stand_in_the_panes() -> None:
    rows = composed(camera("door"), camera("yard", query="Is it open?"))
    assert "Who?" not in rows[0]
    assert rows[1].rstrip("─ ").endswith("dropped · Who?")
    assert rows[6].rstrip("─ ").endswith("dropped · Is it open?")


def test_a_screen_of_24_rows_is_filled_with_answers_and_figures() -> None:
    entries = [TranscriptEntry(f"0:{second:02}.0", f"answer {second}") for second in range(30)]
    running = [camera(name, entries=entries) for name in ("door", "yard")]
    idle_camera = CameraSnapshot("gone", "opening")
    rows = composed(*running, idle_camera, width=80, height=23)
    assert sum(row == "" for row in rows) == 2, "all are filled but those of the camera that does not run"
    for head in (1, 10):
        assert rows[head + 1 : head + 7] == [f"   0:{second}.0  answer {second}" for second in range(24, 30)]
        assert rows[head + 7].startswith(" delay ")
    assert [number for number, row in enumerate(rows) if "──" in row] == [1, 10, 19]
    assert [
        number for number, row in enumerate(composed(*running, idle_camera, idle_camera, height=23)) if "──" in row
    ] == [
        1,
        9,
        16,
        19,
    ]


def test_the_newest_notes_are_wrapped_on_a_tall_terminal_and_cut_to_one_row_on_a_low_one() -> None:
    notes = ["an old note", "web page at http://127.0.0.1:8080/", "note: " + "this model only knows scenes " * 4]
    for height, note_rows in ((23, 3), (12, 1)):
        rows = texts(compose_several([camera("door")], notes, 65.0, "", 80, height))
        assert [row for row in rows if row.startswith(tuple(f" {note[:12]}" for note in notes))]
        assert len(rows) == height
        assert rows[-note_rows].startswith(" web page" if note_rows > 1 else " note: this model")


def test_many_cameras_have_a_row_each_and_those_without_room_are_counted() -> None:
    cameras = [camera(f"camera{number}") for number in range(16)]
    rows = composed(*cameras, height=20)
    assert rows[1:17] == [f" camera{number:<2}  {' 25.0 fps'}  12:00:01  nothing" for number in range(16)]
    rows = composed(*cameras, height=10)
    assert rows[8] == " 9 cameras more; the terminal is too low for all of them"
    assert composed(replace(cameras[0], state="opening"), *cameras, height=19)[1] == " camera0   opening"


@pytest.mark.parametrize("height", range(9))
def test_it_fits_any_height(height: int) -> None:
    composed(camera("a"), camera("b"), height=height)


def test_an_answer_that_is_being_generated_and_a_long_one_stay_in_their_pane() -> None:
    speaking = camera("door", partial=TranscriptEntry("12:00:03", "two people " * 60))
    rows = compose_several([speaking, camera("yard")], [], 1.0, "", 60, 12)
    assert all(cell_len(text) <= 60 for text in texts(rows))
    assert all(rows[at][1][0] == "class:partial" for at in range(2, 6))
    assert texts(rows)[7].startswith(" yard  ")
