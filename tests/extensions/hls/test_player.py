"""A stream in a browser: hls.js (Apache-2.0), which npm fetches and which is not shipped, plays it and its captions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import av
import pytest
from playwright.sync_api import Browser, Page

from arr_coc.types import NS_PER_S
from stream.events import Answer
from stream.extensions.hls.section import HlsSection
from stream.extensions.hls.sink import HlsSink
from stream.media import MediaSegment
from stream.sources.segments import SegmentRecorder
from tests.support.events import answer, frame, segment
from tests.support.senders import Server
from tests.support.video import make_video, moving_square
from tests.support.web import Visit, open_browser

ROOT = Path(__file__).resolve().parents[3]
HLS_JS = ROOT / "node_modules" / "hls.js" / "dist" / "hls.min.js"

PAGE = """<!doctype html><video muted></video><p></p><script src="hls.js"></script><script>
const video = document.querySelector("video"), hls = new Hls({ startPosition: 0 });
hls.on(Hls.Events.ERROR, (event, data) => { if (data.fatal) throw new Error(data.details); });
hls.loadSource("live/master.m3u8");
hls.attachMedia(video);
function captions() {
  for (const track of video.textTracks) track.mode = "showing";
  if (video.seeking || video.readyState < 2) return "";
  const active = [...video.textTracks].flatMap((track) => [...(track.activeCues ?? [])]);
  return active.map((cue) => cue.getCueAsHTML().textContent).join(" / ");
}
</script>"""


@pytest.fixture(scope="module")
def script() -> Path:
    if not HLS_JS.exists():
        message = "no hls.js: npm install --no-save hls.js@1.7.4"
        pytest.fail(message) if os.environ.get("CI") and shutil.which("npm") else pytest.skip(message)
    return HLS_JS


@pytest.fixture(scope="module")
def browser(script: Path) -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser, script: Path, tmp_path: Path) -> Iterator[Page]:
    """Page beside the stream's folder `live`."""
    (tmp_path / "index.html").write_text(PAGE, encoding="utf-8")
    (tmp_path / "hls.js").write_bytes(script.read_bytes())
    (tmp_path / "live").mkdir()
    with Server(tmp_path) as server:
        visit = Visit(browser, base_url=server.url)
        yield visit.page
        assert [text for text in visit.errors if "favicon" not in text] == []
        assert visit.outside == []
        visit.context.close()


def record(folder: Path, sources: list[tuple[Path, float]]) -> list[MediaSegment]:
    """The segments of connections, one after another, each of which begins at a media time."""
    recorder = SegmentRecorder(str(folder), 1.0)
    for path, begin_s in sources:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            recorder.connect(stream)
            for packet in container.demux(stream):
                for picture in stream.codec_context.decode(packet):
                    assert picture.time is not None
                    recorder.shown(picture, round((picture.time + begin_s) * NS_PER_S))
                if packet.size:
                    recorder.packet(packet)
    return list(recorder.finish())


def write(folder: Path, sources: list[tuple[Path, float]], answers: list[Answer]) -> None:
    """Write a stream of segments and answers."""
    with closing(HlsSink(str(folder / "master.m3u8"), HlsSection(hold_s=0.0), live=False)) as sink:
        for answer in answers:
            sink.write(answer)
        for media in record(folder, sources):
            start_s, duration_s = media.start_ns / NS_PER_S, media.duration_ns / NS_PER_S
            sink.write(
                segment(
                    start_s,
                    duration_s,
                    file=media.file,
                    header=media.header,
                    track_s=media.track_ns / NS_PER_S,
                    codec=media.codec,
                )
            )
            sink.write(frame(0, start_s + duration_s))


def test_captions_stand_under_their_pictures_also_after_an_outage(page: Page, tmp_path: Path) -> None:
    options = {"g": "25", "bf": "2", "sc_threshold": "0"}
    video = make_video(tmp_path / "a.ts", moving_square(50, 256, 128), options=options)
    answers = [answer(0.0, "a cat"), answer(1.5, "a dog & <a bird>"), answer(10.0, "a fish"), answer(11.5, "a whale")]
    write(tmp_path / "live", [(video, 0.0), (video, 10.0)], answers)
    page.goto("/index.html")
    page.wait_for_function("video.readyState >= 2")
    for at, text in ((0.5, "a cat"), (1.2, "a cat"), (1.8, "a dog & <a bird>"), (2.8, "a fish"), (3.9, "a whale")):
        page.evaluate("(at) => { video.currentTime = at; }", at)
        page.wait_for_function("(text) => captions() === text", arg=text)
    assert page.evaluate("[video.videoWidth, video.videoHeight]") == [256, 128]
    assert page.evaluate("video.duration") == pytest.approx(4.0, abs=0.2)
