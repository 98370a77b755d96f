"""Master playlists of HLS: only the chosen variant is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources.headers import RequestHeaders, fetched
from stream.sources.master_playlist import variants_of
from stream.sources.variants import Variant
from stream.transport.http_replies import REPLY_BYTES_MAX
from tests.support.hls import FRAMES_EACH, SEGMENTS, make_hls, make_variants, master_text
from tests.support.network import until
from tests.support.senders import Handler, Reading, Server, hls_sender, opened
from tests.support.tls import behind_tls, make_certificate

SIZES = {"low": (64, 48), "mid": (128, 96), "high": (256, 192)}
SOUND = '#EXTM3U\n#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID="a",NAME="en",URI="sound.m3u8"\n'
SOUND_ONLY = '\n#EXT-X-STREAM-INF:BANDWIDTH=64000,CODECS="mp4a.40.2"\nsound.m3u8\n'


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server


def text(content: str) -> Callable[[Handler], None]:
    def serve(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/vnd.apple.mpegurl")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content.encode())

    return serve


def redirect(target: str) -> Callable[[Handler], None]:
    def serve(handler: Handler) -> None:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.end_headers()

    return serve


def asked_for(server: Server) -> dict[str, int]:
    """Number of requests for the playlist and the segments of each variant."""
    return {name: len(server.requested(f"/{name}")) for name in SIZES}


def only(name: str) -> dict[str, int]:
    return {other: SEGMENTS + 1 if other == name else 0 for other in SIZES}


class TestFinished:
    @pytest.mark.parametrize(("capture", "target"), [({}, "high"), ({"size": "128x96"}, "mid"), ({"stream": 0}, "low")])
    def test_only_the_chosen_variant_is_fetched(
        self, web: Server, tmp_path: Path, capture: dict[str, object], target: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        make_variants(tmp_path, SIZES)
        with opened(f"{web.url}/all.m3u8", **capture) as source:
            info = source.describe()
            assert len(list(source.frames())) == SEGMENTS * FRAMES_EACH
        if "size" not in capture:
            assert (info.width_px, info.height_px) == SIZES[target]
        assert info.name == f"{web.url}/all.m3u8"
        assert asked_for(web) == only(target)
        assert len(caplog.records) == (0 if "stream" in capture else 1)

    @pytest.mark.parametrize("uri", ["{}.m3u8?token=a/b&e=1", "/{}.m3u8", "HOST/{}.m3u8?x=../y"])
    def test_addresses_may_have_any_form(self, web: Server, tmp_path: Path, uri: str) -> None:
        make_variants(tmp_path, SIZES, uri.replace("HOST", web.url))
        with opened(f"{web.url}/all.m3u8?token=c/d") as source:
            assert len(list(source.frames())) == SEGMENTS * FRAMES_EACH
        assert asked_for(web) == only("high")
        name, question, query = uri.format("high").rpartition("/")[2].partition("?")
        assert "?" not in uri or web.requested(f"{name}{question}{query}") or web.requested(query)

    def test_sound_is_left_out(self, web: Server, tmp_path: Path) -> None:
        path = make_variants(tmp_path, SIZES)
        path.write_text(SOUND + master_text(SIZES, attributes=',AUDIO="a",CODECS="avc1.4d401e,mp4a.40.2"') + SOUND_ONLY)
        with opened(f"{web.url}/all.m3u8") as source:
            assert len(list(source.frames())) == SEGMENTS * FRAMES_EACH
        assert asked_for(web) == only("high")
        assert not web.requested("sound")

    @pytest.mark.parametrize("path", ["play?id=7", "old?a.m3u8"])
    def test_the_playlist_may_have_any_name_and_place(self, web: Server, tmp_path: Path, path: str) -> None:
        (tmp_path / "in").mkdir()
        content = make_variants(tmp_path / "in", SIZES).read_text()
        web.live["play"] = text(
            content.replace("low.", "in/low.").replace("mid.", "in/mid.").replace("high.", "in/high.")
        )
        web.live["old"] = redirect("/in/all.m3u8")
        with opened(f"{web.url}/{path}") as source:
            assert len(list(source.frames())) == SEGMENTS * FRAMES_EACH
        assert {name: len(web.requested(f"/in/{name}")) for name in SIZES} == only("high")

    @pytest.mark.parametrize("headers", [{"Authorization": "Bearer hush"}, {"User-Agent": "Viewer/1"}])
    def test_headers_go_along_and_stay_with_their_server(
        self, web: Server, tmp_path: Path, headers: dict[str, str]
    ) -> None:
        make_variants(tmp_path, SIZES)
        with Server(tmp_path) as other:
            web.live["old.m3u8"] = redirect(f"{other.url}/all.m3u8")
            opened(f"{web.url}/old.m3u8", headers=headers).close()
            opened(f"{web.url}/all.m3u8", headers=headers).close()
        assert asked_for(other)["low"] == asked_for(web)["low"] == 0
        name, value = next(iter(headers.items()))
        assert all(request.get(name) == value for _, request in web.requests)
        harmless = value if name == "User-Agent" else None
        assert all(request.get(name) == harmless for _, request in other.requests)

    @pytest.mark.parametrize("name", ["Authorization", "Cookie", "User-Agent"])
    def test_a_variant_may_redirect(self, web: Server, tmp_path: Path, name: str) -> None:
        make_variants(tmp_path, SIZES, "old-{}")
        web.live["old-high"] = redirect("/high.m3u8")
        with opened(f"{web.url}/all.m3u8", headers={name: "a=b"}) as source:
            assert len(list(source.frames())) == SEGMENTS * FRAMES_EACH
        assert asked_for(web) == only("high")

    def test_the_certificate_of_its_server_is_checked(
        self, web: Server, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        pair = make_certificate(tmp_path_factory.mktemp("tls"))
        with behind_tls(web.server_address[1], *pair) as port:
            make_variants(tmp_path, SIZES, f"https://127.0.0.1:{port}/{{}}.m3u8")
            with pytest.raises(SourceError, match=r"cannot be reached"):
                opened(f"{web.url}/all.m3u8")
            assert asked_for(web) == {"low": 0, "mid": 0, "high": 0}
            for trust in ({"ca_file": pair[0]}, {"tls_verify": False}):
                opened(f"{web.url}/all.m3u8", **trust).close()
                assert web.requested("/high.m3u8")

    def test_the_others_are_named_once(self, web: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        make_variants(tmp_path, SIZES)
        opened(f"{web.url}/all.m3u8?token=hush!").close()
        assert caplog.messages == [
            f"{web.url}/all.m3u8?token=*** has 3 variants; reading 2: 256x192 at 0.3 Mbit/s, not 0: 64x48 at 0.1 "
            "Mbit/s, 1: 128x96 at 0.1 Mbit/s (--stream)"
        ]

    def test_a_wrong_number_lists_them(self, web: Server, tmp_path: Path) -> None:
        make_variants(tmp_path, SIZES)
        with pytest.raises(SourceError, match=r"has no video stream 3; there is 0: 64x48 at 0\.1 Mbit/s; 1: 128x96"):
            opened(f"{web.url}/all.m3u8", stream=3)
        assert asked_for(web) == {"low": 0, "mid": 0, "high": 0}

    @pytest.mark.parametrize(("name", "count"), [("a.m3u8", 1), ("play", 2)])
    def test_a_plain_playlist_costs_little(self, web: Server, tmp_path: Path, name: str, count: int) -> None:
        web.live["play"] = text(make_hls(tmp_path, "a", 64, 48).read_text())
        with opened(f"{web.url}/{name}") as source:
            assert len(list(source.frames())) == SEGMENTS * FRAMES_EACH
        assert len(web.requested(f"/{name}")) == count + 1
        assert len(web.requests) == count + 1 + SEGMENTS

    @pytest.mark.parametrize("form", ["file:{}", "file://{}", "concat:{}", "crypto+file:{}", "subfile:{}"])
    def test_no_variant_is_a_file_of_this_machine(self, web: Server, tmp_path: Path, form: str) -> None:
        make_variants(tmp_path, SIZES)
        local = form.format(tmp_path / "high.m3u8")
        (tmp_path / "one.m3u8").write_text(master_text(SIZES).replace("high.m3u8", local))
        with opened(f"{web.url}/one.m3u8") as source:
            assert source.describe().width_px == SIZES["mid"][0]
        (tmp_path / "none.m3u8").write_text(master_text(SIZES, form.format(f"{tmp_path}/{{}}.m3u8")))
        with pytest.raises(SourceError, match=r"sends nothing that FFmpeg can read as video|has no video stream"):
            opened(f"{web.url}/none.m3u8")


class TestLive:
    def test_only_the_chosen_variant_is_fetched_again_and_again(
        self, web: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        uri = "{}/live.m3u8?token=1"
        with ExitStack() as stack:
            for name in SIZES:
                (tmp_path / name).mkdir()
                stack.enter_context(hls_sender(tmp_path / name))
            (tmp_path / "all.m3u8").write_text(master_text(SIZES, uri))
            until((tmp_path / "high/live3.ts").exists)
            source = stack.enter_context(opened(f"{web.url}/all.m3u8"))
            reading = Reading(source)
            assert source.describe().live
            reading.frames(30)
            web.live |= dict.fromkeys(("all.m3u8", "high/live.m3u8"), lambda handler: handler.send_error(404))
            reading.lost()
            until(lambda: len(web.requested("/all.m3u8")) >= 3)
            web.live.clear()
            reading.back()
            reading.frames(30)
        fetched = asked_for(web)
        assert fetched["low"] == fetched["mid"] == 0
        assert web.requested(uri.format("high"))
        assert len(caplog.records) == 1


PLAIN = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\na.ts\n"


class TestParsing:
    def test_variants_have_size_rate_and_address(self) -> None:
        playlist = master_text(SIZES, attributes=',CODECS="avc1.4d401e,mp4a.40.2",FRAME-RATE=25.0').replace(
            "\n", "\r\n"
        )
        assert variants_of(playlist, "https://u:p@h/a/all.m3u8?t=1")[1:] == [
            (Variant(1, 128, 96, 128_000), "https://u:p@h/a/mid.m3u8"),
            (Variant(2, 256, 192, 256_000), "https://u:p@h/a/high.m3u8"),
        ]

    @pytest.mark.parametrize(
        "playlist",
        [
            "",
            "#EXTM3U",
            PLAIN,
            master_text(SIZES) + "\n" + PLAIN,
            master_text(SIZES, "http://[::1"),
            "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\na.m3u8\n",
            "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1,RESOLUTION=64x\na.m3u8\n",
            '#EXTM3U\n#EXT-X-STREAM-INF:RESOLUTION="64x48"x\n',
            '#EXTM3U\n#EXT-X-I-FRAME-STREAM-INF:RESOLUTION=64x48,URI="a.m3u8"\n',
            SOUND + SOUND_ONLY,
        ],
    )
    def test_there_is_nothing_to_choose_by(self, playlist: str) -> None:
        assert variants_of(playlist, "http://host/all.m3u8") == []

    def test_an_odd_rate_is_none(self) -> None:
        playlist = master_text({"a": (64, 48)}).replace("64000", "9" * 5000)
        assert variants_of(playlist, "http://host/all.m3u8")[0][0].bit_rate == 0


class TestFetching:
    def fetched(self, address: str, limit_s: float = 10.0) -> tuple[str, bytes] | None:
        return fetched(address, RequestHeaders(), CaptureConfig(), limit_s, b"#EXTM3U")

    def test_the_address_is_that_after_redirects(self, web: Server) -> None:
        web.live["old"], web.live["new"] = redirect("/new?x"), text(PLAIN)
        assert self.fetched(f"{web.url}/old") == (f"{web.url}/new?x", PLAIN.encode())

    def test_other_resources_are_none(self, web: Server, tmp_path: Path) -> None:
        web.live["loop"], web.live["file"] = redirect("/loop"), redirect(f"file://{tmp_path}/a.m3u8")
        web.live["long"] = text(PLAIN + "#" * (REPLY_BYTES_MAX + 1))
        web.live["page"] = text("<p>")
        for name in ("loop", "file", "long", "page", "missing"):
            assert self.fetched(f"{web.url}/{name}") is None
        assert self.fetched("http://127.0.0.1:1/a.m3u8") is None

    def test_one_that_never_ends_is_given_up(self, web: Server) -> None:
        def slow(handler: Handler) -> None:
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(b"#EXTM3U\n")
            handler.server.stopped.wait(30)

        web.live["slow"] = slow
        assert self.fetched(f"{web.url}/slow", 0.3) is None
