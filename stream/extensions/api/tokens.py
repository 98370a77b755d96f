"""Tokens of a frame for a vLLM server with the plugin `arr-coc-vllm`, and the check that a server has it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arr_coc.errors import ModelError, counted
from arr_coc.qwen.grounding import THOUSANDTHS
from arr_coc.types import TILE_PX, FramePacket, TokenPacket
from stream.errors import ConfigError
from stream.extensions.api.packet_pictures import VERSION, packet_part, probe_part

PLUGIN = "arr-coc-vllm"
"""Name of the plugin, which stands in its refusals."""

_VERSIONS = re.compile(r"packets of version ([\d, ]+)")


@dataclass(frozen=True, slots=True)
class ApiTokens:
    """Tokens of one frame as a part of a chat message. `extent`: width and height of the frame, without padding, in the
    coordinates of places in the answer."""

    part: dict[str, Any]
    tokens: int
    extent: tuple[float, float]
    explanation: str = ""

    @property
    def bytes(self) -> int:
        """Size of what is sent."""
        return len(self.part["image_url"]["url"])

    def content(self) -> list[dict[str, Any]]:
        """Return the part, with its uuid for `SentPictures`."""
        return [self.part]


def tokens_of(packet: TokenPacket | FramePacket) -> ApiTokens:
    """Return the tokens of a packet; all tiles of a whole frame. Raises OptionError for more than the plugin reads."""
    if isinstance(packet, FramePacket):
        rows = packet.grid.rows
        cols = packet.grid.cols
        tiles = packet.image.reshape(rows, TILE_PX, cols, TILE_PX, 3).transpose(0, 2, 4, 1, 3)
        row, col = np.divmod(np.arange(rows * cols, dtype=np.int32), np.int32(cols))
        packet = TokenPacket(
            stamp=packet.stamp,
            grid=packet.grid,
            regions=np.stack([np.zeros_like(row), row, col], axis=1).astype(np.int32),
            relevance=packet.relevance.ravel(),
            pixels=np.ascontiguousarray(tiles.reshape(-1, 3, TILE_PX, TILE_PX)),
        )
    grid = packet.grid
    wide = grid.width_px / grid.padded_width_px
    tall = grid.height_px / grid.padded_height_px
    return ApiTokens(packet_part(packet), len(packet.regions), (THOUSANDTHS * wide, THOUSANDTHS * tall))


def shown_frames(packets: Sequence[TokenPacket]) -> list[TokenPacket]:
    """Return the frames of a group of several that are sent for a question about the last of `packets`.

    At most as many as the group shows. A server keeps what a prompt begins with, and nothing can leave it: so frames
    are only appended, until half of the group leaves at once and the others are read afresh. Raises ModelError for a
    group of one frame, whose later packets hold only what is new.
    """
    frames = [packet for packet in packets if not packet.is_empty]
    place = frames[-1].place
    assert place is not None
    if place.frames == 1:
        raise ModelError(
            f"answer.memory.tokens has no room for two frames of {counted(len(frames[0].regions), 'token')}",
            "raise it, lower --budget, or leave --memory-frames out",
        )
    leaving = -(-place.frames // 2)
    first = place.frame // leaving * leaving - (place.frames - leaving)
    return [packet for packet in frames if packet.place is not None and packet.place.frame >= first]


def probe_body(model: str) -> dict[str, Any]:
    """Return the request that a server with the plugin refuses by the plugin's name."""
    content = [probe_part(), {"type": "text", "text": "?"}]
    return {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0}


def check_plugin(base: str, refusal: str) -> None:
    """Raise ConfigError unless a server at the address `base` has refused a probe as the plugin of this version does.

    `refusal`: the server's error; empty if it answered.
    """
    if PLUGIN not in refusal:
        raise ConfigError(
            f"{base} is no vLLM with the plugin {PLUGIN}, so it takes no tokens; install that beside vLLM there and "
            "start it again, or give --picture scaled"
        )
    match = _VERSIONS.search(refusal)
    if match is not None and str(VERSION) not in re.findall(r"\d+", match[1]):
        raise ConfigError(
            f"{PLUGIN} at {base} reads packets of version {match[1].strip(' ,')}, and this program sends version "
            f"{VERSION}; install the same versions at both"
        )
