"""Relevant change since a moment: what came, and what has vanished."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc.change import ChangeSince
from arr_coc.types import TileVersions

PLAIN, THING = np.array([[0.1, 0.1, 0.2]], np.float32), np.array([[0.1, 0.7, 0.2]], np.float32)


def versions(*frames: int, epoch: int = 1) -> TileVersions:
    return TileVersions(epoch, np.array([frames], np.int64))


@pytest.mark.parametrize("lasting", [False, True])
def test_it_counts_from_the_mark(lasting: bool) -> None:
    change = ChangeSince(lasting=lasting)
    first = versions(0, 0, 0)
    assert change.of(first, THING) == 1
    change.mark(first)
    assert change.of(first, THING) == 0
    assert change.of(versions(0, 5, 0), THING) == pytest.approx(0.7)
    assert change.of(versions(5, 5, 5, epoch=2), THING) == 1


@pytest.mark.parametrize(("lasting", "expected"), [(False, 0.25), (True, 0.7)])
def test_what_has_vanished_counts_by_what_it_was(lasting: bool, expected: float) -> None:
    change = ChangeSince(lasting=lasting)
    change.of(versions(0, 0, 0), PLAIN)
    change.mark(versions(0, 0, 0))
    change.of(versions(0, 0, 0), THING)  # it became relevant later, as blending lets it
    assert change.of(versions(0, 9, 0), PLAIN) == pytest.approx(expected)


def test_what_has_vanished_counts_until_the_next_mark() -> None:
    change = ChangeSince(lasting=True)
    change.of(versions(0, 0, 0), THING)
    change.mark(versions(0, 0, 0))
    change.of(versions(0, 9, 0), PLAIN)
    change.mark(versions(0, 9, 0))
    assert change.of(versions(0, 10, 0), PLAIN) == pytest.approx(0.25)


def test_another_grid_begins_anew() -> None:
    change = ChangeSince(lasting=True)
    change.of(versions(0, 0, 0), THING)
    change.mark(versions(0, 0, 0))
    assert change.of(versions(0, 0, epoch=2), np.ones((1, 2), np.float32)) == 1


def test_where_nothing_is_relevant_tiles_count() -> None:
    change = ChangeSince()
    change.mark(versions(0, 0, 0, 0))
    assert change.of(versions(1, 0, 0, 0), np.zeros((1, 4), np.float32)) == 0.25
