"""The frame that two processes share."""

from __future__ import annotations

import os

import numpy as np
import pytest

from stream.errors import TransportError
from stream.snapshot import SnapshotReader, SnapshotWriter


def picture(height_px: int, width_px: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height_px, width_px, 3), dtype=np.uint8)


def test_what_is_written_is_read_and_a_larger_frame_makes_room() -> None:
    writer = SnapshotWriter()
    reader = SnapshotReader(os.dup(writer.descriptor))
    for height_px, width_px in ((32, 64), (96, 64), (64, 32)):
        image = picture(height_px, width_px)
        writer.write(image)
        np.testing.assert_array_equal(reader.read(height_px, width_px), image)
    writer.close()
    reader.close()


def test_rows_of_a_wider_picture_are_written_packed() -> None:
    writer = SnapshotWriter()
    reader = SnapshotReader(os.dup(writer.descriptor))
    wide = picture(32, 128)
    writer.write(wide[:, 10:74])
    np.testing.assert_array_equal(reader.read(32, 64), wide[:, 10:74])
    writer.close()
    reader.close()


def test_the_reader_shares_the_memory_and_cannot_write() -> None:
    writer = SnapshotWriter()
    reader = SnapshotReader(os.dup(writer.descriptor))
    writer.write(picture(32, 32, 0))
    seen = reader.read(32, 32)
    writer.write(picture(32, 32, 1))
    np.testing.assert_array_equal(seen, picture(32, 32, 1))
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 0
    writer.close()
    reader.close()


def test_a_frame_larger_than_what_was_written_is_refused() -> None:
    writer = SnapshotWriter()
    reader = SnapshotReader(os.dup(writer.descriptor))
    writer.write(picture(32, 32))
    with pytest.raises(TransportError, match="holds 3072 bytes, a frame of 64x64 has 12288"):
        reader.read(64, 64)
    writer.close()
    reader.close()


def test_the_memory_has_no_name() -> None:
    writer = SnapshotWriter()
    assert os.fstat(writer.descriptor).st_nlink == 0
    writer.close()


def test_without_memfd_an_unlinked_file_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    test_the_memory_has_no_name()
    test_what_is_written_is_read_and_a_larger_frame_makes_room()
