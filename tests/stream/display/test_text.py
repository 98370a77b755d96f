"""Each event that a person should know about is one line."""

from __future__ import annotations

import pytest
from msgspec import structs
from msgspec.structs import replace

from stream.clock import clock_text, duration_text
from stream.display.text import CHANGES_SHOWN, SKIPS_SHOWN, EventText, memory_text
from stream.events import (
    ClipWritten,
    Cut,
    Event,
    MemorySummary,
    Notice,
    Outage,
    PictureChanged,
    QueryChanged,
    Restarted,
    Skipped,
    StandingQuestion,
    WatchesChanged,
)
from stream.untrusted import printable
from tests.support.events import frame


def test_nothing_that_a_terminal_would_obey_gets_through() -> None:
    assert printable("a\x1b[31mb\nc\u202ed\x07") == "ab cd"


CLIP = ClipWritten(match=1, watch="until", picture="a.jpg", video=None, start_s=2.0, end_s=8.5)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (frame(0, 0.0), None),
        (Cut(frame_index=1, pts_s=1.0, score=0.5), None),
        (Notice(code="loading", message="loading a model"), None),
        (Notice(code="other", message="mind the gap"), "note: mind the gap"),
        (Outage(frame_index=1, pts_s=61.5, reason="no route"), "source lost at 1:01.5: no route"),
        (Outage(frame_index=1, pts_s=1, reason="", lasted_s=2.04, attempts=1), "source back after 2.0 s"),
        (Outage(frame_index=1, pts_s=1, reason="", lasted_s=9.0, attempts=3), "source back after 9.0 s and 3 attempts"),
        (CLIP, None),
        (structs.replace(CLIP, video="a.mp4"), "clip of match 1, 0:02.0 to 0:08.5: a.mp4"),
        (Restarted(process="answers", cause="it hung", count=1), "restarting answers: it hung"),
        (Restarted(process="frames", cause="killed", count=3), "restarting frames (3 restarts so far): killed"),
        (QueryChanged(query="Who\n\x1b[2J?"), "asked: Who ?"),
        (QueryChanged(query="Who?", error="too long"), "not asked: too long"),
    ],
)
def test_each_event_has_its_line(event: Event, line: str | None) -> None:
    assert EventText().line(event) == line


def test_losses_do_not_flood() -> None:
    texts = EventText()
    event = Skipped(frame_index=7, pts_s=1.0, what="packet 7", reason="broken")
    lines = [texts.line(event) for _ in range(SKIPS_SHOWN + 3)]
    assert lines[:2] == ["skipped packet 7 before 0:01.0: broken"] * 2
    assert lines[SKIPS_SHOWN:] == ["skipped more; the summary counts them", None, None]


def test_changes_of_the_picture_are_reported_and_do_not_flood() -> None:
    texts = EventText()
    sizes = PictureChanged(frame_index=7, pts_s=1.0, reason="resolution", width_px=424, height_px=232)
    formats = PictureChanged(frame_index=7, pts_s=2.0, reason="format", width_px=424, height_px=232)
    lines = [texts.line(event) for event in (sizes, formats, *[sizes] * CHANGES_SHOWN)]
    assert lines[:2] == [
        "the picture changes its size at 0:01.0; from here on it is processed at 424x232",
        "the picture changes its format at 0:02.0; from here on it is processed at 424x232",
    ]
    assert lines[CHANGES_SHOWN:] == ["the picture keeps changing; .jsonl has every change", None]


def test_cuts_are_reported_on_request() -> None:
    assert EventText(cuts=True).line(Cut(frame_index=1, pts_s=62.0, score=0.5)) == "cut at 1:02.0"


def test_times_are_written_as_the_display_writes_them() -> None:
    texts = EventText(lambda at_s: f"{at_s:.0f} o'clock", cuts=True)
    assert texts.line(Cut(frame_index=1, pts_s=3.0, score=0.5)) == "cut at 3 o'clock"
    assert texts.line(Outage(frame_index=1, pts_s=4.0, reason="x")) == "source lost at 4 o'clock: x"


@pytest.mark.parametrize(
    ("at_s", "text"), [(0, "0:00.0"), (59.96, "1:00.0"), (3723.44, "1:02:03.4"), (-1, "0:00.0"), (7.25, "0:07.2")]
)
def test_times_for_people(at_s: float, text: str) -> None:
    assert clock_text(at_s) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0.0 s"), (9.94, "9.9 s"), (10, "0:10"), (119.9, "1:59"), (3723, "1:02:03")]
)
def test_lengths_of_time_for_people(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_the_summary_names_groups_and_what_they_saved() -> None:
    memory = MemorySummary(groups={"first": 1, "epoch": 3}, appended_tokens=210, kept_tokens=190, superseded_tokens=0)
    assert memory_text(memory) == "4 groups (first, 3 epoch), 210 tokens appended, 190 kept"
    superseded = replace(memory, groups={"first": 1}, superseded_tokens=7)
    assert memory_text(superseded) == "1 group (first), 210 tokens appended, 190 kept, 7 superseded"


def test_changes_of_watches_are_named() -> None:
    text, watch = EventText(), StandingQuestion("here", "is it here?")
    new = WatchesChanged(watch="here", watches=[watch], question="is it here?")
    assert text.line(new) == "watch added: is it here?"
    change = WatchesChanged(watch="gone", watches=[watch], question="is it gone?")
    assert text.line(change) == "watch removed: is it gone?"
    refused = WatchesChanged(watch="nix", watches=[watch], error="no watch is named 'nix'")
    assert text.line(refused) == "the watch nix is not changed: no watch is named 'nix'"
