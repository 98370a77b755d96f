"""Captions: times and text of each cue, and a file that is valid at every moment."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pysubs2
import pytest
import webvtt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream.errors import OutputError, OutputFailed
from stream.extensions.overlay.sink import OverlaySink
from stream.sinks.captions import OPEN_CUE_MS, CaptionSink, Cue, CueTrack, caption_text, timestamp
from tests.support.events import answer, frame, summary


def cues_of(path: Path) -> list[tuple[int, int, str]]:
    return [(event.start, event.end, event.plaintext) for event in pysubs2.load(str(path))]


def write(path: Path, *events: object) -> CaptionSink:
    sink = CaptionSink(str(path))
    for event in events:
        sink.write(event)  # type: ignore[arg-type]
    return sink


@pytest.mark.parametrize("suffix", [".vtt", ".srt", ".VTT"])
def test_a_cue_lasts_until_the_next_answer_and_the_last_until_the_end(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    events = [frame(0, 0.0), answer(0.0, "one"), frame(1, 2.0), answer(2.0, "two"), frame(2, 6.0), frame(3, 6.5)]
    write(path, *events).close()
    assert cues_of(path) == [(0, 2000, "one"), (2000, 7000, "two")]


def test_the_same_words_again_are_one_cue(tmp_path: Path) -> None:
    path = tmp_path / "out.vtt"
    write(path, answer(0, "a dog"), answer(2, " a  dog\n"), answer(4, "a cat"), frame(9, 4.0)).close()
    assert [text for *_, text in cues_of(path)] == ["a dog", "a cat"]


@pytest.mark.parametrize(("duration_s", "end_ms"), [(None, 80), (0.02, 60), (0.0417, 81)])
def test_no_caption_outlasts_the_last_frame(tmp_path: Path, duration_s: float | None, end_ms: int) -> None:
    path = tmp_path / "out.vtt"
    last = frame(1, 0.04, duration_s=duration_s)
    write(path, frame(0, 0.0), answer(0, "one"), last, answer(0.04, "two"), summary()).close()
    assert cues_of(path) == [(0, 40, "one"), (40, end_ms, "two")]


def test_the_same_words_to_the_end_end_with_it(tmp_path: Path) -> None:
    path = tmp_path / "out.srt"
    write(path, frame(0, 0.0), answer(0, "one"), frame(1, 0.5, duration_s=0.04), answer(0.5, "one")).close()
    assert cues_of(path) == [(0, 540, "one")]


def test_a_still_picture_has_no_end_and_its_caption_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "out.vtt"
    write(path, frame(0, 0.0, duration_s=0.04), answer(0, "one")).close()
    assert cues_of(path) == [(0, OPEN_CUE_MS, "one")]


def test_an_empty_answer_ends_the_cue_and_shows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.srt"
    write(path, answer(0, "one"), answer(2, " \n\x00"), answer(5, "two")).close()
    assert cues_of(path) == [(0, 2000, "one"), (5000, 6000, "two")]


def test_the_file_is_valid_after_every_event(tmp_path: Path) -> None:
    path = tmp_path / "out.vtt"
    sink = CaptionSink(str(path))
    for number in range(4):
        sink.write(frame(number, float(number)))
        sink.write(answer(float(number), f"word {number} " * (4 - number)))
        cues = webvtt.read(str(path))
        assert [cue.text.split()[1] for cue in cues] == [str(n) for n in range(number + 1)]
    sink.close()


@pytest.mark.parametrize(("suffix", "content"), [(".vtt", "WEBVTT\n\n"), (".srt", "")])
def test_a_run_without_answers_leaves_a_valid_empty_file(tmp_path: Path, suffix: str, content: str) -> None:
    path = tmp_path / f"out{suffix}"
    path.write_text("old", encoding="utf-8")
    write(path, frame(0, 0.0)).close()
    assert path.read_text(encoding="utf-8") == content


def test_text_cannot_break_webvtt(tmp_path: Path) -> None:
    path = tmp_path / "out.vtt"
    write(path, answer(0, "a <b> & c --> d\n\n\n00:01.000 --> 00:02.000\nNOTE x")).close()
    raw = path.read_text(encoding="utf-8")
    assert "a &lt;b&gt; &amp; c --&gt; d\n" in raw
    assert len(webvtt.read(str(path))) == 1


def test_text_cannot_break_subrip(tmp_path: Path) -> None:
    path = tmp_path / "out.srt"
    write(path, answer(0, "a\n\n2\nb --> c")).close()
    assert len(cues_of(path)) == 1


def test_long_lines_are_wrapped_and_control_characters_dropped() -> None:
    text = caption_text("word " * 20 + "\x07\x1b[31m\u2028\nnext\tline")
    assert max(map(len, text.splitlines())) <= 42
    assert text.splitlines()[-1] == "next line"
    assert "\x1b" not in text


def test_hours_go_beyond_a_day() -> None:
    assert timestamp((100 * 3600 + 61) * 1000 + 5, ".") == "100:01:01.005"


def test_captions_need_a_file_that_can_be_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "pipe.vtt"
    os.mkfifo(path)
    with pytest.raises(OutputError, match="not a regular file"):
        CaptionSink(str(path))


answers = st.lists(st.tuples(st.floats(0, 1000), st.sampled_from(["", "a", "b", "c"])), max_size=20)


@given(answers)
def test_cues_never_overlap_and_never_go_back(answers: list[tuple[float, str]]) -> None:
    track, cues = CueTrack(), list[Cue]()
    for at_s, text in answers:
        cue = track.answer(at_s, text)
        cues += [cue] if cue else []
    cues += [track.open] if track.open else []
    assert all(cue.end_ms > cue.start_ms and cue.text for cue in cues)
    assert all(a.end_ms <= b.start_ms for a, b in itertools.pairwise(cues))


@given(st.lists(st.text(max_size=80), min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_any_text_gives_webvtt_with_as_many_cues_as_differ(tmp_path: Path, texts: list[str]) -> None:
    path = tmp_path / "any.vtt"
    write(path, *(answer(float(at), text) for at, text in enumerate(texts))).close()
    captions = [caption_text(text) for text in texts]
    cues = [text for n, text in enumerate(captions) if text and (n == 0 or text != captions[n - 1])]
    assert len(webvtt.read(str(path))) == len(cues)


class TestOverlay:
    def test_the_file_holds_the_newest_answer_and_is_never_half_of_one(self, tmp_path: Path) -> None:
        file = tmp_path / "now.txt"
        file.write_text("of another run", encoding="utf-8")
        sink = OverlaySink(str(file))
        assert file.read_text("utf-8") == "of another run"
        sink.write(frame(0, 0.0))
        assert file.read_text("utf-8") == ""
        with file.open(encoding="utf-8") as reader:
            sink.write(answer(0.0, " a cat\x1b[2J "))
            assert reader.read() == ""
        assert file.read_text("utf-8") == "a cat"
        before = file.stat().st_ino
        sink.write(answer(1.0, "a dog"))
        assert file.read_text("utf-8") == "a dog"
        after = file.stat().st_ino
        sink.write(answer(2.0, "a dog"))
        assert (file.stat().st_ino, before != after) == (after, True)
        assert [path.name for path in tmp_path.iterdir()] == ["now.txt"]
        sink.close()
        sink.close()
        assert file.read_text("utf-8") == ""

    def test_a_link_stays_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
        sink = OverlaySink(str(tmp_path / "link.txt"))
        sink.write(answer(0.0, "a cat"))
        assert (tmp_path / "link.txt").is_symlink()
        assert (tmp_path / "real.txt").read_text("utf-8") == "a cat"

    def test_files_that_cannot_be_replaced_are_refused(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.txt")
        with pytest.raises(OutputError, match="is not a regular file"):
            OverlaySink(str(tmp_path / "pipe.txt"))
        with pytest.raises(OutputError, match="its folder cannot be written"):
            OverlaySink(str(tmp_path / "none" / "a.txt"))
        unused = OverlaySink(str(tmp_path / "unused.txt"))
        unused.close()
        sink = OverlaySink(str(tmp_path / "a.txt"))
        (tmp_path / "a.txt").mkdir()
        with pytest.raises(OutputFailed, match="cannot write"):
            sink.write(answer(0.0, "a cat"))
        assert [path.name for path in tmp_path.iterdir() if path.name != "pipe.txt"] == ["a.txt"]


def test_boxes_are_shown_by_their_labels_with_numbers(tmp_path: Path) -> None:
    box = '{"bbox_2d": [1, 2, 3, 4], "label": "<b>car</b> --> \\u001b[31mred"}'
    text = f'```json\n[{box}, {box}, {{"point_2d": [1, 2], "label": "dog"}}]\n```'
    for suffix, words in (
        (".vtt", "2 × &lt;b&gt;car&lt;/b&gt; --&gt; red, dog"),
        (".srt", "2 × ‹b>car‹/b> → red, dog"),
    ):
        sink = CaptionSink(str(tmp_path / f"a{suffix}"))
        for event in (frame(0, 0.0), answer(0.0, text), answer(1.0, "[]"), frame(1, 2.0), summary()):
            sink.write(event)
        sink.close()
        cues = (tmp_path / f"a{suffix}").read_text()
        assert f"\n{words}\n" in cues
        assert "\nnothing\n" in cues
        assert "bbox" not in cues


def test_an_overlay_shows_labels_in_place_of_boxes(tmp_path: Path) -> None:
    sink = OverlaySink(str(tmp_path / "a.txt"))
    sink.write(answer(0.0, '[{"bbox_2d": [1, 2, 3, 4], "label": "cat"}]'))
    assert (tmp_path / "a.txt").read_text() == "cat"
    sink.close()


def test_an_overlay_does_not_write_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "letter.txt"
    victim.write_text("of the user")
    os.link(victim, tmp_path / f"overlay.txt.{os.getpid()}.new")
    sink = OverlaySink(str(tmp_path / "overlay.txt"))
    sink.write(answer(0.0, "a red car"))
    assert (tmp_path / "overlay.txt").read_text() == "a red car"
    assert victim.read_text() == "of the user"
