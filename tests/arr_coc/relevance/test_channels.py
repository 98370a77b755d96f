"""None"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.errors import NonFiniteError, ProfileError, ShapeError
from arr_coc.relevance.channels import (
    TextureArrayCache,
    cluster_distance,
    colour_variance,
    edge_means,
    image_texture,
    luma_entropy,
    texture_array,
)
from arr_coc.relevance.profiles import EDGES, RGB, SALIENCY
from tests.support.video import PictureStream, levels_of, scenery

ROWS, COLS = 6, 9


@given(
    changes=st.lists(
        st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(0, COLS - 1)), max_size=12), min_size=1, max_size=4
    ),
    seed=st.integers(0, 99),
)
@settings(max_examples=25)
def test_stale_tiles_alone_give_what_computing_everything_gives(
    changes: list[list[tuple[int, int]]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    stream, cache, picture = PictureStream(), TextureArrayCache(), scenery(ROWS, COLS)
    texture_array(stream.show(picture), cache=cache)
    for tiles in changes:
        picture = picture.copy()
        for row, col in tiles:
            picture[row * 32 : row * 32 + 32, col * 32 : col * 32 + 32] = rng.integers(0, 256, (32, 32, 3))
        view = stream.show(picture)
        partial, full = texture_array(view, cache=cache), texture_array(view)
        assert torch.equal(partial.channels, full.channels)
        assert torch.equal(partial.entropy, full.entropy)


def test_nothing_changed_gives_the_same_object() -> None:
    stream, cache = PictureStream(), TextureArrayCache()
    first = texture_array(stream.show(scenery(4, 4)), cache=cache)
    assert texture_array(stream.show(scenery(4, 4)), cache=cache) is first
    assert texture_array(stream.show(scenery(4, 4, seed=1)), cache=cache) is not first


def test_another_epoch_and_another_size_are_stale() -> None:
    stream, cache = PictureStream(), TextureArrayCache()
    texture_array(stream.show(scenery(4, 4)), cache=cache)
    stream.cut()
    for picture in (scenery(4, 4, seed=2), scenery(5, 7)):
        stream.cut()
        view = stream.show(picture)
        assert torch.equal(texture_array(view, cache=cache).channels, texture_array(view).channels)


def test_an_earlier_result_is_not_overwritten() -> None:
    stream, cache = PictureStream(), TextureArrayCache()
    first = texture_array(stream.show(scenery(4, 4)), cache=cache)
    copies = first.channels.clone(), first.entropy.clone()
    texture_array(stream.show(scenery(4, 4, seed=3)), cache=cache)
    assert torch.equal(first.channels, copies[0])
    assert torch.equal(first.entropy, copies[1])


def test_ranges_and_places() -> None:
    texture = texture_array(PictureStream().show(scenery(8, 12)))
    assert texture.channels.shape == (13, 8, 12)
    assert texture.channels.dtype == texture.entropy.dtype == torch.float32
    signed = texture.channels[5:7]
    others = torch.cat([texture.channels[:5], texture.channels[7:], texture.entropy[None]])
    assert ((signed >= -1) & (signed <= 1)).all()
    assert ((others >= 0) & (others <= 1)).all()
    assert texture.channels[3, :, 0].tolist() == pytest.approx([row / 7 for row in range(8)])
    assert texture.channels[4, 0].tolist() == pytest.approx([col / 11 for col in range(12)])
    assert torch.equal(texture.appearance, torch.cat([texture.channels[RGB], texture.channels[EDGES]]))


def test_colour_is_level_5() -> None:
    picture = scenery(4, 5)
    texture = texture_array(PictureStream().show(picture))
    assert torch.equal(texture.channels[RGB], torch.from_numpy(levels_of(picture)[5]).permute(2, 0, 1) / 255)


def test_entropy_of_flat_text_and_noise() -> None:
    rng = np.random.default_rng(0)
    flat = np.full((16, 16), 95, np.uint8)
    shaky = flat + rng.integers(0, 2, (16, 16)).astype(np.uint8)
    bars = flat.copy()
    bars[:, ::2] = 250
    noise = rng.integers(0, 256, (16, 16)).astype(np.uint8)
    entropy = luma_entropy(np.stack([flat, shaky, bars, noise]))
    assert entropy[0] == entropy[1] == 0
    assert entropy[2] == pytest.approx(0.25)
    assert 0.9 < entropy[3] <= 1


def test_edges_have_sign_and_size() -> None:
    """A tile of 16 texels with a halo of one, and an upright edge in its middle."""
    image = np.full((1, 18, 18), 50, np.uint8)
    image[:, :, 9:] = 200
    step = 150 * 4 * 2 / 16 / (4 * 255)
    assert edge_means(image).ravel().tolist() == pytest.approx([step, 0, step / 2**0.5], rel=1e-3)
    assert edge_means(255 - image)[0, 0, 0] == -edge_means(image)[0, 0, 0]
    assert edge_means(image.swapaxes(1, 2))[1, 0, 0] == edge_means(image)[0, 0, 0]
    assert not edge_means(np.full((2, 18, 18), 9, np.uint8)).any()


def test_the_frame_s_border_is_no_edge() -> None:
    flat = np.full((96, 128, 3), 180, np.uint8)
    assert not texture_array(PictureStream().show(flat)).channels[EDGES].any()


def test_colour_variance_of_flat_and_checkered_tiles() -> None:
    flat = np.full((8, 8, 3), 90, np.uint8)
    checkered = np.zeros((8, 8, 3), np.uint8)
    checkered[::2, ::2] = checkered[1::2, 1::2] = 255
    assert colour_variance(np.stack([flat, checkered])).tolist() == pytest.approx([0, 1])


def test_clusters_are_near_what_belongs_to_them() -> None:
    coarse = np.zeros((6, 8, 3), np.uint8)
    coarse[:, 4:] = (200, 190, 180)
    coarse[2, 2] = (90, 0, 0)
    distance = cluster_distance(coarse)
    assert distance[2, 2] == distance.max() > 0.1
    assert np.delete(distance.ravel(), 2 * 8 + 2).max() < 0.02
    assert (cluster_distance(coarse) == distance).all()


@pytest.mark.parametrize(("colour", "channel"), [((255, 255, 255), 8), ((255, 0, 0), 9), ((0, 0, 255), 10)])
def test_saliency_sees_what_differs_from_its_surround(colour: tuple[int, int, int], channel: int) -> None:
    picture = np.zeros((13 * 32, 13 * 32, 3), np.uint8)
    picture[6 * 32 : 7 * 32, 6 * 32 : 7 * 32] = colour
    saliency = texture_array(PictureStream().show(picture)).channels[channel]
    assert saliency.argmax() == 6 * 13 + 6
    assert saliency[6, 6] > 0.8
    assert saliency[0, 0] == 0
    assert texture_array(PictureStream().show(np.full_like(picture, 77))).channels[SALIENCY].max() < 1e-6


def test_saliency_is_absolute() -> None:
    picture = np.full((13 * 32, 13 * 32, 3), 100, np.uint8)
    picture[6 * 32 : 7 * 32, 6 * 32 : 7 * 32] = 110
    assert 0 < texture_array(PictureStream().show(picture)).channels[SALIENCY].max() < 0.05


def test_plain_images_give_the_same_channels() -> None:
    picture = scenery(4, 6)
    expected = texture_array(PictureStream().show(picture))
    image = torch.from_numpy(picture).permute(2, 0, 1)[None]
    for images in (image, image / 255, image.double() / 255):
        texture = image_texture(images)
        assert torch.equal(texture.channels[0], expected.channels)
        assert torch.equal(texture.entropy[0], expected.entropy)


def test_plain_images_are_padded_and_batched() -> None:
    picture = scenery(4, 6)[:100, :170]
    padded = np.pad(picture, ((0, 28), (0, 22), (0, 0)), mode="edge")
    images = torch.from_numpy(np.stack([picture, 255 - picture])).permute(0, 3, 1, 2)
    texture = image_texture(images)
    assert texture.channels.shape == (2, 13, 4, 6)
    assert torch.equal(texture.channels[0], texture_array(PictureStream().show(padded)).channels)


def test_invalid_textures_are_refused() -> None:
    image = torch.rand(1, 3, 32, 32)
    with pytest.raises(ProfileError, match="core13"):
        image_texture(image, "core14")
    with pytest.raises(ProfileError):
        texture_array(PictureStream().show(scenery(4, 4)), "full")
    with pytest.raises(ShapeError, match=r"\[B, 3, H, W\]"):
        image_texture(image[0])
    with pytest.raises(ShapeError, match="uint8 or floating"):
        image_texture(image.long())
    with pytest.raises(NonFiniteError, match="images"):
        image_texture(image * float("nan"))
