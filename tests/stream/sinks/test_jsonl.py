"""JSON lines: events, format, and time of writing."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace

from stream.events import AnswerDeltaEvent, Cut, Event, Notice, Skipped
from stream.sinks.output_file import JsonlSink
from tests.support.events import answer, frame, look, summary, turned

EVENTS: list[Event] = [
    Notice(code="x", message="hello"),
    frame(0, 0.0),
    AnswerDeltaEvent(answer=0, text="a"),
    answer(1 / 3, "a\nb"),
    Cut(frame_index=3, pts_s=0.1, score=0.9),
    Skipped(frame_index=4, pts_s=0.2, what="packet 5", reason="broken"),
    summary(),
]


def lines(path: Path, events: list[Event], *, timing: bool = True) -> list[str]:
    sink = JsonlSink(str(path), timing=timing)
    for event in events:
        sink.write(event)
    sink.close()
    sink.close()
    return path.read_text(encoding="utf-8").splitlines()


def test_one_object_a_line_type_first_summary_last_without_frames_and_pieces(tmp_path: Path) -> None:
    texts = lines(tmp_path / "a.jsonl", EVENTS)
    assert [json.loads(line)["type"] for line in texts] == ["notice", "answer", "cut", "skipped", "summary"]
    assert all(line.startswith('{"type":') for line in texts)


def test_times_are_rounded_to_microseconds(tmp_path: Path) -> None:
    fields = json.loads(lines(tmp_path / "a.jsonl", EVENTS)[1])
    assert fields["pts_s"] == 0.333333
    assert fields["timing"]["total_ms"] == 60.123457


def test_without_timing_nothing_depends_on_the_clock(tmp_path: Path) -> None:
    slow = [answer(0, "a"), look(0), summary(timing={"wall_s": 9.0})]
    fast = [answer(0, "a", timing=None), replace(look(0), timing=None), summary()]
    first, second = lines(tmp_path / "a.jsonl", slow, timing=False), lines(tmp_path / "b.jsonl", fast, timing=False)
    assert first == second
    assert not any("timing" in line for line in first)


def test_looks_and_turns_are_reported(tmp_path: Path) -> None:
    first, second = map(json.loads, lines(tmp_path / "a.jsonl", [look(0.5, 0.25, None), turned(0.5, "no")]))
    assert (first["type"], first["yes"], first["holds"], first["timing"]["total_ms"]) == ("look", 0.25, None, 60.0)
    assert (second["type"], second["to"], second["question"]) == ("turned", "no", "is it here?")


def test_each_line_is_there_as_soon_as_it_happens(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    sink = JsonlSink(str(path))
    sink.write(answer(0, "first"))
    assert path.read_text(encoding="utf-8").endswith("}\n")
    sink.close()
