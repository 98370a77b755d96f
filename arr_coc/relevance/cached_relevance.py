"""`CachedRelevance`: the relevance of one stream's pictures, made again where something moved."""

from __future__ import annotations

import copy
import ctypes

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.errors import DeviceLost
from arr_coc.ops.kernels import ArrayPool
from arr_coc.relevance.balancing import RelevanceMaps, RelevanceRealiser
from arr_coc.relevance.channels import TextureArray
from arr_coc.relevance.compiled_scores import CompiledScores, follows
from arr_coc.relevance.kernel import kernel_or_none
from arr_coc.relevance.knowing import QueryWeights
from arr_coc.types import QueryEmbedding


class CachedRelevance:
    """The relevance of one stream's pictures, realised again only where texture, prior or question moved."""

    def __init__(self, realiser: RelevanceRealiser, arrays: ArrayPool | None = None, *, stays: bool = False) -> None:
        """`arrays`: those that relevance and scores lie in. `stays`: they stay on the texture's device."""
        self._realiser, self._arrays, self._stays = realiser.eval(), arrays or ArrayPool(), stays
        self._device = torch.device("cpu")
        self.question: npt.NDArray[np.float32] | None = None
        """Components float32 [16] of the question's mean embedding, for realisers with axes that know its model."""
        self._query: torch.Tensor | None = None
        self._query_weights: QueryWeights | None = None
        self._kernel = kernel_or_none() if realiser.channels == "core13" and follows(realiser) else None
        self._compiled: CompiledScores | None = None
        self._texture: TextureArray | None = None
        self._prior: torch.Tensor | None = None
        self._realised: RelevanceMaps | None = None

    def copy_of_realiser(self) -> RelevanceRealiser:
        """Return a copy of the realiser in host memory."""
        return copy.deepcopy(self._realiser).cpu()

    def set_query(self, query: QueryEmbedding) -> None:
        """Ask another question; only learned parts that know its model's embeddings hear it."""
        known, axes = self._realiser.knows(query.model_id), self._realiser.axes
        self.question = None
        if known and axes is not None:
            pooled = torch.from_numpy(query.tokens.astype(np.float32)).mean(dim=0)
            self.question = axes(pooled.to(axes.mean.device)).detach().cpu().numpy()
        self._query = torch.from_numpy(query.tokens.astype(np.float32))[None].to(self._device) if known else None
        self._encode_query()

    def _encode_query(self) -> None:
        with torch.no_grad():
            self._query_weights = self._realiser.participation.encode_query(self._query)
        self._compiled = self._realised = None

    def _move_to(self, device: torch.device) -> None:
        """Scorers and question follow the texture, which changes its device where hardware gives up."""
        if device != self._device:
            self._device = device
            self._realiser.to(device)
            self._query = None if self._query is None else self._query.to(device)
            self._encode_query()

    def compute(self, texture: TextureArray, prior: torch.Tensor | None) -> RelevanceMaps:
        """Relevance of one picture, not batched, with a `prior` float32 [3, gh, gw]; on the CPU, unless it stays.

        It is made on the texture's device. Arguments are compared by identity: the same objects give the same result
        object. Raises NonFiniteError, if it does not stay on a device, which is not waited for; DeviceLost if that has
        no memory left.
        """
        try:
            return self._made(texture, prior)
        except torch.OutOfMemoryError as error:
            reason = str(error).splitlines()[0]
            raise DeviceLost(f"no memory is left on {texture.channels.device} to score frames: {reason}") from error

    def _made(self, texture: TextureArray, prior: torch.Tensor | None) -> RelevanceMaps:
        done, same_picture = self._realised, texture is self._texture
        if done is not None and same_picture and prior is self._prior:
            return done
        self._move_to(texture.channels.device)
        again = done is not None and same_picture
        made = None
        if self._kernel is not None and self._device.type == "cpu":
            made = self._made_compiled(self._kernel, texture, prior, same_picture=again)
        if made is None:
            made = self._made_by_modules(texture, prior, done if again else None)
        self._texture, self._prior, self._realised = texture, prior, made
        return made

    def _made_by_modules(
        self, texture: TextureArray, prior: torch.Tensor | None, done: RelevanceMaps | None
    ) -> RelevanceMaps:
        """Relevance by the realiser's modules; `done`, of the same picture, saves its scores."""
        picture_scores = None if done is None else done.scores[None, :2].to(self._device)
        batch = TextureArray(texture.channels[None], texture.entropy[None])
        known, stays = None if prior is None else prior[None].to(self._device), self._stays
        checked = not stays or self._device.type == "cpu"
        maps = self._realiser(batch, self._query, known, picture_scores, self._query_weights, checked=checked)
        if stays:
            return RelevanceMaps(maps.relevance[0], maps.scores[0], maps.weights[0])
        together = torch.cat([maps.relevance, maps.scores[0]]).cpu()
        return RelevanceMaps(together[0], together[1:], maps.weights[0].cpu())

    @torch.no_grad()
    def _made_compiled(
        self, kernel: ctypes.CDLL, texture: TextureArray, prior: torch.Tensor | None, *, same_picture: bool
    ) -> RelevanceMaps | None:
        """The same by the compiled kernel; None where something is not finite."""
        rows, cols = texture.entropy.shape
        scores = self._compiled
        if scores is None or scores.shape != (rows, cols) or scores.is_outdated:
            scores, same_picture = (
                CompiledScores(kernel, self._realiser, (rows, cols), self._query, self._query_weights, self._arrays),
                False,
            )
            self._compiled = scores
        if not same_picture:
            scores.score(texture)
        maps = scores.balance(prior)
        return None if maps is None else RelevanceMaps(*maps)
