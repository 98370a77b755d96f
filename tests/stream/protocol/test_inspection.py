"""Inspections: every map by its name, in a message that can be parsed again."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from arr_coc.allocation.group import GroupFrame
from arr_coc.allocation.inspection import AllocationMaps
from arr_coc.allocation.tile_news import TileNews
from arr_coc.relevance.profiles import CORE_NAMES, FULL, FULL_NAMES, SIGNED_NAMES
from arr_coc.types import FrameStamp, GroupPlace, TileMotion, TileVersions
from stream.errors import TransportError
from stream.protocol.inspection import (
    LAYER_MAPS,
    known_levels,
    layers_of,
    pack_failure,
    pack_inspection,
    read_inspection,
    tile_maps,
)
from tests.support.web import REGIONS, inspected

GRID = (3, 4)


def maps(channels: int = len(CORE_NAMES), profile: str = "core13") -> AllocationMaps:
    rng = np.random.default_rng(0)

    def some(*leading: int) -> np.ndarray:
        return rng.random((*leading, *GRID), np.float32)

    return AllocationMaps(
        profile, some(channels), some(), some(3), np.array([1, 2, 1], np.float32), some(), some(), some(3), some()
    )


def motion() -> TileMotion:
    dy, dx = np.full(GRID, -3.0, np.float32), np.full(GRID, 4.0, np.float32)
    return TileMotion(dy, dx, np.ones(GRID, np.float32))


def test_a_message_can_be_read_again() -> None:
    frame = inspected(7, (0, 5))
    message = pack_inspection(frame, {5: ("image/png", b"small"), 0: ("image/jpeg", b"large")}, media_s=0.7)
    inspection = read_inspection(message)
    assert (inspection.head["frame_index"], inspection.head["media_s"], inspection.head["tokens"]) == (
        7,
        0.7,
        len(REGIONS),
    )
    assert inspection.head["weights"] == frame.weights
    assert inspection.pictures == {0: b"large", 5: b"small"}
    np.testing.assert_array_equal(inspection.regions, REGIONS)
    assert list(inspection.maps) == list(frame.maps)
    for name, tile_map in frame.maps.items():
        assert (inspection.maps[name].group, inspection.maps[name].low, inspection.maps[name].high) == (
            tile_map.group,
            tile_map.low,
            tile_map.high,
        )
        np.testing.assert_allclose(inspection.maps[name].values, tile_map.values, atol=2 / 65535)


def test_arrays_of_16_bits_lie_at_even_places() -> None:
    message = pack_inspection(inspected(), {})
    assert struct.unpack_from("<I", message, 4)[0] % 4 == 0
    assert message[:1] == b"I"


@pytest.mark.parametrize("cut", [0, 7, 20, 400])
def test_a_part_of_a_message_is_none(cut: int) -> None:
    message = pack_inspection(inspected(), {})
    with pytest.raises(TransportError, match="not an inspection"):
        read_inspection(message[:cut])
    with pytest.raises(TransportError, match="not an inspection"):
        read_inspection(b"P" + message[1:])


def test_a_failure_is_reported_with_its_reason() -> None:
    with pytest.raises(TransportError, match="still loading"):
        read_inspection(pack_failure("the model is still loading"))


def test_every_channel_and_every_step_to_relevance_has_a_map() -> None:
    allocation_maps, by_name = maps(), tile_maps(maps(), motion(), np.arange(12).reshape(GRID))
    assert list(by_name)[: len(CORE_NAMES)] == list(CORE_NAMES)
    np.testing.assert_array_equal(by_name["edges"].values, allocation_maps.channels[7])
    np.testing.assert_array_equal(by_name["perspective"].values, allocation_maps.scores[1])
    np.testing.assert_array_equal(by_name["relevance, blended"].values, allocation_maps.blended)
    assert {tile_map.group for tile_map in by_name.values()} == {"texture", "scores", "relevance", "memory", "change"}
    assert by_name["motion, px"].values[0, 0] == 5.0
    assert (by_name["motion right, px"].low, by_name["motion right, px"].high) == (-4.0, 4.0)
    assert by_name["unchanged for, frames"].high == 11
    assert (by_name["gradient across"].low, by_name["red"].low) == (-1.0, 0.0)


def test_without_movement_motion_is_0_and_there_are_no_directions() -> None:
    by_name = tile_maps(maps())
    assert not by_name["motion, px"].values.any()
    assert "motion right, px" not in by_name


def test_the_long_profile_names_each_of_its_channels() -> None:
    assert len(FULL_NAMES) == FULL == len(set(FULL_NAMES))
    assert set(FULL_NAMES) >= SIGNED_NAMES - set(CORE_NAMES)
    by_name = tile_maps(maps(FULL, "full40"))
    assert by_name["embedding 16"].low == by_name["resemblance to the question"].low == -1.0
    assert by_name["relevance before"].low == 0.0


def test_the_layers_of_a_heat_map_are_maps_with_their_weights() -> None:
    by_name = tile_maps(maps(), motion())
    assert set(LAYER_MAPS.values()) <= set(by_name)
    first, second = layers_of(("participation", "motion"), by_name, {"participation": 0.5}, GRID)
    assert (first.name, first.weight, second.name, second.weight) == ("participation", 0.5, "motion", None)
    np.testing.assert_array_equal(first.values, by_name["participation"].values)
    (missing,) = layers_of(("information",), {}, {}, GRID)
    assert missing.values.shape == GRID
    assert not missing.values.any()


def test_levels_that_a_texture_has_not_are_left_out() -> None:
    assert known_levels((5, 0, 9, -1, 0)) == (0, 5)


def group() -> GroupFrame:
    """A key frame of two tokens, of which one is superseded, and a frame that appends one."""
    return GroupFrame(
        stamp=FrameStamp(4, 2_000_000_000, 0),
        place=GroupPlace(3, 1),
        reason="",
        regions=np.array([(1, 0, 0), (0, 0, 2), (0, 0, 2)], np.int32),
        relevance=np.ones(1, np.float32),
        shown_ns=np.array([500_000_000, 500_000_000, 2_000_000_000]),
        superseded=np.array([False, True, False]),
        dropped=np.array([1], np.int32),
        overview=1,
        begun_ns=500_000_000,
        areas=np.zeros(GRID, np.int8),
        versions=TileVersions(1, np.zeros(GRID, np.int64)),
        picture=(picture := np.zeros((24, 32, 3), np.uint8)),
        news=TileNews.of(picture),
    )


def test_the_tokens_of_a_group_come_with_their_times_and_states() -> None:
    message = pack_inspection(replace(inspected(7), group=group()), {0: ("image/jpeg", b"large")})
    inspection = read_inspection(message)
    assert inspection.pictures == {0: b"large"}
    assert inspection.head["group"] == {
        "number": 3, "frame": 1, "began": "", "overview": 1, "overview_begin": 0, "tokens": 3, "appended": 1,
        "superseded": 1, "times": [0.5, 2.0],
    }  # fmt: skip
    assert inspection.tokens is not None
    assert inspection.tokens.tolist() == [[1, 0, 0, 0, 0], [0, 0, 2, 0, 1], [0, 0, 2, 1, 0]]
    assert inspection.states == ("shown", "superseded", "new")


def test_without_a_group_a_message_has_none() -> None:
    inspection = read_inspection(pack_inspection(inspected(), {}))
    assert "group" not in inspection.head
    assert (inspection.tokens, inspection.states) == (None, None)
