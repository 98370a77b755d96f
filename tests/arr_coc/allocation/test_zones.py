"""Zones in allocations: weights of tiles, and questions about a part of the picture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator, suits_device
from arr_coc.allocation.glance import GlanceOptions
from arr_coc.allocation.group import GroupOptions
from arr_coc.allocation.packets import frame_packet_from, overview_packet, packet_from
from arr_coc.allocation.strategies import STRATEGIES, AllocationHistory, AllocationRequest, choose
from arr_coc.allocation.zones import ZoneOptions, zone_tiles
from arr_coc.texture.polygons import Polygon
from arr_coc.texture.regions import region_pool
from arr_coc.types import TileGrid
from tests.support.polygons import box_polygon
from tests.support.video import PictureStream, scenery

ROWS, COLS = 12, 20
GRID = TileGrid.of(ROWS * 32, COLS * 32)
LEFT = box_polygon((0.0, 0.0, 0.5, 1.0))
SMALL = box_polygon((0.1, 0.25, 0.3, 0.5))
"""Rows 3 to 5, columns 2 to 5: 12 tiles."""


def allocated(zones: ZoneOptions | None, **options: object) -> tuple[StreamAllocator, np.ndarray]:
    """An allocator that has allocated a picture, and the regions [K, 3] of that."""
    allocator = StreamAllocator(replace(AllocatorOptions(budget=64, zones=zones), **options))  # type: ignore[arg-type]
    frame = allocator.allocate(PictureStream().show(scenery(ROWS, COLS)))
    return allocator, frame.allocation.regions.numpy()


def relevance_of(zones: ZoneOptions | None) -> np.ndarray:
    return StreamAllocator(AllocatorOptions(zones=zones)).observe(view()).relevance.numpy()


def view() -> object:
    return PictureStream().show(scenery(ROWS, COLS))


def test_a_weight_multiplies_relevance_by_the_covered_share() -> None:
    plain = relevance_of(None)
    assert plain.min() > 0
    for factor in (0.0, 0.5, 4.0):
        weighed = relevance_of(ZoneOptions(((box_polygon((0.0, 0.0, 0.525, 1.0)), factor),)))
        assert weighed[:, :10] == pytest.approx(plain[:, :10] * factor)
        assert weighed[:, 10] == pytest.approx(plain[:, 10] * (1 + 0.5 * (factor - 1)))
        assert weighed[:, 11:] == pytest.approx(plain[:, 11:])


def test_weights_of_zones_that_overlap_are_multiplied() -> None:
    weighed = relevance_of(ZoneOptions(((LEFT, 2.0), (SMALL, 0.5))))
    plain = relevance_of(None)
    assert weighed[3:6, 2:6] == pytest.approx(plain[3:6, 2:6])
    assert weighed[0, :10] == pytest.approx(2 * plain[0, :10])


def test_tokens_follow_the_weight() -> None:
    def on_the_left(factor: float) -> int:
        _, regions = allocated(ZoneOptions(((LEFT, factor),)), strategy="topk", explore=0.0)
        return int((regions[:, 2] < 10).sum())

    assert on_the_left(0.0) == 0
    assert on_the_left(0.0) < on_the_left(1.0) < on_the_left(4.0)


def test_a_zone_that_the_budget_pays_for_is_shown_whole_and_nothing_else() -> None:
    _, regions = allocated(ZoneOptions(focus=(SMALL,)))
    assert regions.tolist() == [[0, row, col] for row in range(3, 6) for col in range(2, 6)]


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "auto"])
def test_every_region_shows_some_of_the_zone(strategy: str) -> None:
    within = zone_tiles(LEFT, GRID)
    _, regions = allocated(ZoneOptions(focus=(LEFT,)), strategy=strategy)
    assert region_pool(regions, within.numpy(), np.logical_or).all()
    assert 20 < len(regions) <= 64
    if strategy not in ("uniform", "fixation"):
        assert len(regions) > 55, "what is dropped outside is spent inside"
    assert len(np.unique(regions, axis=0)) == len(regions)


def test_relevance_outside_of_the_zone_is_nothing() -> None:
    relevance, plain = relevance_of(ZoneOptions(focus=(LEFT,))), relevance_of(None)
    assert not relevance[:, 10:].any()
    assert relevance[:, :10] == pytest.approx(plain[:, :10])


def test_a_zone_of_which_a_strategy_shows_nothing_gets_its_best_tiles() -> None:
    within = torch.zeros(40, 40, dtype=torch.bool)
    within[1::4, 1::4] = True
    relevance = torch.linspace(0, 1, 1600).reshape(40, 40)
    request = AllocationRequest(relevance, 3, 0.25, 0, AllocationHistory(), within=within)
    regions = choose(request, "uniform").regions.numpy()
    assert len(regions) >= 1
    few = torch.zeros(40, 40, dtype=torch.bool)
    few[0, 0] = few[0, 1] = True
    fallback = choose(replace(request, within=few, tokens=1), "grid").regions.tolist()
    assert fallback in ([[0, 0, 0]], [[0, 0, 1]])


def test_a_zone_smaller_than_what_is_counted_has_the_tile_that_it_lies_on() -> None:
    dot: Polygon = ((0.501, 0.501), (0.5011, 0.501), (0.5011, 0.5011))
    assert zone_tiles(dot, GRID).nonzero().tolist() == [[6, 10]]
    corner: Polygon = ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0))
    assert zone_tiles(corner, GRID).nonzero().tolist() == [[11, 19]]


def test_an_overview_shows_the_zone_alone() -> None:
    options = AllocatorOptions(budget=64, glance=GlanceOptions(), zones=ZoneOptions(focus=(LEFT,)))
    frame_view = PictureStream().show(scenery(ROWS, COLS))
    frame = StreamAllocator(options).allocate(frame_view)
    overview = frame.inputs.plan.overview
    within = zone_tiles(LEFT, GRID).numpy()
    assert len(overview) == frame.glance_tokens > 0
    assert region_pool(overview, within, np.logical_or).all()
    packet = overview_packet(frame_view, frame.glance_tokens, overview)
    assert packet.regions.tolist() == overview.tolist()
    assert region_pool(packet_from(frame_view, frame).regions, within, np.logical_or).all()
    small = StreamAllocator(replace(options, zones=ZoneOptions(focus=(SMALL,)))).allocate(frame_view)
    assert (small.glance_tokens, small.tokens) == (0, 12)


def test_a_group_of_pictures_refines_within_the_zone_alone() -> None:
    options = AllocatorOptions(budget=30, memory=GroupOptions(), zones=ZoneOptions(focus=(LEFT,)))
    stream, allocator = PictureStream(), StreamAllocator(options)
    within = zone_tiles(LEFT, GRID).numpy()
    group = allocator.group
    assert group is not None
    frame_view = stream.show(scenery(ROWS, COLS))
    packets = [group.packet(frame_view, allocator.allocate(frame_view), None)]
    while group.has_idle_work(frame_view):
        frame_view = stream.show(scenery(ROWS, COLS))
        place = group.next_place
        idle_packet = group.idle_packet(frame_view, allocator.allocate(frame_view), place, 40)
        assert idle_packet is not None
        assert idle_packet.place is not None
        packets.append(idle_packet)
        group.on_idle_end(replace(idle_packet.place, frame=idle_packet.place.frame + 1))
    assert len(packets) == 5, "a key frame, three idle packets, and the group written anew"
    assert all(region_pool(packet.regions, within, np.logical_or).all() for packet in packets)
    newest = group.newest
    assert newest is not None
    assert (newest.areas[:, :8] == 0).all(), "the zone is sharp in the end"
    assert (newest.areas[:, 16:] != 0).all()


def test_a_whole_frame_is_black_outside_of_the_zone() -> None:
    frame_view = PictureStream().show(scenery(ROWS, COLS))
    frame = StreamAllocator(AllocatorOptions(zones=ZoneOptions(focus=(LEFT,)))).allocate(frame_view)
    image = frame_packet_from(frame_view, frame).image
    assert not image[:, 320:].any()
    assert (image[:, :320] == frame_view.read(0)[:, :320]).all()


def test_the_same_map_gives_the_same_tensor() -> None:
    maps = ZoneOptions(((LEFT, 2.0),)).maps()
    relevance, other = torch.ones(ROWS, COLS), torch.ones(ROWS, COLS)
    product = maps.weigh(relevance, GRID)
    assert maps.weigh(other, GRID, "staleness") is not product
    assert maps.weigh(relevance, GRID) is product
    assert maps.weigh(other, GRID) is not product
    assert maps.within(GRID) is None


def test_questions_about_a_zone_are_allocated_on_the_host() -> None:
    options = AllocatorOptions(on_device=True, zones=ZoneOptions(((LEFT, 2.0),)))
    assert suits_device(options, "core13")
    assert not suits_device(replace(options, zones=ZoneOptions(focus=(LEFT,))), "core13")
