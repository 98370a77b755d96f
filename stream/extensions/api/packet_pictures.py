"""Token packets as pictures, for a vLLM server with the plugin `arr-coc-vllm` (plugins/vllm).

A packet is a PNG file (https://www.w3.org/TR/png-3/): its regions' pixels one below the other, uint8 RGB [32·K, 32],
and, before them, the chunk `arCO` with the places of these regions. So it travels as any picture does, in an
`image_url` part of a chat message. The chunk holds big-endian integers: version u8 (1), rows u16 and columns u16 of the
grid in tiles, tokens K u16, tokens of the overview u16, then for each region its shape u8, row u16 and column u16, as
in `TokenPacket`. The plugin has a separate reader, and a golden file of the tests holds both to one format.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from typing import Any

import numpy as np

from arr_coc.errors import OptionError
from arr_coc.types import TILE_PX, TokenPacket
from stream.protocol.picture_files import encode_png

CHUNK = b"arCO"
"""Type of the PNG chunk: ancillary, private, and not to be copied by programs that change the pixels."""

VERSION = 1

PROBE_VERSION = 0
"""Version that no reader accepts. The plugin refuses it by name and with its versions, before it reads anything else;
a server without the plugin answers about a small picture."""

SIDE_MAX_TILES = 512
TOKENS_MAX = 4096
"""Most rows and columns of a grid, and most tokens of a packet, that the plugin reads."""

_HEAD = struct.Struct(">BHHHH")
_REGION = np.dtype([("shape", "u1"), ("row", ">u2"), ("col", ">u2")])
_AFTER_IHDR = 33
"""Bytes of a PNG file's signature and of its first chunk, IHDR."""


def packet_png(packet: TokenPacket) -> bytes:
    """Return a packet as a PNG file. Raises OptionError if the plugin does not read such packets."""
    return _with_chunk(encode_png(_strip(packet)), _places(packet, VERSION))


def packet_uuid(packet: TokenPacket) -> str:
    """Return the name of a packet's content: SHA-256 of the chunk's bytes and the pixels, in hexadecimal.

    The plugin identifies packets by it and ignores any other `uuid` beside them. Raises as `packet_png`.
    """
    return hashlib.sha256(_places(packet, VERSION) + _strip(packet).tobytes()).hexdigest()


def packet_part(packet: TokenPacket) -> dict[str, Any]:
    """Return a packet as a part of a chat message. Raises as `packet_png`."""
    return {"type": "image_url", "image_url": {"url": _url(packet_png(packet))}, "uuid": packet_uuid(packet)}


def probe_part() -> dict[str, Any]:
    """Return the part of a chat message that a server with the plugin refuses, by the plugin's name."""
    pixels = encode_png(np.zeros((TILE_PX, TILE_PX, 3), np.uint8))
    head = _HEAD.pack(PROBE_VERSION, 1, 1, 1, 0)
    return {"type": "image_url", "image_url": {"url": _url(_with_chunk(pixels, head + bytes(_REGION.itemsize)))}}


def _places(packet: TokenPacket, version: int) -> bytes:
    rows = packet.grid.rows
    cols = packet.grid.cols
    count = len(packet.regions)
    if packet.place is not None and packet.place.frames == 1:
        raise OptionError(
            "a model server cannot keep one picture up to date, only whole frames", "set memory_frames to 2 or more"
        )
    if not 1 <= count <= TOKENS_MAX or max(rows, cols) > SIDE_MAX_TILES:
        raise OptionError(
            f"a packet for a model server holds 1 to {TOKENS_MAX} tokens of a grid of at most "
            f"{SIDE_MAX_TILES}x{SIDE_MAX_TILES} tiles, got {count} of {cols}x{rows}",
            "change the budget or capture.size",
        )
    regions = np.empty(count, _REGION)
    for name, column in zip(("shape", "row", "col"), packet.regions.T, strict=True):
        regions[name] = column
    return _HEAD.pack(version, rows, cols, count, packet.overview) + regions.tobytes()


def _strip(packet: TokenPacket) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ascontiguousarray(packet.host_pixels.transpose(0, 2, 3, 1)).reshape(-1, TILE_PX, 3)


def _with_chunk(png: bytes, content: bytes) -> bytes:
    body = CHUNK + content
    chunk = struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))
    return png[:_AFTER_IHDR] + chunk + png[_AFTER_IHDR:]


def _url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
