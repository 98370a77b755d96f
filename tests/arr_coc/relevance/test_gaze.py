"""What of a picture is looked at before anything is asked: `gaze.py`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.packets import explain
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.gaze import gaze_prior, middle_prior, spectral_residual
from tests.support.video import PictureStream, scenery

ROWS, COLS = 12, 20


def stripes(odd: tuple[slice, slice]) -> torch.Tensor:
    """A regular pattern, and a patch that breaks it."""
    picture = 128 + 60 * torch.sin(torch.arange(160) * 0.8).expand(96, 160).clone()
    picture[odd] = 128
    return picture


def test_the_middle_counts_twice_what_corners_count() -> None:
    prior = middle_prior((101, 61))
    assert float(prior[50, 30]) == float(prior.max()) == pytest.approx(1, abs=0.01)
    assert float(prior[0, 0]) == float(prior.min()) == pytest.approx(0.5, abs=0.01)
    torch.testing.assert_close(prior, prior.flip(0, 1))


def test_what_breaks_a_pattern_is_left_of_its_spectrum() -> None:
    residual = spectral_residual(stripes((slice(16, 40), slice(112, 144))))
    tiles = torch.nn.functional.adaptive_avg_pool2d(residual[None], (6, 10))[0]
    row, col = divmod(int(tiles.argmax()), 10)
    assert row in (1, 2)
    assert col in (7, 8)
    assert float(tiles.max()) > 1.8 * float(tiles.median())


def test_the_prior_is_a_factor_of_any_scale_of_luma() -> None:
    luma = stripes((slice(16, 40), slice(112, 144)))
    prior = gaze_prior(luma, (3, 5))
    assert float(prior.min()) > 0
    assert float(prior.max()) <= 1
    torch.testing.assert_close(gaze_prior(luma / 255, (3, 5)), prior, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("value", [0.0, 255.0])
def test_a_flat_picture_leaves_the_middle(value: float) -> None:
    prior = gaze_prior(torch.full((96, 160), value), (3, 5))
    assert torch.isfinite(prior).all()
    assert (prior > 0).all()


def test_a_trained_allocator_is_not_weighed() -> None:
    picture = scenery(ROWS, COLS)
    plain = StreamAllocator(AllocatorOptions(budget=20), RelevanceRealiser(8, "some model"))
    weighed = StreamAllocator(AllocatorOptions(budget=20), RelevanceRealiser())
    view = PictureStream().show(picture)
    before = plain.allocate(view).relevance
    luma = torch.from_numpy(np.asarray(picture, np.float32).mean(axis=2))
    after = weighed.allocate(view).relevance
    ratio = after / before
    expected = gaze_prior(luma, (ROWS, COLS))
    assert (before > 0.01).any()
    assert np.corrcoef(ratio[before > 0.01], expected[before > 0.01])[0, 1] > 0.85


def test_a_still_picture_is_not_weighed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from arr_coc.relevance import gaze

    calls: list[int] = []
    compute = gaze.gaze_prior

    def counting(luma: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
        calls.append(1)
        return compute(luma, shape)

    monkeypatch.setattr(gaze, "gaze_prior", counting)
    stream, allocator = PictureStream(), StreamAllocator(AllocatorOptions(budget=20))
    first = allocator.allocate(stream.show(scenery(ROWS, COLS)))
    again = allocator.allocate(stream.show(scenery(ROWS, COLS)))
    assert len(calls) == 1
    assert again.maps is not None
    assert first.maps is not None
    assert again.maps.realised is first.maps.realised


def test_reasons_say_what_the_gaze_leaves_of_the_balance() -> None:
    frame = StreamAllocator(AllocatorOptions(budget=20)).allocate(PictureStream().show(scenery(ROWS, COLS)))
    reasons = explain(frame)
    assert len(reasons) == 20
    for reason in reasons:
        assert reason.memory == pytest.approx(0, abs=1e-6), "the first frame has no past"
        assert reason.now == pytest.approx(reason.relevance, abs=1e-6)
