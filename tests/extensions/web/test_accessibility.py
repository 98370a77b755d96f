"""Contrast, labels and roles of every page by axe-core (MPL-2.0), which npm fetches; it is not shipped."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest
from playwright.sync_api import Page

from stream.config import WatchConfig
from stream.events import ClipWritten, Cut, Outage
from stream.extensions.web.comparison.questions import PictureQuestion
from tests.extensions.web.test_compare import ComparePage
from tests.extensions.web.test_past import some
from tests.extensions.web.test_sources import ChosenPage
from tests.support.events import answer, detections, look, match
from tests.support.past import written
from tests.support.web import ServedPage, Visit, served, shown

ROOT = Path(__file__).resolve().parents[3]
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"

RUN = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations.map((one) => ({
    rule: one.id, help: one.help, where: one.nodes.map((node) => node.html.slice(0, 200)) }))"""


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.exists():
        message = "no axe-core: npm install --no-save axe-core@4.14.1"
        pytest.fail(message) if os.environ.get("CI") and shutil.which("npm") else pytest.skip(message)
    return AXE.read_text(encoding="utf-8")


def violations(page: Page, axe: str) -> list[dict[str, Any]]:
    page.evaluate(axe)  # a script element is against the policy of the page
    results: list[dict[str, Any]] = page.evaluate(RUN)
    return results


def live(run: ServedPage, page: Page) -> None:
    page.goto(run.url + "?layers=thdm")
    shown(page)
    for event in (answer(1.0, "a cat"), Cut(1, 1.0, 0.9), detections(1.0), Outage(1, 1.0, "unplugged"), look(2.0)):
        run.emit(event)
    page.locator("#lines", has_text="unplugged").wait_for()
    page.locator("#stage").focus()
    page.keyboard.press("ArrowRight")


def table(run: ServedPage, page: Page) -> None:
    live(run, page)
    page.locator("#as-table").click()


def zones(run: ServedPage, page: Page) -> None:
    live(run, page)
    page.keyboard.press("Escape")
    page.keyboard.press("z")
    for key in ("Enter", "Shift+ArrowRight", "Enter", "Shift+ArrowDown", "Enter", "c"):
        page.keyboard.press(key)
    page.get_by_label("Name").fill("porch")
    page.locator("#zone-toml").wait_for()


def microscope(run: ServedPage, page: Page) -> None:
    page.goto(run.url + "microscope?map=information")
    page.wait_for_function("() => window.scope && window.scope.rounds >= 1")
    page.locator("#stage").focus()
    page.keyboard.press("ArrowRight")
    page.locator("#values").wait_for()


def sources(run: ServedPage, page: Page) -> None:
    page.goto(run.url)
    page.locator("#source-choices").wait_for()


def compare(run: ServedPage, page: Page) -> None:
    assert isinstance(run, ComparePage)
    page.goto(run.url + "compare?layers=t")
    page.get_by_role("button", name="shapes").click()
    page.locator("#go:enabled").wait_for()
    page.get_by_label("Question", exact=True).press("Enter")
    run.engine.go.release()
    page.locator(".verdict.wrong").nth(1).wait_for()


def blind(run: ServedPage, page: Page) -> None:
    assert isinstance(run, ComparePage)
    page.goto(run.url + "compare?example=shapes&blind=1&layers=t")
    page.locator("#go:enabled").wait_for()
    for _ in range(2):
        page.locator("#go").click()
        run.engine.go.release()
        page.locator("#vote").wait_for()
        if page.locator("#votes-table").is_hidden():
            page.get_by_role("group", name="Which answer is better?").get_by_label("left").check()
            page.get_by_role("button", name="Vote", exact=True).click()
    page.locator("#votes-table").wait_for()


def asked_page() -> ComparePage:
    """The compare page with a file of questions."""
    return ComparePage([PictureQuestion("1", "What?", AXE, (), ())])


class RememberedPage(ServedPage):
    """The page of a run that remembers, with a few moments of every kind."""

    def __init__(self) -> None:
        self.folder = TemporaryDirectory()
        begin_ms = time.time_ns() // 1_000_000 - 600_000
        super().__init__(past__file=written(Path(self.folder.name) / "past.sqlite", some(begin_ms)))

    def close(self) -> None:
        super().close()
        self.folder.cleanup()


def past(run: ServedPage, page: Page) -> None:
    page.goto(run.url)
    shown(page)
    page.locator("#past").scroll_into_view_if_needed()
    page.locator(".moments li").first.wait_for()


def matches(run: ServedPage, page: Page) -> None:
    page.goto(run.url)
    shown(page)
    run.emit(match(5.0))
    run.emit(match(6.0, 2))
    run.emit(ClipWritten(match=1, watch="until", picture=None, video="a.mp4", start_s=2.0, end_s=8.0))
    page.locator("#clip-list li").nth(1).wait_for()


def player(run: ServedPage, page: Page) -> None:
    matches(run, page)
    page.evaluate("() => live.clips.show({ match: 3, watch: 'until', video: 'b.mp4', start_s: 1, end_s: 2 })")
    page.locator("#clip-player[open]").wait_for()


def watched() -> ServedPage:
    """A page of a run with more watches than are shown at once."""
    questions = ("here", *(f"place {number}" for number in range(9)))
    return ServedPage(
        watches=tuple(WatchConfig(question=f"is it {name}?", name=name.replace(" ", "_")) for name in questions)
    )


KINDS: dict[Callable[[ServedPage, Page], None], Callable[[], ServedPage]] = {
    live: watched,
    sources: ChosenPage,
    compare: asked_page,
    blind: ComparePage,
    past: RememberedPage,
}


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
@pytest.mark.parametrize("open_page", [live, table, zones, matches, player, microscope, sources, compare, blind, past])
def test_axe_finds_nothing_amiss(
    axe: str, visit: Visit, open_page: Callable[[ServedPage, Page], None], width: int, scheme: Literal["light", "dark"]
) -> None:
    visit.allowed = "WebSocket|404"
    visit.page.set_viewport_size({"width": width, "height": 800})
    visit.page.emulate_media(color_scheme=scheme)
    # The page closes before its server: the microscope asks on and on, and would report the refused request.
    with closing(KINDS.get(open_page, ServedPage)()) as run, closing(visit.page):
        open_page(run, visit.page)
        assert violations(visit.page, axe) == []


def test_axe_finds_nothing_amiss_on_the_token_page(axe: str, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    visit.allowed = "401"
    with visit.at(served(web__token="a secret of some length")) as run:
        visit.page.goto(run.url)
        assert violations(visit.page, axe) == []
