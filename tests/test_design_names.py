"""Calls of the founding documents, written as there; each does what the package does under its own name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import arr_coc.texture
import texturevlm
from arr_coc import ARRCOCLayer, ops
from arr_coc.errors import OptionError, ShapeError
from arr_coc.finetune import AnswerCollator, TrainableQwen
from arr_coc.knowing import (
    InformationScorer,
    ParticipatoryScorer,
    PerspectivalScorer,
    information_score,
    perspectival_score,
)
from arr_coc.texture import generate_texture_array
from tests.support.models import tiny_qwen


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    """The same numbers, and one thread, because several are slow at small matrices."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def image_tensor() -> torch.Tensor:
    return torch.rand(3, 1024, 1024)


def test_import_texturevlm() -> None:
    assert texturevlm.generate_mipmaps is ops.generate_mipmaps
    assert texturevlm.sample_foveated is ops.sample_foveated
    assert texturevlm.VideoStream is ops.VideoStream
    assert issubclass(texturevlm.Texture, ops.Texture)
    assert dir(texturevlm) == sorted(texturevlm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'mipmap'"):
        _ = texturevlm.mipmap


def test_generate_mipmaps(image_tensor: torch.Tensor) -> None:
    pyramid_texture = texturevlm.generate_mipmaps(image_tensor)
    for level, texels in enumerate(pyramid_texture):
        torch.testing.assert_close(texels, nn.functional.avg_pool2d(image_tensor, 2**level))


def test_sample_foveated_in_pixels(image_tensor: torch.Tensor) -> None:
    num_patches = 12
    patches = texturevlm.sample_foveated(image_tensor, (512, 512), num_patches, {"M0": 1.0, "e0": 0.5})
    named = texturevlm.sample_foveated(
        image_tensor, fixation_point=(512, 512), num_patches=12, cortical_magnification={"M0": 1.0, "e0": 0.5}
    )
    expected = ops.sample_foveated(image_tensor, (0.5, 0.5), 12, 3.0)  # (1 + e0)/e0
    for found in (patches, named):
        assert torch.equal(found.patches, expected.patches)
    assert expected.patches.shape[1:] == (3, 32, 32)
    corner = texturevlm.sample_foveated(image_tensor, (256, 768), num_patches)
    torch.testing.assert_close(corner.patches, ops.sample_foveated(image_tensor, (0.25, 0.75), 12).patches)


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"M0": 1.0}, 'needs M0 and e0, got M0; give {"M0": 1.0, "e0": 0.5}'),
        ({"M0": 1.0, "e0": 0.0}, "e0"),
        ({"M0": -1.0, "e0": 0.5}, "M0"),
        ({}, "needs M0 and e0, got nothing"),
    ],
)
def test_constants_that_are_none(constants: dict[str, float], message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("{", r"\{")):
        texturevlm.sample_foveated(torch.rand(3, 64, 64), (0.5, 0.5), 2, constants)
    with pytest.raises(OptionError, match=r"lies in \[0, 1\] of the picture"):
        texturevlm.sample_foveated(torch.rand(3, 64, 64), (65, 0), 2)


def test_texture_with_its_own_mipmaps(image_tensor: torch.Tensor) -> None:
    fixation_xy = torch.tensor([0.5, 0.5])
    texture = texturevlm.Texture(image_tensor)
    levels = texture.generate_mipmaps()
    assert all(map(torch.equal, levels, ops.generate_mipmaps(image_tensor)))
    seen = texture.sample_foveated(fixation=fixation_xy, budget=273, cortical_magnification={"M0": 1.0, "e0": 0.5})
    expected = ops.Texture(image_tensor).sample_foveated((0.5, 0.5), 273, 1.0, 0.5)
    assert torch.equal(seen.pixels, expected.pixels)
    assert seen.pixels.ndim == 4
    in_pixels = texture.sample_foveated((512, 512), 273, 1.0, 0.5)
    assert torch.equal(in_pixels.regions, seen.regions)

    pyramid = texturevlm.TexturePyramid(image_tensor)
    pyramid.generate_mipmaps()
    patches = pyramid.sample_foveated(fixation=torch.tensor([0.5, 0.5]), num_patches=64)
    assert torch.equal(patches.pixels, ops.Texture(image_tensor).sample_foveated((0.5, 0.5), 64).pixels)
    assert len(patches.pixels) <= 64


def test_hierarchical_attention() -> None:
    q = torch.randn(20, 16)
    keys, values = torch.randn(16, 8, 12), torch.randn(5, 8, 12)
    k_texture = texturevlm.Texture(keys, layout="spatial")
    v_texture = texturevlm.Texture(values, layout="spatial")
    output = texturevlm.hierarchical_attention(
        queries=q, key_texture=k_texture, value_texture=v_texture, coarse_mip=2, fine_ratio=0.1
    )
    rows = [part.flatten(1).T for part in (keys, values)]
    assert torch.equal(output, ops.hierarchical_attention(q, *rows, grid=(8, 12), share=0.1, level=2))
    full = texturevlm.hierarchical_attention(q, k_texture, v_texture, 2, fine_ratio=1.0)
    torch.testing.assert_close(full, nn.functional.scaled_dot_product_attention(q, *rows), atol=1e-5, rtol=1e-5)
    with pytest.raises(ShapeError, match=r"key_texture is made by Texture\(..., layout='spatial'\), got Tensor"):
        texturevlm.hierarchical_attention(q, keys, v_texture)
    with pytest.raises(ShapeError, match=r"features in space are \[..., D, rows, columns\], got \[16\]"):
        texturevlm.Texture(torch.zeros(16), layout="spatial")
    with pytest.raises(OptionError, match="layout is picture or spatial, got 'flat'"):
        texturevlm.Texture(keys, layout="flat")


def video() -> Iterator[np.ndarray]:
    frame = np.random.default_rng(0).integers(0, 256, (1024, 1024, 3), dtype=np.uint8)
    for shade in (0, 255):
        frame = frame.copy()
        frame[:64, :64] = shade
        yield frame


@pytest.mark.parametrize("arguments", [((1024,), {}), ((), {"resolution": 1024})], ids=["1024", "resolution=1024"])
def test_video_stream_of_a_square(arguments: tuple[tuple[int, ...], dict[str, Any]]) -> None:
    positional, named = arguments
    fixation_xy = (0.5, 0.5)
    texture_stream = texturevlm.VideoStream(*positional, **named)
    for frame in video():
        changed = texture_stream.update(frame, delta_only=True)
        texture_stream.update_mipmaps()
        patches = texture_stream.sample_foveated(fixation=fixation_xy, budget=64)
        assert torch.equal(patches.pixels.cpu(), ops.Texture(frame).sample_foveated(fixation_xy, 64).pixels)
    assert changed.dirty.sum() == 4
    texture_stream.close()


def test_texture_array_and_ways_of_knowing() -> None:
    test_image = torch.rand(2, 3, 512, 512)
    textures = generate_texture_array(test_image, grid_size=32)
    assert textures.shape == (2, 13, 32, 32)
    assert generate_texture_array(test_image).shape == (2, 13, 16, 16)

    info_scores = information_score(textures)
    persp_scores = perspectival_score(textures)
    for scores, scorer in ((info_scores, InformationScorer(13)), (persp_scores, PerspectivalScorer(13))):
        assert scores.shape == (2, 32, 32)
        with torch.no_grad():
            torch.testing.assert_close(scores, scorer(textures), atol=0.02, rtol=0)
    flat = generate_texture_array(torch.full((1, 3, 64, 64), 0.5))
    assert float(information_score(flat).max()) == 0 < float(info_scores.mean())

    query_embeds = torch.randn(2, 1536)
    partic_scores, _ = ParticipatoryScorer(13, 1536)(textures, query_embeds)
    assert partic_scores.shape == (2, 32, 32)
    with pytest.raises(AttributeError, match=r"module 'arr_coc.texture' has no attribute 'generate'"):
        _ = arr_coc.texture.generate


def test_layer_of_a_pooled_query_with_gradients_to_the_image() -> None:
    layer = ARRCOCLayer(hidden_dim=64, texture_channels=13, min_tokens=64, max_tokens=400)
    vision_embeds = torch.randn(2, 1024, 64)
    query_embeds = torch.randn(2, 64)
    image = torch.rand(2, 3, 448, 448, requires_grad=True)
    output = layer(vision_embeds, query_embeds, image)
    assert 64 <= output.tokens.shape[1] <= 400
    assert output.positions.shape == (*output.tokens.shape[:2], 2)
    assert output.budgets.shape == output.tokens.shape[:2]
    expected = layer(vision_embeds, query_embeds[:, None], image.detach())
    assert torch.equal(output.tokens, expected.tokens)
    assert torch.equal(output.relevance, expected.relevance)
    output.relevance.sum().backward()
    assert image.grad is not None
    assert (image.grad.flatten(1).abs().sum(dim=1) > 0).all()


def test_the_gradient_to_an_image_is_that_of_its_colours() -> None:
    """Shades of whole tiles that differ by many steps of 8 bits: the slope over them is the gradient."""
    layer = ARRCOCLayer(hidden_dim=8, texture_channels=13)
    with torch.no_grad():  # perspective reads the red of the tile in the middle alone
        for weight in layer.realiser.perspective.wide.parameters():
            weight.zero_()
        layer.realiser.perspective.wide.weight[0, 0, 1, 1] = 0.1
    image = torch.full((1, 3, 64, 64), 0.5, requires_grad=True)

    def score(picture: torch.Tensor) -> torch.Tensor:
        return layer(torch.ones(1, 4, 5), None, picture, (2, 2)).scores[0, 1, 0, 0]

    score(image).backward()
    assert image.grad is not None
    gradient = image.grad[0, :, :32, :32].sum(dim=(1, 2))
    assert float(gradient[0]) > 0
    assert gradient[1:].tolist() == [0, 0]
    assert not image.grad[0, :, 32:].any()
    brighter = image.detach().clone()
    brighter[0, 0, :32, :32] += 0.02
    with torch.no_grad():
        slope = float(score(brighter) - score(image)) / 0.02
    assert float(gradient[0]) == pytest.approx(slope, rel=0.1)


QUESTION = "Is the cat sleeping?"


def test_forward_of_plain_pictures() -> None:
    model = TrainableQwen(tiny_qwen())
    model.new_allocator(seed=1, budget=16, strategy="topk")
    pixel_values = torch.rand(1, 3, 448, 448)
    input_ids = torch.tensor([model.qwen.token_ids(QUESTION)])
    labels = input_ids.clone()
    outputs = model(pixel_values=pixel_values, input_ids=input_ids, labels=labels)
    outputs.loss.backward()
    assert outputs.arr_coc_info.regions.shape == (1, 16, 3)
    assert outputs.arr_coc_info.relevance[0].shape == (14, 14)
    assert outputs.logits.shape[1] == 16 + 2 + input_ids.shape[1]  # picture, its two marks, text
    assert any(weight.grad is not None and weight.grad.any() for weight in model.allocator.parameters())

    batch = AnswerCollator(model.qwen)([{"image": pixel_values[0], "question": QUESTION, "answer": "no"}])
    expected = model(**batch)
    shown = {**batch, "pixel_values": pixel_values, "image_grid_thw": None}
    torch.testing.assert_close(model(**shown).loss, expected.loss)
    with_masks = {"attention_mask": torch.ones_like(input_ids), "question_mask": torch.ones_like(input_ids)}
    assert model(pixel_values=pixel_values, input_ids=input_ids, **with_masks).loss is None


def test_last_relevance_scores() -> None:
    arr_coc_model = TrainableQwen(tiny_qwen())
    assert arr_coc_model.last_relevance_scores is None
    assert arr_coc_model.last_num_tokens_used is None
    outputs = arr_coc_model.generate(torch.rand(3, 448, 448), QUESTION, max_new_tokens=2, budget=20)
    relevance_scores = arr_coc_model.last_relevance_scores
    assert relevance_scores is not None
    assert np.array_equal(relevance_scores.cpu().numpy(), outputs.heatmap)
    assert relevance_scores.shape == (14, 14)
    assert arr_coc_model.last_num_tokens_used == outputs.tokens_used == 20
    message = {
        "role": "user",
        "content": [{"type": "image", "image": torch.rand(3, 64, 96)}, {"type": "text", "text": "?"}],
    }
    chat = arr_coc_model.generate(messages=[message], max_new_tokens=2)
    assert arr_coc_model.last_relevance_scores.shape == chat.heatmap.shape == (2, 3)
