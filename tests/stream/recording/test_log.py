"""Records in a file: whole records are read back, incomplete and damaged ones are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream.recording.log import FRAMING, ForeignFile, RecordLog, frame_record

MAGIC = b"some log 1\n"
PAYLOADS = [b"one", b"2", b"three" * 100]
WHOLE = MAGIC + b"".join(map(frame_record, PAYLOADS))
ENDS = [len(MAGIC + b"".join(map(frame_record, PAYLOADS[: count + 1]))) for count in range(len(PAYLOADS))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def read(path: Path, data: bytes) -> tuple[list[bytes], int]:
    """Return the records in the data, and the number of bytes after them."""
    path.write_bytes(data)
    log = RecordLog(path, MAGIC)
    return list(log.records()), log.torn_bytes


def test_whole_records_come_back(path: Path) -> None:
    assert read(path, WHOLE) == (PAYLOADS, 0)
    assert read(path, MAGIC) == ([], 0)


def test_a_file_cut_off_at_any_byte_keeps_the_records_before(path: Path) -> None:
    for length in range(len(MAGIC), len(WHOLE)):
        count = sum(end <= length for end in ENDS)
        assert read(path, WHOLE[:length]) == (PAYLOADS[:count], length - [len(MAGIC), *ENDS][count])


@pytest.mark.parametrize("at", [0, 4, FRAMING.size, ENDS[1] - len(MAGIC) - 1])
def test_a_damaged_record_ends_the_reading(path: Path, at: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[len(MAGIC) + at] ^= 1
    assert len(read(path, bytes(damaged))[0]) <= 1


def test_a_length_beyond_the_file_is_ignored(path: Path) -> None:
    torn = FRAMING.pack(4_000_000_000, 0) + b"rest"
    assert read(path, MAGIC + frame_record(b"a") + torn) == ([b"a"], len(torn))


def test_zeros_in_place_of_what_never_reached_the_disk_are_no_records(path: Path) -> None:
    assert read(path, WHOLE + bytes(3 * FRAMING.size)) == (PAYLOADS, 3 * FRAMING.size)


@pytest.mark.parametrize("length", range(len(MAGIC)))
def test_magic_that_was_cut_short_is_a_log_without_records(path: Path, length: int) -> None:
    assert read(path, MAGIC[:length]) == ([], length)


def test_a_file_that_begins_otherwise_is_another_one(path: Path) -> None:
    with pytest.raises(ForeignFile) as caught:
        read(path, b"some log 2\nrest")
    assert caught.value.start == b"some log 2\n"


def test_appending_goes_on_after_what_was_read_and_drops_a_torn_end(path: Path) -> None:
    path.write_bytes(WHOLE[:-1])
    log = RecordLog(path, MAGIC)
    assert list(log.records()) == PAYLOADS[:-1]
    log.open()
    log.append(PAYLOADS[-1])
    log.close()
    assert path.read_bytes() == WHOLE


def test_appending_to_a_removed_file_fails(path: Path) -> None:
    log = RecordLog(path, MAGIC)
    log.open()
    log.append(b"a")
    path.unlink()
    with pytest.raises(FileNotFoundError, match="its file was removed"):
        log.append(b"b")
    log.close()


def test_a_new_log_replaces_none(path: Path) -> None:
    path.touch()
    with pytest.raises(FileExistsError):
        RecordLog(path, MAGIC).open(new=True)


def test_one_process_appends_at_a_time(path: Path) -> None:
    first, second = RecordLog(path, MAGIC), RecordLog(path, MAGIC)
    first.open()
    with pytest.raises(BlockingIOError):
        second.open()
    first.close()
    second.open()
    second.close()
