"""Textures of several cameras in one array: the bytes of a store each, and one picture a layer for who draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from arr_coc.backends.gl.layers import GlLayers
from arr_coc.errors import BackendMissing, ShapeError, StoreError
from arr_coc.texture.store.base import CpuStore
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.types import LEVELS, FramePlanes
from stream.extensions.doctor.gpu.reference import regions_of, require_same_texture, with_tiles_of
from tests.support.stores import shared_device
from tests.support.video import random_planes, stamp

CAMERAS = 3
HEIGHT_PX, WIDTH_PX = 150, 330


def noise(seed: int) -> FramePlanes:
    return random_planes(np.random.default_rng(seed), HEIGHT_PX, WIDTH_PX)


@pytest.fixture
def layers() -> Iterator[GlLayers]:
    """An array of three cameras."""
    shared_device()
    with closing(GlLayers(PlaneFormat.of(noise(0)), CAMERAS, Thresholds(0, 0), 200)) as opened:
        yield opened


@pytest.fixture
def references() -> list[CpuStore]:
    """Stores of the CPU with the same frames."""
    return [CpuStore(PlaneFormat.of(noise(0)), Thresholds(0, 0), 200) for _ in range(CAMERAS)]


def test_frames_written_together_have_the_bytes_of_stores_of_their_own(
    layers: GlLayers, references: list[CpuStore]
) -> None:
    rng = np.random.default_rng(1)
    frames = [noise(camera) for camera in range(CAMERAS)]
    for index in range(5):
        changed = [rng.random(layers.stores[0].grid.shape) < share for share in rng.permutation([0.0, 0.1, 0.7])]
        if index:
            frames = [
                with_tiles_of(frame, noise(10 * index + camera), tiles)
                for camera, (frame, tiles) in enumerate(zip(frames, changed, strict=True))
            ]
        changes = layers.update(frames, [stamp(index, epoch=index // 4)] * CAMERAS)
        for store, reference, frame, change in zip(layers.stores, references, frames, changes, strict=True):
            expected = reference.update(frame, stamp(index, epoch=index // 4))
            np.testing.assert_array_equal(change.dirty, expected.dirty)
            require_same_texture(store, reference)
            regions = regions_of(store.grid, rng, 20)
            with store.lease() as view, reference.lease() as reference_view:
                np.testing.assert_array_equal(view.gather(regions), reference_view.gather(regions))


def test_each_camera_may_write_by_itself(layers: GlLayers, references: list[CpuStore]) -> None:
    for camera, (store, reference) in enumerate(zip(layers.stores, references, strict=True)):
        for index in range(2):
            for one in (store, reference):
                one.update(noise(camera + index), stamp(index))
    for store, reference in zip(layers.stores, references, strict=True):
        require_same_texture(store, reference)


@pytest.mark.parametrize("copies", [True, False])
def test_level_0_arrives_by_copies_and_by_the_kernel(
    layers: GlLayers, references: list[CpuStore], copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers.stores[0].device, "software", copies)
    frames = [noise(camera) for camera in range(CAMERAS)]
    layers.update(frames, [stamp(0)] * CAMERAS)
    for store, reference, frame in zip(layers.stores, references, frames, strict=True):
        reference.update(frame, stamp(0))
        require_same_texture(store, reference)


def test_the_array_is_drawn_from_by_one_name(layers: GlLayers, references: list[CpuStore]) -> None:
    frames = [noise(camera) for camera in range(CAMERAS)]
    layers.update(frames, [stamp(camera) for camera in range(CAMERAS)])
    device = layers.stores[0].device
    gl = device.library.gl
    with device.current(), layers.drawing() as drawn:
        assert [one.stamp.frame_index for one in drawn] == [0, 1, 2]
        for level in range(LEVELS):
            size = (layers.stores[0].grid.padded_height_px >> level, layers.stores[0].grid.padded_width_px >> level)
            texels = np.empty((CAMERAS, *size, 4), np.uint8)
            gl.glGetTextureImage(layers.name, level, gl.GL_RGBA, gl.GL_UNSIGNED_BYTE, texels.nbytes, texels)
            for reference, frame, layer in zip(references, frames, texels, strict=True):
                reference.update(frame, stamp(0))
                with reference.lease() as view:
                    np.testing.assert_array_equal(layer[..., :3], view.read(level))


def test_readers_of_one_camera_keep_the_others_frames_back(layers: GlLayers) -> None:
    layers.update([noise(0)] * CAMERAS, [stamp(0)] * CAMERAS)
    with layers.stores[1].lease() as view, pytest.raises(StoreError, match="waited 200 ms to write"):
        layers.update([noise(1)] * CAMERAS, [stamp(1)] * CAMERAS)
    assert view.stamp.frame_index == 0
    changes = layers.update([noise(1)] * CAMERAS, [stamp(1)] * CAMERAS)
    assert all(change.dirty.all() for change in changes)  # the attempt before changed nothing
    reference = CpuStore(PlaneFormat.of(noise(0)), Thresholds(0, 0), 200)
    for index in range(2):
        reference.update(noise(index), stamp(index))
    for store in layers.stores:
        require_same_texture(store, reference)


def test_what_does_not_fit_is_refused(layers: GlLayers) -> None:
    with pytest.raises(ShapeError, match="an array of 3 cameras takes as many frames, got 2"):
        layers.update([noise(0)] * 2, [stamp(0)] * 2)
    with pytest.raises(ShapeError, match="1 camera or more, got 0"):
        GlLayers(PlaneFormat.of(noise(0)), 0)
    with pytest.raises(BackendMissing, match="open several arrays"):
        GlLayers(PlaneFormat.of(noise(0)), 100_000)
    layers.close()
    layers.close()
    with pytest.raises(StoreError, match="the texture store is closed"):
        layers.update([noise(0)] * CAMERAS, [stamp(0)] * CAMERAS)
