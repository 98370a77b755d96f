"""One page for several cameras: the messages of a connection to all, or to one, and the grid in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Literal

import pytest
from playwright.sync_api import Page
from websockets.exceptions import ConnectionClosed, InvalidStatus

from stream.config import Config
from stream.control import Ask
from stream.errors import ConfigError
from stream.events import AnswerDeltaEvent, QueryChanged
from stream.extensions.web import application, connection
from stream.extensions.web.section import WebSection
from stream.extensions.web.sink import CAMERAS_MAX, WebPage
from tests.extensions.web.test_page import CONTRAST, LABELS
from tests.support.events import answer, summary
from tests.support.network import until
from tests.support.pictures import picture_fields
from tests.support.web import (
    PageClient,
    SharedPage,
    Visit,
    ask,
    closing_code,
    has,
    on_phone,
    shown,
    text,
    viewing,
)

NAMES = ("door", "back yard", "köln")


@pytest.fixture
def page() -> Iterator[SharedPage]:
    with closing(SharedPage(NAMES)) as page:
        yield page


def hellos(viewer: PageClient) -> dict[str, int]:
    return {hello["camera"]: hello["number"] for hello in (viewer.next("hello") for _ in NAMES)}


def test_one_connection_reports_all_cameras_and_each_message_names_its_own(page: SharedPage) -> None:
    page.cameras["köln"].emit(answer(1.0, "a tower"))
    with viewing(page) as viewer:
        assert hellos(viewer) == {"door": 0, "back yard": 1, "köln": 2}
        histories = {history["camera"]: history["events"] for history in (viewer.next("history") for _ in NAMES)}
        assert [event["text"] for event in histories.pop("köln")] == ["a tower"]
        assert list(histories.values()) == [[], []]
        page.cameras["door"].emit(answer(1.0, "a person"))
        assert viewer.next("answer")["camera"] == "door"
        assert {viewer.next("stats")["camera"] for _ in range(9)} == set(NAMES)


def test_pictures_carry_the_number_of_their_camera_and_each_has_its_own_credits(page: SharedPage) -> None:
    with viewing(page) as viewer:
        counts = [0, 0, 0]
        while counts[1] < 10 or min(counts) < 1:
            viewer.take()
            for number in (picture_fields(body)["camera"] for body in viewer.pictures):
                counts[number] += 1
                if number == 1:
                    viewer.send(camera="back yard", ok=1)
            viewer.pictures.clear()
        assert max(counts[0], counts[2]) <= 2, "no more of those that are not confirmed"


def test_a_question_goes_to_all_cameras_or_to_the_one_that_it_names(page: SharedPage) -> None:
    questions_by_camera = {name: camera.run.commands for name, camera in page.cameras.items()}
    with viewing(page) as viewer:
        viewer.send(camera="door", ask="who?")
        viewer.send(ask="what?")
        until(lambda: all(Ask("what?") in questions for questions in questions_by_camera.values()))
        assert questions_by_camera == {
            "door": [Ask("who?"), Ask("what?")],
            "back yard": [Ask("what?")],
            "köln": [Ask("what?")],
        }
        viewer.send(camera="gate", ask="who?")
        assert viewer.next("refused")["error"] == "no camera has that name; there are door, back yard, köln"


def test_a_connection_may_be_to_one_camera_alone(page: SharedPage) -> None:
    with viewing(page, "?camera=back%20yard") as viewer:
        hello = viewer.next("hello")
        assert (hello["camera"], hello["cameras"]) == ("back yard", list(NAMES))
        assert picture_fields(viewer.picture())["camera"] == 1
        until(lambda: page.cameras["back yard"].hub.viewers == 1)
        assert page.cameras["door"].hub.viewers == 0
        viewer.send(camera="door", ask="who?")
        assert viewer.next("refused")["error"] == "no camera has that name; there are back yard"
    with viewing(page, "?camera=gate") as viewer, pytest.raises(ConnectionClosed, match="no camera has that name"):
        viewer.take()


def test_each_camera_has_its_page_and_its_microscope(page: SharedPage) -> None:
    assert "/page/grid.js" in ask(page, "/").text
    assert "/page/live.js" in ask(page, "/?camera=door").text
    unknown = ask(page, "/?camera=gate")
    assert (unknown.status, unknown.text) == (404, "No camera has that name; there are door, back yard, köln.\n")
    assert ask(page, "/microscope?camera=door").status == 200
    assert ask(page, "/microscope").status == ask(page, "/microscope/frame?camera=gate").status == 404
    assert ask(page, "/microscope/frame?camera=door").status == 200
    inspections = {name: len(camera.pictures.inspections) for name, camera in page.cameras.items()}
    assert inspections == {"door": 1, "back yard": 0, "köln": 0}


def test_token_host_and_origin_hold_for_every_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "WRONG_TOKEN_S", 0.0)
    with closing(SharedPage(NAMES, web__token="a long secret", web__control=False)) as page:
        for path in ("/", "/?camera=door", "/microscope?camera=door", "/microscope/frame?camera=door"):
            assert ask(page, path).status == 401
            assert ask(page, path, Host="evil.example").status == 421
        trusted = {"Authorization": "Bearer a long secret"}
        for query in ("", "?camera=door"):
            with pytest.raises(InvalidStatus), viewing(page, query):
                pass
            with (
                pytest.raises(InvalidStatus),
                viewing(page, query, additional_headers=trusted, origin="http://evil.example"),
            ):
                pass
            with viewing(page, query, additional_headers=trusted) as viewer:
                viewer.send(camera="door", ask="may I?")
                assert "takes no questions" in viewer.next("refused")["error"]


def test_the_most_of_viewers_is_that_of_the_whole_page(page: SharedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.extensions.web.application.VIEWERS_MAX", 2)
    with ExitStack() as stack:
        for query in ("", "?camera=door"):
            stack.enter_context(viewing(page, query)).next("hello")
        with viewing(page, "?camera=k%C3%B6ln") as third:
            assert closing_code(third.socket) == connection.CROWDED
    until(lambda: not any(camera.hub.viewers for camera in page.cameras.values()))
    with viewing(page) as viewer:
        assert len(hellos(viewer)) == 3


def test_a_new_viewer_sees_that_a_camera_has_ended_or_never_began(page: SharedPage) -> None:
    door = page.cameras["door"]
    door.emit(summary(ended="finished"))
    door.hub.finish()
    page.page.unreachable("back yard", "it is unplugged")
    page.page.failed("köln", "it broke")
    with viewing(page) as viewer:
        health: dict[str, tuple[str, str]] = {}
        while len(health) < 3 or health["back yard"][0] != "outage":
            message = viewer.next("health")
            health[message["camera"]] = (message["status"], message["reason"])
        assert health == {
            "door": ("ended", "finished"),
            "back yard": ("outage", "it is unplugged"),
            "köln": ("ended", "it broke"),
        }
        viewer.send(camera="door", ask="who?")
        assert viewer.next("refused")["error"] == "the run has ended"


def test_more_cameras_than_pictures_can_number_are_refused() -> None:
    names = [str(number) for number in range(CAMERAS_MAX + 1)]
    with pytest.raises(ConfigError, match="a page shows 256 cameras at most, not 257; leave --web out"):
        WebPage(Config(web=WebSection(address="127.0.0.1:0")), names)


def grown(page: Page, count: int = 3) -> None:
    """Waits until every camera has drawn `count` more pictures."""
    page.wait_for_function(
        """(count) => {
            const tiles = [...(window.fleet?.page.tiles.values() ?? [])];
            return tiles.length && tiles.every((one) => one.shown >= count);
        }""",
        arg=count,
    )


def test_the_grid_shows_every_camera_and_each_leads_to_its_page(page: SharedPage, visit: Visit) -> None:
    visit.page.goto(page.url)
    grown(visit.page)
    assert visit.page.locator(".tile h2").all_inner_texts() == list(NAMES)
    for name, camera in page.cameras.items():
        camera.emit(answer(61.0, f"seen by {name}"))
        has(visit.page, ".tile", rf"{name}[\s\S]*live[\s\S]*1:01.0\s*seen by {name}")
    page.cameras["köln"].emit(AnswerDeltaEvent(answer=5, text="half a ", pts_s=62.0))
    page.cameras["köln"].emit(AnswerDeltaEvent(answer=5, text="sentence", pts_s=62.0))
    has(visit.page, ".tile", r"1:02.0\s*half a sentence")
    assert text(visit.page, "#state-words") == "3 cameras"
    page.page.failed("door", "it broke")
    has(visit.page, ".tile", "failed: it broke")
    has(visit.page, "#state-words", "3 cameras, 1 not well")
    visit.page.keyboard.press("t")
    visit.page.locator(".tile").nth(1).click()
    shown(visit.page)
    assert visit.page.url.endswith("/?layers=&camera=back+yard")
    has(visit.page, "#lines", "seen by back yard")
    assert text(visit.page, "#cameras") == "All cameras door back yard köln"
    assert text(visit.page, "#cameras [aria-current]") == "back yard"
    visit.page.locator("#microscope").click()
    has(visit.page, "#facts", "tiles|tokens|512")
    visit.page.get_by_text("Live page").click()
    shown(visit.page)
    visit.page.get_by_text("All cameras").click()
    grown(visit.page)


def test_a_question_of_the_grid_is_for_all(page: SharedPage, visit: Visit) -> None:
    visit.page.goto(page.url)
    grown(visit.page)
    visit.page.keyboard.press("/")
    visit.page.keyboard.type("where is the cat?")
    visit.page.keyboard.press("Enter")
    has(visit.page, "#asked", "The question now: where is the cat.")
    assert all(camera.run.commands == [Ask("where is the cat?")] for camera in page.cameras.values())
    page.cameras["door"].emit(QueryChanged(query="who?"))
    has(visit.page, "#asked", "The cameras have different questions")
    assert visit.page.locator(".own").all_inner_texts() == ["who?", "where is the cat?", "where is the cat?"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_the_grid_is_a_column_with_contrast_and_labels(
    page: SharedPage, visit: Visit, scheme: Literal["light", "dark"]
) -> None:
    on_phone(visit, scheme)
    visit.page.goto(page.url)
    grown(visit.page)
    page.cameras["door"].emit(answer(1.0, "word" * 60))
    has(visit.page, ".answer-text", "wordword")
    page.page.failed("köln", "unplugged" * 20)
    has(visit.page, ".state", "unplugged")
    boxes = [tile.bounding_box() for tile in visit.page.locator(".tile").all()]
    assert len({box["x"] for box in boxes if box is not None}) == 1
    assert visit.page.evaluate("() => document.documentElement.scrollWidth") == 400
    assert visit.page.evaluate(LABELS) == []
    assert visit.page.evaluate(CONTRAST) == []
