"""`HistoryTracker`: what one epoch's frames leave for the channels of the next, as a `FrameHistory`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.temporal import RENEWAL, Map, attention_of
from arr_coc.allocation.warping import Warp
from arr_coc.relevance.channels import TextureArray
from arr_coc.relevance.history import LONG_S, FrameHistory, with_history
from arr_coc.texture.regions import paint
from arr_coc.types import NS_PER_S, Feedback, TileMotion, TileVersions

_TICK_NS = NS_PER_S // 4  # ages go in steps, so that a still scene has a still history


@dataclass(frozen=True, slots=True)
class _Attention:
    """Attention of the last answer and the mean over answers, both [gh, gw] in [0, 1]; `media_ns` is that answer's."""

    last: Map
    mean: Map
    media_ns: int


@dataclass(frozen=True, slots=True)
class _Embedding:
    """Components [16, gh, gw] of the tiles that were shown, 0 elsewhere, and their appearance [C, gh, gw] then."""

    components: Map
    appearance: Map


class HistoryTracker:
    """Memory of relevance, changes, attention and embeddings of one epoch's tiles, carried along with motion.

    For each frame in order: `follow` the motion, `observe`, `fill`, `remember`.
    """

    def __init__(self) -> None:
        self._newest: Map | None = None
        self._relevance: Map | None = None
        self._before: npt.NDArray[np.float32] | None = None
        self._changed_ns: npt.NDArray[np.float64] | None = None
        self._versions: TileVersions | None = None
        self._motion: Map | None = None
        self._attention: _Attention | None = None
        self._embedding: _Embedding | None = None
        self._inputs: tuple[object, ...] = ()
        self._history = FrameHistory()
        self._filled: tuple[TextureArray, FrameHistory, TextureArray] | None = None

    def follow(self, motion: TileMotion, warp: Warp, step: Warp | None) -> None:
        """Tiles moved by `motion` with the frame to come, which is `warp`, and by whole tiles with `step`; of those
        that come into view nothing is known."""
        self._advance()
        if self._before is not None:
            relevance, confidence = self._before
            confidence = np.minimum(_sampled(warp, confidence, 0), motion.confidence)
            self._before = np.stack([_sampled(warp, relevance, 0), np.where(warp.in_view, confidence, np.float32(0))])
            self._relevance = None  # what is warped is not the newest relevance, even if that is the same object
        if step is None:
            return
        if self._changed_ns is not None:
            self._changed_ns = _nearest(step, self._changed_ns, np.inf)
        if (attention := self._attention) is not None:
            self._attention = _Attention(
                _nearest(step, attention.last, 0), _nearest(step, attention.mean, 0), attention.media_ns
            )
        if (embedding := self._embedding) is not None:
            self._embedding = _Embedding(
                _nearest(step, embedding.components, 0), _nearest(step, embedding.appearance, np.nan)
            )

    def forget_question(self) -> None:
        """Another question: attention was about the old one. Embeddings are about the picture, and stay."""
        self._attention = None

    def observe(self, versions: TileVersions, motion: TileMotion | None, media_ns: int) -> None:
        """A frame with these versions, whose tiles moved by `motion` since the frame before."""
        self._advance()
        shape = versions.frame.shape
        if self._changed_ns is None or self._versions is None:
            self._changed_ns = np.full(shape, float(media_ns))
        elif versions is not self._versions:
            stale = self._versions.stale(versions)
            if stale.any():
                self._changed_ns = np.where(stale, float(media_ns), self._changed_ns)
        self._versions = versions
        if motion is None:
            self._motion = None
        else:
            self._motion = np.stack([motion.dy_px, motion.dx_px, motion.confidence])

    def update(self, feedback: Feedback, shape: tuple[int, int], warp: Warp, appearance: Map) -> None:
        """Take in an answer's feedback.

        Args:
            feedback: Attention, and perhaps embeddings, of the tokens of the answer's frame.
            shape: Rows and columns of the grid (gh, gw).
            warp: Warp from the newest frame to the answer's.
            appearance: Appearance of the tiles in the answer's frame, float32 [C, gh, gw]; NaN if unknown.
        """
        attention = _nearest(warp, paint(feedback.regions, attention_of(feedback, shape), shape, 0), 0)
        mean = attention
        media_ns = feedback.stamp.media_ns
        past = self._attention
        if past is not None:
            # time constant of the mean attention of the answers
            decay = math.exp(-max(media_ns - past.media_ns, 0) / (5.0 * NS_PER_S))
            mean = (decay * past.mean + (1 - decay) * attention).astype(np.float32)
        self._attention = _Attention(attention, mean, media_ns)
        if feedback.embedding is not None:
            self._embedding = self._new_embedding(feedback, shape, warp, _sampled(warp, appearance, np.nan))

    def fill(
        self, texture: TextureArray, media_ns: int, appearance: Map, prior: Map | None, question: Map | None
    ) -> TextureArray:
        """Return the texture of the frame observed last, with the channels of its past; the same object while neither
        moves.

        Args:
            texture: Texture array of the frame.
            media_ns: Media time of the frame.
            appearance: Appearance of its tiles, float32 [C, gh, gw].
            prior: Attention, similarity and trust, float32 [3, gh, gw]; None before the first answer.
            question: Components of the question's embedding, float32 [16]; None without one.

        Arrays are compared by identity.
        """
        history = self.evaluate(media_ns, appearance, prior, question)
        if self._filled is None or self._filled[0] is not texture or self._filled[1] is not history:
            self._filled = texture, history, with_history(texture, history)
        return self._filled[2]

    def evaluate(self, media_ns: int, appearance: Map, prior: Map | None, question: Map | None) -> FrameHistory:
        """Return the history of the frame observed last.

        The same object while nothing moved, for a quarter of a second or, once no tile has changed for long, for good.

        Args:
            media_ns: Media time of the frame.
            appearance: Appearance of its tiles, float32 [C, gh, gw].
            prior: Attention, similarity and trust, float32 [3, gh, gw]; None before the first answer.
            question: Components of the question's embedding, float32 [16]; None without one.
        """
        assert self._changed_ns is not None, "observed before"
        age_s = np.maximum(media_ns // _TICK_NS * _TICK_NS - self._changed_ns, 0) / NS_PER_S
        unchanged_s = np.minimum(age_s, LONG_S).astype(np.float32)
        steady = self._history.unchanged_s is not None and np.array_equal(unchanged_s, self._history.unchanged_s)
        inputs = (self._before, self._motion, self._attention, self._embedding, appearance, prior, question)
        if steady and len(inputs) == len(self._inputs) and all(map(is_, inputs, self._inputs)):
            return self._history
        self._inputs = inputs
        attention = None
        if prior is not None and self._attention is not None:
            attention = np.stack([self._attention.last, self._attention.mean, prior[2]])
        embedding = None
        if self._embedding is not None:  # it fades on tiles whose appearance has changed
            change = np.nan_to_num(np.abs(appearance - self._embedding.appearance).max(axis=0))
            embedding = self._embedding.components * (1 - np.minimum(change / np.float32(RENEWAL), 1))
        self._history = FrameHistory(
            motion=self._motion,
            relevance=self._before,
            unchanged_s=unchanged_s,
            attention=attention,
            embedding=embedding,
            question=question,
        )
        return self._history

    def remember(self, relevance: Map) -> None:
        """The frame's relevance [gh, gw], as it was held: the next frame's previous one. Compared by identity."""
        self._newest = relevance

    def _advance(self) -> None:
        """Another frame begins: what was the newest relevance is the one before."""
        if self._newest is not None and (self._before is None or self._newest is not self._relevance):
            self._relevance = self._newest
            self._before = np.stack([self._newest, np.ones_like(self._newest)])
        self._newest = None

    def _new_embedding(self, feedback: Feedback, shape: tuple[int, int], warp: Warp, appearance: Map) -> _Embedding:
        """Return the earlier map, overlaid by the tokens of this answer; a coarse one covers all of its tiles."""
        assert feedback.embedding is not None
        order = paint(feedback.regions, np.arange(len(feedback.regions)), shape, -1)
        order = _nearest(warp, order, -1)
        components = np.zeros((feedback.embedding.shape[1], *shape), np.float32)
        old_appearance = np.full((1, *shape), np.nan, np.float32)
        if self._embedding is not None:
            components = self._embedding.components.copy()
            old_appearance = self._embedding.appearance
        mask = order >= 0
        components[:, mask] = feedback.embedding[order[mask]].T
        return _Embedding(components, np.where(mask, appearance, old_appearance))


def _sampled(warp: Warp, values: Map, entering: float) -> Map:
    return warp.sample(torch.from_numpy(values), entering).numpy()


def _nearest(warp: Warp, values: npt.NDArray[Any], entering: float) -> npt.NDArray[Any]:
    return warp.nearest(torch.from_numpy(values), entering).numpy()
