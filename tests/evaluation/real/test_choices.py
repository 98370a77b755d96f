"""What strategies show of a frame."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluation.errors import ChoiceError
from evaluation.real.choices import BASELINES, OWN, STRATEGIES, named_strategies, seen, seen_levels
from evaluation.real.frames import ShownFrame, shown_frames
from evaluation.real.labels import Folders, labelled_frames
from evaluation.real.saliency import frequency_tuned, spectral_residual
from evaluation.strategies.base import Budget

QUARTER = Budget(25)


@pytest.fixture
def frames(folders: Folders, labels: Path) -> list[ShownFrame]:
    return list(shown_frames(labelled_frames(path=labels), folders))


def test_levels_are_resolutions() -> None:
    levels = np.array([[0, 1, 2, -1, 6]], np.int8)  # the last is two tiles wide
    shown = seen_levels(levels, 4)
    assert shown.full.tolist() == [[1, 0, 0, 0, 0]]
    assert shown.half.tolist() == [[1, 1, 0, 0, 1]]
    assert shown.any.tolist() == [[1, 1, 1, 0, 1]]


def test_no_strategy_spends_more_than_the_budget(frames: list[ShownFrame]) -> None:
    for frame in frames:
        for (name, budget), shown in seen(frame, STRATEGIES, [QUARTER]).items():
            assert shown.tokens <= budget.of(frame.grid.tiles), name
            if name not in ("foveated", "smaller"):
                assert shown.full.sum() <= budget.of(frame.grid.tiles) + 1e-9, name


def test_a_tile_that_stands_out_is_found(frames: list[ShownFrame]) -> None:
    picture = frames[2]
    box = picture.coverage(picture.label.boxes[0])
    for name in ("topk", "spectral-residual", "frequency-tuned", "ceiling"):
        shown = seen(picture, [name], [QUARTER])[name, QUARTER]
        assert (shown.full * box).sum() == 1, name


def test_chance_and_centre_do_not_look(frames: list[ShownFrame]) -> None:
    picture = frames[2]
    chance = BASELINES["chance"](picture, 24)
    assert (chance.full == 0.25).all()
    centre = BASELINES["centre"](picture, 24)
    assert centre.full.sum() == 24
    assert centre.full[3:5, 5:7].all()
    assert not centre.full[0].any()


@pytest.mark.parametrize(("tokens", "seen_at"), [(96, (1, 1, 1)), (24, (0, 1, 1)), (23, (0, 0, 1))])
def test_a_smaller_picture_shows_all_at_its_scale(
    frames: list[ShownFrame], tokens: int, seen_at: tuple[int, int, int]
) -> None:
    shown = BASELINES["smaller"](frames[2], tokens)
    assert (shown.full.mean(), shown.half.mean(), shown.any.mean()) == seen_at


def test_the_ceiling_is_no_lower_than_any_strategy(frames: list[ShownFrame]) -> None:
    for frame in frames:
        box = frame.coverage(frame.label.boxes[0])
        shares = {name: (shown.full * box).sum() for (name, _), shown in seen(frame, STRATEGIES, [Budget(5)]).items()}
        assert max(shares.values()) == shares["ceiling"]


def test_saliency_has_the_grid_of_the_tiles() -> None:
    image = np.random.default_rng(0).integers(0, 255, (96, 160, 3), np.uint8)
    for saliency in (spectral_residual, frequency_tuned):
        assert saliency(image, (3, 5)).shape == (3, 5)


def test_names_are_checked() -> None:
    assert named_strategies("mixed, chance") == ["mixed", "chance"]
    assert set(OWN) < set(STRATEGIES)
    with pytest.raises(ChoiceError, match=r"unknown strategy 'best'; there are topk, mixed"):
        named_strategies("best")
