"""Past of a picture for allocators that read one: a glance at it, and the axes of its model's embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.history import HistoryTracker
from arr_coc.allocation.packets import overview_packet
from arr_coc.allocation.temporal import FeedbackPrior, Map
from arr_coc.allocation.warping import Warp
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.preprocess import grid_regions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.vision import encode_regions
from arr_coc.relevance.embedding_axes import EmbeddingAxes
from arr_coc.relevance.history import FrameHistory
from arr_coc.texture.store.base import TextureView
from arr_coc.types import FramePlanes, FrameStamp
from arr_coc.video.texture_updater import TextureUpdater

Rgb = npt.NDArray[np.uint8]


@torch.inference_mode()
def fit_axes(axes: EmbeddingAxes, qwen: QwenVL, pictures: Iterable[Rgb]) -> None:
    """Make the axes the principal components of the model's embeddings of all tiles of pictures uint8 [H, W, 3].

    Done once, before training begins. Raises ShapeError if the pictures have too few tiles.
    """
    rows = []
    for picture in pictures:
        with _view_of(picture) as view:
            regions = grid_regions(view.grid, qwen.vision_device)
            pixels = torch.from_numpy(view.gather(regions.cpu().numpy())).to(qwen.vision_device)
            tokens = encode_regions(qwen.tower, pixels[None], regions[None], view.grid, qwen.preprocessing.scale)
            rows.append(tokens.embeds[0].float().cpu())
    axes.fit(torch.cat(rows) if rows else torch.zeros(0, len(axes.mean)))


class GlancedPast:
    """Glance at a picture's overview with a question in mind, as a stream does before it allocates a frame.

    Embeddings are fed back if the layer's channels show them.
    """

    def __init__(self, qwen: QwenVL, layer: ARRCOCLayer) -> None:
        self._axes = layer.realiser.axes
        self._session = AnswerSession(replace(qwen, allocator=layer))

    def look(self, picture: Rgb, question: str) -> tuple[FrameHistory, Map]:
        """Look at a picture uint8 [H, W, 3], and return what that teaches: its history, and the prior of scorers
        float32 [3, gh, gw] (attention, similarity, trust). Raises as `AnswerSession.glance`."""
        with _view_of(picture) as view:
            feedback = self._session.glance(overview_packet(view, 64), question).feedback
            shape, versions = view.grid.shape, view.versions
        appearance = np.zeros((1, *shape), np.float32)
        feedback_prior, tracker = FeedbackPrior(), HistoryTracker()
        tracker.observe(versions, None, 0)
        looks = torch.from_numpy(appearance)
        feedback_prior.on_request(0, looks)
        feedback_prior.update(feedback, looks, Warp.identity(shape))
        tracker.update(feedback, shape, Warp.identity(shape), appearance)
        taught = feedback_prior.evaluate(0, looks)
        assert taught is not None, "it was updated"
        prior = taught.numpy()
        return tracker.evaluate(0, appearance, prior, self._components(question)), prior

    def _components(self, question: str) -> Map | None:
        if self._axes is None:
            return None
        embedding = self._session.qwen.embed_query(question).tokens
        components: Map = self._axes(torch.from_numpy(embedding.mean(axis=0))).numpy()
        return components


@contextmanager
def _view_of(picture: Rgb) -> Iterator[TextureView]:
    texture = TextureUpdater()
    texture.process(FramePlanes("rgb", (np.ascontiguousarray(picture),)), FrameStamp(0, 0, 0))
    try:
        with texture.lease() as view:
            yield view
    finally:
        texture.close()
