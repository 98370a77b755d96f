"""Records in a file: whole ones come back, and nothing of one that was cut short or damaged."""

from __future__ import annotations

import io

import pytest

from stream.recording.log import FRAMING, framed, read_framed

PAYLOADS = [b"one", b"2", b"three" * 100]
WHOLE = b"".join(map(framed, PAYLOADS))
ENDS = [len(b"".join(map(framed, PAYLOADS[: count + 1]))) for count in range(len(PAYLOADS))]


def read(data: bytes, start: int = 0) -> list[tuple[bytes, int]]:
    file = io.BytesIO(data)
    file.seek(start)
    return list(read_framed(file))


def test_whole_records_come_back_with_where_they_end() -> None:
    assert read(WHOLE) == list(zip(PAYLOADS, ENDS, strict=True))
    assert read(b"head" + WHOLE, 4) == [(payload, end + 4) for payload, end in zip(PAYLOADS, ENDS, strict=True)]
    assert read(b"") == []


def test_wherever_a_file_was_cut_off_the_records_before_are_whole() -> None:
    for length in range(len(WHOLE)):
        assert [end for _, end in read(WHOLE[:length])] == [end for end in ENDS if end <= length]


@pytest.mark.parametrize("at", [0, 4, FRAMING.size, ENDS[1] - 1])
def test_a_damaged_record_ends_the_reading(at: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[at] ^= 1
    assert len(read(bytes(damaged))) <= 1


def test_a_length_beyond_the_file_is_not_believed() -> None:
    assert read(framed(b"a") + FRAMING.pack(4_000_000_000, 0) + b"rest") == [(b"a", FRAMING.size + 1)]


def test_zeros_in_place_of_what_never_reached_the_disk_are_no_records() -> None:
    assert [payload for payload, _ in read(WHOLE + bytes(3 * FRAMING.size))] == PAYLOADS
