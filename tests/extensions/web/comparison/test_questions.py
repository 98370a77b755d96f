"""A file's questions on the compare page: pictures, answers, and boxes that are drawn over them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from arr_coc.errors import OptionError
from stream.errors import ConfigError
from stream.extensions.web.comparison.questions import PictureQuestion, read_picture_questions
from stream.extensions.web.uploads.decoder import PictureRefused
from tests.extensions.web.test_compare import ComparePage, comparing, has_picture, request
from tests.support.video import make_video, moving_square
from tests.support.web import Visit, ask, png

BOX = [600, 300, 900, 600]
CUP = {"image": "wide.png", "question": "What is it?", "answers": ["a cup", "A red circle!"], "boxes": [BOX]}
PLAIN = {"frames": ["small.png", "wide.png"], "question": "Where?", "id": "place"}


def questions_of(folder: Path, *lines: dict[str, Any]) -> list[PictureQuestion]:
    (folder / "wide.png").write_bytes(png(1536, 768))
    (folder / "small.png").write_bytes(png(96, 64))
    (folder / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return read_picture_questions(folder / "own.jsonl")


@pytest.fixture
def page(tmp_path: Path) -> Iterator[ComparePage]:
    with closing(ComparePage(questions_of(tmp_path, CUP, PLAIN))) as page:
        yield page


def test_pictures_come_with_boxes_in_their_pixels(page: ComparePage) -> None:
    cup, place = (ask(page, f"/compare/question/{number}", b"").json for number in range(2))
    assert (cup["width"], cup["height"]) == (1024, 512)
    assert cup["boxes"] == [[400, 200, 600, 400]]
    assert (place["picture"], place["boxes"]) == (cup["picture"], [])
    missing = ask(page, "/compare/question/2", b"")
    assert (missing.status, missing.json["error"]) == (404, "there is no question 2")


def test_a_turned_picture_is_shown_upright(tmp_path: Path) -> None:
    (question, _) = questions_of(tmp_path, CUP, PLAIN)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (2000, 1000)).save(tmp_path / "wide.png", exif=exif)
    rgb, boxes = question.picture(1024)
    assert (rgb.shape, boxes) == ((1024, 512, 3), [[edge * 1024 / 2000 for edge in BOX]])


def test_a_picture_that_is_gone_or_damaged_is_refused(tmp_path: Path) -> None:
    (question,) = questions_of(tmp_path, CUP)
    question.path.write_text("no picture")
    with pytest.raises(PictureRefused, match="that is no picture"):
        question.picture(1024)
    question.path.unlink()
    with pytest.raises(PictureRefused, match=r"wide\.png cannot be read: No such file"):
        question.picture(1024)


def test_viewers_that_may_only_look_get_no_picture(tmp_path: Path) -> None:
    with closing(ComparePage(questions_of(tmp_path, CUP), web__control=False)) as page:
        assert ask(page, "/compare/question/0", b"").status == 403


def test_answers_are_any_of_those_in_the_file(page: ComparePage) -> None:
    picture = ask(page, "/compare/question/0", b"").json["picture"]
    ask(page, "/compare/question/1", b"")
    rights = []
    for question in ("what is it", "Where?", "What else?"):
        with comparing(page) as viewer:
            page.engine.go.release()
            viewer.send(run=request(picture) | {"question": question})
            rights.append(viewer.next("column")["right"])
    assert rights == [True, None, None]


def test_lines_about_videos_are_left_out(tmp_path: Path) -> None:
    make_video(tmp_path / "clip.mp4", moving_square(4, 64, 48), fps=10)
    video = {"video": "clip.mp4", "question": "What?"}
    assert [question.name for question in questions_of(tmp_path, video, PLAIN)] == ["place"]
    with pytest.raises(ConfigError, match="all questions are about videos; give one with"):
        questions_of(tmp_path, video)
    with pytest.raises(OptionError, match=r'line 1 of own\.jsonl: it needs "question"'):
        questions_of(tmp_path, {"image": "wide.png"})


IS_ORANGE = """([column, x, y]) => {
    const on = column === null ? document.getElementById("preview") : window.compare.columns[column].layers;
    const [red, green, blue] = on.getContext("2d").getImageData(x, y, 1, 1).data;
    return red > 230 && green > 120 && green < 190 && blue < 110;
}"""


def test_boxes_are_drawn_over_the_picture_and_each_answer(page: ComparePage, visit: Visit) -> None:
    on = visit.page
    on.goto(page.url + "compare")
    on.get_by_label("Your questions").select_option("1: What is it?")
    has_picture(visit, 1024)
    assert on.get_by_label("Question", exact=True).input_value() == "What is it?"
    assert on.locator("#known").inner_text() == "Known answer: a cup"
    page.engine.go.release()
    on.get_by_role("button", name="Compare", exact=True).click()
    on.locator(".verdict.right").nth(1).wait_for()
    # the made up answers are about 24 × 16 tiles: the box is stretched with the picture
    edges = [[None, 400, 300], [0, 300, 300], [1, 450, 300], [1, 400, 200]]
    assert [on.evaluate(IS_ORANGE, edge) for edge in edges] == [True, True, True, True]
    assert not on.evaluate(IS_ORANGE, [0, 375, 300])
    on.get_by_role("button", name="Boxes").click()
    assert not on.evaluate(IS_ORANGE, [0, 300, 300])
    assert "n=1" in on.url


def test_the_next_question_is_one_press_away_and_an_address_has_it(page: ComparePage, visit: Visit) -> None:
    on = visit.page
    on.goto(page.url + "compare?n=1")
    has_picture(visit, 1024)
    on.get_by_role("button", name="Next").click()
    on.wait_for_function("() => document.getElementById('question').value === 'Where?' && !window.compare.boxes.length")
    assert on.locator("#known").inner_text() == ""
    on.get_by_role("button", name="shapes").click()
    has_picture(visit, 768)
    assert on.get_by_label("Your questions").input_value() == ""
    on.wait_for_function("() => !location.search.includes('n=')")


def test_without_a_file_the_page_has_neither_questions_nor_boxes(visit: Visit) -> None:
    with visit.at(closing(ComparePage())) as page:
        visit.page.goto(page.url + "compare?example=shapes")
        has_picture(visit, 768)
        assert visit.page.locator("#own-questions, #layer-b").locator("visible=true").count() == 0
