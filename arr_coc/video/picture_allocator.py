"""Allocators of frames and of pictures, in one thread: texture, allocation, packets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.packets import overview_packet, packet_from
from arr_coc.errors import BudgetError
from arr_coc.qwen.encoding import Packet
from arr_coc.qwen.preprocess import Preprocessing, Rgb, fit_tiles, grid_regions, to_tiles
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.resize import resize_image
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.texture.store.base import TextureView
from arr_coc.types import (
    NEEDS_TOKENS_ONLY,
    TILE_PX,
    Encode,
    Feedback,
    FramePacket,
    FramePlanes,
    FrameStamp,
    QueryEmbedding,
    TileGrid,
    TokenPacket,
)
from arr_coc.video.texture_updater import TextureOptions, TextureUpdate, TextureUpdater

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AllocatedFrame:
    """One frame in the texture: its update, its allocation, and the tokens that were chosen with their pixels."""

    update: TextureUpdate
    allocation: FrameAllocation
    packet: TokenPacket


class FrameAllocator:
    """Texture and allocator of one stream, without the threads and processes of a run.

    With the option `memory`, and for the strategies `evs` and `querystream`, each packet is taken to be shown. Raises
    BudgetError, StrategyError, and ValueError for options that do not hold.
    """

    def __init__(
        self,
        options: AllocatorOptions | None = None,
        realiser: RelevanceRealiser | None = None,
        texture: TextureOptions | None = None,
    ) -> None:
        self.texture = TextureUpdater(texture)
        self.allocator = StreamAllocator(options, realiser)
        self._frame: AllocatedFrame | None = None

    def allocate(self, planes: FramePlanes, stamp: FrameStamp, discontinuity: str | None = None) -> AllocatedFrame:
        """Bring the texture up to date with the next frame, and choose its tokens. Raises as the two do."""
        self._frame = None
        update = self.texture.process(planes, stamp, discontinuity)
        with self.texture.lease() as view:
            allocation = self.allocator.allocate(view, update.motion)
            self._frame = AllocatedFrame(update, allocation, self._packet(view, allocation))
        self.allocator.mark_shown()
        return self._frame

    def glance_packet(self) -> TokenPacket | None:
        """Return an overview of the newest frame if a glance at it is due, else None.

        `apply_glance` takes the feedback.
        """
        frame = self._frame
        if frame is None or not self.allocator.glance_due(frame.allocation.stamp.media_ns):
            return None
        self.allocator.on_glance()
        with self.texture.lease() as view:
            return overview_packet(view, frame.allocation.glance_tokens)

    def apply_glance(self, feedback: Feedback) -> AllocatedFrame:
        """Choose the newest frame's tokens once more, after a glance at it."""
        if self._frame is None:
            raise ValueError("there is no frame yet that could have been glanced at")
        self.allocator.apply_glance(feedback)
        with self.texture.lease() as view:
            allocation = self.allocator.reallocate(view)
            self._frame = AllocatedFrame(self._frame.update, allocation, self._packet(view, allocation))
        return self._frame

    def _packet(self, view: TextureView, allocation: FrameAllocation) -> TokenPacket:
        group = self.allocator.group
        if group is None:
            return packet_from(view, allocation)
        return group.packet(view, allocation, group.next_place)

    def on_answer(self, feedback: Feedback | None) -> None:
        """The newest frame was answered about; the feedback draws the tokens of the next ones."""
        self.allocator.mark_answered()
        if feedback is not None:
            self.allocator.apply_feedback(feedback)

    def close(self) -> None:
        """Give the texture's memory back."""
        self.texture.close()


class PictureAllocator:
    """Allocator of the tokens of pictures in order, as a stream: resized as its own processor would.

    The options' `levels` are the model's own, as is `wide` if it is None. `group`: with the option `memory`, the
    packets of the group of pictures up to the newest one, which a question is about together. `relevance` float32
    [gh, gw] is the newest picture's. `fallbacks` counts pictures whose allocation failed, so that all their tokens are
    shown. Raises BudgetError and StrategyError for options that do not hold.
    """

    def __init__(
        self, qwen: QwenVL, query: str, options: AllocatorOptions | None = None, encode: Encode = "sparse"
    ) -> None:
        self._preprocessing = qwen.preprocessing
        self._encode = encode
        options = (options or AllocatorOptions()).for_model(wide=qwen.knows_wide)
        self._frames = FrameAllocator(options, qwen.realiser)
        self.set_query(qwen.embed_query(query))
        self.group: list[TokenPacket] = []
        self.relevance: npt.NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self.fallbacks = 0

    def set_query(self, query: QueryEmbedding, *others: QueryEmbedding) -> None:
        """Ask another question from here on, or several that share the tokens."""
        self._frames.allocator.set_query(query, *others)

    def allocate(
        self, picture: Rgb, stamp: FrameStamp, glance: Callable[[TokenPacket], Feedback] | None = None
    ) -> Packet:
        """Return the packet of a picture.

        Args:
            picture: uint8 [H, W, 3], RGB.
            stamp: The picture's stamp.
            glance: Function that looks at an overview of the picture, called if the options ask for that and it is
                due. Its errors are raised.

        Raises:
            ShapeError: The picture is too narrow.
            BudgetError: The budget has no room for the overview.
        """
        prep = self._preprocessing
        image, grid, planes = fit_with_planes(prep, picture)
        try:
            frame = self._frames.allocate(planes, stamp)
        except BudgetError:
            raise
        except Exception as error:
            self.fallbacks += 1
            log.warning("allocating tokens failed (%s); the frame is shown with all its tokens", error)
            self.relevance = np.ones(grid.shape, np.float32)
            return FramePacket(stamp, grid, grid_regions(grid).numpy().astype(np.int32), self.relevance, image)
        if glance is not None:
            overview = self._frames.glance_packet()
        else:
            overview = None
        if glance is not None and overview is not None:
            frame = self._frames.apply_glance(glance(with_own_tiles(overview, image, prep.tile_px)))
        self.relevance = frame.allocation.relevance.numpy().copy()
        packet = frame.packet
        if self._encode in NEEDS_TOKENS_ONLY:
            packet = with_own_tiles(packet, image, prep.tile_px)
            self.group = [*self.group[: packet.place.frame if packet.place else 0], packet]
            return packet
        return FramePacket(packet.stamp, grid, packet.regions[packet.overview :], self.relevance, image)

    def on_answer(self, feedback: Feedback | None) -> None:
        """The newest picture was answered about; the feedback draws the tokens of the next ones."""
        self._frames.on_answer(feedback)


def fit_with_planes(prep: Preprocessing, picture: Rgb) -> tuple[Rgb, TileGrid, FramePlanes]:
    """Return a picture as `Preprocessing.fit` does, and its planes for the texture, whose tiles have 32 pixels a side.

    Args:
        prep: Sizes that the model takes.
        picture: uint8 [H, W, 3], RGB.

    Raises:
        ShapeError: The picture is too narrow.
    """
    image, grid = prep.fit(picture)
    if prep.tile_px == TILE_PX:
        source = image  # the texture holds the tokens' pixels
    else:
        source = picture
    return image, grid, FramePlanes("rgb", (resize_image(source, grid.height_px, grid.width_px),))


def with_own_tiles(packet: TokenPacket, image: Rgb, tile_px: int) -> TokenPacket:
    """For models whose tiles are not 32 pixels: level 0 as their own processor shows it, coarse regions resized."""
    if tile_px == TILE_PX or not len(packet.regions):
        return packet
    pixels = fit_tiles(torch.from_numpy(packet.host_pixels), tile_px).round().clamp(0, 255).byte().numpy()
    fine = packet.regions[:, 0] == 0
    places = packet.regions[fine, 1] * packet.grid.cols + packet.regions[fine, 2]
    pixels[fine] = to_tiles(torch.from_numpy(image.copy()), tile_px).numpy()[places]
    return replace(packet, pixels=pixels)
