"""MCAP files that cannot be written to their end."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import pytest
from mcap.reader import make_reader
from mcap.writer import CompressionType, Writer

from stream.extensions.robotics import mcap_records
from stream.extensions.robotics.mcap_records import ENDING, RecordFile, end_records


def written(path: Path, messages: int = 12) -> list[int]:
    """Return a whole MCAP file, and the offset at which each chunk with its index ends."""
    ends = []
    with path.open("wb") as file:
        writer = Writer(file, chunk_size=1, compression=CompressionType.NONE)
        writer.start()
        channel = writer.register_channel("/a", "json", writer.register_schema("A", "jsonschema", b"{}"))
        for number in range(messages):
            writer.add_message(channel, number, b'{"n": %d}' % number, number)
            ends.append(file.tell())
        writer.finish()
    return ends


def numbers(path: Path) -> list[int]:
    with path.open("rb") as file:
        return [message.log_time for _, _, message in make_reader(file, validate_crcs=True).iter_messages()]


def test_a_file_cut_off_at_any_byte_keeps_its_whole_records(tmp_path: Path) -> None:
    path, cut = tmp_path / "a.mcap", tmp_path / "b.mcap"
    ends, data = written(path), path.read_bytes()
    lengths: Counter[int] = Counter()
    for size in range(60, len(data) - 8, 7):
        cut.write_bytes(data[:size])
        with cut.open("r+b") as file:
            has_records = end_records(file.fileno())
        count = sum(end <= size for end in ends)
        records = numbers(cut)
        assert count <= len(records) <= count + 1  # a chunk's index may be lacking
        assert records == list(range(len(records)))
        assert has_records or not records
        lengths[len(records)] += 1
    assert set(lengths) == set(range(13))


def test_a_file_without_records_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    path.write_bytes(b"\x89MCAP0\r\n\x01")
    with path.open("r+b") as file:
        assert not end_records(file.fileno())
    assert path.stat().st_size == 9


def test_records_are_removed_if_the_ending_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.mcap"
    ends = written(path)
    with path.open("r+b") as file:
        os.ftruncate(file.fileno(), ends[-1])
        write_at = mcap_records._write_at

        def limited(fd: int, data: bytes, at: int) -> None:
            if at + len(data) > ends[8]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write_at(fd, data, at)

        monkeypatch.setattr(mcap_records, "_write_at", limited)
        assert end_records(file.fileno())
    assert path.read_bytes().endswith(ENDING)
    assert numbers(path) == list(range(8))


def test_a_file_takes_nothing_after_a_write_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a.mcap", 2)
    data = (tmp_path / "a.mcap").read_bytes()
    file = RecordFile(str(tmp_path / "b.mcap"))
    assert file.write(data[:200]) == 200
    real, file._file = file._file, open("/dev/full", "wb", buffering=0)  # type: ignore[assignment]  # noqa: SIM115
    assert file.write(b"lost") == 4
    file._file.close()
    file._file = real
    assert file.error is not None
    assert file.error.errno == errno.ENOSPC
    assert file.write(b"not tried") == 9
    assert file.seek(0, 1) == 213
    file.close()
    file.close()
    assert (tmp_path / "b.mcap").read_bytes().endswith(ENDING)
    assert numbers(tmp_path / "b.mcap") in ([], [0])
