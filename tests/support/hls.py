"""HLS as servers give it out: segments of any name, and playlists of several variants."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av

from tests.support.video import moving_square

SEGMENTS = 3
FRAMES_EACH = 25


def make_hls(folder: Path, name: str, width_px: int, height_px: int, suffix: str = ".ts") -> Path:
    """A finished playlist `name.m3u8` of `SEGMENTS` segments of a second, named `name` and a number."""
    path = folder / f"{name}.m3u8"
    options = {"hls_time": "1", "hls_list_size": "0", "hls_segment_filename": str(folder / f"{name}%d{suffix}")}
    with av.open(str(path), "w", format="hls", options=options) as container:
        stream = container.add_stream("libx264", rate=25, options={"preset": "ultrafast", "tune": "zerolatency"})
        stream.width, stream.height, stream.pix_fmt = width_px, height_px, "yuv420p"
        stream.codec_context.gop_size = FRAMES_EACH
        for index, picture in enumerate(moving_square(SEGMENTS * FRAMES_EACH, width_px, height_px)):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def make_variants(folder: Path, sizes: dict[str, tuple[int, int]], uri: str = "{}.m3u8") -> Path:
    """A playlist `all.m3u8` of one variant for each name, of that width and height; `uri` is its form there."""
    for name, (width_px, height_px) in sizes.items():
        make_hls(folder, name, width_px, height_px)
    path = folder / "all.m3u8"
    path.write_text(master_text(sizes, uri))
    return path


def master_text(sizes: dict[str, tuple[int, int]], uri: str = "{}.m3u8", attributes: str = "") -> str:
    """A master playlist; `attributes` are further ones of each variant."""
    lines = ["#EXTM3U"]
    for name, (width_px, height_px) in sizes.items():
        inf = f"#EXT-X-STREAM-INF:BANDWIDTH={width_px * 1000},RESOLUTION={width_px}x{height_px}{attributes}"
        lines += [inf, uri.format(name)]
    return "\n".join(lines)
