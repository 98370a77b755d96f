"""Token packets as pictures for a vLLM server with the plugin, by the golden file that its tests read, too."""

from __future__ import annotations

import base64
import struct
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from arr_coc.errors import OptionError
from arr_coc.types import FrameStamp, GroupPlace, TileGrid, TokenPacket
from stream.extensions.api.packet_pictures import (
    CHUNK,
    PROBE_VERSION,
    SIDE_MAX_TILES,
    TOKENS_MAX,
    VERSION,
    packet_part,
    packet_png,
    packet_uuid,
    probe_part,
)

GOLDEN = Path(__file__).parents[3] / "plugins" / "vllm" / "tests" / "golden" / "packet.png"
REGIONS = [(2, 0, 0), (2, 0, 1), (0, 0, 0), (1, 1, 2), (6, 3, 1), (13, 0, 5)]
UUID = "3adf0061cf0e4249876b84b65edb458f2ac56da4997d777ff811ea36627af2e9"


def golden_packet() -> TokenPacket:
    """Six regions of 4×6 tiles, of five shapes, the first two an overview; pixels that differ everywhere."""
    numbers = np.arange(len(REGIONS) * 3 * 32 * 32, dtype=np.int64)
    pixels = (numbers * 2654435761 >> 13).astype(np.uint8).reshape(-1, 3, 32, 32)
    regions = np.array(REGIONS, np.int32)
    return TokenPacket(
        FrameStamp(3, 0, 0), TileGrid.of(120, 190), regions, np.ones(len(regions), np.float32), pixels, overview=2
    )


def chunk_of(png: bytes) -> bytes:
    """Content of the first chunk after IHDR, which must be the packet's."""
    length, kind = struct.unpack_from(">I4s", png, 33)
    assert kind == CHUNK
    return png[41 : 41 + length]


def decoded(png: bytes) -> np.ndarray:
    """Pixels [K, 3, 32, 32] (RGB) of a packet's picture."""
    picture = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    return picture.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def test_a_packet_is_the_golden_file() -> None:
    png, golden = packet_png(golden_packet()), GOLDEN.read_bytes()
    assert chunk_of(png) == chunk_of(golden)
    np.testing.assert_array_equal(decoded(png), golden_packet().pixels)
    np.testing.assert_array_equal(decoded(golden), golden_packet().pixels)
    assert packet_uuid(golden_packet()) == UUID


def test_a_packet_is_named_by_all_of_its_content() -> None:
    packet = golden_packet()
    other = packet.host_pixels.copy()
    other[5, 2, 31, 31] += 1
    changed = (
        replace(packet, pixels=other),
        replace(packet, overview=1),
        replace(packet, grid=TileGrid.of(128, 200)),
        replace(packet, regions=packet.regions + np.array([0, 0, 1], np.int32)),
    )
    assert len({packet_uuid(variant) for variant in (packet, *changed)}) == 1 + len(changed)
    assert packet_uuid(replace(packet, stamp=FrameStamp(9, 9, 9))) == UUID


def test_a_packet_is_a_picture_of_a_message() -> None:
    part = packet_part(golden_packet())
    head, _, data = part["image_url"]["url"].partition(",")
    assert (part["type"], head, part["uuid"]) == ("image_url", "data:image/png;base64", UUID)
    assert base64.b64decode(data) == packet_png(golden_packet())


def test_a_probe_has_a_version_that_no_packet_has() -> None:
    _, _, data = probe_part()["image_url"]["url"].partition(",")
    assert chunk_of(base64.b64decode(data))[0] == PROBE_VERSION != VERSION


def test_a_picture_that_is_kept_up_to_date_cannot_be_sent() -> None:
    with pytest.raises(OptionError, match="memory_frames"):
        packet_png(replace(golden_packet(), place=GroupPlace(1, 0, 1)))
    assert packet_png(replace(golden_packet(), place=GroupPlace(1, 0, 2))) == packet_png(golden_packet())


@pytest.mark.parametrize(("count", "side_px"), [(0, 64), (TOKENS_MAX + 1, 64), (1, SIDE_MAX_TILES * 32 + 1)])
def test_a_packet_that_the_plugin_refuses_is_not_made(count: int, side_px: int) -> None:
    regions = np.zeros((count, 3), np.int32)
    pixels = np.zeros((count, 3, 32, 32), np.uint8)
    packet = TokenPacket(FrameStamp(0, 0, 0), TileGrid.of(64, side_px), regions, np.ones(count, np.float32), pixels)
    with pytest.raises(OptionError, match=f"got {count} of"):
        packet_uuid(packet)
