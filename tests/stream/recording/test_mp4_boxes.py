"""Boxes of fragmented MP4 of a real video: whole fragments, and times that begin at zero."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest

from stream.events import VideoFragment
from stream.recording.mp4_boxes import (
    BOXES_MAX,
    begin_ticks,
    boxes,
    earlier,
    file_boxes,
    header_length,
    whole_length,
)
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
    assert whole_length(io.BytesIO(data)) == len(data)
    for cut in range(1, len(fragments[1].data), 97):
        assert whole_length(io.BytesIO(data[:-cut])) == len(first)
    assert whole_length(io.BytesIO(fragments[0].init)) == 0
    assert whole_length(io.BytesIO(b"no video at all")) == 0
    assert whole_length(io.BytesIO(data + bytes(64))) == len(data)


def test_a_large_file_is_not_read_into_memory(tmp_path: Path, fragments: list[VideoFragment]) -> None:
    data = fragments[0].init + fragments[0].data
    with (tmp_path / "a.mp4").open("w+b") as file:
        file.write(data)
        file.truncate(1 << 40)
        assert whole_length(file) == len(data)
    last = struct.pack(">I4s", 8, b"moof") + struct.pack(">I4s", 0, b"mdat") + b"to the end of the file"
    assert whole_length(io.BytesIO(data + last)) == len(data + last)


def test_a_limited_number_of_boxes_is_read() -> None:
    class CountedReads(io.BytesIO):
        reads = 0

        def read(self, size: int | None = -1) -> bytes:
            self.reads += 1
            return super().read(size)

    file = CountedReads(struct.pack(">I4s", 8, b"moof") * (BOXES_MAX + 1000))
    assert whole_length(file) == 0
    assert file.reads == BOXES_MAX


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


def test_boxes_of_a_file_are_those_of_its_bytes(fragments: list[VideoFragment]) -> None:
    large = struct.pack(">I4sQ", 1, b"free", 20) + b"abcd"
    data = fragments[0].init + large + fragments[0].data
    file = io.BytesIO(data)
    yielded = []
    for box in file_boxes(file):
        yielded.append(box)
        file.seek(0)  # reads of the caller in between disturb nothing
    assert yielded == list(boxes(data))
    assert yielded[-1].end == len(data)


def test_a_size_beyond_any_file_ends_the_boxes() -> None:
    data = struct.pack(">I4s", 8, b"free") + struct.pack(">I4sQ", 1, b"mdat", 2**64 - 1) + b"abcd"
    assert [(box.kind, box.end) for box in file_boxes(io.BytesIO(data))] == [(b"free", 8), (b"mdat", 7 + 2**64)]
