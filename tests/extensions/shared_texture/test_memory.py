"""Memory of a shared texture: equal pictures for its readers, and none of two frames that goes unnoticed."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.texture.store.base import TextureView
from stream.errors import TransportError
from stream.events import FrameMap
from stream.extensions.shared_texture import reader as reader_module
from stream.extensions.shared_texture.layout import PAGE, TextureMemory, memory_bytes
from stream.extensions.shared_texture.reader import SharedTexture
from stream.extensions.shared_texture.server import TextureServer
from stream.extensions.shared_texture.writer import TextureWriter
from tests.support.network import LIMIT_S, until
from tests.support.video import PictureStream, scenery


def map_of(view: TextureView, tokens: int = 3) -> FrameMap:
    """A map with a region for each of the first tiles, the first of which is an overview."""
    rows, cols = view.grid.shape
    regions = np.array([(0, index // cols, index % cols) for index in range(tokens)], "<i2")
    relevance = np.arange(rows * cols, dtype=np.uint8)
    return FrameMap(rows=rows, cols=cols, relevance=relevance.tobytes(), regions=regions.tobytes(), overview=1)


class Sharing:
    """A server with one connected reader, and the stream of pictures that it shares."""

    def __init__(self, path: Path) -> None:
        self.server = TextureServer(str(path), "camera")
        self.reader = SharedTexture.connect(path)
        self.stream = PictureStream(epoch=7)
        self.writer: TextureWriter | None = None
        until(lambda: self.server.has_clients)

    def show(self, picture: npt.NDArray[np.uint8]) -> TextureView:
        view = self.stream.show(picture)
        if self.writer is None or self.writer.memory.grid != view.grid:
            self.writer = TextureWriter(view.grid)
        self.server.share(self.writer, self.writer.write(view, map_of(view)))
        return view

    def close(self) -> None:
        self.reader.close()
        self.server.close()


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[Sharing]:
    shared = Sharing(tmp_path / "a.sock")
    yield shared
    shared.close()


def changed(picture: npt.NDArray[np.uint8], row: int, col: int, value: int) -> npt.NDArray[np.uint8]:
    """The picture with another tile."""
    other = picture.copy()
    other[row * 32 : row * 32 + 32, col * 32 : col * 32 + 32] = value
    return other


def test_a_reader_has_each_frame_with_its_versions(sharing: Sharing) -> None:
    picture = scenery(4, 6)
    for number, (row, col) in enumerate([(0, 0), (3, 5), (1, 2), (1, 3), (2, 2)]):
        picture = changed(picture, row, col, 10 * number)
        if number == 3:
            sharing.stream.cut()
        view = sharing.show(picture)
        frame = sharing.reader.update(LIMIT_S)
        assert frame is not None
        np.testing.assert_array_equal(frame.pixels, picture)
        np.testing.assert_array_equal(frame.versions.frame, view.versions.frame)
        assert (frame.frame_index, frame.versions.epoch) == (view.stamp.frame_index, view.versions.epoch)
        assert frame.media_s == pytest.approx(view.stamp.media_ns / 1e9)
        assert frame.changed.sum() == (24 if number in (0, 3) else 1), "one tile, or all after a cut"
        assert frame.relevance.flatten().tolist() == list(range(24))
        assert (frame.regions.tolist(), frame.overview) == ([[0, 0, 0], [0, 0, 1], [0, 0, 2]], 1)
    assert sharing.reader.update() is None, "nothing new"
    assert (sharing.reader.source, sharing.reader.torn) == ("camera", 0)


def test_a_slow_reader_gets_the_newest_frame_whole(sharing: Sharing) -> None:
    picture = scenery(4, 6)
    for number in range(7):
        picture = changed(picture, number % 4, number % 6, number)
        sharing.show(picture)
    frames = []
    while not frames or frames[-1].frame_index < 6:
        frame = sharing.reader.update(LIMIT_S)
        assert frame is not None
        frames.append(frame)
    np.testing.assert_array_equal(frames[-1].pixels, picture)


@pytest.mark.parametrize("overwrites", [2, 3])
def test_a_picture_that_is_overwritten_while_it_is_read_is_read_again(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch, overwrites: int
) -> None:
    copied = reader_module.cover
    pictures = [scenery(4, 6, seed) for seed in range(overwrites + 1)]

    def overwriting(tiles: npt.NDArray[np.bool_]) -> tuple[tuple[int, int, int, int], ...]:
        monkeypatch.setattr(reader_module, "cover", copied)
        for picture in pictures[1:]:
            sharing.show(picture)
        return copied(tiles)

    sharing.show(pictures[0])
    monkeypatch.setattr(reader_module, "cover", overwriting)
    frame = sharing.reader.update(LIMIT_S)
    assert frame is not None
    np.testing.assert_array_equal(frame.pixels, pictures[-1])
    assert (frame.frame_index, sharing.reader.torn) == (overwrites, 1)
    assert frame.changed.all(), "tiles of the torn picture are copied again"


def test_a_picture_that_is_being_written_is_not_shown(sharing: Sharing) -> None:
    sharing.show(scenery(4, 6))
    assert sharing.reader.update(LIMIT_S) is not None
    writer = sharing.writer
    assert writer is not None
    memory = writer.memory
    memory.slot(2).head["number"] = 0  # as while it is written
    memory.header["newest"] = 2
    assert sharing.reader.update() is None
    assert sharing.reader.torn == reader_module.ATTEMPTS


def test_a_picture_of_another_size_comes_in_other_memory(sharing: Sharing) -> None:
    for shape in ((4, 6), (4, 8), (4, 6)):
        picture = scenery(*shape)
        sharing.stream = PictureStream()
        sharing.show(picture)
        frame = sharing.reader.update(LIMIT_S)
        assert frame is not None
        np.testing.assert_array_equal(frame.pixels, picture)
        assert frame.grid.shape == shape


def test_readers_can_neither_write_nor_shrink_the_memory(sharing: Sharing) -> None:
    sharing.show(scenery(4, 6))
    writer = sharing.writer
    assert writer is not None
    size = memory_bytes(writer.memory.grid)
    with pytest.raises(PermissionError):
        mmap.mmap(writer.descriptor, size)
    with pytest.raises(OSError, match="Invalid argument"):
        os.ftruncate(writer.descriptor, 0)
    again = os.open(f"/proc/self/fd/{writer.descriptor}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.ftruncate(again, 0)
    os.close(again)


def damaged(field: str, value: object) -> bytes:
    """Memory of a small texture with another value in its header."""
    view = PictureStream().show(scenery(4, 6))
    writer = TextureWriter(view.grid)
    writer.write(view, map_of(view))
    writer.close()
    writer.memory.header[field] = value
    return bytes(writer.memory.header.tobytes()).ljust(memory_bytes(view.grid), b"\0")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"short", "has 5 bytes, less than its header"),
        (b"x" * PAGE, "no texture of version 1"),
        (damaged("version", 2), "no texture of version 1; use one version on both ends"),
        (damaged("rows", 0), "too small for 0 tiles"),
        (damaged("rows", 400), "too small for 2400 tiles"),
    ],
)
def test_memory_that_holds_no_texture_is_refused(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_bytes(content)
    with path.open("rb") as file, pytest.raises(TransportError, match=problem):
        TextureMemory.of(file.fileno(), len(content))
