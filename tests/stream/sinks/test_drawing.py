"""Strip below a drawn picture, and the fonts of its text."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from stream.sinks import fonts
from stream.sinks.drawing import KEY, LEAST_WIDTH_PX, MEMORY_KEY, KeyItem, draw_strip, strip_height
from stream.sinks.fonts import TextRenderer, files_in, has, opened

WIDTHS = (LEAST_WIDTH_PX, 322, 480, 640, 644, 800, 960, 1280)
WORDS = "a red circle moves right and a blue square stays still, "


@pytest.fixture
def fresh_fonts() -> None:
    """Let each missing script be reported again."""
    fonts._log_missing.cache_clear()


def drawn(letters: TextRenderer, text: str) -> np.ndarray:
    image = Image.new("L", (round(letters.width_px(text)) + 20, 2 * letters.height_px))
    letters.draw(ImageDraw.Draw(image), 4, 1.4 * letters.height_px, text, "#ffffff")
    return np.asarray(image)


@pytest.mark.parametrize("key", [KEY, MEMORY_KEY])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_strip_has_the_same_even_height_for_every_text(width: int, key: tuple[KeyItem, ...]) -> None:
    shapes = {draw_strip(width, caption, "1 of 2 tokens · 0:00.0", key).shape for caption in ("", "a word", WORDS * 9)}
    assert shapes == {(strip_height(width, key), width, 3)}
    assert strip_height(width, key) % 2 == 0


@pytest.mark.parametrize("key", [KEY, MEMORY_KEY])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_reaches_the_edge_of_the_strip(width: int, key: tuple[KeyItem, ...]) -> None:
    image = draw_strip(width, WORDS * 9, "2040 of 2040 tokens · 10:00:00.0", key).astype(int)
    ground = image[-1, -1]
    for edge in (image[:, 0], image[:, -1], image[-1]):
        assert np.abs(edge - ground).max() == 0


@pytest.mark.parametrize("items", [KEY, MEMORY_KEY])
@pytest.mark.parametrize("width", WIDTHS)
def test_key_and_note_do_not_cover_each_other(width: int, items: tuple[KeyItem, ...]) -> None:
    note = "2040 of 2040 tokens · 10:00:00.0"
    key, strip = draw_strip(width, "", "", items).astype(int), draw_strip(width, "", note, items).astype(int)
    mask = np.abs(strip - key).max(axis=2) > 0
    assert mask.any()
    assert np.abs(key - key[-1, -1]).max(axis=2)[mask].max() == 0


def test_text_that_does_not_fit_ends_in_an_ellipsis() -> None:
    letters = TextRenderer(20, ())
    lines = letters.wrapped(WORDS * 9, 400, 3)
    assert len(lines) == 3
    assert lines[-1].endswith("…")
    assert all(letters.width_px(line) <= 400 for line in lines)
    assert " ".join(lines)[:-1] == (WORDS * 9)[: len(" ".join(lines)) - 1]
    assert letters.wrapped("two words", 400, 3) == ["two words"]
    assert letters.wrapped("", 400, 3) == []


def test_a_word_wider_than_the_strip_is_broken() -> None:
    lines = TextRenderer(20, ()).wrapped("x" * 100, 300, 9)
    assert len(lines) > 1
    assert "".join(lines) == "x" * 100


def test_an_accent_is_left_out_if_no_font_has_it(fresh_fonts: None, caplog: pytest.LogCaptureFixture) -> None:
    letters = TextRenderer(20, ())
    assert not has(ImageFont.load_default(20), "é")
    np.testing.assert_array_equal(drawn(letters, "né – ñ"), drawn(letters, "ne - n"))
    assert caplog.messages == []


def test_a_script_that_no_font_has_is_drawn_as_boxes_and_logged_once(
    fresh_fonts: None, caplog: pytest.LogCaptureFixture
) -> None:
    letters = TextRenderer(20, ())
    with caplog.at_level(logging.WARNING):
        boxes = drawn(letters, "红色")
        drawn(letters, "的圆")
        drawn(letters, "Ж")
    assert boxes.max() == 255
    assert [message.split(":")[0] for message in caplog.messages] == [
        "no font here has CJK characters",
        "no font here has CYRILLIC characters",
    ]


def test_a_font_of_the_machine_gives_what_pillows_own_lacks(
    fresh_fonts: None, caplog: pytest.LogCaptureFixture
) -> None:
    usable = [path for path in fonts.font_files() if (font := opened(path, 20)) is not None and has(font, "Ж")]
    if not usable:
        pytest.skip("no font of this machine has Cyrillic letters")
    letters, without = TextRenderer(20, (usable[0],)), TextRenderer(20, ())
    font = opened(usable[0], 20)
    assert font is not None
    with caplog.at_level(logging.WARNING):
        assert letters.width_px("aЖ") == without.width_px("a") + font.getlength("Ж")
        assert (drawn(letters, "Ж").shape != drawn(without, "Ж").shape) or (
            drawn(letters, "Ж") != drawn(without, "Ж")
        ).any()
    assert len(caplog.messages) == 1, "of the one without"


def test_marks_stay_with_their_letter() -> None:
    letters = TextRenderer(20, ())
    assert [run for _, run in letters._runs("e\u0301a")] == ["e\u0301a"]


def test_fonts_that_cannot_be_used_are_passed_over(tmp_path: Path) -> None:
    damaged = tmp_path / "deep" / "a.ttf"
    damaged.parent.mkdir()
    damaged.write_bytes(b"no font")
    (tmp_path / "LastResort.ttf").write_bytes(b"")
    (tmp_path / "a.txt").write_bytes(b"")
    assert list(files_in(tmp_path)) == [damaged]
    assert list(files_in(tmp_path / "absent")) == []
    assert opened(damaged, 20) is None
    assert TextRenderer(20, (damaged,)).width_px("a") > 0


def test_plain_fonts_come_first() -> None:
    names = ("zeta.ttf", "NotoSansCJK-Regular.ttc", "DejaVuSans-Bold.ttf", "DejaVuSans.ttf", "alpha-italic.ttf")
    paths = sorted((Path(name) for name in names), key=fonts._rank)
    assert [path.name for path in paths] == [
        "DejaVuSans.ttf",
        "DejaVuSans-Bold.ttf",
        "NotoSansCJK-Regular.ttc",
        "zeta.ttf",
        "alpha-italic.ttf",
    ]


def test_the_caption_is_made_fit_to_be_shown() -> None:
    np.testing.assert_array_equal(draw_strip(640, "a\x1b[31m b\nc", "", KEY), draw_strip(640, "a b c", "", KEY))
