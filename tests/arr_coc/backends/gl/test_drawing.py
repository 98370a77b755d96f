"""Drawing from the stream's texture in another context that shares it, by the example program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.backends.gl.store import GlStore
from arr_coc.errors import LeaseTimeout, StoreError
from arr_coc.texture.store.base import CpuStore
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.types import LEVELS, FramePlanes
from scripts.ar_overlay import KEY, ArOverlay, ArProgram, camera_matrix
from stream.sinks.drawing import strip_height
from stream.stages.frame_tap import packed_map
from tests.support.stores import shared_device
from tests.support.video import scenery, stamp

ROWS, COLS, SIZE = 4, 6, (320, 280)
ABOVE = SIZE[1] - strip_height(SIZE[0], KEY)
"""Height of the picture above its strip of text."""


def planes(seed: int) -> FramePlanes:
    return FramePlanes("rgb", (scenery(ROWS, COLS, seed),))


@pytest.fixture
def program() -> Iterator[ArProgram]:
    ar_program = ArProgram(shared_device(), SIZE)
    yield ar_program
    ar_program.close()


def test_a_drawing_follows_the_texture_and_leaves_it_alone(program: ArProgram) -> None:
    fmt = PlaneFormat.of(planes(0))
    store, reference = GlStore(fmt, Thresholds(), 200), CpuStore(fmt, Thresholds(), 200)
    allocator = StreamAllocator(AllocatorOptions("mixed", 8, tau_ms=0.01))
    pictures = []
    for index in (0, 1, 1):
        for any_store in (store, reference):
            any_store.update(planes(index), stamp(len(pictures)))
        with store.lease() as view:
            frame = allocator.allocate(view)
        picture, texture = program.picture(store, ArOverlay().with_map(packed_map(frame)))
        assert (texture.stamp, texture.grid) == (frame.stamp, store.grid)
        pictures.append(picture)
        with store.lease() as view, reference.lease() as expected:
            for level in range(LEVELS):
                np.testing.assert_array_equal(view.read(level), expected.read(level))
    assert pictures[0].shape == (SIZE[1], SIZE[0], 3)
    assert (pictures[0] != pictures[1]).mean() > 0.1, "another scene"
    np.testing.assert_array_equal(pictures[1], pictures[2])
    borders = (pictures[0][..., 0] > 240) & (pictures[0][..., 2] < 40)
    assert borders.sum() > 50, "regions float above the picture"
    store.close()


def test_the_plane_shows_the_pictures_own_colours(program: ArProgram) -> None:
    """Dimmed, unless a region floats above it."""
    halves = np.zeros((ROWS * 32, COLS * 32, 3), np.uint8)
    halves[:, : COLS * 16], halves[:, COLS * 16 :] = (200, 0, 0), (0, 0, 200)
    store = GlStore(PlaneFormat.of(FramePlanes("rgb", (halves,))), Thresholds(), 200)
    store.update(FramePlanes("rgb", (halves,)), stamp(0))
    with store.lease() as view:
        frame = StreamAllocator(AllocatorOptions(budget=1, strategy="grid")).allocate(view)
    picture, _ = program.picture(store, ArOverlay().with_map(packed_map(frame)))
    place = camera_matrix(SIZE[0], ABOVE) @ np.array([[-0.3, 0.3], [0, 0], [0.2, 0.2], [1, 1]], np.float32)
    cols = ((place[0] / place[3] + 1) / 2 * SIZE[0]).astype(int)
    rows = ((1 - place[1] / place[3]) / 2 * ABOVE).astype(int)
    np.testing.assert_array_equal(picture[rows, cols], [[70, 0, 0], [0, 0, 70]])
    store.close()


def test_the_newest_answer_stands_below_the_picture(program: ArProgram) -> None:
    store = GlStore(PlaneFormat.of(planes(0)), Thresholds(), 200)
    store.update(planes(0), stamp(0))
    pictures = [program.picture(store, ArOverlay(caption=text))[0] for text in ("", "a red circle", "a red circle", "")]
    np.testing.assert_array_equal(pictures[1], pictures[2])
    np.testing.assert_array_equal(pictures[0], pictures[3])
    np.testing.assert_array_equal(pictures[0][:ABOVE], pictures[1][:ABOVE])
    assert (pictures[0][ABOVE:] != pictures[1][ABOVE:]).any(axis=2).sum() > 50
    store.close()


def test_regions_of_a_frame_of_another_size_are_not_drawn(program: ArProgram) -> None:
    store = GlStore(PlaneFormat.of(planes(0)), Thresholds(), 200)
    store.update(planes(0), stamp(0))
    with store.lease() as view:
        frame_map = packed_map(StreamAllocator(AllocatorOptions(budget=8)).allocate(view))
    overlay = ArOverlay().with_map(frame_map)
    plain = program.picture(store, ArOverlay())[0]
    assert (program.picture(store, overlay)[0] != plain).any()
    of_another = replace(overlay, grid=(ROWS + 1, COLS))
    np.testing.assert_array_equal(program.picture(store, of_another)[0], plain)
    store.close()


def test_a_texture_that_is_none_of_opengl_is_not_drawn_from() -> None:
    store = CpuStore(PlaneFormat.of(planes(0)), Thresholds(), 200)
    with pytest.raises(StoreError, match=r"stored by cpu \(host memory.*; choose texture.backend = gl"):
        store.drawing()
    store.close()


def test_nothing_is_written_during_a_draw(program: ArProgram) -> None:
    store = GlStore(PlaneFormat.of(planes(0)), Thresholds(), 20)
    store.update(planes(0), stamp(0))
    with shared_device().current(), store.drawing(), pytest.raises(LeaseTimeout, match="still read"):
        store.update(planes(1), stamp(1))
    store.update(planes(1), stamp(1))
    store.close()


def test_the_next_frame_waits_for_a_draw_that_ended_with_an_error() -> None:
    store = GlStore(PlaneFormat.of(planes(0)), Thresholds(), 20)
    store.update(planes(0), stamp(0))
    with pytest.raises(ZeroDivisionError), shared_device().current(), store.drawing():
        raise ZeroDivisionError
    assert len(store._texture._draw_fences) == 1
    store.update(planes(1), stamp(1))
    assert not store._texture._draw_fences
    store.close()


def test_a_draw_ends_with_its_context_current() -> None:
    store, device = GlStore(PlaneFormat.of(planes(0)), Thresholds(), 20), shared_device()
    store.update(planes(0), stamp(0))
    with pytest.raises(StoreError, match="no OpenGL context is current"), device.current() as context, store.drawing():
        device.library.calls.eglMakeCurrent(device.display, None, None, None)
    assert context.handle
    store.close()
