"""The library on a CUDA device: the same values, and everything stays there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from arr_coc.ops.attention import hierarchical_attention
from arr_coc.ops.composite import foveate
from arr_coc.ops.mipmaps import generate_mipmaps
from arr_coc.ops.texture import Texture
from tests.arr_coc.ops.test_texture import images

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

PICTURES = images(2, 300, 420)
POINTS, ALONG = torch.rand(50, 2) * 300, torch.randn(50, 2) * 12
ROWS = torch.randn(3, 2, 70, 8)


@pytest.mark.parametrize(
    "work",
    [
        lambda device: generate_mipmaps(PICTURES.to(device)),
        lambda device: generate_mipmaps(PICTURES.to(device, torch.float32)),
        lambda device: [Texture(PICTURES.to(device)).sample(POINTS.to(device), 1.4, 1)],
        lambda device: [Texture(PICTURES.to(device)).sample_along(POINTS, ALONG, 1.5, torch.arange(50) % 2)],
        lambda device: [Texture(PICTURES.to(device)).gather_strips(POINTS, ALONG, 32.0)],
        lambda device: [Texture(PICTURES.to(device)).sample_foveated((0.3, 0.8), 40, layer=1).pixels],
        lambda device: [hierarchical_attention(*ROWS.to(device), grid=(7, 10), share=0.3, block=8)],
    ],
    ids=["mipmaps", "mipmaps of floats", "sample", "sample_along", "gather_strips", "sample_foveated", "attention"],
)
def test_a_gpu_gives_what_the_cpu_gives(work: Callable[[str], list[torch.Tensor]]) -> None:
    for result, expected in zip(work("cuda"), work("cpu"), strict=True):
        assert result.is_cuda
        assert result.dtype == expected.dtype
        if expected.dtype == torch.uint8:
            assert torch.equal(result.cpu(), expected)
        else:
            torch.testing.assert_close(result.cpu(), expected, atol=0.02, rtol=1e-4)


def test_a_composite_of_a_picture_on_a_gpu() -> None:
    relevance = torch.zeros(10, 14)
    relevance[4:6, 5:8] = 1
    composite, expected = (foveate(PICTURES[0].to(device), relevance.to(device), 60) for device in ("cuda", "cpu"))
    assert (composite.image == expected.image).all()
    assert composite.placements == expected.placements
