"""What is lettered and in which fonts: training and test share no word, no larger number and no font."""

from __future__ import annotations

import sys

import cv2
import numpy as np
import pytest

import training.fonts
from arr_coc.errors import OptionError
from stream.scenes.lettering import set_text
from training.fonts import FAMILIES, Bend, Split, face, random_face
from training.words import LONGEST, WORDS, random_number, random_word

SPLITS: tuple[Split, ...] = ("train", "test")
FILES = {split: [file for files in FAMILIES[split].values() for file in files] for split in SPLITS}


def test_splits_share_no_font_family_and_no_word() -> None:
    assert not set(FAMILIES["train"]) & set(FAMILIES["test"])
    assert not set(FILES["train"]) & set(FILES["test"])
    assert not set(WORDS["train"]) & set(WORDS["test"])
    assert min(len(words) for words in WORDS.values()) > 100


def test_words_are_two_to_five_capitals_and_numbers_one_to_three_digits() -> None:
    rng = np.random.default_rng(0)
    said = {split: {random_word(rng, split) for _ in range(3000)} for split in SPLITS}
    numbers = {split: {random_number(rng, split) for _ in range(3000)} for split in SPLITS}
    for word in (*WORDS["train"], *WORDS["test"], *said["train"]):
        assert word.isascii()
        assert word.isupper()
        assert 2 <= len(word) <= LONGEST
    assert said["test"] == set(WORDS["test"])
    assert not said["train"] & said["test"]
    assert len(said["train"] - set(WORDS["train"])) > 1000, "letters at random too"
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
    training.fonts._folder.cache_clear()
    with pytest.raises(OptionError, match=r"pip install matplotlib"):
        training.fonts._folder()


def test_letters_of_a_text_stand_side_by_side() -> None:
    lettering = set_text(face("DejaVuSans.ttf"), "HIT", 20, spacing_px=4)
    tight = set_text(face("DejaVuSans.ttf"), "HIT", 20)
    assert lettering.size_px[0] == pytest.approx(tight.size_px[0] + 8, abs=1)
    lefts = [box[0] for box in lettering.boxes]
    assert lefts == sorted(lefts)
    assert cv2.boundingRect(lettering.mask)[2:] == lettering.size_px
