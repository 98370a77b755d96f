"""The past in the page: replies of its routes, and the timeline in a browser."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import Page

from stream.extensions.past.moments import MATCH, OUTAGE, ClipFiles, Moment, MomentExtension, PastRun
from stream.extensions.past.page import PAGE_MOMENTS, SPANS, WAITING_MAX
from stream.extensions.past.search import PastReader
from stream.extensions.past.store import PastStore
from stream.protocol.picture_files import encode_jpeg
from tests.extensions.web.test_page import CONTRAST, LABELS
from tests.support.events import answer
from tests.support.network import until
from tests.support.past import BEGIN_MS, HOUR_MS, moment, written
from tests.support.web import ServedPage, SharedPage, Visit, ask, has, on_phone, served, text

YARD, DOOR = (PastRun(name, name, f"rtsp://{name}", 0) for name in ("yard", "door"))

JPEG = encode_jpeg(np.full((90, 160, 3), 90, np.uint8))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def some(begin_ms: int, count: int = 30) -> list[Moment]:
    """Moments of the yard every ten seconds, and three others after them."""
    moments = [
        moment(number, f"car number {number}", YARD, unix_ms=begin_ms + 10_000 * number, jpeg=JPEG)
        for number in range(1, count + 1)
    ]
    end_ms = begin_ms + 10_000 * count
    match = moment(1, "gate: open?", DOOR, kind=MATCH, watch="gate", yes=0.93, unix_ms=end_ms + 1000, jpeg=JPEG)
    outage = moment(2, "source lost: <b>unplugged</b>", DOOR, kind=OUTAGE, unix_ms=end_ms + 2000)
    return [*moments, match, outage, moment(3, "a person", DOOR, unix_ms=end_ms + 3000)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return written(tmp_path / "past.sqlite", some(now_ms() - HOUR_MS // 2))


@pytest.fixture
def run(path: str) -> Iterator[ServedPage]:
    with served(past__file=path) as page:
        yield page


def test_the_first_page_has_moments_times_and_cameras(run: ServedPage) -> None:
    reply = ask(run, "/past")
    assert reply.status == 200
    assert reply.headers["cache-control"] == "no-cache"
    page = reply.json
    assert [item["text"] for item in page["moments"][:3]] == [
        "a person",
        "source lost: <b>unplugged</b>",
        "gate: open?",
    ]
    assert len(page["moments"]) == PAGE_MOMENTS
    assert page["more"] is True
    assert page["count"] == sum(page["spans"]) == 33
    assert len(page["spans"]) == SPANS
    assert page["cameras"] == ["door", "yard"]
    assert page["since"] < page["until"]
    assert not {"run", "source", "fields", "id"} & page["moments"][0].keys()


def test_the_next_page_goes_on_where_the_first_ended(run: ServedPage) -> None:
    first = ask(run, "/past").json["moments"]
    second = ask(run, f"/past?before={first[-1]['unix_ms']}").json
    assert second.keys() == {"moments", "more"}
    assert second["moments"][0] == first[-1]
    assert [item["text"] for item in second["moments"][1:]] == [f"car number {number}" for number in range(9, 0, -1)]
    assert second["more"] is False


def test_words_cameras_kinds_and_times_narrow_it(run: ServedPage) -> None:
    def texts(query: str) -> list[str]:
        return [item["text"] for item in ask(run, f"/past?{query}").json["moments"]]

    assert texts("words=" + quote('car "number 7"')) == ["car number 7"]
    assert texts("words=" + quote("car OR person")) == []
    assert texts("camera=door&kind=answer") == ["a person"]
    assert texts("camera=none") == []
    assert texts(f"since={now_ms()}") == []
    assert texts(f"since={now_ms() + 10_000}") == []
    assert texts("until=0") == []


@pytest.mark.parametrize("query", ["words=%3F%3F", "since=yesterday", f"words={'a' * 1001}", "before=1e9", "until=0x1"])
def test_invalid_searches_are_reported_in_one_line(run: ServedPage, query: str) -> None:
    reply = ask(run, f"/past?{query}")
    assert reply.status == 400
    assert reply.json.keys() == {"error"}


@pytest.mark.parametrize("number", ["-1", "99999999999999999999999", "1", "9e9"])
def test_times_beyond_all_bounds_are_at_the_bounds(run: ServedPage, number: str) -> None:
    assert ask(run, f"/past?since={number}&until={number}&before={number}").status in (200, 400)


def test_pictures_are_served_by_file_and_moment(run: ServedPage) -> None:
    moments = ask(run, "/past").json["moments"]
    address = next(item["picture"] for item in moments if item["kind"] == "match")
    reply = ask(run, address)
    assert (reply.status, reply.headers["content-type"], reply.body) == (200, "image/jpeg", JPEG)
    assert next(item["picture"] for item in moments if item["kind"] == "outage") is None
    for missing in ("/past/0/999.jpg", "/past/1/1.jpg", f"/past/0/{10**30}.jpg", "/past/0/x.jpg", "/past/-1/1.jpg"):
        assert ask(run, missing).status == 404


def test_the_past_is_behind_the_token_and_on_this_page_only(path: str) -> None:
    with served(past__file=path, web__token="a secret of some length") as page:
        assert ask(page, "/past").status == 401
        assert ask(page, "/past/0/1.jpg").status == 401
        assert ask(page, "/past", Authorization="Bearer a secret of some length").status == 200
        assert ask(page, "/past", Host="elsewhere.example").status == 421
        assert ask(page, "/past", b"{}", Authorization="Bearer a secret of some length").status == 405


def test_without_a_file_there_is_no_past() -> None:
    with served() as page:
        assert ask(page, "/past").status == 404


def test_a_file_that_cannot_be_read_is_one_line_and_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "past.sqlite"
    with served(past__file=str(path)) as page:
        assert "there is no file" in ask(page, "/past").json["error"]
        assert ask(page, "/past/0/1.jpg").status == 503
        path.write_bytes(b"no database " * 100)
        assert "it is no SQLite file" in ask(page, "/past").json["error"]
        path.unlink()
        written(path, [moment(1)])
        assert ask(page, "/past").json["count"] == 1


def test_several_files_are_one_past(tmp_path: Path) -> None:
    paths = [
        written(tmp_path / f"{run.camera}.sqlite", [moment(1, run.camera, run, jpeg=JPEG)]) for run in (YARD, DOOR)
    ]
    missing = str(tmp_path / "none.sqlite")
    with closing(SharedPage(("yard", "door"), remembered=[*paths, missing])) as page:
        result = ask(page, "/past").json
        assert {item["text"]: item["picture"] for item in result["moments"]} == {
            "yard": "/past/0/1.jpg",
            "door": "/past/1/1.jpg",
        }
        assert result["count"] == sum(result["spans"]) == 2
        assert ask(page, "/past/1/1.jpg").body == JPEG


def test_too_many_searches_at_once_are_refused(run: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    released, searches = threading.Event(), threading.Semaphore(0)

    def hang(*_: object) -> list[str]:
        searches.release()
        assert released.wait(60)
        return []

    monkeypatch.setattr(PastReader, "find", hang)
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(ask(run, "/past").status)) for _ in range(WAITING_MAX + 4)
    ]
    for thread in threads:
        thread.start()
    until(lambda: statuses.count(400) == 4)
    released.set()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] * WAITING_MAX + [400] * 4


def opened(page: Page, url: str) -> None:
    page.goto(url)
    page.locator("#past").scroll_into_view_if_needed()
    page.locator(".moments li").first.wait_for()


def test_the_page_shows_a_timeline_with_pictures(run: ServedPage, visit: Visit) -> None:
    page = visit.page
    opened(page, run.url)
    has(page, "#past .note", "33 moments")
    entries = page.locator(".moments li")
    assert entries.count() == PAGE_MOMENTS
    assert "a person" in entries.nth(0).inner_text()
    assert "<b>unplugged</b>" in entries.nth(1).inner_text(), "text is text"
    assert "match, 93 % yes" in entries.nth(2).inner_text()
    entries.nth(2).locator("img").scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelector('.moments li.match img').naturalWidth === 160")
    page.get_by_role("button", name="Older").click()
    page.wait_for_function("() => document.querySelectorAll('.moments li').length === 33")
    assert page.get_by_role("button", name="Older").is_hidden()


def test_a_match_has_a_link_to_its_clip(run: ServedPage, path: str, visit: Visit) -> None:
    with closing(PastStore(path)) as store:
        store.write([ClipFiles(DOOR, 1, "gate 1.jpg", "gate 1.mp4")])
    assert clip_links(visit.page, run.url) == ["/clips/gate%201.mp4"], "the only camera of a page has no name there"
    with visit.at(closing(SharedPage(("yard", "door"), past__file=path))) as shared:
        for address in (shared.url, f"{shared.url}?camera=door"):
            assert clip_links(visit.page, address) == ["/clips/gate%201.mp4?camera=door"]


def clip_links(page: Page, address: str) -> list[str | None]:
    opened(page, address)
    page.wait_for_selector(".moments li.match a")
    return [link.get_attribute("href") for link in page.locator(".moments a").all()]


def test_words_camera_and_a_part_of_the_time_are_chosen(run: ServedPage, visit: Visit) -> None:
    page = visit.page
    opened(page, run.url)
    page.locator("#past-words").fill('"number 7"')
    page.keyboard.press("Enter")
    has(page, "#past .note", "^1 moment$")
    assert page.locator(".moments li").count() == 1
    page.locator("#past-words").fill("???")
    visit.allowed = "400"
    page.keyboard.press("Enter")
    has(page, "#past .note.bad", "there is no word in")
    page.locator("#past-words").fill("")
    page.get_by_label("Camera", exact=True).last.select_option("door")
    has(page, "#past .note", "^3 moments$")
    page.get_by_label("Camera", exact=True).last.select_option("")
    has(page, "#past .note", "^33 moments$")
    bar = page.locator(".spans button:enabled").first
    words = bar.get_attribute("title")
    assert words is not None
    bar.click()
    has(page, "#past .note", f"^{words.rpartition(': ')[2]}$")
    page.get_by_role("button", name="the whole time").click()
    has(page, "#past .note", "^33 moments$")
    page.get_by_label("Time", exact=True).select_option("the last hour")
    has(page, "#past .note", "^33 moments$")


def test_new_moments_come_by_themselves(run: ServedPage, path: str, visit: Visit) -> None:
    page = visit.page
    opened(page, run.url)
    dog = moment(40, "a dog", YARD, unix_ms=now_ms() - 2000)
    with closing(PastStore(path)) as store:
        store.write([dog, MomentExtension(YARD, 40, now_ms(), 41.0)])
    page.evaluate("() => (window.live.run.past.loadedMs -= 20000)")
    run.emit(answer(41.0, "a dog"))
    has(page, ".moments li", "a dog")
    assert "2 times until" in page.locator(".moments li").first.inner_text()


def test_the_grid_shows_all_cameras_and_a_page_its_own(path: str, visit: Visit) -> None:
    with visit.at(closing(SharedPage(("yard", "door"), past__file=path))) as shared:
        opened(visit.page, shared.url)
        has(visit.page, "#past .note", "^33 moments$")
        opened(visit.page, f"{shared.url}?camera=door")
        has(visit.page, "#past .note", "^3 moments$")
        assert visit.page.get_by_label("Camera", exact=True).last.input_value() == "door"


def test_a_program_that_is_gone_is_reported(path: str, visit: Visit) -> None:
    visit.allowed = "WebSocket|ERR_|Failed to load"
    with served(past__file=path) as run:
        opened(visit.page, run.url)
    visit.page.get_by_role("button", name="Search", exact=True).click()
    has(visit.page, "#past .note.bad", "The program does not answer.")


def test_an_empty_result_is_reported(tmp_path: Path, visit: Visit) -> None:
    with visit.at(served(past__file=written(tmp_path / "past.sqlite", [moment(1, unix_ms=BEGIN_MS - 10**12)]))) as run:
        visit.page.goto(run.url)
        visit.page.locator("#past").scroll_into_view_if_needed()
        has(visit.page, "#past .note", "Nothing is found")
        assert visit.page.locator(".spans").is_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_the_past_is_a_column_with_contrast_and_labels(
    run: ServedPage, visit: Visit, scheme: Literal["light", "dark"]
) -> None:
    page = on_phone(visit, scheme)
    opened(page, run.url)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 400
    assert text(page, "#past-title") == "Past"
    assert page.evaluate(LABELS) == []
    assert page.evaluate(CONTRAST) == []


def test_rows_that_no_run_writes_are_left_out_and_reported_once(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("UPDATE moment SET unix_ms = 'x' WHERE text = 'a person'")
    with served(past__file=path) as run:
        for _ in range(2):
            page = ask(run, "/past").json
            assert page["moments"][0]["text"] == "source lost: <b>unplugged</b>"
            assert page["count"] == sum(page["spans"]) == 32
    assert [line for line in capsys.readouterr().err.splitlines() if "left out" in line] == [
        f"note: 1 row of {path!r}, which no run has written, left out"
    ]
