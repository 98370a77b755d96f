"""The live view fits every terminal, and shows the most telling first."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from rich.cells import cell_len

from stream.display.layout import HINT, HINT_NO_KEYS, Typing, compose, duration
from stream.display.state import Scene, TranscriptEntry
from stream.display.text import Line
from stream.monitor.metrics import Percentiles
from stream.monitor.schema import RecentJitter
from stream.monitor.statistics import ActiveOutage, StatisticsSnapshot
from stream.sources import SourceInfo

FIGURES = StatisticsSnapshot(
    uptime_s=72.4,
    fps=25.0,
    frames=1800,
    answers=14,
    cuts=1,
    skipped=0,
    outages=2,
    outages_s=10.2,
    restarts={},
    dropped={"capture.replaced": 3, "answer.busy": 2},
    latency_ms=Percentiles(4.1, 7.9, 9.0, 12.3),
    jitter=RecentJitter(interarrival_ms=0.42, interval_std_ms=0.91, deadline_misses_percent=0.0),
    deadline_misses=3,
    ttft_ms=310.2,
    total_ms=620.7,
    ttft_p95_ms=None,
    target_ms=None,
    budget=None,
    checks=0,
    checks_same=0,
    checks_words=None,
    tokens=64,
    tiles=240,
    dirty_share=0.1234,
    memory_bytes={"frames": 290_000_000, "answers": 322_000_000},
    media_s=72.0,
    fps_run=24.9,
    outage=None,
)

SCENE = Scene(
    info=SourceInfo("scene:demo", 640, 384, 25.0, 90_400_000_000, None, False, "scene", "yuv420p"),
    model="scenes-tiny",
    query="What happens?",
    waiting="",
    figures=FIGURES,
    entries=(
        TranscriptEntry("0:02.0", "a red circle"),
        TranscriptEntry("", "asked: Who?", remark=True),
        TranscriptEntry("0:04.0", "a blue square"),
    ),
    spoken=TranscriptEntry("0:06.0", "a gre"),
)


def shown(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def test_at_80_columns_all_of_it_can_be_read() -> None:
    assert shown(compose(SCENE, Typing(""), 80, 24)) == [
        " scene:demo  640x384 · 25 fps · scene                               1:12 / 1:30",
        " scenes-tiny  What happens?",
        "─" * 80,
        "   0:02.0  a red circle",
        "           asked: Who?",
        "   0:04.0  a blue square",
        "   0:06.0  a gre",
        *[""] * 6,
        "─" * 80,
        " frames   25.0 a second · 24.9 in all · 1800 frames",
        " latency  p50 4.1 ms · p95 7.9 ms · max 12.3 ms",
        " answers  14 · first token 310 ms · last token 621 ms",
        " jitter   interval_std 0.91 ms · late 0.0 % (3 in all) · interarrival 0.42 ms",
        " tokens   64 of 240 (27 %) · 12.3 % of tiles changed",
        " dropped  5 · capture.replaced 3 · answer.busy 2",
        " memory   612 MB · frames 290 MB · answers 322 MB",
        " so far   1 cut · 2 outages (0:10) · 0 restarts",
        "",
        f" › {HINT}",
    ]


def header(**info: Any) -> str:
    return shown(compose(dataclasses.replace(SCENE, info=dataclasses.replace(SCENE.info, **info)), Typing(""), 80, 24))[
        0
    ]


def test_a_file_has_a_position_and_a_live_source_the_time_that_it_runs() -> None:
    assert header().endswith("  1:12 / 1:30")
    assert header(duration_ns=None).endswith("  1:12")
    assert header(live=True).endswith("  running 1:12")
    assert header(duration_ns=3_723_900_000_000).endswith("  1:12 / 1:02:03")


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("/home/somebody/films of 2024/a holiday/static_signer.mkv", " …/a holiday/static_signer.mkv  "),
        ("/home/" + "a" * 60 + ".mkv", " …" + "a" * 32 + ".mkv  "),
        ("rtsp://camera.example.org:8554/building/floor/stream1", " rtsp://camera.e…uilding/floor/stream1  "),
    ],
)
def test_of_a_long_name_the_end_is_shown(name: str, start: str) -> None:
    first = header(name=name)
    assert len(first) == 79
    assert first.startswith(start)
    assert first.endswith("  1:12 / 1:30")


def test_what_was_asked_is_shown_until_it_is_taken() -> None:
    loading = dataclasses.replace(SCENE, waiting="loading tiny")
    pending = Typing("", pending="Who?")
    assert shown(compose(loading, pending, 80, 24))[-2] == " loading tiny · asking: Who?"
    assert shown(compose(SCENE, pending, 80, 24))[-2] == " asking: Who?"
    told = dataclasses.replace(pending, remark="stopping")
    assert shown(compose(loading, told, 80, 24))[-2] == " stopping"


def test_the_same_answer_again_is_counted() -> None:
    entry = TranscriptEntry("0:02.0", "a red circle").again("0:04.0").again("0:06.0")
    scene = dataclasses.replace(SCENE, entries=(entry,), spoken=None)
    assert shown(compose(scene, Typing(""), 80, 24))[3] == "   0:02.0  a red circle (×3, to 0:06.0)"


def test_a_narrow_terminal_leaves_out_what_tells_least() -> None:
    lines = shown(compose(SCENE, Typing(""), 60, 20))
    assert " jitter   interval_std 0.91 ms · late 0.0 % (3 in all)" in lines
    assert " memory   612 MB · frames 290 MB · answers 322 MB" in lines


def test_a_wide_terminal_has_the_figures_in_columns() -> None:
    lines = shown(compose(SCENE, Typing(""), 200, 50))
    assert len(lines) == 50
    row = next(line for line in lines if line.startswith(" frames"))
    assert all(part in row for part in ("24.9 in all", "interval_std 0.91 ms", "answers 322 MB"))


@pytest.mark.parametrize("width", [1, 2, 7, 12, 20, 39, 40, 60, 79, 80, 127, 128, 200, 300])
@pytest.mark.parametrize("height", [1, 2, 3, 4, 5, 8, 10, 13, 14, 20, 24, 60])
def test_the_screen_is_filled_and_never_overrun(width: int, height: int) -> None:
    long = tuple(TranscriptEntry("12:00:00", f"{number} 你好世界 " + "word " * number) for number in range(60))
    info = dataclasses.replace(SCENE.info, name="rtsp://camera.example/" + "path/" * 40)
    loss = dataclasses.replace(FIGURES, outage=ActiveOutage("no route to host " * 9, 3.2))
    scene = dataclasses.replace(SCENE, info=info, query="why " * 400, entries=long, figures=loss)
    for typing in (Typing(""), Typing("你好" * 200, "not asked: " + "x" * 300), Typing(None)):
        lines = compose(scene, typing, width, height)
        assert len(lines) == height
        assert all(sum(cell_len(text) for text, _ in line) <= width for line in lines)


@pytest.mark.parametrize("height", [1, 2, 3, 5, 8])
def test_however_low_it_is_there_is_the_line_to_type_on_and_then_the_text(height: int) -> None:
    lines = shown(compose(SCENE, Typing("who"), 80, height))
    assert lines[-1].strip() == "› who"
    assert height == 1 or any("a gre" in line for line in lines)
    assert height < 3 or "scene:demo" in lines[0]


def test_the_newest_text_is_shown_where_there_is_no_room_for_all() -> None:
    scene = dataclasses.replace(
        SCENE, entries=tuple(TranscriptEntry("0:00.0", f"answer {number}") for number in range(99))
    )
    text = [line for line in shown(compose(scene, Typing(""), 80, 24)) if line.startswith("   0:0")]
    assert len(text) == 10
    assert text[-1] == "   0:06.0  a gre"
    assert text[0] == "   0:00.0  answer 90"


def test_the_end_of_a_long_question_is_shown_while_it_is_typed() -> None:
    assert shown(compose(SCENE, Typing("x" * 100 + "end"), 40, 10))[-1] == " › " + "x" * 32 + "end"


def test_without_keys_there_is_nothing_to_type() -> None:
    assert shown(compose(SCENE, Typing(None), 80, 24))[-1] == f" {HINT_NO_KEYS}"


def status(scene: Scene, remark: str = "") -> str:
    return shown(compose(scene, Typing("", remark), 80, 24))[-2]


def test_the_status_is_what_matters_most_now() -> None:
    lost = dataclasses.replace(SCENE, figures=dataclasses.replace(FIGURES, outage=ActiveOutage("no route", 63.0)))
    assert status(dataclasses.replace(SCENE, waiting="loading a model")) == " loading a model"
    assert status(lost) == " source lost, 1:03 by now: no route"
    assert status(lost, "stopping now") == " stopping now"


def test_before_anything_was_measured_there_are_dashes() -> None:
    nothing = dataclasses.replace(
        FIGURES,
        frames=0,
        fps_run=None,
        latency_ms=None,
        jitter=None,
        ttft_ms=None,
        answers=0,
        tiles=0,
        dropped={},
    )
    lines = shown(compose(dataclasses.replace(SCENE, figures=nothing), Typing(""), 80, 24))
    assert lines[15:20] == [" latency  –", " answers  0", " jitter   –", " tokens   –", " dropped  nothing"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0.0 s"), (9.94, "9.9 s"), (10, "0:10"), (119.9, "1:59"), (3723, "1:02:03")]
)
def test_lengths_of_time_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text
