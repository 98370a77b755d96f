"""Channels, scores, blending and choice by compute shaders: those of the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.device_relevance import DeviceRelevance
from arr_coc.allocation.strategies import AllocationHistory, AllocationRequest, choose
from arr_coc.backends.gl import maps, store
from arr_coc.backends.gl.store import GlChannelView, GlStore, GlView
from arr_coc.errors import BudgetError, NonFiniteError, OptionError, StoreError
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import DeviceChannels, texture_array
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from stream.extensions.doctor.gpu.reference import random_picture, rgb_planes, stamp
from stream.extensions.doctor.gpu.relevance import follow
from tests.support.stores import shared_device

HEIGHT_PX, WIDTH_PX = 150, 230


@pytest.fixture
def gl_store() -> Iterator[GlStore]:
    """A store that holds a picture, and gives channels whatever draws."""
    shared_device()
    planes = rgb_planes(random_picture(np.random.default_rng(0), HEIGHT_PX, WIDTH_PX, "soft"))
    with closing(GlStore(PlaneFormat.of(planes), Thresholds(), 1000)) as opened:
        opened.update(planes, stamp(0))
        opened.gives_channels = True
        yield opened


@pytest.mark.parametrize(("size", "seed"), [((97, 301), 0), ((31, 33), 1), ((200, 420), 2), ((33, 500), 3)])
def test_the_choice_is_the_hosts(size: tuple[int, int], seed: int) -> None:
    shared_device()
    assert follow(size, seed) == 6


def test_views_give_channels_only_where_the_device_is_faster(gl_store: GlStore) -> None:
    with gl_store.lease() as view:
        assert isinstance(view, DeviceChannels)
    gl_store.gives_channels = False
    with gl_store.lease() as view:
        assert not isinstance(view, DeviceChannels)


def test_channels_are_made_without_reading_levels(gl_store: GlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with gl_store.lease() as view:
        expected = texture_array(view)
    monkeypatch.setattr(store, "read_back", lambda *_: pytest.fail("levels were read back"))
    picture = random_picture(np.random.default_rng(0), HEIGHT_PX, WIDTH_PX, "soft")
    gl_store.update(rgb_planes(picture), stamp(1, epoch=1))
    with gl_store.lease() as view:
        assert isinstance(view, GlChannelView)
        channels, entropy = view.texture_array()
    np.testing.assert_allclose(channels, expected.channels, atol=2e-6)
    assert torch.equal(entropy, expected.entropy)


def test_a_live_frame_is_allocated_from_the_devices_channels(gl_store: GlStore) -> None:
    """Those of a profile that needs luma, too."""
    for channels in ("core13", "full40"):
        relevances = []
        for gl_store.gives_channels in (True, False):
            allocator = StreamAllocator(AllocatorOptions(budget=9, on_device=True, channels=channels))
            with gl_store.lease() as view:
                relevances.append(allocator.allocate(view).relevance)
        np.testing.assert_allclose(*relevances, atol=2e-3)


def test_only_the_chosen_regions_come_to_the_host(gl_store: GlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "read_back", lambda *_: pytest.fail("levels were read back"))
    monkeypatch.setattr(maps.TileMaps, "read", lambda *_: pytest.fail("maps were read back"))
    relevance = DeviceRelevance(RelevanceRealiser())
    with gl_store.lease() as view:
        relevance.step(view)
    assert relevance.choose(5).regions.shape == (5, 3)


def test_equals_are_taken_in_their_order(gl_store: GlStore) -> None:
    """Of a blank picture: first those that were shown, then the first ones."""
    blank = rgb_planes(np.full((HEIGHT_PX, WIDTH_PX, 3), 90, np.uint8))
    gl_store.update(blank, stamp(1, epoch=1))
    relevance = DeviceRelevance(RelevanceRealiser())
    with gl_store.lease() as view:
        relevance.step(view)
    rows, cols = gl_store.grid.shape
    shown = torch.full((rows, cols), -1, dtype=torch.int8)
    shown[2, 3] = shown[1, 1] = 0
    choice = relevance.choose(4, AllocationHistory(shown))
    assert choice.regions.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 1], [0, 2, 3]]
    everything = relevance.choose(1000)
    assert everything.regions[:, 1:].tolist() == [[row, col] for row in range(rows) for col in range(cols)]
    assert (everything.levels == 0).all()


def test_what_was_left_out_is_explored(gl_store: GlStore) -> None:
    relevance = DeviceRelevance(RelevanceRealiser())
    with gl_store.lease() as view, torch.inference_mode():
        relevance.step(view)
    staleness = torch.rand(gl_store.grid.shape, generator=torch.Generator().manual_seed(3))
    memory = AllocationHistory(None, staleness, explore=0.5)
    blended = torch.from_numpy(relevance.read()[4])
    expected = choose(AllocationRequest(blended, 10, 0.25, 0, memory), "topk")
    choice = relevance.choose(10, memory)
    assert torch.equal(choice.regions, expected.regions)
    assert torch.equal(choice.relevance, expected.relevance)
    assert torch.equal(choice.levels, expected.levels)


def test_another_texture_begins_anew(gl_store: GlStore) -> None:
    relevance = DeviceRelevance(RelevanceRealiser())
    planes = rgb_planes(random_picture(np.random.default_rng(4), 70, 90))
    alone = DeviceRelevance(RelevanceRealiser())
    with closing(GlStore(PlaneFormat.of(planes), Thresholds(), 1000)) as other:
        other.update(planes, stamp(0))
        with gl_store.lease() as view, other.lease() as other_view:
            relevance.step(view)
            relevance.step(other_view)
            alone.step(other_view)
        np.testing.assert_array_equal(relevance.read(), alone.read())


def test_what_cannot_be_is_refused(gl_store: GlStore) -> None:
    with pytest.raises(OptionError, match=r"channels core13.*score them on the host"):
        DeviceRelevance(RelevanceRealiser(channels="full40"))
    relevance = DeviceRelevance(RelevanceRealiser())
    with pytest.raises(BudgetError, match="no frame yet to choose from"):
        relevance.choose(5)
    with pytest.raises(BudgetError, match="no frame yet to choose from"):
        relevance.read()
    with gl_store.lease() as view:
        relevance.step(view)
    with pytest.raises(BudgetError, match="1 token or more"):
        relevance.choose(0)
    assert isinstance(view, GlView)
    with pytest.raises(StoreError, match="lease has ended"):
        relevance.step(view)


def test_broken_weights_are_refused() -> None:
    realiser = RelevanceRealiser()
    torch.nn.init.constant_(realiser.information.gate.weight, float("nan"))
    with pytest.raises(NonFiniteError, match="weights of the scorers hold NaN or Inf"):
        DeviceRelevance(realiser)
