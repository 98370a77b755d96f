"""Zones on the live page: those of the run are shown, and a new one is drawn by pointer, finger and keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from stream.config import ZoneConfig
from stream.config_loading import ConfigLayer, build_config, leaves, tomllib
from tests.support.web import ServedPage, Visit, has, on_phone, pixel, served, text, viewing

ZONES = {
    "porch": ZoneConfig(box=(0.1, 0.1, 0.3, 0.9), weight=2.0),
    "neighbour": ZoneConfig(points=((0.6, 0.2), (0.9, 0.2), (0.9, 0.8), (0.6, 0.8)), mask=True),
}


@pytest.fixture
def run() -> Iterator[ServedPage]:
    with served(zones=ZONES) as page:
        yield page


def place(page: Page, x: float, y: float) -> tuple[float, float]:
    """A place in shares of the picture, on the screen."""
    box = page.locator("#picture").bounding_box()
    assert box is not None
    return box["x"] + x * box["width"], box["y"] + y * box["height"]


def drawn(page: Page) -> ZoneConfig:
    """The zone that the page gives as TOML, as the configuration takes it."""
    toml = page.locator("#zone-toml").input_value()
    (zone,) = build_config([ConfigLayer("page", dict(leaves(tomllib.loads(toml))))]).zones.values()
    return zone


def near(points: tuple[tuple[float, float], ...] | None, *expected: tuple[float, float]) -> bool:
    assert points is not None
    assert len(points) == len(expected), points
    return all(
        actual == pytest.approx(target, abs=0.01)
        for pair in zip(points, expected, strict=True)
        for actual, target in zip(*pair, strict=True)
    )


def test_a_viewer_is_sent_the_zones_of_the_run(run: ServedPage) -> None:
    with viewing(run) as viewer:
        porch, neighbour = viewer.next("hello")["zones"]
    assert (porch["name"], porch["weight"], porch["mask"]) == ("porch", 2.0, False)
    assert porch["points"] == [[0.1, 0.1], [0.3, 0.1], [0.3, 0.9], [0.1, 0.9]]
    assert (neighbour["name"], neighbour["mask"]) == ("neighbour", True)
    with served() as other, viewing(other) as viewer:
        assert viewer.next("hello")["zones"] == []


def test_the_zones_of_the_run_are_shown_on_request(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url + "?layers=")
    assert pixel(visit.page, "layers", 0.2, 0.7)[3] == 0
    visit.page.get_by_role("button", name="Zones").click()
    porch, neighbour = pixel(visit.page, "layers", 0.2, 0.7), pixel(visit.page, "layers", 0.75, 0.7)
    assert porch[1] > porch[0]
    assert neighbour[0] > neighbour[1]
    assert pixel(visit.page, "layers", 0.45, 0.5)[3] == 0
    visit.page.keyboard.press("z")
    assert pixel(visit.page, "layers", 0.2, 0.7)[3] == 0
    assert visit.page.locator("#zones").is_hidden()


def test_a_polygon_is_clicked_closed_named_and_copied(run: ServedPage, visit: Visit) -> None:
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.see(run.url)
    page = visit.page
    page.keyboard.press("z")
    assert page.locator("#zone-copy").is_disabled()
    for corner in ((0.4, 0.2), (0.6, 0.25)):
        page.mouse.click(*place(page, *corner))
    page.mouse.move(*place(page, 0.5, 0.8))
    assert page.locator("#tip").is_hidden(), "tiles are not described meanwhile"
    assert "2 corners" in text(page, "#zone-note")
    page.mouse.click(*place(page, 0.55, 0.8))
    page.mouse.dblclick(*place(page, 0.4, 0.7))
    assert "Give it a name" in text(page, "#zone-note")
    page.keyboard.type("front-door")  # the name is where the keys go
    page.get_by_label("Weight").fill("0.5")
    page.get_by_role("button", name="Copy as TOML").click()
    has(page, "#zone-note", "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#zone-toml").input_value()
    assert page.locator("#zone-toml").input_value().startswith("[zones.front-door]\npoints = [[0.4")
    zone = drawn(page)
    assert near(zone.points, (0.4, 0.2), (0.6, 0.25), (0.55, 0.8), (0.4, 0.7))
    assert (zone.weight, zone.mask) == (0.5, False)
    page.get_by_label("Mask").check()
    assert page.get_by_label("Weight").is_disabled()
    assert drawn(page).mask
    page.mouse.click(*place(page, 0.9, 0.9))
    assert len(drawn(page).points or ()) == 4, "a closed polygon gets no more corners"
    page.get_by_role("button", name="Start again").click()
    assert page.locator("#zone-toml").is_hidden()


def test_the_first_corner_closes_and_a_corner_can_be_taken_back(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    page = visit.page
    page.keyboard.press("z")
    for corner in ((0.2, 0.2), (0.8, 0.2), (0.1, 0.9)):
        page.mouse.click(*place(page, *corner))
    page.get_by_role("button", name="Undo").click()
    assert page.locator("#zone-close").is_disabled()
    page.mouse.click(*place(page, 0.5, 0.8))
    page.mouse.click(*place(page, 0.2, 0.2))
    page.get_by_label("Name").fill("a b")
    assert page.locator("#zone-copy").is_disabled()
    page.get_by_label("Name").fill("a")
    assert near(drawn(page).points, (0.2, 0.2), (0.8, 0.2), (0.5, 0.8))


def test_two_corners_make_no_polygon(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    visit.page.keyboard.press("z")
    visit.page.mouse.click(*place(visit.page, 0.2, 0.2))
    visit.page.mouse.dblclick(*place(visit.page, 0.8, 0.2))
    assert "three corners or more" in text(visit.page, "#zone-note")


def test_a_zone_is_drawn_by_keys_alone(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    page = visit.page
    page.keyboard.press("z")
    page.locator("#stage").focus()
    for keys in (["Shift+ArrowLeft", "Enter"], ["Shift+ArrowRight"] * 2 + ["Enter"], ["ArrowDown", "Enter"]):
        for key in keys:
            page.keyboard.press(key)
    assert "3 corners" in text(page, "#zone-note")
    page.keyboard.press("Shift+ArrowDown")
    assert "Cross at 60 %, 61 %" in text(page, "#zone-note")
    page.keyboard.press("Enter")
    page.keyboard.press("Backspace")
    page.keyboard.press("c")
    assert page.evaluate("document.activeElement.id") == "zone-name"
    page.keyboard.type("keys")
    assert near(drawn(page).points, (0.4, 0.5), (0.6, 0.5), (0.6, 0.51))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "zone-weight"


def test_a_finger_draws_on_a_phone(run: ServedPage, browser: Browser) -> None:
    visit = Visit(browser, has_touch=True, is_mobile=True)
    page = on_phone(visit)
    visit.see(run.url)
    page.get_by_role("button", name="Zones").tap()
    page.locator("#stage").scroll_into_view_if_needed()
    for corner in ((0.2, 0.2), (0.8, 0.2), (0.5, 0.8)):
        page.touchscreen.tap(*place(page, *corner))
    page.get_by_role("button", name="Close", exact=True).tap()
    page.get_by_label("Name").fill("thumb")
    assert near(drawn(page).points, (0.2, 0.2), (0.8, 0.2), (0.5, 0.8))
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400
    assert page.evaluate("() => getComputedStyle(document.getElementById('stage')).touchAction") == "manipulation"
    visit.close()


def test_a_mirrored_picture_has_its_corners_at_the_clicked_places(visit: Visit) -> None:
    with visit.at(served(web__camera="ipc:///tmp/none")) as run:
        visit.see(run.url + "?mirror=1")
        page = visit.page
        page.keyboard.press("z")
        for corner in ((0.1, 0.2), (0.4, 0.2), (0.1, 0.8)):
            page.mouse.click(*place(page, *corner))
        page.get_by_role("button", name="Close", exact=True).click()
        page.get_by_label("Name").fill("m")
        assert near(drawn(page).points, (0.9, 0.2), (0.6, 0.2), (0.9, 0.8))


def test_without_a_clipboard_the_text_is_selected_or_copied(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    page = visit.page
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.evaluate("document.execCommand = () => false")
    page.keyboard.press("z")
    for corner in ((0.1, 0.2), (0.4, 0.2), (0.1, 0.8)):
        page.mouse.click(*place(page, *corner))
    page.get_by_role("button", name="Close", exact=True).click()
    page.get_by_label("Name").fill("m")
    page.get_by_role("button", name="Copy as TOML").click()
    has(page, "#zone-note", "copies nothing; the text is selected")
    assert page.evaluate("getSelection().toString()").startswith("[zones.m]")
