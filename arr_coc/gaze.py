"""From pictures to what a model is shown of them: fitted as its own processor would, allocated, and packed."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocator import AllocatorOptions, StreamAllocator
from arr_coc.packets import packet_from
from arr_coc.qwen.encoding import Packet
from arr_coc.qwen.pictures import Rgb
from arr_coc.qwen.positions import grid_regions
from arr_coc.qwen.preprocess import Preprocessing, fit_tiles, to_tiles
from arr_coc.qwen.resize import resize_image, smart_resize
from arr_coc.relevance import RelevanceRealiser
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
from arr_coc.updater import TextureUpdater

log = logging.getLogger(__name__)


class Gaze:
    """Looks at pictures in order, with the texture and the allocator of one stream.

    `realiser` is the model's own, if it has one. `relevance` float32 [gh, gw] is the newest picture's. `fallbacks`
    counts pictures whose allocation failed, so that all their tokens are shown. Raises BudgetError and StrategyError
    for options that do not hold.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        encode: Encode,
        options: AllocatorOptions,
        query: QueryEmbedding,
        realiser: RelevanceRealiser | None = None,
    ) -> None:
        self._preprocessing = preprocessing
        self._encode = encode
        self._allocator = StreamAllocator(options, realiser)
        self._allocator.set_query(query)
        self._texture = TextureUpdater()
        self.relevance: npt.NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self.fallbacks = 0

    def look(self, picture: Rgb, stamp: FrameStamp) -> Packet:
        """What the model is shown of a picture uint8 [H, W, 3]. Raises ShapeError where it is too narrow."""
        prep = self._preprocessing
        height_px, width_px = picture.shape[:2]
        image = resize_image(picture, *smart_resize(height_px, width_px, prep.tile_px, prep.min_px, prep.max_px))
        rows, cols = image.shape[0] // prep.tile_px, image.shape[1] // prep.tile_px
        grid = TileGrid.of(rows * TILE_PX, cols * TILE_PX)
        try:
            packet = self._allocate(resize_image(picture, grid.height_px, grid.width_px), stamp)
        except Exception as error:
            self.fallbacks += 1
            log.warning("allocating tokens failed (%s); the frame is shown with all its tokens", error)
            self.relevance = np.ones(grid.shape, np.float32)
            every = grid_regions(grid).numpy().astype(np.int32)
            return FramePacket(stamp, grid, every, self.relevance, image)
        if self._encode in NEEDS_TOKENS_ONLY:
            return _with_own_tiles(packet, image, prep.tile_px)
        return FramePacket(packet.stamp, grid, packet.regions, self.relevance, image)

    def answered(self, feedback: Feedback | None) -> None:
        """The newest picture was answered about; what that teaches draws the tokens of those that follow."""
        self._allocator.mark_answered()
        if feedback is not None:
            self._allocator.apply_feedback(feedback)

    def _allocate(self, image: Rgb, stamp: FrameStamp) -> TokenPacket:
        update = self._texture.process(FramePlanes("rgb", (image,)), stamp)
        with self._texture.lease() as view:
            frame = self._allocator.allocate(view, update.shift)
            self.relevance = frame.relevance.numpy().copy()
            return packet_from(view, frame)


def _with_own_tiles(packet: TokenPacket, image: Rgb, tile_px: int) -> TokenPacket:
    """For models whose tiles are not 32 pixels: level 0 as their own processor shows it, coarse regions resized."""
    if tile_px == TILE_PX:
        return packet
    pixels = fit_tiles(torch.from_numpy(packet.pixels), tile_px).round().clamp(0, 255).byte().numpy()
    fine = packet.regions[:, 0] == 0
    places = packet.regions[fine, 1] * packet.grid.cols + packet.regions[fine, 2]
    pixels[fine] = to_tiles(torch.from_numpy(image.copy()), tile_px).numpy()[places]
    return replace(packet, pixels=pixels)
