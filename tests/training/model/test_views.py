"""What training shows of a frame: within the budget, the pixels of the regions, and targets that hold of them."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc.texture.regions import tile_boxes
from arr_coc.types import LEVELS
from training.clips.scenes import clip_rng, random_clip, random_crowd
from training.clips.truth import Seen
from training.model.views import (
    CHARACTERS,
    COLOUR_NAMES,
    SPELLED,
    STRATEGIES,
    TARGETS,
    THING_KINDS,
    UNKNOWN,
    Showing,
    ShowingStrategy,
    Viewer,
    token_targets,
)

NAMES = list(TARGETS)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_view_keeps_to_the_budget_and_shows_the_regions_pixels(strategy: ShowingStrategy) -> None:
    rng = clip_rng("train", 3)
    clip, viewer = random_clip(rng, (384, 256)), Viewer(rng)
    view = viewer.look(clip.frames[0], clip.things[0], Showing(48, strategy))
    assert view.grid.shape == (8, 12)
    assert 30 <= len(view.regions) <= 48
    assert view.targets.shape == (len(view.regions), len(TARGETS))
    for (level, row, col), pixels in zip(view.regions.tolist(), view.pixels, strict=True):
        if level == 0:
            tile = clip.frames[0][row * 32 : row * 32 + 32, col * 32 : col * 32 + 32]
            np.testing.assert_array_equal(pixels.transpose(1, 2, 0), tile)
    full_view = viewer.look(clip.frames[0], clip.things[0], Showing(500, strategy))
    assert len(full_view.regions) == 96
    assert full_view.regions[:, 0].max() == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_overview_of_the_whole_frame_comes_first(strategy: ShowingStrategy) -> None:
    rng = clip_rng("train", 3)
    clip, viewer = random_clip(rng, (384, 256)), Viewer(rng)
    view = viewer.look(clip.frames[0], clip.things[0], Showing(48, strategy, overview=24))
    assert view.overview == 24
    assert view.regions[:24].tolist() == [[1, row, col] for row in range(4) for col in range(6)]
    assert 36 <= len(view.regions) <= 48, "the budget pays for both"
    assert len({tuple(region) for region in view.regions[24:].tolist()}) == len(view.regions) - 24
    glance = viewer.look(clip.frames[0], clip.things[0], Showing(6, strategy, overview=6))
    assert (glance.overview, len(glance.regions)) == (6, 6)
    assert viewer.look(clip.frames[0], clip.things[0], Showing(48, strategy, overview=2)).overview == 2


@pytest.mark.parametrize("strategy", ["allocator", "foveated", "mixed"])
def test_wide_regions_show_texts_with_their_own_pixels(strategy: ShowingStrategy) -> None:
    rng = clip_rng("train", 3)
    plan, viewer = random_crowd(rng, (384, 256)), Viewer(rng)
    clip = plan.draw()
    wide = 0
    for _ in range(8):
        view = viewer.look(clip.frames[0], clip.things[0], Showing(48, strategy, overview=6, wide=True))
        strips = np.flatnonzero(view.regions[:, 0] >= LEVELS)
        assert len(view.regions) <= 48
        assert (view.regions[:6, 0] == 2).all(), "the overview has squares"
        for strip in strips[:3]:
            top, left, bottom, right = tile_boxes(view.regions[strip : strip + 1], view.grid.shape)[0] * 32
            if bottom - top > 32 or right - left > 32:
                colour = clip.frames[0][top:bottom, left:right].mean(axis=(0, 1))
                np.testing.assert_allclose(view.pixels[strip].mean(axis=(1, 2)), colour, atol=2)
        texts = np.isin(view.targets[strips, 0], [THING_KINDS.index("word"), THING_KINDS.index("number")])
        wide += int(texts.sum())
    assert wide > 4
    assert (viewer.look(clip.frames[0], clip.things[0], Showing(48, strategy)).regions[:, 0] < LEVELS).all()


def test_targets_name_what_each_region_shows() -> None:
    circle = Seen("circle", "blue", (16, 16, 112, 48), "left")
    letters = ((162.0, 70.0, 174.0, 90.0), (176.0, 70.0, 188.0, 90.0), (196.0, 70.0, 208.0, 90.0))
    word = Seen("word", "faint", (160, 68, 210, 92), "still", "FOX", letters)
    regions = np.array([[0, 0, 0], [0, 3, 0], [0, 2, 5], [0, 2, 6], [1, 0, 0], [2, 0, 1]])
    targets = [
        dict(zip(NAMES, row, strict=True)) for row in token_targets([word, circle], (128, 256), regions).tolist()
    ]
    expected = {"what": THING_KINDS.index("circle"), "colour": COLOUR_NAMES.index("blue"), "movement": 1, "order": 0}
    assert expected.items() <= targets[0].items()
    assert (targets[0]["across"], targets[0]["down"], targets[0]["left"]) == (6, 6, UNKNOWN)
    assert set(targets[1].values()) == {UNKNOWN}
    assert [row["holds"] for row in targets] == [0, UNKNOWN, 1, 0, 0, 1], "whether the middle of its thing is in it"
    assert [targets[2][slot] for slot in ("left", "middle", "right")] == [
        CHARACTERS.index("F"),
        UNKNOWN,
        CHARACTERS.index("O"),
    ], "characters are targets in the third of the token that holds their middle"
    assert targets[2]["colour"] == UNKNOWN
    assert targets[3]["left"] == CHARACTERS.index("X")
    spelled = [CHARACTERS.index(letter) for letter in "FOX"] + [UNKNOWN, UNKNOWN]
    for token in (targets[2], targets[3]):
        assert [token[place] for place in SPELLED] == spelled, "every token of a text knows all of it"
    assert [targets[0][place] for place in SPELLED] == [UNKNOWN] * 5
    assert targets[4]["what"] == THING_KINDS.index("circle")
    assert targets[5]["order"] == 1, "a coarse region shows what most of it lies in"


def test_a_crowd_fills_the_picture() -> None:
    rng = clip_rng("train", 5)
    clip = random_crowd(rng, (256, 256)).draw()
    view = Viewer(rng).look(clip.frames[0], clip.things[0], Showing(64, "grid"))
    assert (view.targets[:, 0] != UNKNOWN).mean() > 0.6
    assert {thing.kind for thing in clip.things[0]} & {"word", "number"}
