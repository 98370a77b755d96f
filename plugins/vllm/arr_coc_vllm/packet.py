"""Token packets as PNG files: their reader, which needs NumPy only.

The pixels are those of the regions, one below the other, uint8 RGB [32·K, 32]. Before them stands the chunk `arCO` with
big-endian integers: version u8, rows u16 and columns u16 of the grid in tiles of 32×32 pixels, tokens K u16, tokens of
the overview u16, then for each region its shape u8, row u16 and column u16.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

CHUNK, VERSIONS = b"arCO", (1,)
TILE_PX = 32
SIDE_MAX_TILES, TOKENS_MAX = 512, 4096

SHAPES = np.array(
    [*((level, level) for level in range(6)), (0, 1), (0, 2), (1, 2), (0, 3), (1, 0), (2, 0), (2, 1), (3, 0)], np.int64
)
"""Log2 of rows and columns, in tiles, of a region of each shape; 0 to 5 are the squares of the mipmap levels."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEAD = struct.Struct(">BHHHH")
_REGION = np.dtype([("shape", "u1"), ("row", ">u2"), ("col", ">u2")])


class PacketError(ValueError):
    """A packet that cannot be read. The message is one line."""


@dataclass(frozen=True, eq=False)
class Packet:
    """The visual tokens of one frame, on a grid of `rows` × `cols` tiles.

    `tiles` uint8 [K, 3, 32, 32] (RGB), what each region shows; `regions` int64 [K, 3] (shape, row, column), row and
    column counting regions of that shape. The first `overview` of them attend to each other only, the others likewise.
    Raises PacketError for anything else.
    """

    tiles: npt.NDArray[np.uint8]
    regions: npt.NDArray[np.int64]
    rows: int
    cols: int
    overview: int = 0

    def __post_init__(self) -> None:
        count = len(self.regions)
        if not 1 <= count <= TOKENS_MAX:
            raise PacketError(f"a packet holds 1 to {TOKENS_MAX} tokens, got {count}")
        if not (1 <= self.rows <= SIDE_MAX_TILES and 1 <= self.cols <= SIDE_MAX_TILES and 0 <= self.overview <= count):
            raise PacketError(
                f"a packet's grid has 1 to {SIDE_MAX_TILES} rows and columns and its overview 0 to K tokens, "
                f"got {self.rows} and {self.cols}, and {self.overview} of {count}"
            )
        kinds = f"{self.tiles.dtype} {list(self.tiles.shape)} and {self.regions.dtype} {list(self.regions.shape)}"
        if kinds != f"uint8 {[count, 3, TILE_PX, TILE_PX]} and int64 {[count, 3]}":
            raise PacketError(f"a packet has pixels uint8 [K, 3, 32, 32] and regions int64 [K, 3], got {kinds}")
        if self.regions.min() < 0 or self.regions[:, 0].max() >= len(SHAPES):
            raise PacketError(f"a region's shape is 0 to {len(SHAPES) - 1}, its row and column at least 0")
        outside = (self.regions[:, 1:] << SHAPES[self.regions[:, 0]]) >= (self.rows, self.cols)
        if outside.any():
            first = self.regions[int(outside.any(axis=1).argmax())].tolist()
            raise PacketError(f"region {first} lies outside the grid of {self.rows} rows and {self.cols} columns")

    @property
    def content_id(self) -> str:
        """SHA-256 of places and pixels in hexadecimal: equal for equal packets only."""
        regions = np.empty(len(self.regions), _REGION)
        for name, column in zip(_REGION.names or (), self.regions.T, strict=True):
            regions[name] = column
        head = _HEAD.pack(VERSIONS[-1], self.rows, self.cols, len(self.regions), self.overview)
        pixels = np.ascontiguousarray(self.tiles.transpose(0, 2, 3, 1))
        return hashlib.sha256(head + regions.tobytes() + pixels.tobytes()).hexdigest()


def find_places(png: bytes) -> bytes | None:
    """Return the content of a PNG file's chunk `arCO`; None for any other picture.

    Raises PacketError for two chunks or a damaged one.
    """
    if not png.startswith(_SIGNATURE):
        return None
    places, begin = None, len(_SIGNATURE)
    while begin + 8 <= len(png):
        length, kind = struct.unpack_from(">I4s", png, begin)
        body, begin = png[begin + 4 : begin + 8 + length], begin + 12 + length
        if kind == CHUNK:
            if places is not None or begin > len(png) or struct.pack(">I", zlib.crc32(body)) != png[begin - 4 : begin]:
                raise PacketError(f"the PNG file's chunk {CHUNK.decode()} is damaged or there are two")
            places = body[4:]
    return places


def read_packet(places: bytes, picture: npt.NDArray[Any]) -> Packet:
    """Return the packet of a chunk's content and the PNG file's picture, uint8 [32·K, 32, 3]. Raises PacketError."""
    if not places or places[0] not in VERSIONS:
        version = f"version {places[0]}" if places else "an empty one"
        raise PacketError(f"arr-coc-vllm reads packets of version {', '.join(map(str, VERSIONS))}, got {version}")
    _, rows, cols, count, overview = _HEAD.unpack(places[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    if len(places) != _HEAD.size + count * _REGION.itemsize:
        raise PacketError(f"a packet's places do not hold the {count} regions that they announce")
    if picture.dtype != np.uint8 or picture.shape != (count * TILE_PX, TILE_PX, 3) or not count:
        raise PacketError(
            f"a packet of {count} tokens has an RGB picture of {TILE_PX}x{count * TILE_PX} pixels, "
            f"got {picture.dtype} {list(picture.shape)}"
        )
    packed = np.frombuffer(places, _REGION, offset=_HEAD.size)
    regions = np.stack([packed[name].astype(np.int64) for name in ("shape", "row", "col")], axis=-1)
    tiles = np.ascontiguousarray(picture.reshape(count, TILE_PX, TILE_PX, 3).transpose(0, 3, 1, 2))
    return Packet(tiles, regions, rows, cols, overview)
