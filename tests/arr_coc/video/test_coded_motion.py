"""Motion of tiles from the codec's motion vectors: a guess that the picture must confirm."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.types import FrameStamp, TileGrid
from arr_coc.video.texture_updater import TextureOptions, TextureUpdate, TextureUpdater
from tests.support.camera_moves import Picture, clutter, document, film, planes, steps, tile_middles

Floats = npt.NDArray[np.float32]


@dataclass
class Coded:
    """Motion as a codec would report it; counts its queries."""

    dy: Floats
    dx: Floats
    queries: list[TileGrid] = field(default_factory=list)

    def over(self, grid: TileGrid) -> tuple[Floats, Floats]:
        self.queries.append(grid)
        return self.dy, self.dx


def compared(before: Picture, after: Picture, coded: Coded | None, index: int = 1) -> TextureUpdate:
    updater = TextureUpdater(TextureOptions(cuts=False))
    updater.process(planes(before), FrameStamp(0, 0, 0))
    return updater.process(replace(planes(after), coded_motion=coded), FrameStamp(index, 0, 0))


def turned(angle_deg: float) -> tuple[Picture, Picture, Floats, Floats, npt.NDArray[np.bool_]]:
    """A page that turns from rest: its pictures, the true motion down and right, and the tiles that were in view."""
    first, second = steps(document(3), [(0.0, 0.0, 1.2, 0.0), (0.0, 0.0, 1.2, angle_deg)])
    way = (tile_middles() - second.origin).astype(np.float32)
    return first.picture, second.picture, way[..., 1], way[..., 0], second.seen


def error_px(update: TextureUpdate, dy: Floats, dx: Floats) -> npt.NDArray[np.float32]:
    assert update.motion is not None
    return np.hypot(update.motion.dy_px - dy, update.motion.dx_px - dx)


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_vectors_over_one_or_a_few_frames_give_what_nothing_else_finds(frames: int) -> None:
    before, after, dy, dx, visible_tiles = turned(9.0)
    rng = np.random.default_rng(1)
    has_vector = rng.random(dy.shape) < 0.8
    coded = Coded(np.where(has_vector, dy * frames, np.nan), np.where(has_vector, dx * frames, np.nan))
    update = compared(before, after, coded)
    tiles = update.change.dirty & visible_tiles
    assert np.median(error_px(update, dy, dx)[tiles]) < 1
    assert np.median(error_px(compared(before, after, None), dy, dx)[tiles]) > 8
    assert len(coded.queries) == 1


def test_wrong_vectors_do_no_harm() -> None:
    rng = np.random.default_rng(2)
    wide = clutter(4)
    before, after = (film(wide, (right, 0.0, 1.0, 0.0)) for right in (0.0, 9.0))
    shape = TileGrid.of(*before.shape).shape
    wild = Coded(*rng.uniform(-3000, 3000, (2, *shape)).astype(np.float32))
    steady = Coded(np.full(shape, 16, np.float32), np.full(shape, 40, np.float32))
    for coded in (wild, steady):
        update = compared(before, after, coded)
        inner = error_px(update, np.float32(0), np.float32(-9))[1:-1, 1:-1]
        assert np.percentile(inner, 95) < 1
        assert coded.queries


def test_vectors_of_skipped_frames_and_of_still_ones_are_not_asked() -> None:
    wide = clutter(5)
    before, after = (film(wide, (right, 0.0, 1.0, 0.0)) for right in (0.0, 9.0))
    coded = Coded(*np.zeros((2, *TileGrid.of(*before.shape).shape), np.float32))
    compared(before, after, coded, index=2)
    compared(before, before, coded)
    assert coded.queries == []
