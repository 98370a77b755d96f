"""HLS with several variants, and with segments of any name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources.variants import Variant, best_variant
from tests.support.hls import FRAMES_EACH, SEGMENTS, make_hls, make_variants
from tests.support.senders import Server, opened, ts_bytes

SIZES = {"low": (64, 48), "mid": (128, 96), "high": (256, 192)}


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server


class TestChoice:
    @pytest.mark.parametrize(
        ("capture", "index"),
        [
            ({}, 3),
            ({"size": "640x360"}, 1),
            ({"size": "700x400"}, 2),
            ({"size": "1280x720"}, 2),
            ({"max_tiles": 150}, 1),
            ({"max_tiles": 100_000}, 3),
            ({"fit": "resize"}, 3),
            ({"max_pixels": 1_000_000}, 2),
            ({"max_pixels": 1}, 3),
        ],
    )
    def test_the_smallest_that_has_what_the_run_can_use(self, capture: dict[str, object], index: int) -> None:
        sizes = [(320, 180), (640, 360), (1280, 720), (1920, 1080)]
        variants = [Variant(number, *size, bit_rate=0) for number, size in enumerate(sizes)]
        assert best_variant(variants, CaptureConfig.model_validate(capture)).index == index

    def test_of_equal_sizes_the_one_with_the_most_bits(self) -> None:
        variants = [Variant(0, 64, 64, 100), Variant(1, 64, 64, 300), Variant(2, 64, 64, 300), Variant(3, 0, 0, 900)]
        assert best_variant(variants, CaptureConfig()).index == 1

    def test_one_that_processing_refuses_is_taken_if_there_is_no_other(self) -> None:
        absurd, usual = Variant(0, 3, 2000), Variant(1, 1920, 1080)
        assert best_variant([absurd, usual], CaptureConfig(fit="resize")) is usual
        assert best_variant([absurd], CaptureConfig(fit="resize")) is absurd


class TestWithoutSizes:
    """FFmpeg looks at the first segment of each variant, because the playlist says nothing of their sizes."""

    @pytest.fixture(autouse=True)
    def playlist(self, tmp_path: Path) -> None:
        path = make_variants(tmp_path, SIZES)
        path.write_text(re.sub(",RESOLUTION=.*", "", path.read_text()))

    @pytest.mark.parametrize(("capture", "target"), [({}, "high"), ({"size": "128x96"}, "mid"), ({"stream": 0}, "low")])
    def test_the_rest_of_one_is_fetched(
        self, web: Server, capture: dict[str, object], target: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with opened(f"{web.url}/all.m3u8", **capture) as source:
            assert len(list(source.frames())) == SEGMENTS * FRAMES_EACH
        fetched = {name: len(web.requested(f"/{name}")) - 1 for name in SIZES}
        assert fetched == {name: SEGMENTS if name == target else 1 for name in SIZES}
        assert len(caplog.records) == (0 if "stream" in capture else 1)

    def test_a_wrong_number_lists_them(self, web: Server) -> None:
        with pytest.raises(SourceError, match="has no video stream 3; there is 0: h264 64x48; 1: h264 128x96; 2"):
            opened(f"{web.url}/all.m3u8", stream=3)


class TestSegments:
    @pytest.mark.parametrize("suffix", [".jpg", ".txt", ".php", "", ".ts?session=1", ".php?session=1"])
    def test_they_may_have_any_name(self, web: Server, tmp_path: Path, suffix: str) -> None:
        name, question, query = suffix.partition("?")
        path = make_hls(tmp_path, "a", 64, 48, name)
        path.write_text(
            "".join(f"{line}{question}{query}\n" if line[0] != "#" else f"{line}\n" for line in lines(path))
        )
        with opened(f"{web.url}/a.m3u8") as source:
            assert len(list(source.frames())) == SEGMENTS * FRAMES_EACH
        assert len(web.requested(suffix)) >= SEGMENTS

    @pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}", "crypto+file:{}", "concat:{}", "subfile:{}"])
    def test_none_is_a_file_of_this_machine(self, web: Server, tmp_path: Path, form: str) -> None:
        secret = tmp_path / "secret.jpg"
        secret.write_bytes(ts_bytes(5, gop=5))
        (tmp_path / "a.m3u8").write_text(
            f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{form.format(secret)}\n#EXT-X-ENDLIST\n"
        )
        with pytest.raises(SourceError, match=r"sends nothing that FFmpeg can read as video|has no such stream"):
            opened(f"{web.url}/a.m3u8")
        assert not web.requested("secret.jpg") or form == "{}", "a path without a scheme is one of the server's"


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
