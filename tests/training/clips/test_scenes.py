"""Random clips: the same from the same seed, and true to what they say."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import combinations

import cv2
import numpy as np
import pytest

import training.clips.fonts
from arr_coc.errors import OptionError
from stream.scenes.textures import TextMask, set_text
from training.clips.cast import ClipOptions, Player, faint, opposite, shape_player, text_player
from training.clips.fonts import (
    FAMILIES,
    LONGEST,
    WORDS,
    Bend,
    Split,
    face,
    random_face,
    random_number,
    random_word,
    redrawn,
)
from training.clips.scenes import COLOURS_OF_PATTERNS, PATTERNS, ClipPlan, clip_rng, random_clip, random_plan
from training.clips.truth import Box

BARE = ClipOptions(clutter=0.0, worn=False, void_share=0.0, faint_share=0.0, drift_share=0.0)
"""Nothing but things on a ground."""


def plans(count: int, frames: int = 1, options: ClipOptions = BARE) -> list[ClipPlan]:
    return [random_plan(clip_rng("train", number), (384, 256), frames, options=options) for number in range(count)]


def overlap(box: Box, other: Box) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


@pytest.mark.parametrize(("size_px", "frames"), [((256, 256), 1), ((512, 256), 2), ((200, 136), 4), ((1024, 1024), 1)])
def test_the_same_seed_gives_the_same_clip(size_px: tuple[int, int], frames: int) -> None:
    for number in range(4):
        first, repeat = (random_clip(clip_rng("train", number), size_px, frames) for _ in range(2))
        assert first.size_px == size_px
        assert len(first.frames) == len(first.times_s) == len(first.things) == frames
        assert first.things == repeat.things
        assert first.times_s == repeat.times_s
        assert all(b - a >= 0.3 for a, b in zip(first.times_s, first.times_s[1:], strict=False))
        for frame, same in zip(first.frames, repeat.frames, strict=True):
            assert frame.dtype == np.uint8
            np.testing.assert_array_equal(frame, same)


def test_splits_and_numbers_have_generators_of_their_own() -> None:
    draws = {int(clip_rng(split, number).integers(2**62)) for split in ("train", "test") for number in (0, 1, 2, 2**40)}
    assert len(draws) == 8
    with pytest.raises(OptionError, match="numbered from 0, got -1"):
        clip_rng("test", -1)


@pytest.mark.parametrize("frames", [0, 5])
def test_a_clip_has_one_to_four_frames(frames: int) -> None:
    with pytest.raises(OptionError, match=f"1 to 4 frames, got {frames}"):
        random_plan(clip_rng("train", 0), (256, 256), frames)


def test_facts_are_those_of_the_drawn_clip() -> None:
    plan = plans(1, 3)[0]
    facts, clip = plan.facts(), plan.draw()
    assert (facts.size_px, facts.times_s, facts.things) == (clip.size_px, clip.times_s, clip.things)


@pytest.mark.parametrize("frames", [1, 4])
def test_things_keep_apart_and_inside_and_take_one_to_four_tiles(frames: int) -> None:
    for plan in plans(80, frames, replace(BARE, drift_share=0.5)):
        for things in plan.things:
            for thing in things:
                left, top, right, bottom = thing.box_px
                assert min(left, top) >= 0
                assert right <= 384
                assert bottom <= 256
                assert 0.1 < (right - left) * (bottom - top) / 32**2 <= 5
            assert not any(overlap(thing.box_px, other.box_px) for thing, other in combinations(things, 2))


def test_there_are_all_colours_shapes_and_up_to_six_things() -> None:
    things = [plan.things[0] for plan in plans(300)]
    assert {len(frame_things) for frame_things in things} == {1, 2, 3, 4, 5, 6}
    assert len({thing.colour for frame_things in things for thing in frame_things}) == 8
    assert len({thing.kind for frame_things in things for thing in frame_things}) == 13


def drawn(player: Player, frame: int = 0, camera_px: tuple[float, float] = (0, 0)) -> np.ndarray:
    """Which pixels of a grey picture the player changes by more than the rim of a smooth edge, bool [300, 300]."""
    image = np.full((300, 300, 3), 128, np.uint8)
    player.draw(image, frame, camera_px)
    return (np.abs(image.astype(int) - 128) > 48).any(axis=2)


def some_players() -> list[Player]:
    rng = np.random.default_rng(3)
    shapes = [shape_player(rng, shape, "red", BARE) for shape in ("circle", "arrow", "crescent", "star", "ring")]
    texts = [text_player(rng, text, "black", "train", BARE) for text in ("EXIT", "7", "104", "JQWM")]
    return [replace(player.placed(150, 140), backing="none") for player in (*shapes, *texts)]


@pytest.mark.parametrize("player", some_players(), ids=lambda player: player.text or player.kind)
def test_a_box_is_exactly_around_what_is_drawn(player: Player) -> None:
    for frame, camera_px in ((0, (0.0, 0.0)), (1, (20.0, -7.0))):
        moving = replace(player, step_px=(31.0, 0.0))
        rows, cols = np.nonzero(drawn(moving, frame, camera_px))
        thing = moving.seen(frame, (300, 300), camera_px)
        assert thing is not None
        box = (cols.min(), rows.min(), cols.max() + 1, rows.max() + 1)
        np.testing.assert_allclose(box, thing.box_px, atol=1.5)
        assert len(thing.letters) == len(player.text)
        for left, top, right, bottom in thing.letters:
            letter = drawn(moving, frame, camera_px)[int(top) : int(bottom), int(left) : int(right)]
            assert max(letter.any(axis=0).mean(), letter.any(axis=1).mean()) > 0.9


def test_a_player_keeps_to_its_part() -> None:
    rng = np.random.default_rng(0)
    player = shape_player(rng, "square", "red", BARE).placed(100, 100)
    part = replace(player, enters=1, leaves=3, turns_at=2, second=("blue", (0, 0, 255)), step_px=(0.0, -20.0))
    things = [part.seen(frame, (300, 300)) for frame in range(4)]
    assert [thing and (thing.colour, thing.movement) for thing in things] == [None, ("red", "up"), ("blue", "up"), None]
    assert [bool(drawn(part, frame).any()) for frame in range(4)] == [False, True, True, False]
    assert part.seen(1, (300, 90)) is None, "no longer wholly in the picture"
    ways = {(5.0, 0.0): "right", (-5.0, 0.0): "left", (0.0, 5.0): "down", (0.0, 0.0): "still"}
    assert all(replace(player, step_px=step).movement == way for step, way in ways.items())


def test_text_stands_out_unless_it_is_faint() -> None:
    rng = np.random.default_rng(1)
    word = text_player(rng, "WORD", "green", "train", BARE).placed(150, 150)
    left, top, right, bottom = (round(edge) for edge in word.box_px(0))
    near_green = np.full((300, 300, 3), (40, 140, 70), np.uint8)

    def extremes(player: Player) -> float:
        image = near_green.copy()
        player.draw(image, 0)
        return float(np.abs(image[top - 6 : bottom + 6, left - 6 : right + 6].astype(float) - near_green[0, 0]).max())

    assert extremes(replace(word, backing="none")) > 100, "an outline helps where ink and ground are alike"
    assert extremes(replace(word, backing="plate")) > 100
    hardly = faint(rng, word)
    assert 28 <= extremes(hardly) <= 48
    assert hardly.seen(0, (300, 300)).colour == "faint"  # type: ignore[union-attr]


def test_plates_are_neither_white_nor_black_and_text_is_seen_on_them() -> None:
    for rgb in ((255, 255, 255), (14, 14, 16), (214, 32, 38), (246, 222, 30)):
        plate = np.array(opposite(rgb))
        assert 60 <= plate.min() <= plate.max() <= 200
        assert abs(float(plate.mean()) - np.dot((0.299, 0.587, 0.114), rgb)) > 60


def test_things_have_their_named_colours() -> None:
    for plan in plans(30, 1, replace(BARE, text_share=0.0)):
        image = plan.draw().frames[0]
        for player in plan.cast:
            rows, cols = np.nonzero(drawn_alone(player, plan.size_px))
            assert np.abs(np.median(image[rows, cols], axis=0) - player.rgb).max() <= 3


def drawn_alone(player: Player, size_px: tuple[int, int]) -> np.ndarray:
    image = np.full((size_px[1], size_px[0], 3), 128, np.uint8)
    player.draw(image, 0)
    return (image != 128).any(axis=2)


def test_light_wear_and_clutter_spare_nothing_but_the_facts() -> None:
    plan = plans(1, 2)[0]
    worn = replace(plan, options=ClipOptions())
    assert worn.things == plan.things
    assert (worn.draw().frames[0] != plan.draw().frames[0]).mean() > 0.3


def test_the_camera_drifts_over_the_ground() -> None:
    plan = replace(plans(1, 3)[0], cast=(), drift_px=(4, -3))
    first, second, _ = plan.draw().frames
    np.testing.assert_array_equal(first[:-3, 4:], second[3:, :-4])
    assert (first != second).any()


def test_a_void_is_nothing_but_a_pattern() -> None:
    voids = plans(60, 1, ClipOptions(void_share=1.0, worn=False))
    assert {plan.things[0][0].kind for plan in voids} == set(PATTERNS)
    assert {plan.things[0][0].colour for plan in voids} == set(COLOURS_OF_PATTERNS)
    for plan in voids:
        ((thing,),) = plan.things
        assert thing.box_px == (0, 0, 384, 256)
        assert plan.void is not None
        image = plan.draw().frames[0]
        assert image.std(axis=(0, 1)).max() > 10
        hue = np.array(plan.void.rgb, float) - np.mean(plan.void.rgb)
        mean = image.reshape(-1, 3).mean(axis=0)
        assert np.corrcoef(hue, mean - mean.mean())[0, 1] > 0.95


def test_one_event_a_clip_and_what_moves_is_seen_to_move() -> None:
    for plan in plans(200, 4):
        events = [p for p in plan.cast if p.enters or p.leaves < 4 or p.turns_at < 4]
        assert len(events) <= 1
        for player in plan.cast:
            frames = sum(player.there(frame) for frame in range(4))
            assert frames > 1 or player.movement == "still"
            assert player.movement == "still" or max(map(abs, player.step_px)) >= 18
    assert not any(isinstance(p.body, TextMask) and not p.text for plan in plans(50) for p in plan.cast)


SPLITS: tuple[Split, ...] = ("train", "test")
FILES = {split: [file for files in FAMILIES[split].values() for file in files] for split in SPLITS}


def test_splits_share_no_font_family_and_no_word() -> None:
    assert not set(FAMILIES["train"]) & set(FAMILIES["test"])
    assert not set(FILES["train"]) & set(FILES["test"])
    assert not set(WORDS["train"]) & set(WORDS["test"])
    assert min(len(words) for words in WORDS.values()) > 100


def test_words_are_two_to_five_capitals_and_numbers_one_to_three_digits() -> None:
    rng = np.random.default_rng(0)
    words = {split: {random_word(rng, split) for _ in range(3000)} for split in SPLITS}
    numbers = {split: {random_number(rng, split) for _ in range(3000)} for split in SPLITS}
    for word in (*WORDS["train"], *WORDS["test"], *words["train"]):
        assert word.isascii()
        assert word.isupper()
        assert 2 <= len(word) <= LONGEST
    assert words["test"] == set(WORDS["test"])
    assert not words["train"] & words["test"]
    assert len(words["train"] - set(WORDS["train"])) > 1000, "letters at random too"
    assert {len(number) for split in SPLITS for number in numbers[split]} == {1, 2, 3}
    shared = numbers["train"] & numbers["test"]
    assert all(len(number) == 1 for number in shared)
    assert all(str(int(number)) == number for split in SPLITS for number in numbers[split])


@pytest.mark.parametrize("file", [*FILES["train"], *FILES["test"]])
def test_every_font_has_every_letter_and_digit_at_the_height_asked_for(file: str) -> None:
    glyphs = {character: face(file)(character, 24) for character in "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"}
    looks = set()
    for character, glyph in glyphs.items():
        assert 20 <= glyph.mask.shape[0] <= 34, character
        assert glyph.mask.max() > 150
        assert glyph.mask.any(axis=0)[[0, -1]].all(), "cut to its ink"
        looks.add(glyph.mask.tobytes())
    assert len(looks) == 36
    assert abs(glyphs["H"].mask.shape[0] - 24) <= 1
    assert glyphs["H"].top_px == -glyphs["H"].mask.shape[0]


def test_redrawn_text_has_other_strokes_and_the_same_characters_in_its_boxes() -> None:
    rng = np.random.default_rng(3)
    changed = 0
    for text in ("FOX", "1", "STAGE", "IVY") * 6:
        plain = set_text(random_face(rng, "train"), text, int(rng.integers(15, 33)))
        lettering = redrawn(rng, plain)
        changed += lettering is not plain
        assert len(lettering.boxes) == len(text)
        ink, before = int(lettering.mask.sum(dtype=int)), int(plain.mask.sum(dtype=int))
        assert 0.6 <= ink / before <= 2.2
        for box, was in zip(lettering.boxes, plain.boxes, strict=True):
            left, top, right, bottom = (max(0, round(edge)) for edge in box)
            assert (right - left, bottom - top) == pytest.approx((was[2] - was[0], was[3] - was[1]), abs=3)
            assert lettering.mask[top:bottom, left:right].max() > 120, "its ink is there"
    assert changed > 15


def test_bent_faces_lean_widen_and_gain_weight() -> None:
    plain = face("DejaVuSans.ttf")("I", 30).mask
    leaning = face("DejaVuSans.ttf", Bend(slant=0.3))("I", 30).mask
    wide, bold = (face("DejaVuSans.ttf", bend)("H", 30) for bend in (Bend(width=1.3), Bend(weight_px=1)))
    upright = face("DejaVuSans.ttf")("H", 30)
    assert leaning.shape[1] >= plain.shape[1] + 7
    top, bottom = (np.nonzero(leaning[row])[0].mean() for row in (2, -3))
    assert top > bottom, "to the right"
    assert wide.mask.shape[1] / upright.mask.shape[1] == pytest.approx(1.3, abs=0.1)
    assert bold.mask.astype(int).sum() > 1.1 * upright.mask.astype(int).sum()
    for bent in (wide, bold):
        assert abs(bent.top_px - upright.top_px) <= 1


def test_random_faces_are_the_splits() -> None:
    rng = np.random.default_rng(0)
    pictures = {
        split: {set_text(random_face(rng, split), "AR7", 20).mask.tobytes() for _ in range(300)} for split in SPLITS
    }
    assert len(pictures["test"]) == len(FILES["test"])
    assert len(pictures["train"]) > 100, "bent in many ways, and OpenCV's"
    assert not pictures["train"] & pictures["test"]


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    training.clips.fonts._folder.cache_clear()
    with pytest.raises(OptionError, match=r"pip install matplotlib"):
        training.clips.fonts._folder()


def test_letters_of_a_text_stand_side_by_side() -> None:
    lettering = set_text(face("DejaVuSans.ttf"), "HIT", 20, spacing_px=4)
    tight = set_text(face("DejaVuSans.ttf"), "HIT", 20)
    assert lettering.size_px[0] == pytest.approx(tight.size_px[0] + 8, abs=1)
    lefts = [box[0] for box in lettering.boxes]
    assert lefts == sorted(lefts)
    assert cv2.boundingRect(lettering.mask)[2:] == lettering.size_px
