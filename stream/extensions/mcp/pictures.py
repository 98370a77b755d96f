"""Pictures for an agent: a frame with the visual tokens that the model gets."""

from __future__ import annotations

import io

import cv2
import numpy as np
from PIL import Image

from arr_coc.errors import counted
from arr_coc.types import LEVELS, REGION_SHAPES, TILE_PX
from stream.errors import TransportError
from stream.media import AllocationOverlay
from stream.protocol.messages import FRAME_TILES_MAX
from stream.protocol.picture_files import encode_jpeg
from stream.protocol.pictures import ReceivedPicture
from stream.sinks.drawing import draw_allocation

INVALID = "the page sent a picture with an invalid map"

NO_JPEG = "the page sent what is no JPEG"

MOST_TILES = FRAME_TILES_MAX // 4
"""Tiles of 67 million pixels, the default limit of decoded pictures: the page may belong to another program."""


def with_tokens(picture: ReceivedPicture) -> bytes:
    """Return the JPEG of a picture with its tokens drawn: what the model sees coarsely is coarse and darker. Raises
    TransportError for an invalid map or JPEG."""
    frame_map = picture.map
    cells = picture.map.rows * picture.map.cols
    if len(frame_map.relevance) != cells or len(frame_map.regions) % 6 or not 0 <= picture.level < LEVELS:
        raise TransportError(INVALID)
    if cells > MOST_TILES:
        raise TransportError(f"the page sent a picture of {counted(cells, 'tile')}; at most {MOST_TILES} are drawn")
    regions = np.frombuffer(frame_map.regions, "<i2").reshape(-1, 3).astype(np.int64)
    ends = (len(REGION_SHAPES), frame_map.rows, frame_map.cols)
    if (regions < 0).any() or (regions >= ends).any():
        raise TransportError(INVALID)
    width, height = (side << picture.level for side in _size_px(picture.jpeg))
    if height > (frame_map.rows + 1) * TILE_PX or width > (frame_map.cols + 1) * TILE_PX:
        raise TransportError("the page sent a picture larger than its map")
    pixels = cv2.imdecode(np.frombuffer(picture.jpeg, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise TransportError(NO_JPEG)
    image = cv2.resize(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), (width, height), interpolation=cv2.INTER_LINEAR)
    overlay = AllocationOverlay(
        image=image,
        regions=regions,
        relevance=np.frombuffer(frame_map.relevance, np.uint8).reshape(frame_map.rows, frame_map.cols)
        / np.float32(255),
        overview=frame_map.overview,
    )
    return encode_jpeg(draw_allocation(overlay))


def _size_px(jpeg: bytes) -> tuple[int, int]:
    """Return width and height by the header alone: nothing is decoded before they are known to be small enough."""
    try:
        with Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as header:
            return header.size
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise TransportError(NO_JPEG) from error
