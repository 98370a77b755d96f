"""Pictures in tiles, as phones write them: HEIC of HEVC and AVIF of AV1, made in code."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

from tests.support.video import Image, use_ordinary_scheduling


@dataclass(frozen=True, slots=True)
class TileCodec:
    """A codec of tiles: its encoder, the type of its items, and the box of its configuration."""

    encoder: str
    item: bytes
    box: bytes
    brand: bytes
    options: dict[str, str]


CODECS = {
    "heic": TileCodec("libx265", b"hvc1", b"hvcC", b"heic", {"x265-params": "log-level=none:bframes=0", "crf": "8"}),
    "avif": TileCodec("libsvtav1", b"av01", b"av1C", b"avif", {"preset": "10", "crf": "8"}),
}
"""Suffix → codec."""


def box(kind: bytes, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return struct.pack(">I4s", 8 + len(content), kind) + content


def full_box(kind: bytes, version: int, flags: int, *parts: bytes) -> bytes:
    return box(kind, struct.pack(">I", version << 24 | flags), *parts)


def encoded_tile(image: Image, codec: TileCodec, pixel_format: str) -> tuple[bytes, bytes]:
    """Return the configuration and the packet of a picture of one frame."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream(codec.encoder, rate=1, options=codec.options)
        stream.height, stream.width, stream.pix_fmt = image.shape[0], image.shape[1], pixel_format
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts = 0
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    if codec.encoder == "libsvtav1":
        use_ordinary_scheduling()
    file.seek(0)
    with av.open(file) as container:
        packet = next(packet for packet in container.demux(video=0) if packet.size)
        return bytes(container.streams.video[0].codec_context.extradata or b""), bytes(packet)


def make_grid(
    path: Path,
    image: Image,
    tile_px: tuple[int, int] = (64, 64),
    *,
    turns: int = 0,
    mirror: int | None = None,
    derived: bytes = b"grid",
    thumbnail: bool = False,
    pixel_format: str = "yuv420p",
    missing: Sequence[int] = (),
) -> Path:
    """Write a picture in tiles of `tile_px` (height, width), the last of which may reach beyond it.

    Args:
        path: File, whose suffix chooses the codec.
        image: Picture, uint8 RGB [H, W, 3].
        tile_px: Height and width of a tile.
        turns: Quarter turns counterclockwise (`irot`).
        mirror: Axis of `imir`: 0 swaps top and bottom, 1 left and right.
        derived: Type of the item that is made of the tiles.
        thumbnail: Write a small picture before the tiles.
        pixel_format: Format of the tiles.
        missing: Numbers of tiles whose data are left out.
    """
    codec = CODECS[path.suffix[1:]]
    (height, width), (down, across) = image.shape[:2], tile_px
    rows, cols = -(-height // down), -(-width // across)
    padded = np.pad(image, ((0, rows * down - height), (0, cols * across - width), (0, 0)), mode="edge")
    tiles = [
        encoded_tile(
            np.ascontiguousarray(padded[row * down : (row + 1) * down, col * across : (col + 1) * across]),
            codec,
            pixel_format,
        )
        for row in range(rows)
        for col in range(cols)
    ]
    first = 10
    items = {first + number: data for number, (_, data) in enumerate(tiles)}
    parts = list(items)
    if thumbnail:
        items = {5: encoded_tile(np.full((*tile_px, 3), 255, np.uint8), codec, pixel_format)[1], **items}
    properties = [
        full_box(b"ispe", 0, 0, struct.pack(">II", across, down)),
        box(codec.box, tiles[0][0]),
        full_box(b"ispe", 0, 0, struct.pack(">II", width, height)),
        box(b"irot", bytes([turns])),
        box(b"imir", bytes([mirror or 0])),
    ]
    grid_links = [3, *([0x84] if turns else []), *([0x85] if mirror is not None else [])]
    associations = {1: grid_links, **{item: [1, 0x82] for item in items}}
    grid = struct.pack(">BBBBHH", 0, 0, rows - 1, cols - 1, width, height)

    def file(begin: int) -> bytes:
        """The whole file, if the data begin there."""
        places, at = [struct.pack(">HHHHII", 1, 1, 0, 1, 0, len(grid))], begin
        for number, data in items.items():
            length = 0 if number - first in missing else len(data)
            places.append(struct.pack(">HHHHII", number, 0, 0, 1, at, length))
            at += len(data)
        kinds = {1: derived, **dict.fromkeys(items, codec.item)}
        entries = [full_box(b"infe", 2, 0, struct.pack(">HH4sB", item, 0, kind, 0)) for item, kind in kinds.items()]
        references = [box(b"dimg", struct.pack(f">HH{len(parts)}H", 1, len(parts), *parts))]
        if thumbnail:
            references.append(box(b"thmb", struct.pack(">HHH", 5, 1, 1)))
        linked = b"".join(
            struct.pack(">HB", item, len(links)) + bytes(links) for item, links in sorted(associations.items())
        )
        meta = full_box(
            b"meta", 0, 0,
            full_box(b"hdlr", 0, 0, struct.pack(">I4s12xB", 0, b"pict", 0)),
            full_box(b"pitm", 0, 0, struct.pack(">H", 1)),
            full_box(b"iloc", 1, 0, bytes([0x44, 0x00]), struct.pack(">H", len(places)), *places),
            full_box(b"iinf", 0, 0, struct.pack(">H", len(entries)), *entries),
            full_box(b"iref", 0, 0, *references),
            box(
                b"iprp",
                box(b"ipco", *properties),
                full_box(b"ipma", 0, 0, struct.pack(">I", len(associations)), linked),
            ),
            box(b"idat", grid),
        )  # fmt: skip
        head = box(b"ftyp", codec.brand, bytes(4), b"mif1", codec.brand, b"miaf") + meta
        return head + box(b"mdat", *items.values())

    begin = len(file(0)) - sum(map(len, items.values()))
    path.write_bytes(file(begin))
    return path
