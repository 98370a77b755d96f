"""News of tiles: light that flickers, noise, and small things that must not be missed in either."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.allocation.tile_news import CHANGE, LASTING_LOOKS, LIGHT_LOOKS, SIDE, TileNews

ROWS, COLS = 12, 16
ALL = np.ones((ROWS, COLS), bool)
NONE = np.zeros((ROWS, COLS), bool)

Flags = npt.NDArray[np.bool_]
Picture = npt.NDArray[np.uint8]


def scene(seed: int = 0) -> Picture:
    """A wall with blocks of other colours, level 2."""
    rng = np.random.default_rng(seed)
    picture = np.full((ROWS * SIDE, COLS * SIDE, 3), (210, 200, 180), np.uint8)
    for _ in range(30):
        top, left = rng.integers(0, ROWS * SIDE - 20), rng.integers(0, COLS * SIDE - 20)
        picture[top : top + rng.integers(3, 20), left : left + rng.integers(3, 20)] = rng.integers(30, 200, 3)
    return picture


def lit(picture: Picture, gain: npt.ArrayLike) -> Picture:
    return (picture * np.asarray(gain)).round().clip(0, 255).astype(np.uint8)


def with_thing(picture: Picture, tile: tuple[int, int], value: int, side: int = 2) -> Picture:
    """A picture with a thing of `side` texels in a tile, 8 pixels for 2, of another brightness."""
    top, left = tile[0] * SIDE + 3, tile[1] * SIDE + 3
    changed = picture.copy()
    changed[top : top + side, left : left + side] = picture[top : top + side, left : left + side] + np.uint8(value)
    return changed


def tile(row: int, col: int) -> Flags:
    mask = NONE.copy()
    mask[row, col] = True
    return mask


class Viewer:
    """A model that is shown each tile that is news."""

    def __init__(self, picture: Picture) -> None:
        self.reference, self.news = picture, TileNews.of(picture)

    def look(self, picture: Picture, updates: Flags = ALL) -> Flags:
        news, state = self.news.look(self.reference, picture, updates)
        self.show(picture, news, state)
        return news

    def show(self, picture: Picture, tiles: Flags, state: TileNews) -> None:
        self.news = state.showing(tiles)
        self.reference = np.where(tiles.repeat(SIDE, 0).repeat(SIDE, 1)[..., None], picture, self.reference)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 10))
def test_in_steady_light_every_difference_above_the_limit_is_news(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    before = scene(seed)
    now = before.copy()
    for _ in range(count):
        top, left = int(rng.integers(0, ROWS * SIDE)), int(rng.integers(0, COLS * SIDE))
        part = now[top : top + 3, left : left + 3]
        part[:] = (part.astype(int) + rng.integers(-40, 40, 3)).clip(0, 255)
    differs = cv2.absdiff(before, now).reshape(ROWS, SIDE, COLS, SIDE * 3).max(axis=(1, 3)) > CHANGE
    assert (Viewer(before).look(now) == differs).all()


def test_a_thing_of_another_colour_and_the_same_luma_is_news() -> None:
    picture = scene()
    changed = picture.copy()
    changed[43:47, 59:63] += np.array((30, 256 - 14, 256 - 6), np.uint8)
    assert (Viewer(picture).look(changed) == tile(5, 7)).all()


def random_light(rng: np.random.Generator, look: int) -> npt.NDArray:
    return np.asarray(rng.uniform(0.9, 1.1))


def coloured_light(rng: np.random.Generator, look: int) -> npt.NDArray:
    return rng.uniform(0.9, 1.1, 3)


def rolling_bands(rng: np.random.Generator, look: int) -> npt.NDArray:
    return 1 + 0.1 * np.sin(2 * np.pi * (np.arange(ROWS * SIDE) / 56 + 0.37 * look))[:, None, None]


def one_lamp(rng: np.random.Generator, look: int) -> npt.NDArray:
    down, right = np.mgrid[0 : ROWS * SIDE, 0 : COLS * SIDE]
    closeness = np.exp(-((down - 20.0) ** 2 + (right - 60.0) ** 2) / (2 * 28**2))
    return 1 + rng.uniform(-0.15, 0.15) * closeness[..., None]


@pytest.mark.parametrize("light", [random_light, coloured_light, rolling_bands, one_lamp])
def test_a_flicker_is_no_news_and_hides_none(light: Callable[[np.random.Generator, int], npt.NDArray]) -> None:
    rng, picture = np.random.default_rng(1), scene(1)
    viewer = Viewer(lit(picture, light(rng, 0)))
    news = [viewer.look(lit(picture, light(rng, look))) for look in range(1, 20)]
    assert np.mean(news) < 0.002
    picture = with_thing(picture, (6, 9), 45)
    news_now = viewer.look(lit(picture, light(rng, 20)))
    assert news_now[6, 9]
    assert np.count_nonzero(news_now) <= 3
    assert not viewer.look(lit(picture, light(rng, 21)))[6, 9]


def test_darkness_is_news_and_so_is_light() -> None:
    viewer = Viewer(scene())
    for _ in range(10):
        viewer.look(scene(), NONE)
    assert viewer.look(lit(scene(), 0.6)).mean() > 0.95
    assert not viewer.look(lit(scene(), 0.6)).any()
    assert viewer.look(scene()).mean() > 0.95


def test_light_that_swings_far_is_no_news_until_it_stays() -> None:
    viewer = Viewer(scene())
    for look in range(10):
        viewer.look(lit(scene(), (0.75, 1.0)[look % 2]))
    assert not viewer.look(lit(scene(), 0.75)).any()
    assert not viewer.look(scene()).any()
    viewer.look(lit(scene(), 0.75))
    news = [viewer.look(lit(scene(), 0.75), NONE) for _ in range(LIGHT_LOOKS)]
    assert np.any(news, axis=0).mean() > 0.95  # although no tile is written any more


def test_a_large_thing_of_one_colour_is_no_light() -> None:
    wall = np.full((ROWS * SIDE, COLS * SIDE, 3), 150, np.uint8)
    panel = wall.copy()
    panel[24:80, 24:96] += 20
    news = Viewer(wall).look(panel)
    assert news[3:10, 3:12].all()
    assert np.count_nonzero(news) == 63


def noisy(picture: Picture, sigma: float, count: int) -> Iterator[Picture]:
    rng = np.random.default_rng(3)
    for _ in range(count):
        yield (picture + rng.normal(0, sigma, picture.shape)).round().clip(0, 255).astype(np.uint8)


def test_noise_is_no_news_from_the_first_look() -> None:
    first, *others = noisy(scene(), 3, 20)
    viewer = Viewer(first)
    news = [viewer.look(picture) for picture in others]
    assert np.mean(news) < 0.002
    old = cv2.absdiff(first, others[-1]).reshape(ROWS, SIDE, COLS, SIDE * 3).max(axis=(1, 3)) > CHANGE
    assert old.mean() > 0.3


@pytest.mark.parametrize(("value", "looks"), [(45, 1), (20, LASTING_LOOKS + 1)])
def test_noise_hides_a_small_thing_for_few_looks(value: int, looks: int) -> None:
    first, *others = noisy(scene(), 3, 20)
    viewer = Viewer(first)
    for picture in others[:12]:
        viewer.look(picture)
    news_now = [viewer.look(with_thing(picture, (6, 9), value))[6, 9] for picture in others[12 : 12 + looks]]
    assert any(news_now)


def test_a_thing_that_blinks_stays_news() -> None:
    viewer = Viewer(scene())
    for look in range(30):
        blinks = with_thing(scene(), (6, 9), 40) if look % 2 == 0 else scene()
        assert (viewer.look(blinks, tile(6, 9)) == tile(6, 9)).all()


def test_a_restless_tile_needs_a_larger_change_than_a_calm_one() -> None:
    rng, calm = np.random.default_rng(5), scene()
    viewer = Viewer(calm)
    corner = np.s_[5 * SIDE : 6 * SIDE, 5 * SIDE : 6 * SIDE]
    news = []
    for _ in range(20):
        picture = calm.copy()
        picture[corner] = (picture[corner] + rng.normal(0, 4, (SIDE, SIDE, 3))).clip(0, 255)
        news.append(viewer.look(picture, tile(5, 5))[5, 5])
    assert any(news[:4])
    assert not any(news[8:])


def test_a_change_that_lasts_is_news_at_a_lower_limit() -> None:
    viewer, news = Viewer(scene()), []
    for look in range(20):
        swing = np.uint8(4 * (look % 2))  # limits: 30 for one look, 22 for the mean of several
        picture = with_thing(scene(), (6, 9), 25 if look >= 10 else 0) + swing
        picture = np.where(tile(6, 9).repeat(SIDE, 0).repeat(SIDE, 1)[..., None], picture, scene())
        news.append(bool(viewer.look(picture, tile(6, 9))[6, 9]))
    assert news.index(True) == 10 + LASTING_LOOKS - 1
    assert sum(news) == 1


def test_a_dark_tile_shows_no_light() -> None:
    picture = scene()
    picture[:, : 11 * SIDE] = 10
    assert not Viewer(picture).look(lit(picture, 0.85)).any()


def test_gains_are_relative_to_the_last_look() -> None:
    viewer = Viewer(scene())
    for _ in range(4):
        viewer.look(lit(scene(), 0.5))
        viewer.look(scene())
        viewer.look(scene() // 4)
    assert viewer.news.light[..., 0].mean() == pytest.approx(1, abs=1e-5)


def test_each_tile_is_judged_by_the_light_that_it_was_shown_in() -> None:
    picture = scene()
    viewer = Viewer(picture)
    viewer.look(lit(picture, 1.12))
    changed = with_thing(picture, (6, 9), 45)
    assert (viewer.look(lit(changed, 1.12)) == tile(6, 9)).all()
    for gain in (1.0, 0.9, 1.1, 1.0):
        assert not viewer.look(lit(changed, gain)).any()


def test_light_that_came_back_is_noted_although_nothing_differs() -> None:
    picture = scene()
    viewer = Viewer(picture)
    assert not viewer.look(lit(picture, 1.2)).any()
    news, state = viewer.news.look(viewer.reference, picture, ALL)
    assert not news.any()
    viewer.show(picture, tile(2, 2), state)  # as a question wants it
    assert not viewer.look(lit(picture, 0.85)).any()


def test_a_clipped_texel_may_stay_as_bright_in_less_light() -> None:
    picture = scene()
    picture[42:54, 42:70] = 255
    dimmer = lit(picture, 0.85)
    dimmer[42:54, 42:70] = 255
    assert not Viewer(picture).look(dimmer).any()
    dimmer[49:51, 49:51] = 190
    assert (Viewer(picture).look(dimmer) == tile(6, 6)).all()


def test_a_picture_without_light_to_judge_by_leaves_it_as_it_was() -> None:
    black = np.zeros((ROWS * SIDE, COLS * SIDE, 3), np.uint8)
    viewer = Viewer(black)
    for _ in range(3):
        assert not viewer.look(black).any()
    assert viewer.look(black + np.uint8(13)).all()


def test_a_look_leaves_the_state_before_it_as_it_was() -> None:
    pictures = list(noisy(scene(), 3, 4))
    _, state = TileNews.of(pictures[0]).look(pictures[0], pictures[1], ALL)
    assert state.has_doubts
    first, after = state.look(pictures[0], pictures[2], ALL)
    state.look(pictures[0], 255 - pictures[3], ALL)
    second, repeated = state.look(pictures[0], pictures[2], ALL)
    assert (first == second).all()
    assert np.array_equal(after.light, repeated.light)
    assert np.array_equal(after.doubts.total, repeated.doubts.total)
    assert not after.showing(ALL).has_doubts


def test_nothing_written_and_no_doubt_costs_nothing() -> None:
    state = TileNews.of(scene())
    news, after = state.look(scene(), scene(), NONE)
    assert not news.any()
    assert after is state


def test_a_room_may_go_black_any_number_of_times() -> None:
    viewer = Viewer(scene())
    for look in range(60):
        picture = np.zeros_like(scene()) if look % 2 == 0 else scene()
        assert viewer.look(picture).mean() > 0.95
    for gain in (1.0, 0.9, 1.1):
        assert not viewer.look(lit(scene(), gain)).any()
