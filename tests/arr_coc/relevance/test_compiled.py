"""Channels and scores by the compiled kernel: those of the reference, whatever changed since the picture before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.errors import NonFiniteError
from arr_coc.hub import ALLOCATOR_FOLDER, bundled_model_path
from arr_coc.layer import ARRCOCLayer
from arr_coc.relevance.balancing import AdaptiveTensionBalancer, RelevanceMaps, RelevanceRealiser
from arr_coc.relevance.cached_relevance import CachedRelevance
from arr_coc.relevance.channels import TextureArray, TextureArrayCache, texture_array
from arr_coc.relevance.kernel import kernel_path
from arr_coc.texture.kernels import SETTING
from arr_coc.types import Feedback, QueryEmbedding
from tests.support.video import PictureStream, scenery

needs_kernel = pytest.mark.skipif(
    not kernel_path().is_file() and os.environ.get("CI") != "true", reason="the compiled kernel of scores was not built"
)
GRIDS = [(1, 1), (2, 17), (5, 16), (18, 33)]
QUERY = 6
ROUNDING = 5e-5
"""Untrained perspective undoes a sigmoid with slopes of some hundreds, which lets roundings of 1e-7 grow; with weights
that are trained, scores differ by 2e-6."""


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The reference and the compiled kernel, in turn."""

    def turns() -> Iterator[str]:
        for way in ("reference", "compiled"):
            monkeypatch.setenv(SETTING, way)
            yield way

    return turns()


def flickering(rows: int, cols: int, seed: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Pictures of which a few tiles, none, all or a block changes each time."""
    rng = np.random.default_rng(seed)
    picture = np.full((rows * 32, cols * 32, 3), 90, np.uint8)
    for share in (1.0, 0.02, 0.0, 0.1, 1.0, 0.02, 0.02):
        for row, col in np.argwhere(rng.random((rows, cols)) < share):
            tile = picture[row * 32 : row * 32 + 32, col * 32 : col * 32 + 32]
            tile[:] = rng.integers(0, 256, tile.shape) if rng.random() < 0.5 else rng.integers(0, 256, 3)
        yield picture.copy()


@needs_kernel
@pytest.mark.parametrize("grid", GRIDS)
def test_channels_are_those_of_the_reference(grid: tuple[int, int], ways: Iterator[str]) -> None:
    runs: list[list[TextureArray]] = []
    for _ in ways:
        stream, cache = PictureStream(), TextureArrayCache()
        pictures = flickering(*grid, seed=sum(grid))
        runs.append([texture_array(stream.show(picture), "core13", cache) for picture in pictures])
    for reference, compiled in zip(*runs, strict=True):
        exact = [*range(8), 11, 12]
        assert reference.channels[exact].equal(compiled.channels[exact])
        assert reference.entropy.equal(compiled.entropy)
        torch.testing.assert_close(reference.channels, compiled.channels, rtol=0, atol=1e-6)


def trained(scorer: str | None, seed: int) -> RelevanceRealiser:
    """A realiser with learned parts, or without, all of whose weights are somewhere else than at first."""
    torch.manual_seed(seed)
    realiser = RelevanceRealiser(QUERY, "m", scorer) if scorer else RelevanceRealiser()
    with torch.no_grad():
        for parameter in realiser.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return realiser


@dataclass(frozen=True)
class _Asking:
    """A stream of pictures and priors, and the question about it."""

    realiser: RelevanceRealiser
    query: QueryEmbedding | None

    def maps(self, grid: tuple[int, int], with_prior: bool) -> list[RelevanceMaps]:
        """Relevance of flickering pictures; every prior holds for two of them, and every picture twice."""
        rng, relevance = np.random.default_rng(3), CachedRelevance(self.realiser)
        if self.query is not None:
            relevance.set_query(self.query)
        stream, cache, maps = PictureStream(), TextureArrayCache(), []
        prior = None
        for index, picture in enumerate(flickering(*grid, seed=7)):
            if with_prior and index % 2:
                prior = torch.from_numpy(rng.random((3, *grid), np.float32))
            texture = texture_array(stream.show(picture), "core13", cache)
            maps.append(relevance.compute(texture, prior))
            if with_prior:
                maps.append(relevance.compute(texture, torch.from_numpy(rng.random((3, *grid), np.float32))))
        return maps


@needs_kernel
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("with_prior", [False, True])
@pytest.mark.parametrize(("scorer", "asks"), [(None, False), ("film", True), ("film", False), ("cross", True)])
def test_scores_are_those_of_the_reference(
    scorer: str | None, asks: bool, with_prior: bool, grid: tuple[int, int], ways: Iterator[str]
) -> None:
    query = QueryEmbedding("what?", np.random.default_rng(1).normal(size=(3, QUERY)).astype(np.float32), "m")
    asking = _Asking(trained(scorer, seed=grid[0]), query if asks else None)
    reference, compiled = (asking.maps(grid, with_prior) for _ in ways)
    for expected, actual in zip(reference, compiled, strict=True):
        for name in ("relevance", "scores", "weights"):
            torch.testing.assert_close(getattr(actual, name), getattr(expected, name), rtol=0, atol=ROUNDING, msg=name)


@needs_kernel
@pytest.mark.parametrize("scorer", [None, "film"])
def test_kept_scores_equal_scoring_all_tiles_bit_for_bit(scorer: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "compiled")
    realiser, stream, cache = trained(scorer, 1), PictureStream(), TextureArrayCache()
    query = QueryEmbedding("what?", np.ones((3, QUERY), np.float32), "m")
    following = CachedRelevance(realiser)
    following.set_query(query)
    for picture in flickering(18, 33, 5):
        view = stream.show(picture)
        texture, anew = texture_array(view, "core13", cache), CachedRelevance(realiser)
        anew.set_query(query)
        full = texture_array(view)
        assert texture.channels.equal(full.channels)
        assert texture.entropy.equal(full.entropy)
        actual, expected = following.compute(texture, None), anew.compute(full, None)
        assert actual.scores.equal(expected.scores)
        assert actual.relevance.equal(expected.relevance)


@needs_kernel
@pytest.mark.parametrize("strategy", ["foveated", "mixed", "topk"])
def test_choices_are_those_of_the_reference(strategy: str, ways: Iterator[str]) -> None:
    """With the bundled allocator, answers' feedback among the frames."""
    realiser, choices = bundled_realiser(), []
    query = QueryEmbedding(
        "what?", np.random.default_rng(0).normal(size=(4, 192)).astype(np.float32), realiser.trained_for
    )
    for _ in ways:
        rng, stream = np.random.default_rng(2), PictureStream()
        allocator = StreamAllocator(AllocatorOptions(strategy=strategy), realiser)
        allocator.set_query(query)
        for picture in flickering(18, 32, 9):
            frame = allocator.allocate(stream.show(picture))
            choices.append(frame.allocation.regions)
            allocator.mark_answered()
            regions, attention = frame.allocation.regions.numpy().astype(np.int32), rng.random(frame.tokens, np.float32)
            allocator.apply_feedback(Feedback(frame.stamp, regions, attention, attention))
    half = len(choices) // 2
    assert all(expected.equal(actual) for expected, actual in zip(choices[:half], choices[half:], strict=True))


def bundled_realiser() -> RelevanceRealiser:
    return ARRCOCLayer.from_pretrained(bundled_model_path() / ALLOCATOR_FOLDER).realiser


@needs_kernel
def test_weights_that_training_moved_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "compiled")
    realiser = trained("film", 0)
    relevance, stream = CachedRelevance(realiser), PictureStream()
    views = [texture_array(stream.show(picture)) for picture in flickering(4, 5, 0)]
    before = relevance.compute(views[0], None).scores
    with torch.no_grad():
        realiser.perspective.wide.weight.mul_(-1)
    relevance.compute(views[1], None)
    after = relevance.compute(views[0], None).scores
    monkeypatch.setenv(SETTING, "reference")
    expected = CachedRelevance(realiser).compute(views[0], None).scores
    torch.testing.assert_close(after, expected, rtol=0, atol=ROUNDING)
    assert not torch.allclose(before, after, atol=1e-3)


@needs_kernel
def test_broken_weights_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "compiled")
    realiser = trained(None, 0)
    with torch.no_grad():
        realiser.perspective.out.bias.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="the perspectival score holds NaN or Inf"):
        CachedRelevance(realiser).compute(texture_array(PictureStream().show(scenery(4, 5))), None)


class LevelBalancer(AdaptiveTensionBalancer):
    """A user's own: every score weighs the same."""

    def forward(self, scores: torch.Tensor, trust: torch.Tensor, query: torch.Tensor | None = None) -> torch.Tensor:
        return torch.ones(scores.shape[:2])


@needs_kernel
@pytest.mark.parametrize("kind", ["another class", "a hook"])
def test_parts_that_the_kernel_does_not_know_are_asked_themselves(kind: str) -> None:
    realiser = RelevanceRealiser().eval()
    if kind == "a hook":
        realiser.balancer.register_forward_hook(lambda part, inputs, weights: torch.ones_like(weights))
    else:
        realiser.balancer = LevelBalancer()
    maps = CachedRelevance(realiser).compute(texture_array(PictureStream().show(scenery(8, 10))), None)
    assert torch.equal(maps.weights, torch.ones(3))
