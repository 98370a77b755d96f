"""Record the golden requests, with the texts of the embedded engine in float32.

PYTHONPATH=. python plugins/vllm/tests/record.py

The bundled model answers about frames of the drawn stream, with tokens of levels 0 to 2: single frames, several with
their times, and one behind an overview of it that is kept.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions
from arr_coc.qwen.session import AnswerSession
from arr_coc.texture.regions import overview_regions
from arr_coc.types import FrameStamp, TokenPacket, time_text
from arr_coc.video.picture_allocator import PictureAllocator
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.extensions.api.packet_pictures import packet_part
from stream.sources.factory import open_source

REQUESTS = Path(__file__).parent / "golden" / "requests.json"
FRAMES = ((24, "auto"), (110, "auto"), (200, "uniform"), (280, "foveated"))
"""Indices of frames, and the strategies that choose their tokens. In 60 of 240, `uniform` takes level 1."""

OVERVIEW_TOKENS = 16


def recorded() -> list[tuple[str, list[TokenPacket], str]]:
    """Name, packets and question of each request."""
    qwen = load_qwen(dtype="float32", device="cpu")
    with closing(open_source("scene:demo", CaptureConfig(), MonotonicClock())) as source:
        frames = [(np.array(frame.planes.planes[0]), frame.media_ns) for frame in source.frames()]
    query = "Say what happens."
    tokens: list[TokenPacket] = []
    for index, strategy in FRAMES:
        picture, media_ns = frames[index]
        options = AllocatorOptions(strategy, budget=60, explore=0.0)
        packet = PictureAllocator(qwen, query, options, "sparse").allocate(
            picture, FrameStamp(index, media_ns, media_ns)
        )
        assert isinstance(packet, TokenPacket)
        tokens.append(packet)
    overview = coarse(tokens[1], frames[FRAMES[1][0]][0])
    return [
        *((f"frame {index}", [packet], query) for (index, _), packet in zip(FRAMES, tokens, strict=True)),
        ("two frames", tokens[:2], query),
        ("three frames", tokens[1:], "what moves?"),
        ("an overview", [followed_by(overview, tokens[1])], query),
        ("an overview alone", [overview], "is there a red circle?"),
    ]


def coarse(packet: TokenPacket, picture: np.ndarray) -> TokenPacket:
    """Overview of a picture of whole tiles: each region the mean of its tiles."""
    regions = overview_regions(packet.grid.shape, OVERVIEW_TOKENS).astype(np.int32)
    pixels = []
    for level, row, col in regions.tolist():
        side = 32 << level
        part = picture[row * side : (row + 1) * side, col * side : (col + 1) * side]
        part = np.pad(part, ((0, side - part.shape[0]), (0, side - part.shape[1]), (0, 0)), mode="edge")
        pixels.append(part.reshape(32, 1 << level, 32, 1 << level, 3).mean(axis=(1, 3)).astype(np.uint8))
    relevance = np.ones(len(regions), np.float32)
    return replace(
        packet,
        regions=regions,
        relevance=relevance,
        pixels=np.stack(pixels).transpose(0, 3, 1, 2).copy(),
        overview=len(regions),
    )


def followed_by(overview: TokenPacket, packet: TokenPacket) -> TokenPacket:
    """Packet of both."""
    return replace(
        overview,
        regions=np.concatenate([overview.regions, packet.regions]),
        relevance=np.concatenate([overview.relevance, packet.relevance]),
        pixels=np.concatenate([overview.host_pixels, packet.host_pixels]),
    )


def main() -> None:
    session = AnswerSession(load_qwen(dtype="float32", device="cpu"), AnswerOptions("sparse", feedback=False))
    requests = []
    for name, packets, query in recorded():
        content: list[dict[str, object]] = []
        for packet in packets:
            timed = [{"type": "text", "text": time_text(packet.stamp.media_ns)}] if len(packets) > 1 else []
            content += [*timed, packet_part(packet)]
        content.append({"type": "text", "text": query})
        requests.append({"name": name, "content": content, "text": "".join(session.answer(packets, query))})
    REQUESTS.write_text(json.dumps(requests, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
