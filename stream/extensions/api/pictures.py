"""Pictures of a frame for a model that takes pictures only: the whole view, a composite, or parts as pictures."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.errors import ModelError
from arr_coc.ops.composite_layout import CompositeLayout, cut_out, draw, layout_of, whole_layout
from arr_coc.types import FramePacket, TileGrid
from stream.extensions.api.uuids import uuid_of

PictureKind = Literal["scaled", "composite", "parts"]

COMPOSITE = (
    "The largest part of the picture is the whole view. The framed parts beside it show the places that are framed in "
    "the same colour, enlarged."
)
"""Sentence that explains a composite to the model."""

WHOLE = "The whole view:"
PART = "A part of it, enlarged:"
"""Texts before the pictures of `parts`."""


@dataclass(frozen=True, slots=True)
class ApiPictures:
    """Pictures of one frame as JPEG, each after a text if there are several; `tokens` tiles in all.

    `explanation` goes before the question; empty if the pictures need none. `whole_px`: width and height of a picture
    that shows the whole frame and nothing else; None if there is no such picture, or another one beside it.
    """

    jpegs: tuple[bytes, ...]
    captions: tuple[str, ...]
    tokens: int
    explanation: str = ""
    whole_px: tuple[int, int] | None = None

    @property
    def bytes(self) -> int:
        """Size of the JPEGs."""
        return sum(map(len, self.jpegs))

    def content(self) -> list[dict[str, Any]]:
        """Return the pictures as parts of a chat message, with their uuids for `SentPictures`."""
        parts: list[dict[str, Any]] = []
        for caption, jpeg in zip(self.captions, self.jpegs, strict=True):
            if caption:
                parts.append({"type": "text", "text": caption})
            url = f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"
            parts.append({"type": "image_url", "image_url": {"url": url}, "uuid": uuid_of(jpeg)})
        return parts


def pictures_of(packet: FramePacket, kind: PictureKind, quality: int) -> ApiPictures:
    """Return the pictures of a frame, in as many tiles of 32×32 pixels as tokens were chosen for it.

    `quality` is that of JPEG, 1 to 100. Raises ModelError for a picture that JPEG cannot hold.
    """
    grid = packet.grid
    tokens = max(1, len(packet.regions))
    frame = packet.image[: grid.height_px, : grid.width_px]
    size = (grid.height_px, grid.width_px)
    if kind == "scaled":
        layout = whole_layout(size, tokens)
    else:
        layout = layout_of(size, packet.relevance, tokens)
    if len(layout.placements) == 1:
        pictures = [cut_out(frame, layout.placements[0])]
    elif kind == "parts":
        pictures = [cut_out(frame, placement) for placement in layout.placements]
    else:
        pictures = [draw(frame, layout)]
    return ApiPictures(
        jpegs=tuple(_jpeg(picture, quality) for picture in pictures),
        captions=_captions(len(pictures)),
        tokens=sum(TileGrid.of(*picture.shape[:2]).tiles for picture in pictures),
        explanation=COMPOSITE if kind == "composite" and _has_parts(layout) else "",
        whole_px=None if _has_parts(layout) else (pictures[0].shape[1], pictures[0].shape[0]),
    )


def _has_parts(layout: CompositeLayout) -> bool:
    return len(layout.placements) > 1


def _captions(count: int) -> tuple[str, ...]:
    if count == 1:
        return ("",)
    return (WHOLE, *[PART] * (count - 1))


def _jpeg(picture: npt.NDArray[np.uint8], quality: int) -> bytes:
    success, data = cv2.imencode(".jpg", np.ascontiguousarray(picture[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not success:
        raise ModelError(f"a picture of {picture.shape[1]}x{picture.shape[0]} cannot be sent", "give a smaller budget")
    return bytes(data)
