"""Panes of cameras in a number of rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len

from stream.clock import MonotonicClock
from stream.display.state import CameraSnapshot, TranscriptEntry
from stream.extensions.live.layout import Row
from stream.extensions.live.panes import compose_several
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
    assert rows[1].startswith(" door  25.0 fps · Who? · 7 answers · first token 120 ms")
    assert rows[6].startswith(" yard  25.0 fps · Is it open? · 7 answers")


LONG = "A person walks from the left to the door, looks around, puts a parcel on the mat and leaves towards the street."


def test_a_screen_of_24_rows_is_filled_with_answers() -> None:
    entries = [TranscriptEntry(f"0:{second:02}.0", f"answer {second}") for second in range(30)]
    running = [camera(name, entries=entries) for name in ("door", "yard")]
    rows = composed(*running, CameraSnapshot("gone", "opening"), width=80, height=23)
    assert sum(row == "" for row in rows) == 2, "all are filled but those of the camera that does not run"
    for head in (1, 10):
        assert rows[head + 1 : head + 9] == [f"   0:{second}.0  answer {second}" for second in range(22, 30)]
    assert [number for number, row in enumerate(rows) if "──" in row] == [1, 10, 19]


def test_a_high_pane_has_figures_too() -> None:
    rows = composed(camera("door"), width=80, height=23)
    assert any(row.startswith(" delay ") for row in rows)


def test_every_answer_is_shown_from_its_time_on_and_what_is_cut_ends_in_an_ellipsis() -> None:
    entries = [TranscriptEntry(f"14:05:0{number}", LONG) for number in range(3)]
    for height in range(4, 23):
        rows = composed(camera("door", entries=entries, query=LONG), camera("yard"), width=80, height=height)
        assert max(map(cell_len, rows)) <= 80
        answers = [row for row in rows if row[:10].strip() == "" and row.strip()]
        for at, row in enumerate(rows):
            if row in answers:
                assert "14:05:0" in rows[at - 1] or rows[at - 1] in answers, "a line without the time of its answer"
    rows = composed(camera("door", entries=entries[:1]), camera("yard"), width=80, height=8)
    assert rows[2] == " 14:05:00  A person walks from the left to the door, looks around, puts a"
    assert rows[3] == "           parcel on the mat and leaves towards the street."
    rows = composed(camera("door", entries=entries[:1]), camera("yard"), camera("gate"), width=80, height=8)
    assert rows[2] == " 14:05:00  A person walks from the left to the door, looks around, puts a parc…"


def test_a_long_answer_that_is_being_generated_shows_its_end_beside_its_time() -> None:
    partial = TranscriptEntry("14:05:00", LONG)
    rows = composed(camera("door", entries=[], partial=partial), camera("yard"), camera("gate"), width=80, height=8)
    assert rows[2].startswith(" 14:05:00  ")
    assert rows[2].endswith("towards the street.")


def test_notes_are_wrapped_on_a_high_terminal_and_cut_to_a_row_on_a_lower_one() -> None:
    notes = ["an old note", "web page at http://127.0.0.1:8080/", "note: " + "this model only knows scenes " * 4]
    rows = texts(compose_several([camera("door")], notes, 65.0, "", 80, 40))
    assert rows[-3] == " web page at http://127.0.0.1:8080/"
    assert rows[-1].endswith("scenes")
    rows = texts(compose_several([camera("door")], notes, 65.0, "", 80, 23))
    assert not rows[-2].startswith(" note")
    assert rows[-1].startswith(" note: this model only knows")
    assert rows[-1].endswith("…")
    assert cell_len(rows[-1]) <= 80


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
