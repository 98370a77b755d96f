"""Pictures of a frame for a model behind an API."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from arr_coc.types import FramePacket, FrameStamp, TileGrid
from stream.extensions.api.pictures import COMPOSITE, PART, WHOLE, PictureKind, pictures_of


def packet(height: int, width: int, tokens: int) -> FramePacket:
    """Grey frame, red in its relevant tiles, green beyond its edge."""
    grid = TileGrid.of(height, width)
    image = np.full((grid.padded_height_px, grid.padded_width_px, 3), 128, np.uint8)
    image[height:], image[:, width:] = (0, 255, 0), (0, 255, 0)
    image[64:128, 64:128] = (255, 0, 0)
    relevance = np.zeros(grid.shape, np.float32)
    relevance[2:4, 2:4] = 1
    regions = np.zeros((tokens, 3), np.int32)
    return FramePacket(FrameStamp(0, 0, 0), grid, regions, relevance, image)


def decoded(jpeg: bytes) -> np.ndarray:
    """RGB [H, W, 3] of a JPEG."""
    return cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]


def test_the_whole_view_is_scaled_to_the_budget_without_what_lies_beyond_the_frame() -> None:
    pictures = pictures_of(packet(384, 630, 60), "scaled", 95)
    (picture,) = map(decoded, pictures.jpegs)
    assert TileGrid.of(*picture.shape[:2]).tiles == pictures.tokens <= 60
    assert picture.shape[1] / picture.shape[0] == pytest.approx(630 / 384, rel=0.02)
    assert picture[..., 1].max() < 160
    assert (picture[40, 40] > (200, -1, -1)).all()
    assert pictures.explanation == ""


@pytest.mark.parametrize("kind", ["scaled", "composite", "parts"])
def test_a_frame_within_the_budget_is_sent_as_it_is(kind: PictureKind) -> None:
    pictures = pictures_of(packet(384, 640, 240), kind, 95)
    (picture,) = map(decoded, pictures.jpegs)
    assert picture.shape == (384, 640, 3)
    assert (pictures.tokens, pictures.explanation, pictures.captions) == (240, "", ("",))


def test_a_composite_comes_with_its_explanation() -> None:
    pictures = pictures_of(packet(384, 640, 60), "composite", 90)
    assert len(pictures.jpegs) == 1
    assert pictures.explanation == COMPOSITE
    assert pictures.tokens <= 60


def test_parts_are_separate_pictures_in_one_budget() -> None:
    pictures = pictures_of(packet(384, 640, 60), "parts", 95)
    overview, *parts = map(decoded, pictures.jpegs)
    assert parts
    assert pictures.tokens <= 60
    assert pictures.captions == (WHOLE, *[PART] * len(parts))
    assert max((part[..., 0] > 200).mean() for part in parts) > (overview[..., 0] > 200).mean()
    assert [part["type"] for part in pictures.content()] == ["text", "image_url"] * len(pictures.jpegs)
