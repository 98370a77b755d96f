"""Matches in the page: files of the clips folder alone, parts of them, the list, and the player in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from PIL import Image

from stream.events import ClipWritten
from stream.extensions.clips.folder import ClipFolder
from tests.support.events import match
from tests.support.fragments import fragments_of, video_file
from tests.support.web import (
    PageClient,
    ServedPage,
    SharedPage,
    Visit,
    ask,
    has,
    on_phone,
    served,
    text,
    viewing,
    written,
)

VIDEO, PICTURE = "yard-1.mp4", "yard-1.jpg"

WRITTEN = ClipWritten(match=1, watch="until", picture=PICTURE, video=None, start_s=5.0, end_s=5.0)
COMPLETE = ClipWritten(match=1, watch="until", picture=PICTURE, video=VIDEO, start_s=2.0, end_s=8.0)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of clips, and files beside them that were not written by a run."""
    base = tmp_path_factory.mktemp("clips")
    (base / "outside.mp4").write_bytes(b"outside")
    fragments = fragments_of(str(video_file(base / "a.mp4", 6)))
    with closing(ClipFolder(str(base / "yard"))) as folder:
        for name, data in (
            (VIDEO, fragments[0].init + b"".join(fragment.data for fragment in fragments)),
            (PICTURE, written(Image.new("RGB", (320, 180), (90, 120, 60)), "JPEG")),
        ):
            file = folder.create(name)
            file.append(data)
            file.finish()
    (base / "yard" / "private.mp4").write_bytes(b"not of a run")
    (base / "yard" / "link.mp4").symlink_to(base / "outside.mp4")
    return base / "yard"


@pytest.fixture
def run(clips: Path) -> Iterator[ServedPage]:
    with served(clips__folder=str(clips)) as page:
        yield page


def test_a_clip_is_served_whole_and_in_parts(run: ServedPage, clips: Path) -> None:
    data = (clips / VIDEO).read_bytes()
    reply = ask(run, f"/clips/{VIDEO}")
    assert (reply.status, reply.headers["content-type"], reply.body) == (200, "video/mp4", data)
    assert reply.headers["accept-ranges"] == "bytes"
    assert "media-src 'self'" in reply.headers["content-security-policy"]
    assert ask(run, f"/clips/{PICTURE}").headers["content-type"] == "image/jpeg"
    part = ask(run, f"/clips/{VIDEO}", Range="bytes=100-199")
    assert (part.status, part.body) == (206, data[100:200])
    assert part.headers["content-range"] == f"bytes 100-199/{len(data)}"
    assert ask(run, f"/clips/{VIDEO}", Range="bytes=-50").body == data[-50:]
    assert ask(run, f"/clips/{VIDEO}", Range=f"bytes={len(data)}-").status == 416


@pytest.mark.parametrize(
    "name",
    [
        *("private.mp4", "link.mp4", "none.mp4", ".arr-coc-clips", "..%2foutside.mp4", "%2e%2e/outside.mp4"),
        *("..%5coutside.mp4", "%2fetc%2fpasswd", f"{VIDEO}%00", f"{VIDEO}%0a", f"sub/{VIDEO}", "../outside.mp4", ""),
    ],
)
def test_nothing_but_clips_is_served(run: ServedPage, name: str) -> None:
    reply = ask(run, f"/clips/{name}")
    assert reply.status in (404, 405)
    assert b"outside" not in reply.body


def test_clips_need_the_token_of_the_page(clips: Path) -> None:
    with served(clips__folder=str(clips), web__token="a secret of some length") as run:
        assert ask(run, f"/clips/{VIDEO}").status == 401
        assert ask(run, f"/clips/{VIDEO}", Authorization="Bearer wrong").status == 401
        assert ask(run, f"/clips/{VIDEO}", Authorization="Bearer a secret of some length").status == 200
        assert ask(run, f"/clips/{VIDEO}", Host="other.test").status == 421


def test_a_run_without_clips_serves_none(clips: Path) -> None:
    with served() as run, viewing(run) as viewer:
        assert viewer.next("hello")["clips"] is False
        assert ask(run, f"/clips/{VIDEO}").status == 404


def test_each_camera_serves_its_own_clips(clips: Path) -> None:
    with closing(SharedPage(["yard", "door"])) as page:
        page.cameras["yard"].hub.begin(page.cameras["yard"].monitor, clips=str(clips))
        page.cameras["door"].hub.begin(page.cameras["door"].monitor, clips=str(clips.parent))
        assert ask(page, f"/clips/{VIDEO}?camera=yard").status == 200
        assert ask(page, f"/clips/{VIDEO}?camera=door").status == 404
        assert ask(page, f"/clips/{VIDEO}?camera=none").status == 404
        assert ask(page, f"/clips/{VIDEO}").status == 200  # a link from elsewhere names no camera


def matches(viewer: PageClient) -> list[tuple[str, int]]:
    return [(event["topic"], event["match"]) for event in viewer.next("matches")["events"]]


def test_a_late_viewer_gets_the_matches_so_far(run: ServedPage) -> None:
    run.emit(match(5.0))
    run.emit(WRITTEN)
    run.emit(COMPLETE)
    with viewing(run) as viewer:
        assert matches(viewer) == [("match", 1), ("clip", 1), ("clip", 1)]
    run.hub.begin(run.monitor, clips=None)
    with viewing(run) as viewer:
        assert viewer.next("hello")["clips"] is False
        run.emit(match(6.0, 2))
        assert viewer.next("match")["match"] == 2


def test_a_match_is_listed_and_its_clip_plays(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    page = visit.page
    assert page.locator("#clips").is_hidden()
    run.emit(match(5.0))
    run.emit(WRITTEN)
    has(page, "#clip-list li", "0:05.0.*is it here.*the video is being written")
    page.wait_for_function("() => document.querySelector('#clip-list img').naturalWidth === 320")
    run.emit(COMPLETE)
    page.get_by_role("button", name="0:05.0 is it here? with video").click()
    page.wait_for_function("() => document.querySelector('#clip-shown video').readyState >= 2")
    seconds = page.evaluate("() => document.querySelector('#clip-shown video').duration")
    assert seconds == pytest.approx(6.0, abs=0.2)
    page.evaluate("() => { document.querySelector('#clip-shown video').currentTime = 4; }")
    page.wait_for_function("() => document.querySelector('#clip-shown video').currentTime >= 4")
    assert text(page, "#clip-facts") == "0:02.0 to 0:08.0 · 97 % yes"
    assert text(page, "#clip-links") == f"{PICTURE} {VIDEO}"
    page.keyboard.press("Escape")
    assert page.locator("#clip-player").is_hidden()
    page.wait_for_function("() => !document.querySelector('#clip-shown video')")  # the dialog's event comes later
    assert text(page, "#clip-count") == "1 match"


def test_matches_that_share_a_video_say_so(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    noon = "2026-01-02T12:00:00.000+00:00"
    for number in (1, 2):
        run.emit(replace(match(5.0, number), time=noon))
        run.emit(replace(COMPLETE, match=number, time=noon))
    has(visit.page, "#clip-list li:nth-child(1)", "is it here.*in the video of match 1")
    has(visit.page, "#clip-list li:nth-child(2)", "is it here.*with video")
    visit.page.locator("#clip-list button").first.click()
    has(visit.page, "#clip-facts", r"^Fri, Jan 2 .*, video of 6 s · 97 % yes$")


def test_a_deleted_clip_leaves_the_list(run: ServedPage, visit: Visit) -> None:
    visit.allowed = "404"
    run.emit(match(5.0))
    run.emit(match(9.0, 2))
    for number, name in ((1, "gone.jpg"), (2, PICTURE)):
        run.emit(ClipWritten(match=number, watch="until", picture=name, video=None, start_s=0.0, end_s=0.0))
    visit.see(run.url)
    visit.page.locator("#clip-list").scroll_into_view_if_needed()
    visit.page.wait_for_function("() => document.querySelectorAll('#clip-list li').length === 1")
    assert "0:09.0" in text(visit.page, "#clip-list")


def test_a_phone_shows_matches_without_overflow(run: ServedPage, visit: Visit) -> None:
    page = on_phone(visit)
    visit.see(run.url)
    for number in range(5):
        run.emit(match(5.0 * number, number, watch="<img src=x onerror=alert(1)>" + "w" * 80))
        run.emit(ClipWritten(number, "until", PICTURE, VIDEO, 0.0, 6.0))
    has(page, "#clip-count", "5 matches")
    page.locator("#clip-list button").first.click()
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    box = page.locator("#clip-player").bounding_box()
    assert box is not None
    assert box["width"] <= 400


def test_a_name_with_html_stays_text(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    run.emit(ClipWritten(match=1, watch="<b>bold</b>", picture=PICTURE, video=None, start_s=1.0, end_s=1.0))
    has(visit.page, "#clip-list li", "<b>bold</b>")
