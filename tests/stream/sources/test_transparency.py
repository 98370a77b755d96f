"""Transparent videos are shown over white, as on a white page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import pytest

from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.media import SourceFrame
from stream.sources import decoder as decoder_module
from stream.sources.factory import open_source

CODECS = {"libvpx": "vp8", "libvpx-vp9": "vp9"}


def transparent_video(path: Path, codec: str, edges: Sequence[int]) -> Path:
    """Red pictures of 96×64, ten a second, of which only what is right of each edge is to be seen."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10, options={"auto-alt-ref": "0"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuva420p"
        for index, edge in enumerate(edges):
            rgba = np.zeros((64, 96, 4), np.uint8)
            rgba[..., 0], rgba[:, edge:, 3] = 255, 255
            frame = av.VideoFrame.from_ndarray(rgba, format="rgba").reformat(format="yuva420p")
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def frames(path: Path, **capture: float) -> list[SourceFrame]:
    source = open_source(str(path), CaptureConfig.model_validate(capture), MonotonicClock())
    try:
        return [frame for frame in source.frames() if isinstance(frame, SourceFrame)]
    finally:
        source.close()


def edge_of(frame: SourceFrame) -> int:
    """Where white ends and red begins, to 8 pixels."""
    (rgb,) = frame.planes.planes
    white = (rgb[32, 4::8] > 200).all(axis=-1)
    assert (rgb[32, 4::8][~white] < (260, 40, 40)).all()
    return 8 * int(white.sum())


@pytest.mark.parametrize("codec", CODECS)
def test_transparent_parts_of_a_webm_are_white(tmp_path: Path, codec: str) -> None:
    edges = [16, 48, 80, 0]
    path = transparent_video(tmp_path / "a.webm", codec, edges)
    assert [edge_of(frame) for frame in frames(path)] == edges
    assert [edge_of(frame) for frame in frames(path, start_s=0.2)] == edges[2:], "decoding begins at a key frame"


def test_a_start_is_found_by_several_seeks(tmp_path: Path) -> None:
    """Decoding begins anew after each."""
    edges = [8 * (index % 12) for index in range(40)]
    path = transparent_video(tmp_path / "a.webm", "libvpx-vp9", edges)
    part = frames(path, start_s=3.2, duration_s=0.3)
    assert [frame.media_ns // 10**6 for frame in part] == [3200, 3300, 3400]
    assert [edge_of(frame) for frame in part] == edges[32:35]


def test_without_a_decoder_for_transparency_that_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = transparent_video(tmp_path / "a.webm", "libvpx", [48])
    monkeypatch.setattr(decoder_module, "WITH_ALPHA", {"vp8": "nothing"})
    (frame,) = frames(path)
    assert frame.planes.layout == "yuv"
    assert "FFmpeg has no decoder nothing" in caplog.text


def test_a_video_without_transparency_keeps_its_decoder(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "a.webm"), "w") as container:
        stream = container.add_stream("libvpx-vp9", rate=10)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        container.mux(stream.encode(av.VideoFrame(96, 64, "yuv420p")))
        container.mux(stream.encode(None))
    assert frames(tmp_path / "a.webm")[0].planes.layout == "yuv"
