from __future__ import annotations

import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import TextureArray, TextureArrayCache, image_texture, texture_array
from arr_coc.relevance.full40 import EDGE_REACH, LumaDetail, edge_distance, grouping, low_pass, text_likeness
from arr_coc.relevance.history import HISTORY
from arr_coc.relevance.profiles import EDGES, SALIENCY
from tests.support.video import PictureStream, scenery

ROWS, COLS = 6, 9
FULL, TEXT = "full40", "full40+text"


@pytest.mark.parametrize("profile", [FULL, TEXT])
@given(
    changes=st.lists(
        st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, COLS - 1)), max_size=12), min_size=1, max_size=4
    ),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_stale_tiles_alone_give_what_computing_everything_gives(
    profile: str, changes: list[list[tuple[int, int]]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    stream, cache, picture = PictureStream(), TextureArrayCache(), scenery(ROWS, COLS)
    texture_array(stream.show(picture), profile, cache)
    for tiles in changes:
        picture = picture.copy()
        for row, col in tiles:
            picture[row * 32 : row * 32 + 32, col * 32 : col * 32 + 32] = rng.integers(0, 256, (32, 32, 3))
        view = stream.show(picture)
        partial, full = texture_array(view, profile, cache), texture_array(view, profile)
        assert torch.equal(partial.channels, full.channels)
        assert torch.equal(partial.entropy, full.entropy)
        assert torch.equal(partial.appearance, texture_array(view).appearance)


def test_another_profile_from_one_cache_is_computed_anew() -> None:
    view, cache = PictureStream().show(scenery(ROWS, COLS)), TextureArrayCache()
    for profile in ("core13", FULL, TEXT, "core13"):
        assert torch.equal(texture_array(view, profile, cache).channels, texture_array(view, profile).channels)


def test_places_and_ranges() -> None:
    view = PictureStream().show(scenery(8, 12))
    core, full = texture_array(view), texture_array(view, TEXT)
    assert full.channels.shape == (40, 8, 12)
    assert full.channels.dtype == torch.float32
    assert ((full.channels >= 0) & (full.channels <= 1)).all()
    assert torch.equal(full.channels[:5], core.channels[:5])
    assert torch.equal(full.channels[6], core.channels[EDGES][2])
    assert torch.equal(full.channels[7], 1 - full.channels[6])
    saliency = core.channels[SALIENCY].sum(dim=0).clamp(max=1)
    torch.testing.assert_close(full.channels[11], saliency, rtol=0, atol=1e-6)  # core13 may come from the kernel
    assert not full.channels[list(HISTORY)].any()
    assert not texture_array(view, FULL).channels[16].any()


def detail(luma: np.ndarray) -> LumaDetail:
    """Of whole tiles of luma, with their edge repeated as the halo."""
    return LumaDetail.of(torch.from_numpy(np.pad(luma, 1, mode="edge"))[None], text=True)


def test_the_laplacian_is_that_of_its_definition() -> None:
    luma = np.random.default_rng(0).integers(0, 256, (32, 48)).astype(np.uint8)
    padded = np.pad(luma.astype(int), 1, mode="edge")
    around = sum(padded[y : y + 32, x : x + 48] for y in range(3) for x in range(3)) - 9 * luma.astype(int)
    means = np.abs(around).reshape(2, 16, 3, 16).mean(axis=(1, 3)) / (8 * 255)
    assert torch.allclose(detail(luma).laplacian[0], torch.from_numpy(means).float(), atol=1e-6)


def test_the_distance_to_edges_is_exact_and_ends_at_64_pixels() -> None:
    edges = np.random.default_rng(1).random((24, 40)) > 0.985
    exact = cv2.distanceTransform((~edges).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    expected = np.minimum(exact / EDGE_REACH, 1).reshape(6, 4, 10, 4).mean(axis=(1, 3))
    np.testing.assert_allclose(edge_distance(torch.from_numpy(edges)[None])[0], expected, atol=1e-6)
    assert (edge_distance(torch.zeros(1, 8, 8, dtype=torch.bool)) == 1).all()
    assert (edge_distance(torch.ones(1, 4, 4, dtype=torch.bool)) == 0).all()


def test_a_line_is_an_edge_and_a_flat_tile_is_far_from_it() -> None:
    luma = np.full((16, 16 * 8), 60, np.uint8)
    luma[:, 8:10] = 220
    luma_detail = detail(luma)
    assert luma_detail.edges[0].any(dim=0).nonzero().flatten().tolist() == [1, 2]
    distance = edge_distance(luma_detail.edges)[0, 0]
    assert distance[0] < 0.2 < distance[1]
    assert (distance[3:] == 1).all()
    assert (luma_detail.laplacian[0, 0, 1:] == 0).all()


def test_the_low_pass_keeps_the_mean_and_spreads_a_spot() -> None:
    colours = torch.full((1, 3, 9, 9), 0.5)
    assert torch.allclose(low_pass(colours), torch.full((1, 9, 9), 0.5), atol=1e-5)
    colours[:, :, 4, 4] = 1
    blurred = low_pass(colours)[0]
    assert blurred.argmax() == 4 * 9 + 4
    assert 0.5 < blurred[4, 5] < blurred[4, 4] < 0.7


def test_grouping_separates_a_small_thing_from_its_ground() -> None:
    colours = torch.tensor([0.25, 0.25, 0.25]).view(1, 3, 1, 1).repeat(1, 1, 6, 8)
    colours[0, :, 2:4, 3:5] = torch.tensor([0.8, 0.3, 0.2])[:, None, None]
    boundary, area, contrast = grouping(colours)[0]
    assert area[2, 3] == pytest.approx(4 / 48)
    assert area[0, 0] == pytest.approx(44 / 48)
    assert boundary[2, 3] == pytest.approx(0.5)
    assert boundary[0, 0] == 0
    assert boundary[1, 3] == pytest.approx(0.25)
    assert contrast[2, 3] > 0.3 > 0.1 > contrast[0, 0]


def test_groups_of_one_colour_have_no_boundary_and_no_contrast() -> None:
    boundary, area, contrast = grouping(torch.full((2, 3, 4, 5), 0.3))[0]
    assert not boundary.any()
    assert (area == 1).all()
    assert contrast.max() < 1e-4


def test_text_differs_from_edges_wires_and_noise() -> None:
    rng, tiles = np.random.default_rng(0), []
    page = np.full((64, 128), 230, np.uint8)
    for row in (14, 28, 42, 56):
        cv2.putText(page, "Hamburgefonts ill", (2, row), cv2.FONT_HERSHEY_SIMPLEX, 0.4, 20, 1)
    edge, wire = np.full((64, 128), 40, np.uint8), np.full((64, 128), 40, np.uint8)
    edge[:, 72:] = 220
    wire[:, 40:43] = 220
    soft = cv2.GaussianBlur(rng.integers(0, 256, (64, 128)).astype(np.uint8), (0, 0), 6)
    for luma in (page, edge, wire, soft, np.full((64, 128), 128, np.uint8)):
        likeness = text_likeness(torch.from_numpy(np.pad(luma, 1, mode="edge"))[None])[0]
        assert ((likeness >= 0) & (likeness <= 1)).all()
        tiles.append(float(likeness.mean()))
    assert tiles[0] > 0.4
    assert tiles[1] == tiles[4] == 0
    assert max(tiles[2:4]) < 0.1


def test_channels_of_the_picture_have_gradients_and_batches() -> None:
    colours = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    low_pass(colours).sum().backward(retain_graph=True)
    grouping(colours)[:, 2].sum().backward()
    assert colours.grad is not None
    assert colours.grad.isfinite().all()
    assert (colours.grad != 0).any()
    pictures = torch.from_numpy(np.stack([scenery(4, 5), scenery(4, 5, seed=1)])).permute(0, 3, 1, 2)
    batch = image_texture(pictures, FULL)
    assert batch.channels.shape == (2, 40, 4, 5)
    assert batch.gradients is not None
    assert batch.appearance.shape == (2, 6, 4, 5)
    assert torch.equal(batch.channels[1], image_texture(pictures[1:], FULL).channels[0])


def test_without_training_forty_channels_choose_as_thirteen_do() -> None:
    view = PictureStream().show(scenery(8, 12))
    maps = []
    for profile in ("core13", TEXT):
        torch.manual_seed(0)
        texture = texture_array(view, profile)
        batch = TextureArray(texture.channels[None], texture.entropy[None])
        maps.append(RelevanceRealiser(channels=profile)(batch).relevance)
    assert torch.allclose(*maps, atol=0.02)


def test_kornia_is_loaded_with_the_profile_that_needs_it() -> None:
    code = "import sys, arr_coc.layer, arr_coc.allocation.allocator; assert 'kornia' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
