"""The live view fits every terminal, and shows the most important first."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from rich.cells import cell_len

from stream.display.state import CameraSnapshot, TranscriptEntry
from stream.extensions.live.layout import Row, compose, figure_lines
from stream.media import SourceInfo
from tests.support.figures import FIGURES

INFO = SourceInfo("scene:demo", 640, 384, 25.0, 90_400_000_000, None, False, "scene", "yuv420p")

VIEW = CameraSnapshot(
    name="",
    state="",
    info=INFO,
    model="scenes-tiny",
    query="What happens?",
    figures=FIGURES,
    entries=(
        TranscriptEntry("0:02.0", "a red circle"),
        TranscriptEntry("", "asked: Who?", is_message=True),
        TranscriptEntry("0:04.0", "a blue square"),
    ),
    partial=TranscriptEntry("0:06.0", "a gre"),
)


def shown(view: CameraSnapshot, width: int = 80, height: int = 23, message: str = "") -> list[str]:
    return plain(compose(view, message, width, height))


def plain(rows: list[Row]) -> list[str]:
    return ["".join(text for _, text in row).rstrip() for row in rows]


def test_at_80_columns_all_of_it_can_be_read() -> None:
    assert shown(VIEW) == [
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
        " delay    4.1 ms · p95 7.9 ms · max 12.3 ms",
        " answers  14 · first token 310 ms · last token 621 ms",
        " late     0.0 % of frames · 3 in all",
        " tokens   64 of 240 (27 %) · 12.3 % of tiles changed",
        " dropped  3 frames, 2 answers",
        " memory   612 MB · frames 290 MB · answers 322 MB",
        " so far   1 cut · 2 outages (0:10) · 0 restarts",
        "",
    ]


def header(**info: Any) -> str:
    return shown(dataclasses.replace(VIEW, info=dataclasses.replace(INFO, **info)))[0]


def test_a_file_has_a_position_and_a_live_source_the_time_that_it_runs() -> None:
    assert header().endswith("  1:12 / 1:30")
    assert header(duration_ns=None).endswith("  1:12")
    assert header(live=True).endswith("  running 1:12")
    assert header(duration_ns=3_723_900_000_000).endswith("  1:12 / 1:02:03")


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("/home/operator/films of 2024/a holiday/static_signer.mkv", " …/a holiday/static_signer.mkv  "),
        ("/home/" + "a" * 60 + ".mkv", " …" + "a" * 32 + ".mkv  "),
        ("rtsp://camera.example.org:8554/building/floor/stream1", " rtsp://camera.e…uilding/floor/stream1  "),
    ],
)
def test_of_a_long_name_the_end_is_shown(name: str, start: str) -> None:
    first = header(name=name)
    assert len(first) == 79
    assert first.startswith(start)
    assert first.endswith("  1:12 / 1:30")


def test_a_question_is_shown_until_it_is_taken() -> None:
    pending = dataclasses.replace(VIEW, pending="Who?")
    loading = dataclasses.replace(pending, state="loading tiny")
    assert shown(loading)[-1] == " loading tiny · asking: Who?"
    assert shown(pending)[-1] == " asking: Who?"
    assert shown(loading, message="stopping")[-1] == " stopping"


def test_the_same_answer_again_is_counted() -> None:
    entry = TranscriptEntry("0:02.0", "a red circle").with_repetition("0:04.0").with_repetition("0:06.0")
    assert (
        shown(dataclasses.replace(VIEW, entries=(entry,), partial=None))[3] == "   0:02.0  a red circle (×3, to 0:06.0)"
    )


def test_a_narrow_terminal_leaves_out_the_least_important() -> None:
    lines = shown(VIEW, 60, 19)
    assert " frames   25.0 a second · 24.9 in all · 1800 frames" in lines
    assert " memory   612 MB · frames 290 MB · answers 322 MB" in lines


def test_a_wide_terminal_has_the_figures_in_columns() -> None:
    lines = shown(VIEW, 200, 49)
    row = next(line for line in lines if line.startswith(" frames"))
    assert all(part in row for part in ("24.9 in all", "0.0 % of frames", "answers 322 MB"))


@pytest.mark.parametrize("width", [1, 2, 7, 12, 20, 39, 40, 60, 79, 80, 127, 128, 200, 300])
@pytest.mark.parametrize("height", [0, 1, 2, 3, 4, 7, 9, 12, 13, 19, 23, 59])
def test_the_screen_is_filled_and_text_and_figures_fit(width: int, height: int) -> None:
    long = tuple(TranscriptEntry("12:00:00", f"{number} 你好世界 " + "word " * number) for number in range(60))
    assert len(compose(dataclasses.replace(VIEW, entries=long, query="why " * 400), "x" * 300, width, height)) == height
    rows = compose(dataclasses.replace(VIEW, entries=long), "", width, height)
    assert len(rows) == height
    if width >= 40:
        assert all(sum(cell_len(text) for _, text in row) <= width for row in rows[1:])
    assert all(sum(cell_len(text) for _, text in row) <= max(10, width) for row in figure_lines(FIGURES, width))


@pytest.mark.parametrize("height", [1, 2, 4, 7])
def test_however_low_it_is_there_is_text(height: int) -> None:
    lines = shown(VIEW, 80, height)
    assert any("a gre" in line for line in lines)
    assert height < 2 or "scene:demo" in lines[0]


def test_the_newest_text_is_shown_if_there_is_no_room_for_all() -> None:
    view = dataclasses.replace(
        VIEW, entries=tuple(TranscriptEntry("0:00.0", f"answer {number}") for number in range(99))
    )
    text = [line for line in shown(view) if line.startswith("   0:0")]
    assert len(text) == 10
    assert text[-1] == "   0:06.0  a gre"
    assert text[0] == "   0:00.0  answer 90"


def test_the_status_is_what_matters_most_now() -> None:
    outage_view = dataclasses.replace(VIEW, state="source lost for 1:03: no route", has_problem=True, pending="Who?")
    assert shown(dataclasses.replace(VIEW, state="loading a model"))[-1] == " loading a model"
    assert shown(outage_view)[-1] == " source lost for 1:03: no route"
    assert shown(outage_view, message="stopping now")[-1] == " stopping now"


def test_before_anything_was_measured_there_are_dashes() -> None:
    empty_figures = dataclasses.replace(
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
    lines = shown(dataclasses.replace(VIEW, figures=empty_figures))
    assert lines[15:20] == [" delay    –", " answers  0", " late     –", " tokens   –", " dropped  nothing"]
