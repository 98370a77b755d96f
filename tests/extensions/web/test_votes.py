"""The blind vote on the compare page: hidden sides, counts with intervals, and votes that are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from evaluation.report import wilson
from stream.scenes.stills import WIDTH_PX
from tests.extensions.web.test_compare import ComparePage, has_picture
from tests.support.web import Visit, on_phone

ADDRESS = "compare?example=shapes&c=full,auto,auto&c=sparse,auto,64&blind=1"
NAMES = ["one · all tokens", "one · sparse · 64"]
LEFT_FIRST, RIGHT_FIRST = 0.1, 0.9


@pytest.fixture
def page() -> Iterator[ComparePage]:
    with closing(ComparePage()) as page:
        yield page


def compared(page: ComparePage, visit: Visit, draw: float, address: str = ADDRESS) -> Page:
    """The compare page with two answers to vote on; `draw` stands for the draw of the sides."""
    on = visit.page
    on.add_init_script(f"Math.random = () => {draw}")
    on.goto(page.url + address)
    has_picture(visit, WIDTH_PX)
    page.engine.go.release()
    on.get_by_role("button", name="Compare", exact=True).click()
    on.locator("#vote").wait_for()
    return on


def vote(on: Page, answer: str | None, allocation: str | None = None) -> None:
    for legend, side in (("Which answer is better?", answer), ("Which allocation makes more sense?", allocation)):
        if side is not None:
            on.get_by_role("group", name=legend).get_by_label(side).check()
    on.get_by_role("button", name="Vote", exact=True).click()
    on.locator("#vote-note", has_text="Counted").wait_for()


def titles(on: Page) -> list[str]:
    return on.locator("#columns h3").all_inner_texts()


def rows(on: Page) -> list[list[str]]:
    return [row.split("\t") for row in on.locator("#votes-table tbody tr").all_inner_texts()]


@pytest.mark.parametrize(("draw", "order"), [(LEFT_FIRST, [0, 1]), (RIGHT_FIRST, [1, 0])])
def test_sides_are_shuffled_and_hidden_until_the_vote(
    page: ComparePage, visit: Visit, draw: float, order: list[int]
) -> None:
    on = compared(page, visit, draw)
    assert titles(on) == ["Left", "Right"]
    hidden = ".column .fields, .column dl, .column .steps, .column .verdict, #table tbody tr"
    assert on.locator(hidden).locator("visible=true").count() == 0
    shown = on.locator("main").inner_text() + on.locator("#announce").inner_text()
    assert [word for word in ("384 of", "sparse · 64", "all tokens") if word in shown] == []
    assert on.get_by_role("button", name="save .json").first.is_disabled()
    assert on.locator("#announce").inner_text() == "Left: a red circle.. Right: a red circle."
    on.get_by_role("button", name="Vote", exact=True).click()
    on.locator("#vote-note", has_text="Choose at least one.").wait_for()
    vote(on, "left", "right")
    names = [NAMES[at] for at in order]
    assert on.locator("#vote-note").inner_text() == f"Counted. Left was {names[0]}, right was {names[1]}."
    assert titles(on) == [f"Left: {names[0]}", f"Right: {names[1]}"]
    assert on.locator("#table tbody tr").count() == 2
    firsts = [row[1:] for row in rows(on)]
    of_first = ["1", "0", "0", "100 % (21 to 100)"]
    of_second = ["0", "0", "1", "0 % (0 to 79)"]
    is_first = on.locator("#votes-table tbody td").nth(0).inner_text() == names[0]
    expected = [of_first, of_second] if is_first else [of_second, of_first]
    assert [row[2:] for row in firsts] == expected


def test_while_both_answer_nothing_shows_which_is_which(page: ComparePage, visit: Visit) -> None:
    on = visit.page
    on.goto(page.url + ADDRESS)
    has_picture(visit, WIDTH_PX)
    on.get_by_role("button", name="Compare", exact=True).click()
    on.locator("#note", has_text="Both are answering.").wait_for()
    on.evaluate(
        """() => {
            const seen = (window.seen = new Set());
            new MutationObserver(() => seen.add(document.getElementById("columns").innerText.replace(/\\s+/g, " ")))
                .observe(document.getElementById("columns"), { childList: true, subtree: true, characterData: true });
        }"""
    )
    page.engine.go.release()
    on.locator("#vote").wait_for()
    seen = on.evaluate("() => [...window.seen]")
    assert {text.count("a red circle.") for text in seen if "circle" in text} == {2}
    assert not any("loading" in text or "a red circle" in text.replace("a red circle.", "") for text in seen)


def test_votes_are_kept_counted_saved_and_taken_from_a_file(page: ComparePage, visit: Visit, tmp_path: Path) -> None:
    on = compared(page, visit, LEFT_FIRST)
    vote(on, "right")
    page.engine.go.release()
    on.get_by_role("button", name="Compare", exact=True).click()
    on.locator("#vote").wait_for()
    vote(on, "equal")
    on.reload()  # as after a restart: the page begins anew
    on.locator("#state-words", has_text="ready").wait_for()
    assert sorted(rows(on)[0][3:6]) == ["0", "1", "1"]
    assert rows(on)[1][3:] == ["0", "0", "0", "–"]
    with on.expect_download() as download:
        on.locator("#save-votes").click()
    download.value.save_as(tmp_path / "votes.json")
    saved = json.loads((tmp_path / "votes.json").read_text(encoding="utf-8"))
    assert saved["version"] == "0.1"
    (pair,) = saved["pairs"]
    sides = [side for side in ("first", "second") if pair[side]["encode"] == "sparse"]
    low, high = wilson(1, 2)
    assert pair["answer"][sides[0]] == {
        "count": 1,
        "share": 0.5,
        "low": pytest.approx(low),
        "high": pytest.approx(high),
    }
    assert pair["answer"]["votes"] == 2
    assert [kept["answer"] for kept in saved["votes"]] == ["right", "equal"]
    assert saved["votes"][0]["right"] == {"model": "one", "encode": "sparse", "strategy": "auto", "budget": 64}
    assert saved["votes"][0]["texts"] == {"left": "a red circle.", "right": "a red circle."}

    on.once("dialog", lambda dialog: dialog.accept())
    on.locator("#forget-votes").click()
    assert rows(on) == []
    for count in ("2 of 2", "0 of 2"):
        on.get_by_label("add from a file").set_input_files(tmp_path / "votes.json")
        on.locator("#votes-note", has_text=f"{count} votes are new.").wait_for()
    assert sorted(rows(on)[0][3:6]) == ["0", "1", "1"]
    for content in ("{", "null", '{"votes": [{"id": "1"}]}'):
        (tmp_path / "bad.json").write_text(content)
        on.get_by_label("add from a file").set_input_files(tmp_path / "bad.json")
        on.locator("#votes-note.bad", has_text="bad.json is no file of votes").wait_for()
    assert sorted(rows(on)[0][3:6]) == ["0", "1", "1"]


def test_two_pages_of_one_browser_keep_each_others_votes(page: ComparePage, visit: Visit) -> None:
    on = compared(page, visit, LEFT_FIRST)
    other = visit.context.new_page()
    other.goto(page.url + "compare")
    other.locator("#state-words", has_text="ready").wait_for()
    vote(on, "left")
    other.locator("#votes-table tbody tr").first.wait_for()
    assert rows(other) == rows(on)


def test_a_browser_that_keeps_nothing_is_reported(page: ComparePage, visit: Visit) -> None:
    on = compared(page, visit, LEFT_FIRST)
    on.evaluate("() => { Storage.prototype.setItem = () => { throw new Error('full'); }; }")
    vote(on, "left")
    on.locator("#votes-note.bad", has_text="save the votes before you leave the page").wait_for()
    assert len(rows(on)) == 2


def test_a_vote_is_not_asked_for_an_answer_that_failed(page: ComparePage, visit: Visit) -> None:
    on = visit.page
    on.goto(page.url + ADDRESS.replace("64", "13"))
    has_picture(visit, WIDTH_PX)
    page.engine.go.release()
    on.get_by_role("button", name="Compare", exact=True).click()
    on.locator(".answer-text.bad", has_text="needs about 90.0 GB").wait_for()
    assert on.locator("#vote").is_hidden()
    assert sorted(title.split(": ")[1] for title in titles(on)) == ["one · all tokens", "one · sparse · 13"]


def test_without_a_vote_the_answers_are_shown_and_counted_nowhere(page: ComparePage, visit: Visit) -> None:
    on = compared(page, visit, RIGHT_FIRST)
    on.get_by_role("button", name="Show without a vote").click()
    assert titles(on) == [f"Left: {NAMES[1]}", f"Right: {NAMES[0]}"]
    assert rows(on) == []
    on.get_by_label("Blind vote").uncheck()
    page.engine.go.release()
    on.get_by_role("button", name="Compare", exact=True).click()
    on.locator(".verdict:visible").nth(1).wait_for()
    assert titles(on) == NAMES
    on.get_by_role("button", name="+ Column").click()
    assert on.get_by_label("Blind vote").get_attribute("title") == "A blind vote is between two columns"


def test_on_a_phone_both_answers_stay_beside_each_other(page: ComparePage, visit: Visit) -> None:
    visit.page = on_phone(visit)
    on = compared(page, visit, LEFT_FIRST)
    boxes: list[Any] = [on.locator("#columns .column").nth(at).bounding_box() for at in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"]
    vote(on, "equal", "equal")
    assert on.evaluate("() => document.documentElement.scrollWidth") == 400
