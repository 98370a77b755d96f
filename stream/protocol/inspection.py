"""Inspection of a frame: every map of its allocation, and the message with them for a page.

An inspection message, little-endian (docs/web.md has the table):

    u8 kind ("I") · u8 0 · u16 0 · u32 bytes of the head · head (JSON, padded by spaces to 4 bytes)
    maps u16 [number of maps, rows, cols] · regions i16 [K, 3] · tokens of the group i16 [N, 5] · pictures of the levels

`group` in the head and the tokens of the group of pictures are present if the model has a visual memory. A token is
(shape, row, col, index of its time in `times`, 1 if it is superseded).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from arr_coc.allocation.inspection import AllocationMaps, inspect_newest
from arr_coc.errors import counted
from arr_coc.relevance.profiles import SIGNED_NAMES, channel_names
from arr_coc.types import LEVELS, NS_PER_S, REGION_SHAPES, SCORES, TILE_PX, TileMotion
from stream.errors import TransportError
from stream.media import MapLayer

if TYPE_CHECKING:
    from arr_coc.allocation.allocator import StreamAllocator
    from arr_coc.allocation.frame import FrameAllocation
    from arr_coc.allocation.group import GroupFrame
    from arr_coc.texture.store.base import TextureView

KIND = ord("I")
HEADER = struct.Struct("<BBHI")
STEPS = 65535
"""Steps of a map between its lowest and highest value."""

SIGNED = (-1.0, 1.0)
POSITIVE = (0.0, 1.0)


class PictureToInspect(msgspec.Struct, frozen=True):
    """Picture that is no frame of the run: `pixels` uint8 RGB [height, width, 3]. Numbers begin at 1."""

    number: int
    height: int
    width: int
    pixels: bytes


class InspectionRequest(msgspec.Struct, frozen=True):
    """Request for an inspection of the next frame, or of `picture`, with the pictures of these mipmap `levels`.

    `maps`: include all maps of the allocation, not only relevance and regions.
    """

    levels: tuple[int, ...] = (0,)
    maps: bool = True
    picture: PictureToInspect | None = None


@dataclass(frozen=True, slots=True)
class TileMap:
    """Map with one number per tile, `values` float32 [rows, cols], in a range from `low` to `high`; `group`: name of
    its group of maps."""

    group: str
    values: npt.NDArray[np.float32]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class InspectedFrame:
    """Frame with all data about its allocation.

    `images` uint8 RGB [H, W, 3] by mipmap level, without padding; `regions` int [K, 3] (shape, row, col), of which the
    first `overview` are an overview; `maps` by name; `weights` of the scores; `strategy` of the choice of regions;
    `width_px` and `height_px` of the whole picture. Times are 0 for a picture that is no frame. `group`: the model's
    visual memory as it would be with this frame's packet; None if it has none.
    """

    frame_index: int
    capture_ns: int
    media_ns: int
    tokens: int
    width_px: int
    height_px: int
    rows: int
    cols: int
    regions: npt.NDArray[np.integer]
    overview: int
    strategy: str
    maps: dict[str, TileMap]
    weights: dict[str, float]
    images: dict[int, npt.NDArray[np.uint8]]
    profile: str = ""
    query: str = ""
    group: GroupFrame | None = None


@dataclass(frozen=True, slots=True)
class ReadInspection:
    """Parts of a message: the `head` as written, the `maps` up to rounding, `regions` int16 [K, 3], the encoded
    `pictures` by level, and the `tokens` of the group of pictures, int16 [N, 5], if any."""

    head: dict[str, Any]
    maps: dict[str, TileMap]
    regions: npt.NDArray[np.int16]
    pictures: dict[int, bytes] = field(default_factory=dict)
    tokens: npt.NDArray[np.int16] | None = None

    @property
    def states(self) -> tuple[str, ...] | None:
        """State of each token of the group, as in `GroupFrame.states`; None without a group."""
        if self.tokens is None:
            return None
        states = ["superseded" if is_superseded else "shown" for is_superseded in self.tokens[:, 4].tolist()]
        new_tokens: int = self.head["group"]["appended"]
        return tuple(states[: len(states) - new_tokens] + ["new"] * new_tokens)


def inspected_frame(
    view: TextureView,
    frame: FrameAllocation,
    images: dict[int, npt.NDArray[np.uint8]],
    allocator: StreamAllocator,
    motion: TileMotion | None = None,
    *,
    tokens: int | None = None,
    with_maps: bool = True,
) -> InspectedFrame:
    """Return all data about a frame's allocation, while its lease lasts.

    Args:
        view: texture of the frame.
        frame: allocation of the frame.
        images: copies of the frame's mipmap levels, uint8 RGB [H, W, 3], by level.
        allocator: the allocator, of whose newest frame the maps are, and the question that they belong to.
        motion: motion of the tiles since the frame before; None if none moved.
        tokens: number of tokens that the model reads; None if it is that of the regions.
        with_maps: whether the maps of the allocation are part of it; if not, its relevance only.
    """
    relevance = frame.relevance.cpu().numpy()
    grid = view.grid
    maps = inspect_newest(allocator, view.stamp) if with_maps else None
    named_maps = {"relevance, blended": TileMap("relevance", relevance.astype(np.float32), *POSITIVE)}
    if maps is not None:
        named_maps = tile_maps(maps, motion, np.maximum(0, view.stamp.frame_index - view.versions.frame))
    weights = frame.weights.cpu().numpy()
    total = max(float(weights.sum()), 1e-6)
    return InspectedFrame(
        frame_index=view.stamp.frame_index,
        capture_ns=view.stamp.capture_ns,
        media_ns=view.stamp.media_ns,
        tokens=frame.tokens if tokens is None else tokens,
        width_px=grid.width_px,
        height_px=grid.height_px,
        rows=grid.rows,
        cols=grid.cols,
        regions=frame.allocation.regions.numpy(),
        overview=frame.overview,
        strategy=frame.strategy,
        maps=named_maps,
        weights={name: float(weight) / total for name, weight in zip(SCORES, weights, strict=True)},
        images=images,
        profile="" if maps is None else maps.profile,
        query=allocator.question,
    )


LAYER_MAPS: dict[str, str] = {
    **{name: name for name in SCORES},
    "now": "relevance of this frame",
    "relevance": "relevance, blended",
    "entropy": "entropy",
    "motion": "motion, px",
}
"""Names of layers in `heatmap.layers` → names of maps in `tile_maps`."""


def layers_of(
    names: Iterable[str], maps: Mapping[str, TileMap], weights: Mapping[str, float], shape: tuple[int, int]
) -> tuple[MapLayer, ...]:
    """Return maps as the layers of a heat map, with the weights of the scores.

    Args:
        names: keys of `LAYER_MAPS`, in the order of the layers.
        maps: maps of a frame, by name; a missing one is 0 everywhere.
        weights: weights of the scores, by the names of the layers.
        shape: rows and columns of a missing map.
    """
    empty = TileMap("", np.zeros(shape, np.float32), *POSITIVE)
    return tuple(MapLayer(name, maps.get(LAYER_MAPS[name], empty).values, weights.get(name)) for name in names)


def crop_level(view: TextureView, level: int) -> npt.NDArray[np.uint8]:
    """Return one level without padding while its lease lasts: uint8 RGB [H, W, 3]."""
    return view.read(level)[: -(-view.grid.height_px >> level), : -(-view.grid.width_px >> level)]


def tile_maps(
    maps: AllocationMaps, motion: TileMotion | None = None, unchanged: npt.NDArray[np.integer] | None = None
) -> dict[str, TileMap]:
    """Return every map of a frame by name, in display order.

    Args:
        maps: maps of the frame's allocation.
        motion: motion of the tiles since the frame before; None if none moved.
        unchanged: integers [gh, gw], number of frames for which each tile has been the same; None leaves out the map.
    """
    by_name = {
        name: TileMap("texture", values, *(SIGNED if name in SIGNED_NAMES else POSITIVE))
        for name, values in zip(channel_names(maps.profile), maps.channels, strict=True)
    }
    by_name["entropy"] = TileMap("texture", maps.entropy, *POSITIVE)
    by_name |= {name: TileMap("scores", values, *POSITIVE) for name, values in zip(SCORES, maps.scores, strict=True)}
    if maps.gaze is not None:
        by_name["where a viewer looks"] = TileMap("relevance", maps.gaze, *POSITIVE)
    by_name["relevance of this frame"] = TileMap("relevance", maps.frame_relevance, *POSITIVE)
    by_name["relevance, blended"] = TileMap("relevance", maps.blended, *POSITIVE)
    if maps.prior is not None:
        ranges = {"attention": POSITIVE, "similarity": SIGNED, "trust": POSITIVE}
        for (name, bounds), values in zip(ranges.items(), maps.prior, strict=True):
            by_name[f"{name} of answers"] = TileMap("memory", values, *bounds)
    if maps.staleness is not None:
        by_name["worth exploring"] = _map_with_range("memory", maps.staleness)
    if unchanged is not None:
        by_name["unchanged for, frames"] = _map_with_range("change", unchanged.astype(np.float32))
    zeros = np.zeros_like(maps.entropy)
    by_name["motion, px"] = _map_with_range("change", zeros if motion is None else motion.magnitude_px)
    if motion is not None:
        for name, values in (("motion right, px", motion.dx_px), ("motion down, px", motion.dy_px)):
            by_name[name] = _map_with_range("change", values, signed=True)
        by_name["confidence of motion"] = TileMap("change", motion.confidence, *POSITIVE)
    return by_name


def _map_with_range(group: str, values: npt.NDArray[np.float32], *, signed: bool = False) -> TileMap:
    """Return a map with the range of its values, from 0, or symmetric around 0 if `signed`."""
    high = max(1.0, float(np.abs(values).max(initial=0.0)))
    return TileMap(group, values, -high if signed else 0.0, high)


def pack_inspection(frame: InspectedFrame, pictures: Mapping[int, tuple[str, bytes]], **times: float) -> bytes:
    """Return the message of a frame; `pictures` are encoded, by level, with their media types. `times` are copied into
    the head."""
    head = {
        "frame_index": frame.frame_index,
        **times,
        "tokens": frame.tokens,
        "width": frame.width_px,
        "height": frame.height_px,
        "rows": frame.rows,
        "cols": frame.cols,
        "overview": frame.overview,
        "regions": len(frame.regions),
        "strategy": frame.strategy,
        "profile": frame.profile,
        "query": frame.query,
        "weights": frame.weights,
        "tile_px": TILE_PX,
        "shapes": REGION_SHAPES,
        "maps": [
            {"name": name, "group": tile_map.group, "low": tile_map.low, "high": tile_map.high}
            for name, tile_map in frame.maps.items()
        ],
        "levels": [
            {"level": level, "type": kind, "bytes": len(data)} for level, (kind, data) in sorted(pictures.items())
        ],
    }
    group = frame.group
    tokens = b""
    if group is not None:
        times_ns, at = np.unique(group.shown_ns, return_inverse=True)
        tokens = np.column_stack([group.regions, at, group.superseded]).astype("<i2").tobytes()
        head["group"] = {
            "number": 0 if group.place is None else group.place.group,
            "frame": 0 if group.place is None else group.place.frame,
            "began": group.reason,
            "overview": group.overview,
            "overview_begin": group.overview_begin,
            "tokens": len(group.regions),
            "appended": group.appended_tokens,
            "superseded": group.superseded_tokens,
            "times": [time_ns / NS_PER_S for time_ns in times_ns.tolist()],
        }
    steps = [_steps(tile_map) for tile_map in frame.maps.values()]
    return b"".join(
        (
            *_pack_head(head),
            *steps,
            np.ascontiguousarray(frame.regions, "<i2").tobytes(),
            tokens,
            *(data for _, (_, data) in sorted(pictures.items())),
        )
    )


def pack_failure(reason: str) -> bytes:
    """Return the message with the reason that there is no inspection."""
    return b"".join(_pack_head({"error": reason}))


def _pack_head(head: Mapping[str, Any]) -> tuple[bytes, bytes]:
    body = msgspec.json.encode(head)
    body += b" " * (-len(body) % 4)
    return HEADER.pack(KIND, 0, 0, len(body)), body


def _steps(tile_map: TileMap) -> bytes:
    share = (tile_map.values - tile_map.low) / (tile_map.high - tile_map.low)
    return np.rint(np.clip(np.nan_to_num(share), 0, 1) * STEPS).astype("<u2").tobytes()


def read_inspection(message: bytes) -> ReadInspection:
    """Parse an inspection message. Raises TransportError if it is invalid, or is the message of a failure."""
    try:
        kind, _, _, length = HEADER.unpack_from(message)
        if kind == KIND:
            head = msgspec.json.decode(message[HEADER.size : HEADER.size + length])
        else:
            head = None
    except (struct.error, msgspec.MsgspecError) as error:
        raise TransportError(f"not an inspection: {error}") from error
    if not isinstance(head, dict):
        raise TransportError(f"not an inspection: kind {kind}, {counted(len(message), 'byte')}")
    if "error" in head:
        raise TransportError(head["error"])
    return _read_parts(head, message, HEADER.size + length)


def _read_parts(head: dict[str, Any], message: bytes, at: int) -> ReadInspection:
    shape = (head["rows"], head["cols"])
    map_bytes = 2 * head["rows"] * head["cols"]
    group_tokens = head["group"]["tokens"] if "group" in head else 0
    expected = at + map_bytes * len(head["maps"]) + 6 * head["regions"] + 10 * group_tokens
    expected += sum(entry["bytes"] for entry in head["levels"])
    if expected != len(message):
        raise TransportError(f"not an inspection: it has {counted(len(message), 'byte')}, not {expected}")
    maps = {}
    for entry in head["maps"]:
        share = np.frombuffer(message, "<u2", map_bytes // 2, at).reshape(shape).astype(np.float32) / STEPS
        maps[entry["name"]] = TileMap(
            entry["group"], entry["low"] + share * (entry["high"] - entry["low"]), entry["low"], entry["high"]
        )
        at += map_bytes
    regions = np.frombuffer(message, "<i2", 3 * head["regions"], at).reshape(-1, 3)
    at += regions.nbytes
    if "group" in head:
        tokens = np.frombuffer(message, "<i2", 5 * group_tokens, at).reshape(-1, 5)
    else:
        tokens = None
    at += 10 * group_tokens
    pictures = {}
    for entry in head["levels"]:
        pictures[entry["level"]] = message[at : at + entry["bytes"]]
        at += entry["bytes"]
    return ReadInspection(head, maps, regions, pictures, tokens)


def known_levels(levels: Iterable[int]) -> tuple[int, ...]:
    """Return the levels that a texture has, sorted, without duplicates."""
    return tuple(sorted({level for level in levels if 0 <= level < LEVELS}))
