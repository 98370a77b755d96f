"""Every texture store against the reference: whatever is done to both, in whatever order, both hold the same bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from arr_coc.errors import StoreError
from arr_coc.texture.store.base import TextureStore
from arr_coc.texture.store.planes import Difference, PlaneFormat, Thresholds
from arr_coc.types import LEVELS, FramePlanes, TileGrid
from stream.extensions.doctor.gpu.reference import regions_of
from tests.support.stores import KINDS, Kind, open_kind, prepare
from tests.support.video import SUBSAMPLINGS, copy_planes, random_planes, stamp, with_tiles_of

FORMATS = [*(("yuv", name) for name in SUBSAMPLINGS), ("gray", "444"), ("rgb", "444")]
EXACT = Thresholds(mean=0, largest=0)
WAIT_MS = 2000
JOIN_S = 120.0
EXAMPLES = {"compiled": 30, "gl": 30, "cuda": 12}
"""Fewer for a device that the tests may emulate on the CPU."""

Mask = npt.NDArray[np.bool_]


@pytest.fixture(params=[kind for kind in KINDS if kind != "reference"])
def kind(request: pytest.FixtureRequest) -> Kind:
    prepare(request.param, request)
    param: Kind = request.param
    return param


def dirty_mask(grid: TileGrid, rng: np.random.Generator, kind: str) -> Mask:
    rows, cols = grid.shape
    mask = np.zeros((rows, cols), bool)
    if kind == "all":
        mask[:] = True
    elif kind == "block":
        top, left = rng.integers(0, rows), rng.integers(0, cols)
        mask[top : top + 1 + rows // 3, left : left + 1 + cols // 3] = True
    elif kind == "one":
        mask[rng.integers(0, rows), rng.integers(0, cols)] = True
    elif kind != "none":
        mask[:] = rng.random((rows, cols)) < float(kind)
    return mask


DIRTY = st.sampled_from(["none", "one", "block", "0.05", "0.3", "0.8", "all"])
SEEDS = st.integers(0, 1 << 20)


class BothStores(RuleBasedStateMachine):
    """Does the same to a store and to the reference."""

    kind: Kind

    def __init__(self) -> None:
        super().__init__()
        self.stores: tuple[TextureStore, ...] = ()
        self.planes: FramePlanes
        self.sampling = "444"
        self.frame = 0
        self.epoch = 0
        self.has_frame = False

    @initialize(height=st.integers(1, 300), width=st.integers(1, 420), fmt=st.sampled_from(FORMATS), seed=SEEDS)
    def open(self, height: int, width: int, fmt: tuple[str, str], seed: int) -> None:
        layout, self.sampling = fmt
        rng = np.random.default_rng(seed)
        self.planes = random_planes(rng, height, width, layout=layout, sampling=self.sampling)  # type: ignore[arg-type]
        shape = PlaneFormat.of(self.planes)
        kinds: tuple[Kind, ...] = (self.kind, "reference")
        self.stores = tuple(open_kind(shape, kind, thresholds=EXACT, lease_timeout_ms=WAIT_MS) for kind in kinds)
        self.has_frame = False

    @rule(kind=DIRTY, seed=SEEDS, new_epoch=st.sampled_from([False, False, False, True]))
    def update(self, kind: str, seed: int, new_epoch: bool) -> None:
        """The next frame, in which some tiles differ."""
        rng = np.random.default_rng(seed)
        mask = dirty_mask(self.stores[0].grid, rng, kind)
        self.planes = with_tiles_of(self.planes, self._other(rng), mask)
        self.epoch += new_epoch
        self._write_both(None)

    @rule(kind=DIRTY, seed=SEEDS)
    def write(self, kind: str, seed: int) -> None:
        """Any tiles are brought up to date, whether or not they differ."""
        rng = np.random.default_rng(seed)
        self.planes = self._other(rng)
        self._write_both(Difference(dirty_mask(self.stores[0].grid, rng, kind)))

    @precondition(lambda self: self.has_frame)
    @rule(seed=SEEDS, count=st.integers(0, 60))
    def gather(self, seed: int, count: int) -> None:
        regions = regions_of(self.stores[0].grid, np.random.default_rng(seed), count)
        with self._views() as (first, second):
            np.testing.assert_array_equal(first.gather(regions), second.gather(regions))

    @precondition(lambda self: self.has_frame)
    @rule(levels=st.lists(st.integers(0, LEVELS - 1), min_size=1, max_size=4))
    def read(self, levels: list[int]) -> None:
        """Some levels, some of them twice, in any order."""
        with self._views() as (first, second):
            for level in levels:
                np.testing.assert_array_equal(first.read(level), second.read(level), err_msg=f"level {level}")

    @rule(seed=SEEDS)
    def compare(self, seed: int) -> None:
        other = self._other(np.random.default_rng(seed))
        masks = [store.compare(other).dirty for store in self.stores]
        np.testing.assert_array_equal(*masks)

    @precondition(lambda self: self.has_frame)
    @rule(height=st.integers(1, 200), width=st.integers(1, 200), seed=SEEDS)
    def reopen(self, height: int, width: int, seed: int) -> None:
        """A stream that changes its size."""
        layout = self.stores[0].format.layout
        self.teardown()
        self.open(height, width, (layout, self.sampling), seed)

    @invariant()
    def both_have_the_same_state(self) -> None:
        if self.has_frame:
            with self._views() as (first, second):
                assert first.stamp == second.stamp
                assert first.versions.epoch == second.versions.epoch
                np.testing.assert_array_equal(first.versions.frame, second.versions.frame)

    def teardown(self) -> None:
        if self.has_frame:
            self.read(list(range(LEVELS)))
            self.gather(self.frame, 40)
        for store in self.stores:
            store.close()
            store.close()
            with pytest.raises(StoreError), store.lease():
                pass
        super().teardown()

    def _other(self, rng: np.random.Generator) -> FramePlanes:
        fmt = self.stores[0].format
        return random_planes(
            rng, fmt.height_px, fmt.width_px, layout=fmt.layout, sampling=self.sampling, colour=fmt.colour
        )

    def _write_both(self, difference: Difference | None) -> None:
        self.frame += 1
        changes = [
            store.write(self.planes, difference or store.compare(self.planes), stamp(self.frame, self.epoch))
            for store in self.stores
        ]
        np.testing.assert_array_equal(changes[0].dirty, changes[1].dirty)
        self.planes = copy_planes(self.stores[1].held_planes)
        self.has_frame = True

    @contextmanager
    def _views(self) -> Iterator[list]:
        with ExitStack() as stack:
            yield [stack.enter_context(store.lease()) for store in self.stores]


def test_any_order_of_calls_leaves_the_same_bytes(kind: Kind) -> None:
    machine = type("Machine", (BothStores,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES[kind],
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def shown(versions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """The grey of each tile [rows, cols] by the frame that it changed in."""
    rows, cols = np.indices(versions.shape)
    return ((versions * 37 + rows * 5 + cols * 3) % 251).astype(np.uint8)


def grey_planes(tiles: npt.NDArray[np.uint8]) -> FramePlanes:
    return FramePlanes("gray", (tiles.repeat(32, axis=0).repeat(32, axis=1),))


class Threads:
    """One thread opens a store and writes, others read and check each view; this one closes."""

    def __init__(self, kind: Kind, grid: tuple[int, int], kinds: list[str], readers: int) -> None:
        self.opened = threading.Event()
        self.finished = threading.Event()
        self.failures: list[BaseException] = []
        self.reads = [0] * readers
        self._kind, self._grid, self._kinds = kind, grid, kinds

    def run(self) -> None:
        threads = [threading.Thread(target=self._guarded, args=(self._write,), name="writer")]
        threads += [
            threading.Thread(target=self._guarded, args=(self._read, number), name=f"reader {number}")
            for number in range(len(self.reads))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(JOIN_S)
            assert not thread.is_alive(), f"{thread.name} hangs"
        self.store.close()
        if self.failures:
            raise self.failures[0]

    def _guarded(self, work, *arguments) -> None:  # type: ignore[no-untyped-def]
        try:
            work(*arguments)
        except BaseException as error:
            self.failures.append(error)
            self.finished.set()
            self.opened.set()

    def _write(self) -> None:
        rng = np.random.default_rng(1)
        versions = np.zeros(self._grid, np.int64)
        planes = grey_planes(shown(versions))
        self.store = open_kind(PlaneFormat.of(planes), self._kind, thresholds=EXACT, lease_timeout_ms=20_000)
        self.store.update(planes, stamp(0))
        self.opened.set()
        for frame, kind in enumerate(self._kinds, 1):
            mask = dirty_mask(self.store.grid, rng, kind)
            versions = np.where(mask, frame, versions)
            self.store.write(grey_planes(shown(versions)), Difference(mask), stamp(frame))
        self.finished.set()

    def _read(self, number: int) -> None:
        rng = np.random.default_rng(number)
        self.opened.wait(JOIN_S)
        over = False
        while not over:
            over = self.finished.is_set()
            with self.store.lease() as view:
                expected = shown(view.versions.frame)
                level = int(rng.integers(0, LEVELS))
                side = 32 >> level
                level_texels = expected.repeat(side, axis=0).repeat(side, axis=1)[..., None].repeat(3, axis=2)
                np.testing.assert_array_equal(view.read(level), level_texels)
                rows, cols = (rng.integers(0, size, 30) for size in self._grid)
                pixels = view.gather(np.stack([np.zeros(30, np.int64), rows, cols], axis=1))
                assert (pixels == expected[rows, cols][:, None, None, None]).all()
                np.testing.assert_array_equal(view.read(5)[..., 0], expected)
            self.reads[number] += 1


@pytest.mark.parametrize("name", KINDS)
def test_readers_never_see_half_a_frame(name: Kind, request: pytest.FixtureRequest) -> None:
    prepare(name, request)

    @settings(max_examples=5, deadline=None)
    @given(
        grid=st.tuples(st.integers(1, 8), st.integers(1, 12)),
        kinds=st.lists(DIRTY, min_size=20, max_size=40),
        readers=st.integers(1, 2),
    )
    def many(grid: tuple[int, int], kinds: list[str], readers: int) -> None:
        threads = Threads(name, grid, kinds, readers)
        threads.run()
        assert min(threads.reads) >= 1

    many()
