"""Boxes of fragmented MP4 of a real video: whole fragments, and times that begin at zero."""

from __future__ import annotations

import struct

import pytest

from stream.events import VideoFragment
from stream.recording.mp4_boxes import begin_ticks, boxes, earlier, header_length, whole_length
from tests.support.fragments import fragments_of, packets_of, video_file


@pytest.fixture(scope="module")
def fragments(tmp_path_factory: pytest.TempPathFactory) -> list[VideoFragment]:
    return fragments_of(str(video_file(tmp_path_factory.mktemp("boxes") / "a.mp4", 4)))


def test_the_header_ends_before_the_first_fragment(fragments: list[VideoFragment]) -> None:
    first = fragments[0]
    assert header_length(first.init + first.data) == len(first.init)
    assert header_length(first.init) == len(first.init)


def test_a_torn_end_is_found_at_every_length(fragments: list[VideoFragment]) -> None:
    first = fragments[0].init + fragments[0].data
    data = first + fragments[1].data
    assert whole_length(data) == len(data)
    for cut in range(1, len(fragments[1].data), 97):
        assert whole_length(data[:-cut]) == len(first)
    assert whole_length(fragments[0].init) == 0
    assert whole_length(b"no video at all") == 0
    assert whole_length(data + bytes(64)) == len(data)


def test_fragments_can_be_decoded_earlier(fragments: list[VideoFragment]) -> None:
    late = fragments[2].data
    ticks = begin_ticks(late)
    assert ticks > 0
    early = earlier(late, ticks)
    assert begin_ticks(early) == 0
    assert packets_of(fragments[2].init + early) == packets_of(fragments[2].init + late)


def test_data_without_a_decode_time_is_refused() -> None:
    with pytest.raises(ValueError, match="no decode time"):
        begin_ticks(struct.pack(">I4s", 8, b"moof"))


def test_large_and_open_boxes() -> None:
    large = struct.pack(">I4sQ", 1, b"mdat", 20) + b"abcd"
    to_the_end = struct.pack(">I4s", 0, b"mdat") + b"rest"
    assert [(box.kind, box.content, box.end) for box in boxes(large + to_the_end)] == [
        (b"mdat", 16, 20),
        (b"mdat", 28, 32),
    ]
