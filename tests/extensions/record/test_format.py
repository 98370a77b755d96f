"""Compression of arrays without loss, and recordings whose damage is reported."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from arr_coc.types import FrameStamp, TileGrid, TokenPacket
from stream.errors import OutputError, RecordingError, TransportError
from stream.events import Notice
from stream.extensions.record.format import (
    MAGIC,
    AnyRecord,
    EventRecord,
    ReceivedMessage,
    Recording,
    SentMessage,
    SessionStarted,
    claimed_folder,
    compress_array,
    compress_arrays,
    decompress_array,
    encode_record,
    open_part,
)
from stream.extensions.record.format import decompress_arrays as unpacked_parts
from stream.protocol.codec import specs_of, token_message, token_packet
from stream.protocol.messages import PROTOCOL, ArraySpec, RequestLost, TokenPacketMessage
from stream.recording.log import RecordLog, frame_record
from tests.support.events import QUESTION

RNG = np.random.default_rng(0)


def noise(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def slopes(*, tiles: int = 40) -> np.ndarray:
    """Tiles uint8 [K, 3, 32, 32] as a camera gives them: smooth, coloured, with a little noise."""
    y, x = np.mgrid[0:32, 0:32]
    planes = [
        np.stack([x * 2 + y + k, x * 2 + y, x * 2 + y - k]) + RNG.integers(0, 3, (1, 32, 32)) for k in range(tiles)
    ]
    return np.stack(planes).astype(np.uint8)


@pytest.mark.parametrize(
    "array",
    [
        noise(7, 3, 32, 32),
        noise(64, 96, 3),
        noise(0, 3, 32, 32),
        noise(5),
        noise(4, 4, 4),
        np.arange(12, dtype=np.int32).reshape(4, 3),
        RNG.random((9, 16), dtype=np.float32),
        np.zeros((0, 3), np.int32),
        slopes()[::2],
        np.asfortranarray(noise(32, 64, 3)),
    ],
    ids=["tiles", "frame", "no tile", "bytes", "no picture", "regions", "scores", "no region", "view", "fortran"],
)
def test_packed_values_are_unpacked_bit_for_bit(array: np.ndarray) -> None:
    before = array.copy()
    (spec,) = specs_of(array)
    back = np.frombuffer(decompress_array(compress_array(array), spec), array.dtype).reshape(array.shape)
    np.testing.assert_array_equal(back, before)
    np.testing.assert_array_equal(array, before)


def test_pictures_take_less_than_half_of_what_zlib_leaves() -> None:
    tiles = slopes()
    packed = len(compress_array(tiles))
    assert packed < len(zlib.compress(tiles.tobytes(), 1)) / 2
    frame = np.concatenate(tiles.transpose(0, 2, 3, 1), axis=1)
    assert len(compress_array(frame)) < len(zlib.compress(frame.tobytes(), 1)) / 2


def test_invalid_arrays_are_reported() -> None:
    tiles = noise(3, 3, 32, 32)
    (spec,) = specs_of(tiles)
    (smaller,) = specs_of(tiles[:2])
    packed = compress_array(tiles)
    for data, announced in ((packed[:-20], spec), (packed, smaller), (compress_array(tiles[:2]), spec)):
        with pytest.raises(TransportError, match="was packed with another size"):
            decompress_array(data, announced)
    with pytest.raises(TransportError, match=r"uint8\[3, 3, 32, 32\] cannot be unpacked"):
        decompress_array(b"garbage", spec)
    for shape in ((1 << 40, 3, 1 << 40), (0, 3, 1 << 62, 1 << 62)):
        with pytest.raises(TransportError):
            decompress_array(packed, ArraySpec("uint8", shape))


BEGAN = SessionStarted("0.1.0", "clip.mp4", "2026-01-01T00:00:00+00:00")


def packet_record(number: int) -> SentMessage:
    """Return the record of a packet of two tokens."""
    rng = np.random.default_rng(number)
    regions = rng.integers(0, (1, 2, 3), (2, 3), dtype=np.int32)
    pixels = rng.integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)
    packet = TokenPacket(FrameStamp(number, 0, 0), TileGrid.of(64, 96), regions, np.ones(2, np.float32), pixels)
    message, arrays = token_message(number, number, packet, QUESTION)
    return SentMessage(message, compress_arrays(arrays))


def happened(number: int) -> EventRecord:
    return EventRecord(Notice(code="n", message=str(number)))


def written(folder: Path, *records: AnyRecord) -> Path:
    """Write a part with these records; return its path."""
    part = open_part(folder)
    for record in records:
        part.append(encode_record(record))
    part.close()
    return max(folder.glob("*.rec"))


def test_a_new_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    written(tmp_path / "part", happened(1))
    with claimed_folder(str(tmp_path / "claimed")):
        for name in ("part", "claimed"):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o700


def test_records_come_back_in_order_and_packets_to_the_bit(tmp_path: Path) -> None:
    records = [
        BEGAN,
        SentMessage(RequestLost(answer=1, reason="ünsaid?")),
        packet_record(1),
        ReceivedMessage(RequestLost(answer=1, reason="x")),
        happened(2),
    ]
    written(tmp_path / "a", *records)
    recording = Recording(tmp_path / "a")
    assert list(recording.records()) == records
    assert recording.damage == []
    (record,) = (
        r for r in recording.records() if isinstance(r, SentMessage) and isinstance(r.message, TokenPacketMessage)
    )
    assert isinstance(record.message, TokenPacketMessage)
    packet = token_packet(record.message, unpacked_parts(record))
    rng = np.random.default_rng(1)
    np.testing.assert_array_equal(packet.regions, rng.integers(0, (1, 2, 3), (2, 3), dtype=np.int32))
    np.testing.assert_array_equal(packet.pixels, rng.integers(0, 256, (2, 3, 32, 32), dtype=np.uint8))


def test_each_process_writes_a_part_and_they_are_read_in_order(tmp_path: Path) -> None:
    paths = [written(tmp_path, BEGAN, happened(number)) for number in range(12)]
    assert [path.name for path in paths] == [f"{number + 1:04}.rec" for number in range(12)]
    (tmp_path / "9999.rec").write_bytes(paths[1].read_bytes())
    (tmp_path / "10000.rec").write_bytes(paths[0].read_bytes())
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    numbers = [r.event.message for r in Recording(tmp_path).records() if isinstance(r, EventRecord)]  # type: ignore[union-attr]
    assert numbers == [*map(str, range(12)), "1", "0"]


def test_of_a_part_that_was_cut_short_all_before_is_read_and_the_rest_reported(tmp_path: Path) -> None:
    path = written(tmp_path, BEGAN, happened(1), packet_record(2))
    content = path.read_bytes()
    written(tmp_path, BEGAN, happened(3))
    path.write_bytes(content[:-7])
    recording = Recording(tmp_path)
    records = list(recording.records())
    assert [type(record) for record in records] == [SessionStarted, EventRecord, SessionStarted, EventRecord]
    (reported,) = recording.damage
    assert reported.startswith("0001.rec was cut short or damaged after 2 records; ")
    assert reported.endswith(f"{len(content) - 7 - len(whole_until(path, 2))} bytes left out")
    for start in (b"", MAGIC[:5], MAGIC):
        path.write_bytes(start)
        assert len(list(recording.records())) == 2
        assert recording.damage[0].startswith("0001.rec was cut short or damaged after 0 records")


def whole_until(path: Path, records: int) -> bytes:
    """Return the beginning of a part with `records` whole records."""
    log = RecordLog(path, MAGIC)
    payloads = log.records()
    for _ in range(records):
        next(payloads)
    return path.read_bytes()[: log.end]


def test_other_files_are_reported(tmp_path: Path) -> None:
    for absent in (tmp_path, tmp_path / "absent"):
        with pytest.raises(RecordingError, match=r"there is no recording in .*; give the folder"):
            Recording(absent)
    path = tmp_path / "0001.rec"
    for data, message in (
        (b"arr-coc recording 9\nrest", r"0001.rec' is of format 9, and this program reads format 3; replay it with"),
        (b"something else entirely", r"0001.rec' is not a part of a recording; remove it"),
    ):
        path.write_bytes(data)
        with pytest.raises(RecordingError, match=message):
            list(Recording(tmp_path).records())
    path.unlink()
    path.mkdir()
    with pytest.raises(RecordingError, match=r"cannot read .*0001.rec': it is not a file"):
        list(Recording(tmp_path).records())


def test_messages_of_another_version_are_refused(tmp_path: Path) -> None:
    written(tmp_path, SessionStarted("0.0.9", "", "", protocol=PROTOCOL - 1), happened(1))
    with pytest.raises(RecordingError, match=rf"of version {PROTOCOL - 1}, .* version {PROTOCOL}; .* version 0.0.9"):
        list(Recording(tmp_path).records())


def test_a_whole_record_of_an_unknown_kind_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path, BEGAN)
    path.write_bytes(path.read_bytes() + frame_record(b"\xc1"))
    with pytest.raises(RecordingError, match=r"0001.rec' has an invalid record"):
        list(Recording(tmp_path).records())


def test_if_the_disk_is_full_nothing_of_the_record_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = open_part(tmp_path)
    part.append(encode_record(BEGAN))
    write, room = os.write, 100

    def full(descriptor: int, data: bytes) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = write(descriptor, data[:room])
        room -= count
        return count

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        part.append(encode_record(packet_record(1)))
    part.close()
    recording = Recording(tmp_path)
    assert list(recording.records()) == [BEGAN]
    assert recording.damage == []


def test_a_part_that_cannot_be_begun_leaves_no_descriptor_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.listdir("/proc/self/fd")

    monkeypatch.setattr(os, "write", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(OSError, match="No space left"):
        open_part(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_folder_is_claimed_and_removed_if_nothing_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    with claimed_folder(str(folder)):
        assert folder.is_dir()
    assert not folder.exists()
    with claimed_folder(str(folder)):
        written(folder, BEGAN)
    assert folder.is_dir()
    (tmp_path / "empty").mkdir()
    with claimed_folder(str(tmp_path / "empty")):
        pass
    assert (tmp_path / "empty").is_dir(), "it was there before"


def test_a_folder_that_cannot_take_a_recording_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a", BEGAN)
    (tmp_path / "file").touch()
    (tmp_path / "locked").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for folder, message in (
        ("a", "holds a recording already; name another folder"),
        ("photos", "cannot record into .*: it is not empty; name another folder, new or empty"),
        ("file", "cannot record into .*: it is a file; name a folder"),
        ("absent/deep", "cannot record into .*: No such file or directory; name a folder"),
        ("a" * 300, "cannot record into .*: File name too long; name a folder"),
        ("locked", "cannot record into .*: it cannot be written; name another folder"),
    ):
        with pytest.raises(OutputError, match=message), claimed_folder(str(tmp_path / folder)):
            pass
