"""Captions cut at the edges of segments, in the times of their track."""

from __future__ import annotations

from stream.extensions.hls.captions import SegmentedCaptions
from stream.extensions.hls.playlists import PlaylistSegment


def segment(start_s: float, duration_s: float = 2.0, track_s: float | None = None) -> PlaylistSegment:
    return PlaylistSegment(0, "", start_s, duration_s, start_s if track_s is None else track_s, 0)


def cues(text: str) -> list[tuple[str, str]]:
    header, *blocks = text.rstrip("\n").split("\n\n")
    assert header == "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:0"
    return [tuple(block.split("\n", 1)) for block in blocks]  # type: ignore[misc]


def test_a_cue_is_cut_at_the_edge_and_goes_on_in_the_next_segment() -> None:
    captions = SegmentedCaptions()
    captions.answer(0.5, "a cat", 0.5)
    assert cues(captions.cut(segment(0))) == [("00:00:00.500 --> 00:00:02.000", "a cat")]
    captions.answer(3.0, "a dog", 3.0)
    assert cues(captions.cut(segment(2))) == [
        ("00:00:02.000 --> 00:00:03.000", "a cat"),
        ("00:00:03.000 --> 00:00:04.000", "a dog"),
    ]
    assert cues(captions.cut(segment(4))) == [("00:00:04.000 --> 00:00:06.000", "a dog")]
    assert (captions.count, captions.late) == (2, 0)


def test_times_are_those_of_the_track() -> None:
    captions = SegmentedCaptions()
    captions.answer(31.0, "a cat", 31.0)
    assert cues(captions.cut(segment(30, track_s=0.08))) == [("00:00:01.080 --> 00:00:02.080", "a cat")]


def test_a_segment_before_the_first_frame_has_times_that_are_not_negative() -> None:
    captions = SegmentedCaptions()
    captions.answer(0.0, "a cat", 0.0)
    assert cues(captions.cut(segment(-0.5, track_s=0.0))) == [("00:00:00.500 --> 00:00:02.000", "a cat")]


def test_an_empty_answer_shows_nothing_and_the_same_one_goes_on() -> None:
    captions = SegmentedCaptions()
    captions.answer(0.0, "a cat", 0.0)
    captions.answer(0.5, "a cat", 0.5)
    captions.answer(1.0, "", 1.0)
    assert cues(captions.cut(segment(0))) == [("00:00:00.000 --> 00:00:01.000", "a cat")]
    assert cues(captions.cut(segment(2))) == []
    assert captions.count == 1


def test_a_late_answer_begins_with_the_next_segment_and_is_counted() -> None:
    captions = SegmentedCaptions()
    captions.answer(0.0, "a cat", 0.0)
    captions.cut(segment(0))
    captions.answer(1.0, "a dog", 5.5)
    assert cues(captions.cut(segment(2))) == [("00:00:02.000 --> 00:00:04.000", "a dog")]
    assert (captions.count, captions.late, captions.latest_s) == (2, 1, 4.5)


def test_the_text_of_a_model_is_neither_markup_nor_a_cue() -> None:
    captions = SegmentedCaptions()
    captions.answer(0.0, "<b>x</b> --> \x1b[2J\n\n00:00 & more", 0.0)
    ((_, text),) = cues(captions.cut(segment(0)))
    assert "<" not in text
    assert "-->" not in text
    assert "\x1b" not in text
    assert "&amp; more" in text


def test_cues_that_are_over_are_forgotten() -> None:
    captions = SegmentedCaptions()
    for number in range(1000):
        captions.answer(number * 2.0, f"answer {number}", number * 2.0)
        captions.cut(segment(number * 2.0))
    assert len(captions._cues) < 4
