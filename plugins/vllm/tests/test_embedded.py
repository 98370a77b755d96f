"""Golden requests: the embedded engine gives their texts. `test_vllm.py` asks vLLM the same."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arr_coc_vllm.packet import find_places, read_packet
from PIL import Image

REQUESTS = json.loads((Path(__file__).parent / "golden" / "requests.json").read_text("utf-8"))

types = pytest.importorskip("arr_coc.types", reason="the program is not installed here")


@pytest.fixture(scope="module")
def session() -> Any:
    """The embedded engine with the bundled model in float32."""
    from arr_coc.qwen.loading import load_qwen
    from arr_coc.qwen.options import AnswerOptions
    from arr_coc.qwen.session import AnswerSession

    return AnswerSession(load_qwen(dtype="float32", device="cpu"), AnswerOptions("sparse", feedback=False))


def frames_and_question(content: list[dict[str, Any]]) -> tuple[list[Any], str]:
    """Packets of a message, each at the time before it, as the program holds them, and the question."""
    packets, media_ns = [], 0
    for part in content[:-1]:
        if part["type"] == "text":
            media_ns = round(float(part["text"].removeprefix("<").removesuffix(" seconds>")) * 1e9)
            continue
        png = base64.b64decode(part["image_url"]["url"].partition(",")[2])
        places = find_places(png)
        assert places is not None
        packet = read_packet(places, np.asarray(Image.open(io.BytesIO(png))))
        assert packet.content_id == part["uuid"]
        packets.append(
            types.TokenPacket(
                types.FrameStamp(len(packets), media_ns, media_ns),
                types.TileGrid.of(packet.rows * 32, packet.cols * 32),
                packet.regions.astype(np.int32),
                np.ones(len(packet.regions), np.float32),
                packet.tiles,
                packet.overview,
            )
        )
    return packets, content[-1]["text"]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request["name"])
def test_the_embedded_engine_gives_the_golden_text(session: Any, request_: dict[str, Any]) -> None:
    packets, question = frames_and_question(request_["content"])
    assert "".join(session.answer(packets, question)) == request_["text"]


def test_golden_requests_have_levels_times_and_overviews() -> None:
    packets = [packet for request in REQUESTS for packet in frames_and_question(request["content"])[0]]
    assert {int(shape) for packet in packets for shape in packet.regions[:, 0]} >= {0, 1, 2}
    assert any(0 < packet.overview < len(packet.regions) for packet in packets)
    assert any(packet.overview == len(packet.regions) for packet in packets)
    assert {len(frames_and_question(request["content"])[0]) for request in REQUESTS} == {1, 2, 3}
