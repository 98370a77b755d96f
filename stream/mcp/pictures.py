"""Pictures for an agent: a frame with the visual tokens that the model gets."""

from __future__ import annotations

import cv2
import numpy as np

from arr_coc.types import LEVELS, REGION_SHAPES, TILE_PX
from stream.errors import TransportError
from stream.media import AllocationOverlay
from stream.protocol.picture_files import encode_jpeg
from stream.protocol.pictures import ReceivedPicture
from stream.sinks.drawing import draw_allocation

INVALID = "the page sent a picture with an invalid map"


def with_tokens(picture: ReceivedPicture) -> bytes:
    """Return the JPEG of a picture with its tokens drawn: what the model sees coarsely is coarse and darker. Raises
    TransportError for an invalid map or JPEG."""
    frame_map, cells = picture.map, picture.map.rows * picture.map.cols
    if len(frame_map.relevance) != cells or len(frame_map.regions) % 6 or not 0 <= picture.level < LEVELS:
        raise TransportError(INVALID)
    regions = np.frombuffer(frame_map.regions, "<i2").reshape(-1, 3).astype(np.int64)
    ends = (len(REGION_SHAPES), frame_map.rows, frame_map.cols)
    if (regions < 0).any() or (regions >= ends).any():
        raise TransportError(INVALID)
    pixels = cv2.imdecode(np.frombuffer(picture.jpeg, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise TransportError("the page sent what is no JPEG")
    height, width = (side << picture.level for side in pixels.shape[:2])
    if height > (frame_map.rows + 1) * TILE_PX or width > (frame_map.cols + 1) * TILE_PX:
        raise TransportError("the page sent a picture larger than its map")
    image = cv2.resize(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), (width, height), interpolation=cv2.INTER_LINEAR)
    overlay = AllocationOverlay(
        image=image,
        regions=regions,
        relevance=np.frombuffer(frame_map.relevance, np.uint8).reshape(frame_map.rows, frame_map.cols)
        / np.float32(255),
        overview=frame_map.overview,
    )
    return encode_jpeg(draw_allocation(overlay))
