"""Several pictures in one texture."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from arr_coc.errors import ShapeError, StoreError
from arr_coc.ops.gl import texture
from arr_coc.ops.gl.arrays import GlTextureArray
from tests.gl_devices import shared_device
from tests.plane_maker import expected_levels

Bytes = npt.NDArray[np.uint8]
SIZE = (100, 150)


@pytest.fixture
def array() -> Iterator[GlTextureArray]:
    shared_device()
    made = GlTextureArray(3, *SIZE)
    yield made
    made.close()


def noise(layers: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, (layers, *SIZE, 3), dtype=np.uint8)


def levels_of(image: Bytes) -> list[Bytes]:
    return expected_levels(np.pad(image, ((0, 28), (0, 10), (0, 0)), mode="edge"))


def assert_holds(array: GlTextureArray, layer: int, image: Bytes) -> None:
    for level, expected in enumerate(levels_of(image)):
        np.testing.assert_array_equal(array.read(layer, level), expected, err_msg=f"layer {layer}, level {level}")


def test_every_layer_has_its_own_picture_on_every_level(array: GlTextureArray) -> None:
    images = noise(3)
    array.update(images)
    for layer in range(3):
        assert_holds(array, layer, images[layer])


def test_one_pass_makes_the_mipmaps_of_all_layers(array: GlTextureArray, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = array.device.library.calls
    groups: list[int] = []
    dispatch = calls.glDispatchCompute
    monkeypatch.setattr(calls, "glDispatchCompute", lambda *size: (groups.append(size[0]), dispatch(*size)))
    array.update(noise(3))
    assert groups == [3 * array.grid.tiles]


def test_layers_that_are_not_named_stay(array: GlTextureArray) -> None:
    first, second = noise(3), noise(2, seed=1)
    array.update(first)
    array.update(second, layers=[2, 0])
    for layer, image in ((0, second[1]), (1, first[1]), (2, second[0])):
        assert_holds(array, layer, image)


def test_tiles_that_are_not_dirty_stay(array: GlTextureArray) -> None:
    first, second = noise(3), noise(3, seed=1)
    array.update(first)
    dirty = np.zeros((3, 4, 5), bool)
    dirty[0, 1, 2] = dirty[2, :2, 1:4] = True
    array.update(second, dirty=dirty)
    for layer in range(3):
        mask = dirty[layer].repeat(32, axis=0).repeat(32, axis=1)[: SIZE[0], : SIZE[1], None]
        assert_holds(array, layer, np.where(mask, second[layer], first[layer]))


def test_what_does_not_fit_into_the_ring_goes_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    device = shared_device()
    monkeypatch.setattr(texture, "MOST_RING_BYTES", 1)
    monkeypatch.setattr(texture, "MOST_TILES_AT_ONCE", 16)
    groups: list[int] = []
    calls = device.library.calls
    dispatch = calls.glDispatchCompute
    monkeypatch.setattr(calls, "glDispatchCompute", lambda *size: (groups.append(size[0]), dispatch(*size)))
    array, images = GlTextureArray(3, *SIZE), noise(3)
    array.update(images)
    assert groups == [16, 4] * 3
    for layer in range(3):
        assert_holds(array, layer, images[layer])
    array.close()


def test_regions_come_from_any_layer(array: GlTextureArray) -> None:
    images = noise(3)
    array.update(images)
    regions = np.array([[2, 0, 3, 4], [0, 1, 0, 1], [1, 5, 0, 0], [2, 0, 0, 0]])
    for got, (layer, level, row, col) in zip(array.gather(regions), regions.tolist(), strict=True):
        texels = levels_of(images[layer])[level]
        rows = np.minimum(32 * row + np.arange(32), texels.shape[0] - 1)
        cols = np.minimum(32 * col + np.arange(32), texels.shape[1] - 1)
        np.testing.assert_array_equal(got, texels[rows[:, None], cols].transpose(2, 0, 1))


def test_a_layer_that_was_never_written_is_black_and_nothing_may_be_updated(array: GlTextureArray) -> None:
    array.update(noise(0))
    array.update(noise(1), dirty=np.zeros((1, 4, 5), bool))
    assert not array.read(2, 0).any()


def test_what_does_not_fit_is_refused(array: GlTextureArray) -> None:
    with pytest.raises(ShapeError, match="a layer and a pixel, got 0 of 4x4"):
        GlTextureArray(0, 4, 4)
    with pytest.raises(ShapeError, match=r"images are uint8 \(1, 100, 150, 3\), got uint8 \(1, 99, 150, 3\)"):
        array.update(noise(1)[:, 1:])
    with pytest.raises(ShapeError, match=r"got float64"):
        array.update(noise(1).astype(float))
    for layers in ([3], [-1], [1, 1]):
        with pytest.raises(ShapeError, match="layers are different ones of 0 to 2"):
            array.update(noise(len(layers)), layers=layers)
    with pytest.raises(ShapeError, match=r"dirty is bool \(1, 4, 5\), got bool \(4, 5\)"):
        array.update(noise(1), dirty=np.ones((4, 5), bool))
    for layer, level in ((3, 0), (-1, 0), (0, 6), (0, -1)):
        with pytest.raises(ShapeError, match="there are 3 layers of 6 levels"):
            array.read(layer, level)
    with pytest.raises(ShapeError, match=r"integers \[K, 4\]"):
        array.gather(np.zeros((1, 3), int))
    with pytest.raises(ShapeError, match=r"region \[3, 0, 0, 0\] .* lies outside 3 layers of \(4, 5\) tiles"):
        array.gather(np.array([[0, 0, 0, 0], [3, 0, 0, 0]]))


def test_a_closed_array_is_of_no_use_and_its_memory_is_free() -> None:
    device = shared_device()
    array = GlTextureArray(1, *SIZE)
    name = array._texture.name
    array.close()
    array.close()
    with device.current():
        assert not device.library.gl.glIsTexture(name)
    for use in (lambda: array.read(0, 0), lambda: array.update(noise(1)), lambda: array.gather(np.zeros((1, 4), int))):
        with pytest.raises(StoreError, match="the texture array is closed"):
            use()
