"""Items of an AVIF or HEIC file: the tiles that its picture is made of, and their places.

PyAV does not pass on FFmpeg's groups of streams, so the boxes are read here (ISO/IEC 23008-12, 6.6.2.3). FFmpeg decodes
the tiles.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stream.errors import SourceError
from stream.recording.mp4_boxes import Mp4Box, boxes, file_boxes
from stream.sources.orientation import Orientation

BRANDS = frozenset({b"mif1", b"mif2", b"heic", b"heix", b"heim", b"heis", b"avif", b"msf1"})
"""Brands of files that hold pictures as items."""

META_MAX_BYTES = 4 << 20
"""Limit of the box that describes the items; a picture of 65,536 tiles has 2 MB."""

GRID_MAX_BYTES = 12
"""Size of a grid's own data; the shorter form has 8."""

_DERIVED = frozenset({b"iovl", b"iden", b"tmap"})
"""Types of other items without a picture of their own, which FFmpeg does not put together."""

REMEDY = "save it as JPEG or PNG"


@dataclass(frozen=True, slots=True)
class TiledPicture:
    """Picture of `rows` by `cols` tiles, row by row, of which the last reach beyond `width_px` and `height_px`.

    `tiles` are the numbers of their items, which are FFmpeg's ids of streams. `orientation` makes the picture upright.
    """

    rows: int
    cols: int
    width_px: int
    height_px: int
    tiles: tuple[int, ...]
    orientation: Orientation


def is_heif(path: Path) -> bool:
    """Return True if a file holds pictures as items, as AVIF and HEIC do, and no video."""
    if not os.path.isfile(path):  # a pipe can be read once only
        return False
    with path.open("rb") as file:
        outer_boxes = file_boxes(file)
        first = next(outer_boxes, None)
        if first is None or first.kind != b"ftyp":
            return False
        brands = _read(file, first)
        compatible = (brands[at : at + 4] for at in range(8, len(brands), 4))
        if BRANDS.isdisjoint({brands[:4], *compatible}):
            return False
        return all(box.kind != b"moov" for box in outer_boxes)


def tiled_picture(path: Path) -> TiledPicture | None:
    """Return the tiles of a file's picture; None if it is no file of AVIF or HEIC, or its picture is whole.

    Raises SourceError if the picture is made of others in a way that is not read.
    """
    try:
        if not is_heif(path):
            return None
        with path.open("rb") as file:
            meta = next(_read(file, box) for box in file_boxes(file) if box.kind == b"meta")
            parts = dict(_contents(meta[4:]))
            item = _number(parts[b"pitm"], 2 if parts[b"pitm"][0] == 0 else 4, 4)
            kind = dict(_kinds(parts[b"iinf"]))[item]
            if kind == b"grid":
                return _grid(parts, item, file)
    except (OSError, struct.error, ValueError, LookupError, StopIteration) as error:
        raise SourceError(f"{path} has a description of its pictures that is damaged; {REMEDY}") from error
    if kind in _DERIVED:
        raise SourceError(f"{path} holds a picture made of others ({kind.decode()}), which is not read; {REMEDY}")
    return None


def _grid(parts: dict[bytes, bytes], item: int, file: BinaryIO) -> TiledPicture:
    """Return the tiles of an item that is a grid. Raises ValueError or LookupError if it is damaged."""
    method, begin, length = _place_of(parts[b"iloc"], item)
    if method == 0:
        file.seek(begin)
        data = file.read(min(length, GRID_MAX_BYTES))
    else:
        data = parts[b"idat"][begin : begin + length]
    version, flags, rows, cols = data[:4]
    rows = rows + 1
    cols = cols + 1
    width, height = struct.unpack_from(">II" if flags & 1 else ">HH", data, 4)
    tiles = dict(_references(parts[b"iref"]))[item]
    if version or len(tiles) != rows * cols or not width or not height:
        raise ValueError("not a grid")
    return TiledPicture(rows, cols, width, height, tiles, _orientation(_transforms(parts[b"iprp"], item)))


def _read(file: BinaryIO, box: Mp4Box) -> bytes:
    """Return the content of a box of a file, of at most META_MAX_BYTES."""
    file.seek(box.content)
    return file.read(min(box.end - box.content, META_MAX_BYTES))


def _contents(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the type and the content of each box. Raises ValueError if one ends beyond the data."""
    for box in boxes(data):
        if box.end > len(data):
            raise ValueError(f"the box {box.kind!r} is not whole")
        yield box.kind, data[box.content : box.end]


def _number(data: bytes, size: int, at: int = 0) -> int:
    if at + size > len(data):
        raise ValueError("too short")
    return int.from_bytes(data[at : at + size], "big")


def _kinds(iinf: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the type of each item."""
    for kind, content in _contents(iinf[6 if iinf[0] == 0 else 8 :]):
        if kind == b"infe" and content[0] >= 2:
            size = 2 if content[0] == 2 else 4
            yield _number(content, size, 4), content[6 + size : 10 + size]


def _references(iref: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the number of each derived item, and those that it is made of."""
    size = 2 if iref[0] == 0 else 4
    for kind, content in _contents(iref[4:]):
        if kind == b"dimg":
            count = _number(content, 2, size)
            yield (
                _number(content, size),
                tuple(_number(content, size, size + 2 + place * size) for place in range(count)),
            )


def _transforms(iprp: bytes, item: int) -> list[tuple[bytes, int]]:
    """Return the turns and mirrors of an item, in their order: type and value of each."""
    parts = list(_contents(iprp))
    properties = [prop for kind, content in parts if kind == b"ipco" for prop in _contents(content)]
    links = [link for kind, content in parts if kind == b"ipma" for link in _links(content, item)]
    item_properties = [properties[link - 1] for link in links if link]
    return [(kind, content[0] & 3) for kind, content in item_properties if kind in (b"irot", b"imir")]


def _links(ipma: bytes, item: int) -> Iterator[int]:
    """Yield the numbers of an item's properties, from 1."""
    size = 2 if ipma[0] == 0 else 4
    wide = ipma[3] & 1
    at = 8
    for _ in range(_number(ipma, 4, 4)):
        number = _number(ipma, size, at)
        count = _number(ipma, 1, at + size)
        at += size + 1
        for _ in range(count):
            link = _number(ipma, 1 + wide, at)
            at += 1 + wide
            if number == item:
                yield link & (0x7FFF if wide else 0x7F)


def _place_of(iloc: bytes, item: int) -> tuple[int, int, int]:
    """Return where the data of an item are: in the file (0) or in `idat` (1), their begin and their length."""
    version = iloc[0]
    sizes = iloc[4:6]
    offset_size = sizes[0] >> 4
    length_size = sizes[0] & 15
    base_size = sizes[1] >> 4
    index_size = sizes[1] & 15 if version else 0
    id_size = 4 if version == 2 else 2
    count = _number(iloc, id_size, 6)
    at = 6 + id_size
    for _ in range(count):
        number = _number(iloc, id_size, at)
        at += id_size
        method = _number(iloc, 2, at) & 15 if version else 0
        at += (2 if version else 0) + 2
        base = _number(iloc, base_size, at)
        extents = _number(iloc, 2, at + base_size)
        at += base_size + 2
        if number == item and extents:
            begin = base + _number(iloc, offset_size, at + index_size)
            return method, begin, _number(iloc, length_size, at + index_size + offset_size)
        # not one by one: extents of no bytes are many in a small file
        at += extents * (index_size + offset_size + length_size)
    raise ValueError("no data")


def _orientation(transforms: list[tuple[bytes, int]]) -> Orientation:
    """Return the orientation that turns and mirrors have together, one after the other."""
    turns = 0
    mirrored = False
    for kind, value in transforms:
        if kind == b"irot":
            turns += value
        else:  # a turn before a mirror is the opposite turn after it; top to bottom is left to right and half a turn
            turns = -turns + (0 if value & 1 else 2)
            mirrored = not mirrored
    return Orientation(turns % 4, mirrored)
