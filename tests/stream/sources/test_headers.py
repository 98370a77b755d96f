"""Headers, cookies and user agent of requests over HTTP, and who gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stream.config import CaptureConfig, Config, NetworkConfig
from stream.config_loading import build_config, layer_from_assignment, layer_from_file
from stream.errors import ConfigError, SourceError
from stream.recording.identity import run_fingerprint
from stream.sources.address import shown_config
from stream.sources.factory import check_source
from stream.sources.headers import RequestHeaders, redirect_of
from stream.sources.network import network_target
from tests.support.hls import make_hls
from tests.support.senders import Handler, Server, opened, ts_bytes

HEADERS = {
    "Authorization": "Bearer $CAMERA_TOKEN",
    "Cookie": "sid=${CAMERA_SESSION}; theme=dark",
    "User-Agent": "Viewer/1",
    "X-Price": "5 $$",
}
SENT = {
    "Authorization": "Bearer hush-token",
    "Cookie": "sid=hush-session; theme=dark",
    "User-Agent": "Viewer/1",
    "X-Price": "5 $",
}
VARIABLES = {"CAMERA_TOKEN": "hush-token", "CAMERA_SESSION": "hush-session"}


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "clip.ts").write_bytes(ts_bytes(10, gop=5))
    with Server(tmp_path) as server:
        yield server


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server


def sent_to(server: Server) -> list[dict[str, str]]:
    return [{name: value for name, value in headers.items() if name in SENT} for _, headers in server.requests]


def redirect(target: str) -> Callable[[Handler], None]:
    def serve(handler: Handler) -> None:
        handler.send_response(302)
        handler.send_header("Location", target)
        handler.end_headers()

    return serve


class TestRequests:
    def test_a_server_gets_them(self, web: Server) -> None:
        opened(f"{web.url}/clip.ts", headers=HEADERS).close()
        assert all(headers == SENT for headers in sent_to(web))

    def test_for_segments_too(self, web: Server, tmp_path: Path) -> None:
        make_hls(tmp_path, "a", 64, 48)
        with opened(f"{web.url}/a.m3u8", headers=HEADERS) as source:
            assert len(list(source.frames())) == 75
        assert len(web.requests) == 5
        assert all(headers == SENT for headers in sent_to(web))

    def test_a_redirect_on_the_same_server_takes_them_along(self, web: Server) -> None:
        web.live["old"] = redirect("/clip.ts?again")
        opened(f"{web.url}/old", headers=HEADERS).close()
        assert web.requested("again")
        assert all(headers == SENT for headers in sent_to(web))

    def test_another_server_gets_the_harmless_ones(self, web: Server, other: Server) -> None:
        web.live["old"] = redirect(f"{other.url}/clip.ts")
        opened(f"{web.url}/old", headers=HEADERS).close()
        assert other.requests
        assert all(headers == {"User-Agent": "Viewer/1"} for headers in sent_to(other))

    def test_ffmpeg_sends_cookies_to_names_that_end_alike_so_it_follows_no_redirect(
        self, web: Server, other: Server
    ) -> None:
        web.live["old"] = redirect(f"{other.url}/clip.ts")
        opened(f"{web.url}/old", headers={"User-Agent": "Viewer/1", "Cookie": "a=b"}).close()
        assert [path for path, _ in web.requests] == ["/old", "/old"], "it is asked for the new address"
        assert all(headers == {"User-Agent": "Viewer/1"} for headers in sent_to(other))

    def test_segments_get_all_but_cookies_wherever_they_are(self, web: Server, other: Server, tmp_path: Path) -> None:
        make_hls(tmp_path, "a", 64, 48)
        playlist = tmp_path / "a.m3u8"
        segments = [line for line in playlist.read_text().splitlines() if not line.startswith("#")]
        first, *redirected = segments
        web.live.update({f"old-{name}": redirect(f"{other.url}/{name}") for name in redirected})
        text = playlist.read_text().replace(first, f"{other.url}/{first}")
        for name in redirected:
            text = text.replace(name, f"old-{name}")
        playlist.write_text(text)
        with opened(f"{web.url}/a.m3u8", headers=HEADERS) as source:
            assert len(list(source.frames())) == 75
        assert [path.lstrip("/") for path, _ in other.requests] == segments
        without_cookies = {name: value for name, value in SENT.items() if name != "Cookie"}
        assert all(headers == without_cookies for headers in sent_to(other))

    def test_harmless_ones_leave_redirects_to_ffmpeg(self, web: Server, other: Server) -> None:
        web.live["old"] = redirect(f"{other.url}/clip.ts")
        opened(f"{web.url}/old", headers={"User-Agent": "Viewer/1"}).close()
        assert len(web.requests) == 1
        assert all(headers == {"User-Agent": "Viewer/1"} for headers in sent_to(other))

    def test_redirects_without_end_are_refused(self, web: Server) -> None:
        web.live["loop"] = redirect("/loop")
        with pytest.raises(SourceError, match="/loop redirects again and again; check"):
            opened(f"{web.url}/loop", headers=HEADERS)

    def test_a_redirect_to_a_file_is_none(self, web: Server, tmp_path: Path) -> None:
        web.live["old"] = redirect(f"file://{tmp_path}/clip.ts")
        with pytest.raises(SourceError, match="cannot be reached"):
            opened(f"{web.url}/old", headers=HEADERS)

    def test_a_login_stays_with_a_redirect_check(self, web: Server) -> None:
        web.login = ("me", "a/b")
        web.live["old"] = redirect("/clip.ts")
        place = web.url.replace("//", "//me:a%2Fb@")
        assert redirect_of(f"{place}/old?x=1", RequestHeaders(), CaptureConfig(), 10.0) == f"{place}/clip.ts"

    @pytest.mark.parametrize("target", ["http://[::1", "http://a:99999999/"])
    def test_a_broken_target_is_none(self, web: Server, target: str) -> None:
        web.live["old"] = redirect(target)
        assert redirect_of(f"{web.url}/old", RequestHeaders(), CaptureConfig(), 10.0) is None
        assert redirect_of("http://127.0.0.1:1/old", RequestHeaders(), CaptureConfig(), 10.0) is None


class TestSecrets:
    def test_they_are_in_no_record(self, tmp_path: Path) -> None:
        (tmp_path / "clip.ts").write_bytes(ts_bytes(5, gop=5))
        headers = {"X-Key": "hush-plain", **HEADERS}
        config = Config.model_validate({"source": str(tmp_path / "clip.ts"), "capture": {"headers": headers}})
        assert shown_config(config).capture.headers == dict.fromkeys(headers, "***")
        items = run_fingerprint(config)
        assert items is not None
        assert not [key for key in items if "headers" in key]
        request_headers = RequestHeaders.of(config.capture)
        assert "hush" not in repr(request_headers)
        assert "hush" in str(request_headers.ffmpeg_options("http://camera/"))

    def test_they_are_in_no_error(self, web: Server) -> None:
        with pytest.raises(SourceError) as raised:
            opened(f"{web.url}/none.ts", headers=HEADERS)
        assert "hush" not in str(raised.value)


class TestConfiguration:
    def test_the_table_has_any_keys(self, tmp_path: Path) -> None:
        path = tmp_path / "a.toml"
        path.write_text('[capture.headers]\nAuthorization = "Bearer $A"\nX-One = "1"\n')
        layers = [
            layer_from_file(str(path)),
            layer_from_assignment("capture.headers.X-One=a=2"),
            layer_from_assignment('capture.headers={X-Two = "3"}'),
        ]
        expected = {"Authorization": "Bearer $A", "X-One": "a=2", "X-Two": "3"}
        assert build_config(layers).capture.headers == expected

    def test_a_value_is_text(self) -> None:
        with pytest.raises(ConfigError, match=r"capture\.headers\.X-One should be text.*, got 1"):
            build_config([layer_from_assignment("capture.headers.X-One=1")])


class TestErrors:
    @pytest.mark.parametrize(
        ("headers", "message"),
        [
            (
                {"X-Key": "$NO_SUCH"},
                "X-Key in capture.headers needs the environment variable NO_SUCH, which is not set",
            ),
            ({"X-Key": "a\r\nHost: b"}, "the value of X-Key in capture.headers is no line of ASCII characters"),
            ({"X-Key": ""}, "the value of X-Key in capture.headers is no line"),
            ({"X Key": "a"}, "capture.headers has 'X Key', which is no header that can be set"),
            ({"Range": "a"}, "capture.headers has 'Range', which is no header"),
        ],
    )
    def test_invalid_ones_are_refused(self, headers: dict[str, str], message: str) -> None:
        capture = CaptureConfig(headers=headers)
        with pytest.raises(ConfigError) as raised:
            check_source("http://camera/video", capture, NetworkConfig())
        assert str(raised.value).startswith(message)
        with pytest.raises(ConfigError):
            network_target("http://camera/video", capture).open(1.0)

    @pytest.mark.parametrize("address", ["rtsp://me:hush@camera/1", "onvif://camera"])
    def test_other_addresses_have_none(self, address: str) -> None:
        with pytest.raises(
            ConfigError, match=r"capture\.headers are for http:// and https://, and .*camera.* is neither"
        ):
            check_source(address, CaptureConfig(headers=HEADERS), NetworkConfig())
