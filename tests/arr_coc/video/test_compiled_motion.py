"""Motion of tiles by the compiled kernel: that of the reference, to the bit, whatever changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from arr_coc.types import CodedMotion, FramePlanes, Layout, TileGrid, TileMotion
from arr_coc.video.compiled_motion import (
    CompiledMotion,
    kernel_path,
    load_kernel,
)
from arr_coc.video.tile_motion import MotionEstimate, ReferenceMotion, TileMotionEstimator
from tests.support.camera_moves import Picture, clutter, document

needs_kernel = pytest.mark.skipif(
    not kernel_path().is_file() and os.environ.get("CI") != "true", reason="the compiled kernel of motion was not built"
)
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Vectors:
    """A codec's motion: some motion of most tiles, over `frames` frames."""

    dy: float
    dx: float
    frames: int
    seed: int

    def over(self, grid: TileGrid) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
        rng = np.random.default_rng(self.seed)
        motion = np.multiply.outer(np.float32([self.dy, self.dx]) * self.frames, np.ones(grid.shape, np.float32))
        motion[:, rng.random(grid.shape) < 0.3] = np.nan
        return (motion[0], motion[1]) if self.seed % 4 else None


@dataclass(frozen=True)
class Step:
    """A frame: how the camera and a thing before it moved, which part is new, and what becomes of the estimate."""

    camera: str
    thing_px: tuple[int, int]
    new_things: int
    noise: float
    outcome: str
    coded: bool


STEPS = st.builds(
    Step,
    st.sampled_from(["still", "still", "pan", "zoom", "turn", "cut"]),
    st.tuples(st.integers(-40, 40), st.integers(-40, 40)),
    st.sampled_from([0, 0, 1, 3, 9]),
    st.sampled_from([0.0, 0.0, 2.0, 9.0]),
    st.sampled_from(["yes", "yes", "yes", "dropped", "uncompared"]),
    st.booleans(),
)


def filmed(wide: Picture, size: tuple[int, int], steps: list[Step], rng: np.random.Generator) -> Iterator[Picture]:
    """The picture of each step."""
    height, width = size
    thing = clutter(int(rng.integers(99)), 96, 128)
    place, matrix = np.array([height // 3, width // 3]), np.eye(3)
    for step in steps:
        change = np.eye(3)
        if step.camera == "pan":
            change[:2, 2] = rng.integers(-24, 25, 2)
        elif step.camera == "zoom":
            change[0, 0] = change[1, 1] = rng.uniform(0.97, 1.03)
        elif step.camera == "turn":
            change[:2] = cv2.getRotationMatrix2D((width / 2, height / 2), rng.uniform(-3, 3), 1)
        elif step.camera == "cut":
            wide = wide[::-1, ::-1]
        matrix = change @ matrix
        view = cv2.warpAffine(wide, matrix[:2], (width, height), borderMode=cv2.BORDER_REFLECT_101)
        place = place + step.thing_px
        top, left = np.clip(place, 0, None)
        part = view[top : top + 96, left : left + 128]
        part[:] = thing[: part.shape[0], : part.shape[1]]
        for _ in range(step.new_things):
            top, left = (int(rng.integers(size_px)) for size_px in (height, width))
            part = view[top : top + 20, left : left + 40]
            part[:] = rng.integers(0, 256, part.shape)
        if step.noise:
            view = np.clip(view + rng.normal(0, step.noise, view.shape), 0, 255).astype(np.uint8)
        yield np.asarray(view, np.uint8)


def planes_of(picture: Picture, layout: Layout, coded: CodedMotion | None = None) -> FramePlanes:
    """Planes whose rows have gaps, as a decoder's have."""
    height, width = picture.shape
    roomy = np.zeros((height, width + 13), np.uint8)
    roomy[:, :width] = picture
    if layout == "rgb":
        return FramePlanes("rgb", (np.stack([picture, 255 - picture, picture[::-1]], axis=2),), coded_motion=coded)
    chroma = np.full((-(-height // 2), -(-width // 2)), 128, np.uint8)
    rows = (roomy[:, :width],)
    return FramePlanes(layout, rows if layout == "gray" else (*rows, chroma, chroma), coded_motion=coded)


def changed(old_planes: FramePlanes, planes: FramePlanes, grid: TileGrid) -> Mask:
    """Tiles that differ clearly."""
    delta = cv2.absdiff(planes.planes[0], old_planes.planes[0]).reshape(grid.height_px, grid.width_px, -1).max(axis=2)
    edges = 0, grid.padded_height_px - grid.height_px, 0, grid.padded_width_px - grid.width_px
    tiles = cv2.copyMakeBorder(delta, *edges, cv2.BORDER_REPLICATE).reshape(grid.rows, 32, grid.cols, 32)
    return np.asarray(tiles.max(axis=(1, 3)) > 12)


def assert_same(first: MotionEstimate, second: MotionEstimate) -> None:
    assert first.camera_moved == second.camera_moved
    assert (first.motion is None) == (second.motion is None)
    if first.motion is not None and second.motion is not None:
        for name in TileMotion.__slots__:
            np.testing.assert_array_equal(getattr(first.motion, name), getattr(second.motion, name), name)


def follow(estimators: list[TileMotionEstimator], pictures: list[Picture], steps: list[Step], layout: Layout) -> int:
    """Compare what the estimators say of each frame; returns how often something moved."""
    motions = 0
    old_planes = planes_of(pictures[0], layout)
    for index, (picture, step) in enumerate(zip(pictures[1:], steps[1:], strict=True)):
        coded = Vectors(-step.thing_px[0], step.thing_px[1], index % 3 + 1, index) if step.coded else None
        planes = planes_of(picture, layout, coded)
        dirty = changed(old_planes, planes, estimators[0].grid)
        if not dirty.any():
            continue
        first, second = (estimator.estimate(old_planes, planes, dirty) for estimator in estimators)
        assert_same(first, second)
        motions += first.motion is not None
        if step.outcome != "dropped":
            old_planes = replace(planes, coded_motion=None)
            for estimator in estimators:
                estimator.keep(step.outcome == "yes")
    return motions


def estimators_of(grid: TileGrid, layout: Layout) -> list[TileMotionEstimator]:
    return [ReferenceMotion(grid, layout), CompiledMotion(load_kernel(kernel_path()), grid, layout)]


@needs_kernel
@settings(max_examples=30)
@given(
    size=st.sampled_from([(256, 320), (270, 490), (224, 1000), (130, 2000), (65, 33), (200, 320), (1, 1), (3, 4000)]),
    layout=st.sampled_from(["yuv", "gray", "rgb"]),
    draw=st.sampled_from([clutter, document]),
    steps=st.lists(STEPS, min_size=3, max_size=8),
    seed=st.integers(0, 1000),
)
@example(size=(448, 640), layout="gray", draw=clutter, steps=[Step("turn", (0, 8), 0, 0.0, "yes", False)] * 6, seed=3)
@example(size=(448, 640), layout="yuv", draw=document, steps=[Step("still", (9, 5), 3, 2.0, "yes", True)] * 6, seed=4)
def test_the_same_motion(
    size: tuple[int, int],
    layout: Layout,
    draw: type[clutter],
    steps: list[Step],
    seed: int,  # type: ignore[valid-type]
) -> None:
    rng = np.random.default_rng(seed)
    pictures = list(filmed(draw(seed, size[0] + 99, size[1] + 99), size, steps, rng))
    follow(estimators_of(TileGrid.of(*size), layout), pictures, steps, layout)


@needs_kernel
@pytest.mark.parametrize("camera", ["still", "pan", "zoom", "turn"])
def test_the_same_motion_of_a_large_frame(camera: str) -> None:
    steps = [Step(camera, (4, 9), 1, 0.0, "yes", index == 3) for index in range(5)]
    size = 1080, 1920
    pictures = list(filmed(clutter(1, 1200, 2000), size, steps, np.random.default_rng(5)))
    assert follow(estimators_of(TileGrid.of(*size), "gray"), pictures, steps, "gray") == 4


@needs_kernel
def test_an_estimate_does_not_change_what_follows() -> None:
    """A frame that is compared and then replaced leaves no trace."""
    steps = [Step("still", (0, 6), 0, 0.0, "yes", False)] * 3
    size = 448, 640
    first, second, third = filmed(clutter(2), size, steps, np.random.default_rng(6))
    grid = TileGrid.of(*size)
    old_planes, new_planes = (planes_of(picture, "gray") for picture in (first, third))
    once, twice = (CompiledMotion(load_kernel(kernel_path()), grid, "gray") for _ in range(2))
    dirty = changed(old_planes, new_planes, grid)
    twice.estimate(old_planes, planes_of(255 - second, "gray"), np.ones(grid.shape, bool))
    assert_same(once.estimate(old_planes, new_planes, dirty), twice.estimate(old_planes, new_planes, dirty))
