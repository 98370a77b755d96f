"""Views on the samples of decoded frames, with rows stored top down or bottom up."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest
from av.filter import Graph

from stream.sources.planes import planes_of, rgb_of
from stream.sources.samples import interleaved_samples_of, samples_of
from tests.stream.sources.test_tonemap import MUTED, TRANSFERS, hdr_frame


def stored_bottom_up(frame: av.VideoFrame) -> av.VideoFrame:
    """The frame upside down: the same buffer, read from its last row to its first."""
    graph = Graph()
    buffer = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format.name, time_base=Fraction(1, 25)
    )
    graph.link_nodes(buffer, graph.add("vflip"), graph.add("buffersink")).configure()
    frame.pts, frame.time_base = 0, Fraction(1, 25)
    graph.vpush(frame)
    flipped = graph.vpull()
    assert isinstance(flipped, av.VideoFrame)
    assert flipped.planes[0].line_size < 0
    flipped.colorspace, flipped.color_range, flipped.color_trc = frame.colorspace, frame.color_range, frame.color_trc
    return flipped


@pytest.mark.parametrize("pixel_format", ["gray", "yuv420p", "nv12", "gray10le", "yuv420p10le", "rgb24"])
@pytest.mark.parametrize("transfer", [1, TRANSFERS["pq"]])
def test_a_frame_stored_bottom_up_is_shown_upside_down(pixel_format: str, transfer: int) -> None:
    frame = hdr_frame(MUTED[:, ::-1].transpose(1, 0, 2), "pq", pixel_format)
    frame.color_trc = transfer
    flipped = stored_bottom_up(frame)
    for plane, other in zip(planes_of(frame).planes, planes_of(flipped).planes, strict=True):
        np.testing.assert_array_equal(plane[::-1], other)
    assert rgb_of(flipped).shape == rgb_of(frame).shape


def test_a_view_is_on_the_frames_own_samples() -> None:
    frame = av.VideoFrame(64, 32, "yuv420p10le")
    for number, plane in enumerate(frame.planes):
        samples_of(plane, 10)[:] = 1000 + number
    assert [bytes(plane)[:2] for plane in frame.planes] == [
        (1000 + number).to_bytes(2, "little") for number in range(3)
    ]
    assert [samples_of(plane, 10).shape for plane in frame.planes] == [(32, 64), (16, 32), (16, 32)]
    pairs = av.VideoFrame(64, 32, "nv12").planes[1]
    assert interleaved_samples_of(pairs, 2).shape == (16, 32, 2)
