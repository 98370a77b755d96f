"""Sources that viewers choose: the offer, the rights, and that no password and no other address gets through."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from stream.errors import ConfigError
from stream.events import Started
from stream.extensions.web.sources import ADDRESS_CHARS_MAX, SourceChooser, read_named
from stream.monitor.health import RunMonitor
from stream.sources.cameras import Camera
from tests.support.events import answer, frame
from tests.support.network import until
from tests.support.web import DrawnPictures, PageClient, ServedPage, Visit, served, shown, viewing

CAMERAS = [Camera("/dev/video0", "Desk"), Camera("/dev/video2", "Busy", problem="in use by another program")]


def make_chooser(*, free: bool = False, browser: bool = True) -> SourceChooser:
    sources = read_named(["door=rtsp://user:secretive@camera.local/1", "yard=yard.mp4"])
    return SourceChooser(sources, free=free, browser=browser, find_cameras=lambda: CAMERAS)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["door"], "NAME=SOURCE"),
        (["=rtsp://x"], "NAME=SOURCE"),
        (["door="], "NAME=SOURCE"),
        (["a/b=c.mp4"], "NAME=SOURCE"),
        (["a=b.mp4", "a=c.mp4"], "two sources are called 'a'"),
        (["a=-"], "read only once"),
    ],
)
def test_a_source_without_a_unique_name_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_named(texts)


def test_everything_is_offered_without_its_secrets() -> None:
    chooser = make_chooser()
    chooser.find_cameras()
    described = chooser.described
    keys = [item["key"] for item in described["offered"]]
    assert keys[:3] == ["named/door", "named/yard", "browser/this browser’s camera"]
    assert "scene/demo" in keys
    assert "camera//dev/video0" in keys
    assert described["state"] == "idle"
    assert described["now"] is None
    assert "secretive" not in str(described)
    assert read_named(["yard=/srv/films/yard.mp4"])[0].described["note"] == "yard.mp4"
    assert "secretive" not in repr(chooser._fixed)


def test_drawn_scenes_have_thumbnails(visit: Visit) -> None:
    with visit.at(served(chooser=make_chooser())) as page:
        visit.page.goto(page.url)
        thumbnail = visit.page.get_by_role("button", name="street").locator("img")
        visit.page.wait_for_function(
            "(one) => one.complete && one.naturalWidth === 128", arg=thumbnail.element_handle()
        )
        assert visit.page.request.get(page.url + "scene/none").status == 404


def test_a_source_that_was_seen_has_its_picture_as_thumbnail(visit: Visit) -> None:
    chooser = make_chooser()
    with visit.at(served(chooser=chooser)) as page:
        visit.page.goto(page.url)
        yard = visit.page.get_by_role("button", name="yard").locator("canvas")
        assert yard.is_hidden()
        chooser.choose("named/yard")
        assert chooser.take() is not None
        chooser.running()
        shown(visit.page)
        visit.page.locator("#source-change").click()
        yard.wait_for()
        colour = yard.evaluate("(one) => [...one.getContext('2d').getImageData(9, 9, 1, 1).data]")
        assert colour == [128, 128, 128, 255]


def test_a_choice_is_taken_and_another_one_ends_its_run() -> None:
    chooser, states = make_chooser(), []
    chooser.on_change = lambda: states.append(chooser.described["state"])
    assert chooser.choose("named/yard") is None
    first = chooser.take()
    assert first is not None
    assert first.source.address == "yard.mp4"
    chooser.running()
    assert chooser.choose("scene/demo") is None
    assert first.control.cancelled
    assert chooser.left
    assert chooser.described["now"]["name"] == "demo"
    chooser.ended(error="cut off")
    assert chooser.described["error"] is None  # viewers wanted its end
    second = chooser.take()
    assert second is not None
    assert second.source.address == "scene:demo"
    assert chooser.stop() is None
    chooser.ended("cancelled")
    assert chooser.described["remark"] is None
    assert chooser.stop() == "nothing runs"
    assert states == ["idle", "opening", "running", "ending", "idle", "opening", "ending", "idle"]


def test_a_run_that_fails_or_ends_shows_it_without_a_password() -> None:
    chooser = make_chooser()
    chooser.choose("named/door")
    chooser.take()
    chooser.ended(error="rtsp://user:secretive@camera.local/1 does not answer")
    assert chooser.described["error"] == "rtsp://***@camera.local/1 does not answer"
    chooser.choose("named/yard")
    assert chooser.described["error"] is None
    chooser.take()
    chooser.ended("finished")
    assert chooser.described["remark"] == "yard: finished"


def test_only_what_is_offered_can_be_chosen() -> None:
    chooser = make_chooser(browser=False)
    chooser.find_cameras()
    for key in ("named//etc/passwd", "rtsp://elsewhere/1", "browser/this browser’s camera", "named/yard.mp4"):
        assert "no such source" in (chooser.choose(key) or "")
    assert chooser.choose("camera//dev/video2") == "in use by another program"
    assert "--any-source" in (chooser.open("/etc/passwd") or "")
    free = make_chooser(free=True)
    for address in ("", "-", "browser:", "x" * (ADDRESS_CHARS_MAX + 1)):
        assert "give a camera" in (free.open(address) or "")
    for address in ("screen:", " screen::0+1,2"):
        assert "a screen of the server is shown only if its command names it" in (free.open(address) or "")
    assert free.open(" rtsp://me:secretive@other/1 ") is None
    choice = free.take()
    assert choice is not None
    assert choice.source.address == "rtsp://me:secretive@other/1"
    assert free.described["now"]["name"] == "rtsp://***@other/1"


def test_after_the_end_nothing_is_taken() -> None:
    chooser = make_chooser()
    chooser.choose("named/yard")
    choice = chooser.take()
    chooser.quit()
    assert choice is not None
    assert choice.control.cancelled
    assert chooser.take() is None


class ChosenPage(ServedPage):
    """A page whose sources are chosen; the test runs them."""

    def __init__(self, **options: Any) -> None:
        self.chooser = make_chooser(free=True)
        super().__init__(chooser=self.chooser, **options)
        self.hub.finish()

    def run_chosen(self) -> None:
        """Take the choice and run it."""
        choice = self.chooser.take()
        assert choice is not None
        self.monitor = RunMonitor(self.config)
        self.monitor.follow(self.run)  # type: ignore[arg-type]
        self.hub.begin(self.monitor)
        self.pictures = DrawnPictures(self.hub, self.microscope)
        self.hub.pictures.attach(self.pictures)
        self.chooser.running()
        self.emit(Started(source=choice.source.name, model="fake", query="What?", backend="cpu"))
        self.emit(frame(0, 0.0))


@pytest.fixture
def page() -> Iterator[ChosenPage]:
    page = ChosenPage()
    yield page
    page.close()


def state(viewer: PageClient, target: str) -> dict[str, Any]:
    while (message := viewer.next("sources"))["state"] != target:
        pass
    return message


def test_viewers_choose_and_the_next_run_begins_afresh(page: ChosenPage) -> None:
    with viewing(page) as viewer:
        assert viewer.next("hello")["run"] == 1
        state(viewer, "idle")
        viewer.send(ask="who?")
        assert viewer.next("refused")["error"] == "nothing runs; choose a source first"
        viewer.send(choose="scene/demo")
        page.run_chosen()
        assert state(viewer, "running")["now"]["key"] == "scene/demo"
        viewer.picture()
        page.emit(answer(1.0, "of the first"))
        assert viewer.next("answer")["text"] == "of the first"
        viewer.send(choose="named/yard")
        state(viewer, "ending")
        page.hub.finish()
        page.chooser.ended()
        page.run_chosen()
        state(viewer, "running")
    with viewing(page) as late:
        assert late.next("hello")["run"] == 3
        assert late.next("history")["events"] == []  # the answer was about another source


def test_viewers_without_rights_choose_nothing() -> None:
    page = ChosenPage(web__control=False)
    with viewing(page) as viewer:
        viewer.send(choose="scene/demo")
        assert "only shows" in viewer.next("refused")["error"]
    page.close()


def test_a_run_without_a_choice_takes_none() -> None:
    with served() as page, viewing(page) as viewer:
        viewer.send(stop=True)
        assert "only shows" in viewer.next("refused")["error"]


def test_choices_too_quick_are_refused(page: ChosenPage) -> None:
    with viewing(page) as viewer:
        for _ in range(20):
            viewer.send(choose="scene/demo")
        assert "too many choices" in viewer.next("refused")["error"]


@pytest.mark.parametrize("width", [1280, 400])
def test_in_the_page_a_source_is_chosen_changed_and_stopped(page: ChosenPage, visit: Visit, width: int) -> None:
    on = visit.page
    on.set_viewport_size({"width": width, "height": 800})
    on.goto(page.url)
    on.get_by_text("choose a source").wait_for()
    assert on.evaluate("() => document.documentElement.scrollWidth") == width
    on.get_by_role("button", name="demo", exact=True).press("Enter")
    page.run_chosen()
    shown(on)
    assert on.locator("#source-choices").is_hidden()
    page.emit(answer(1.0, "of the first"))
    on.locator("#lines").get_by_text("of the first").wait_for()

    on.get_by_role("button", name="Change").click()
    on.get_by_role("button", name=re.compile("^yard")).click()
    until(lambda: page.chooser.left)
    page.hub.finish()
    page.chooser.ended()
    page.run_chosen()
    on.locator("#source-now", has_text="yard · yard.mp4").wait_for()
    on.locator("#lines").get_by_text("No answers yet").wait_for()
    shown(on)

    on.get_by_role("button", name="Stop", exact=True).click()
    until(lambda: page.chooser.left)
    page.hub.finish()
    page.chooser.ended()
    on.locator("#state-words", has_text="no source").wait_for()
    assert on.locator("#source-choices").is_visible()

    on.get_by_label("Another source").fill("/no/such.mp4")
    on.keyboard.press("Enter")
    page.chooser.take()
    page.chooser.ended(error="/no/such.mp4 does not exist")
    on.locator("#source-note.bad", has_text="does not exist").wait_for()
