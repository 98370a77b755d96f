"""`demo --web`: live page, compare page and microscope side by side, with three things to try."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from stream.cli import main
from stream.config import Config
from stream.extensions.web import command
from stream.extensions.web.access import WebAccess
from stream.extensions.web.sink import WebPage
from tests.support.sections import sections
from tests.support.web import LiveRun, Visit, ask, has


class DemoPage:
    """The page of a demo."""

    def __init__(self, **values: object) -> None:
        config = Config(**sections(web__address="127.0.0.1:0", **values))
        self.page = WebPage(config, demo=True)
        self.address = self.page.address
        self.port = int(self.address.removesuffix("/demo").rpartition(":")[2])
        self.run = LiveRun(config, self.page.camera)
        self.run.go_live()

    def close(self) -> None:
        self.page.close()


@contextmanager
def demo(**values: object) -> Iterator[DemoPage]:
    with closing(DemoPage(**values)) as page:
        yield page


def test_only_the_demo_has_pages_in_frames_and_only_its_own() -> None:
    with demo() as page:
        for path in ("/demo", "/"):
            headers = ask(page, path).headers  # type: ignore[arg-type]
            assert "frame-ancestors 'self'; frame-src 'self'" in headers["content-security-policy"]
            assert headers["x-frame-options"] == "SAMEORIGIN"
    with closing(WebPage(Config(**sections(web__address="127.0.0.1:0")))) as other:
        assert "demo" not in other.address


def test_a_token_leads_to_the_demo() -> None:
    with demo(web__token="0123456789") as page:
        reply = ask(page, "/?token=0123456789")  # type: ignore[arg-type]
        assert (reply.status, reply.headers["location"]) == (303, "/demo")


def test_three_things_to_try_stay_away_once_dismissed(visit: Visit) -> None:
    visit.allowed = "404"  # this page compares nothing
    with visit.at(demo()) as page:
        visit.page.goto(page.address)
        visit.page.frame_locator("#live iframe").locator("#picture").wait_for()
        has(visit.page, "#things", "Model’s view[\\s\\S]*Compare[\\s\\S]*Microscope")
        visit.page.get_by_role("button", name="Dismiss: compare").click()
        visit.page.reload()
        assert visit.page.locator("#things li:visible").count() == 2
        for thing in ("view", "microscope"):
            visit.page.get_by_role("button", name=f"Dismiss: {thing}").click()
        assert visit.page.locator("#things").is_hidden()
        visit.page.set_viewport_size({"width": 400, "height": 860})
        assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= 400


def test_the_command_writes_nothing_and_begins_with_the_drawn_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[Config, bool]] = []

    def serve(config: Config, *, demo: bool = False) -> int:
        served.append((config, demo))
        return 130

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_serve", serve)
    assert main(["demo", "--web", "0"]) == 130
    ((config, is_demo),) = served
    assert is_demo
    assert (config.source, config.output.paths, config.value("heatmap.file")) == ("", (), None)
    assert config.allocate.budget == 64
    assert os.listdir() == []
    assert WebAccess.of(config).address(8090) == "http://127.0.0.1:8090/"
