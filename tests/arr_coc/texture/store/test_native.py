"""The compiled kernel: same bytes as the reference, and the reference if it cannot be used."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.texture.kernels import SETTING
from arr_coc.texture.store import native
from arr_coc.texture.store.native import (
    CompiledTexture,
    kernel_in_use,
    kernel_path,
    kernel_remedy,
    load_kernel,
)
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.texture.store.raster import KR_KB, TRUNCATION, HostTexture, ReferenceTexture, rgb_matrix, to_rgb
from arr_coc.types import LEVELS, Colour, FramePlanes, Layout, Matrix
from tests.arr_coc.texture.store.test_contract import DIRTY, FORMATS, SEEDS, dirty_mask
from tests.support.stores import open_kind, require
from tests.support.video import flat_planes, random_planes, stamp, with_tiles_of

ROOT = Path(__file__).resolve().parents[4]
THRESHOLDS = st.builds(Thresholds, st.sampled_from([0, 2.5, 3.5, 4, 7]), st.sampled_from([0, 5, 12, 12.5, 255]))


def both(
    fmt: PlaneFormat, thresholds: Thresholds, levels: int = 6, threads: int = 1
) -> tuple[HostTexture, HostTexture]:
    require("compiled")
    kernel = load_kernel(kernel_path())
    with mock.patch.object(native, "kernel_threads", return_value=threads):
        return CompiledTexture(kernel, fmt, thresholds, levels), ReferenceTexture(fmt, thresholds, levels)


def little_different(planes: FramePlanes, rng: np.random.Generator, most: int) -> FramePlanes:
    """Noise in parts of the picture, of an amplitude about which thresholds differ."""
    changed = []
    for plane in planes.planes:
        noise = rng.integers(-most, most + 1, plane.shape)
        noisy = rng.random(plane.shape[:2]) < rng.choice([0.001, 0.2, 1])
        noise[~noisy] = 0
        changed.append(np.clip(plane.astype(int) + noise, 0, 255).astype(np.uint8))
    return FramePlanes(planes.layout, tuple(changed), planes.colour)


@settings(max_examples=100)
@given(
    size=st.tuples(st.integers(1, 200), st.integers(1, 330)),
    fmt=st.sampled_from(FORMATS),
    thresholds=THRESHOLDS,
    most=st.sampled_from([1, 3, 4, 9, 16, 40]),
    seed=SEEDS,
)
def test_the_same_tiles_differ(
    size: tuple[int, int], fmt: tuple[str, str], thresholds: Thresholds, most: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    first = random_planes(rng, *size, layout=fmt[0], sampling=fmt[1])  # type: ignore[arg-type]
    shape = PlaneFormat.of(first)
    second = little_different(first, rng, most)
    masks = []
    for texture in both(shape, thresholds):
        texture.update(first, np.ones(shape.grid.shape, bool))
        masks.append(texture.compare(second))
    np.testing.assert_array_equal(*masks)


@settings(max_examples=40)
@given(
    size=st.tuples(st.integers(1, 130), st.integers(1, 330)),
    fmt=st.sampled_from(FORMATS),
    parts=st.lists(
        st.tuples(st.sampled_from(["still", "drift", "noise", "new tiles", "refused", "back"]), st.integers(1, 13)),
        max_size=5,
    ),
    seed=SEEDS,
)
def test_the_same_tiles_differ_in_a_stream(
    size: tuple[int, int], fmt: tuple[str, str], parts: list[tuple[str, int]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    frame = random_planes(rng, *size, layout=fmt[0], sampling=fmt[1])  # type: ignore[arg-type]
    shape = PlaneFormat.of(frame)
    textures = both(shape, Thresholds())
    for texture in textures:
        texture.update(frame, np.ones(shape.grid.shape, bool))
    before = frame
    for kind, count in parts:
        for turn in range(count):
            if kind == "back":
                frame, before = before, frame
            elif kind == "noise" or (kind == "drift" and turn == 0):
                frame = little_different(frame, rng, 4)
            elif kind in ("new tiles", "refused"):
                other = random_planes(rng, *size, layout=fmt[0], sampling=fmt[1])  # type: ignore[arg-type]
                before = frame
                frame = with_tiles_of(frame, other, dirty_mask(shape.grid, rng, "0.02"))
            compiled, reference = (texture.compare(frame) for texture in textures)
            np.testing.assert_array_equal(compiled, reference)
            if kind != "refused":
                for texture in textures:
                    texture.update(frame, reference)


def test_one_sample_more_than_the_threshold_shows_in_any_place() -> None:
    rng = np.random.default_rng(0)
    static_planes = random_planes(rng, 70, 100)
    shape = PlaneFormat.of(static_planes)
    compiled, reference = both(shape, Thresholds(255, 0))
    for texture in (compiled, reference):
        texture.update(static_planes, np.ones(shape.grid.shape, bool))
    for plane, row, col in [(p, *rng.integers(static_planes.planes[p].shape)) for p in (0, 1, 2) for _ in range(60)]:
        assert not compiled.compare(static_planes).any()
        changed = [samples.copy() for samples in static_planes.planes]
        changed[plane][row, col] ^= 128
        frame = FramePlanes(static_planes.layout, tuple(changed), static_planes.colour)
        np.testing.assert_array_equal(compiled.compare(frame), reference.compare(frame))
        assert compiled.compare(frame).sum() == 1


@settings(max_examples=80)
@given(
    size=st.tuples(st.integers(1, 200), st.integers(1, 420)),
    fmt=st.sampled_from(FORMATS),
    matrix=st.sampled_from(["bt601", "bt709", "bt2020", "smpte240m", "fcc"]),
    full_range=st.booleans(),
    kind=DIRTY,
    levels=st.sampled_from([1, 6]),
    seed=SEEDS,
)
def test_the_same_bytes_are_written(
    size: tuple[int, int],
    fmt: tuple[str, str],
    matrix: Matrix,
    full_range: bool,
    kind: str,
    levels: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    colour = Colour(matrix, full_range)
    first, second = (
        random_planes(rng, *size, layout=fmt[0], sampling=fmt[1], colour=colour)  # type: ignore[arg-type]
        for _ in range(2)
    )
    shape = PlaneFormat.of(first)
    textures = both(shape, Thresholds(), levels)
    dirty = dirty_mask(shape.grid, rng, kind)
    for texture in textures:
        texture.update(first, np.ones(shape.grid.shape, bool))
        if seed % 2:  # else level 0 is made of tiles of two frames at once
            texture.read(0)
        texture.update(second, dirty)
    for array, expected in zip(*(map(texture.read, range(levels)) for texture in textures), strict=True):
        np.testing.assert_array_equal(array, expected)
    for array, expected in zip(*(texture.planes for texture in textures), strict=True):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("share", ["0.02", "0.5", "all"])
@pytest.mark.parametrize("layout", ["yuv", "rgb"])
def test_threads_share_the_tiles(layout: Layout, share: str) -> None:
    rng = np.random.default_rng(0)
    first, other = (random_planes(rng, 1081, 1000, layout=layout) for _ in range(2))
    grid = PlaneFormat.of(first).grid
    dirty = dirty_mask(grid, rng, share)
    second = with_tiles_of(first, other, dirty)
    textures = both(PlaneFormat.of(first), Thresholds(), threads=3)
    for texture in textures:
        texture.update(first, np.ones(grid.shape, bool))
        np.testing.assert_array_equal(texture.compare(second), dirty)
        texture.update(second, dirty)
    for array, reference in zip(*(map(texture.read, range(LEVELS)) for texture in textures), strict=True):
        np.testing.assert_array_equal(array, reference)


@pytest.mark.parametrize("step", [-1, 2])
def test_planes_of_any_strides_are_taken(step: int) -> None:
    rng = np.random.default_rng(0)
    wide = random_planes(rng, 128, 192)
    planes = FramePlanes("yuv", tuple(plane[::step, ::step] for plane in wide.planes))
    textures = both(PlaneFormat.of(planes), Thresholds())
    for texture in textures:
        texture.update(planes, np.ones(PlaneFormat.of(planes).grid.shape, bool))
        assert not texture.compare(planes).any()
    np.testing.assert_array_equal(textures[0].read(0), textures[1].read(0))


def every_chroma(y: int, colour: Colour) -> FramePlanes:
    """A picture of one luma and every u and v, [256, 256]."""
    v, u = np.indices((256, 256)).astype(np.uint8)
    return FramePlanes("yuv", (np.full((256, 256), y, np.uint8), u, v), colour)


@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("matrix", list(KR_KB))
def test_every_colour_is_within_one_of_floating_point(matrix: Matrix, full_range: bool) -> None:
    colour = Colour(matrix, full_range)
    exact = rgb_matrix(colour) + np.array([0, 0, 0, TRUNCATION])
    kernel = both(PlaneFormat.of(every_chroma(0, colour)), Thresholds(), 1)[0]
    of_chroma = np.stack(every_chroma(0, colour).planes[1:], axis=2) @ exact[:, 1:3].T + exact[:, 3]
    for y in range(256):
        planes = every_chroma(y, colour)
        rgb = to_rgb(planes.planes, colour)
        assert np.abs(rgb - np.rint((of_chroma + y * exact[:, 0]).clip(0, 255))).max() <= 1
        kernel.update(planes, np.ones((8, 8), bool))
        np.testing.assert_array_equal(kernel.read(0), rgb)


def test_the_instruction_set_is_named_and_nothing_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    require("compiled")
    monkeypatch.delenv(SETTING, raising=False)
    assert kernel_in_use() in ("x86-64-v2", "x86-64-v3", "x86-64-v4", "baseline")
    assert kernel_remedy() is None
    monkeypatch.setenv(SETTING, "reference")
    assert (kernel_in_use(), kernel_remedy()) == ("reference", None)


@pytest.mark.parametrize(("kind", "words"), [("compiled", "compiled for "), ("reference", "NumPy and OpenCV")])
def test_a_store_says_what_it_works_with(kind: str, words: str) -> None:
    require(kind)  # type: ignore[arg-type]
    store = open_kind(PlaneFormat.of(flat_planes(32, 32)), kind)  # type: ignore[arg-type]
    store.update(flat_planes(32, 32), stamp(0))
    assert words in store.hardware
