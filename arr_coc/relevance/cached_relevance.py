"""`CachedRelevance`: the relevance of one stream's pictures, computed again only after a change.

On the CPU `CompiledScores` does it by the compiled kernel, one picture after the other. The first layers' sums of a
tile and its neighbours are kept, and made again if a channel changed. One channel, the distance to the colour
clusters, changes everywhere when one tile does: its part is kept apart, and added for every picture.
"""

from __future__ import annotations

import copy
import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from arr_coc.errors import DeviceLost
from arr_coc.relevance import contradiction
from arr_coc.relevance.balancing import AdaptiveTensionBalancer, RelevanceMaps, RelevanceRealiser
from arr_coc.relevance.channels import TextureArray
from arr_coc.relevance.kernel import kernel_or_none
from arr_coc.relevance.knowing import (
    ALONE,
    DOUBT,
    FAINT,
    HIDDEN,
    NARROW,
    WEAK_SALIENCY,
    FilmWeights,
    InformationScorer,
    ParticipatoryScorer,
    PerspectivalScorer,
    QueryAttention,
    QueryCrossAttention,
    QueryWeights,
)
from arr_coc.relevance.profiles import CORE
from arr_coc.texture.kernels import ArrayPool
from arr_coc.types import QueryEmbedding

LANES = 16
"""Most columns that the kernel takes together, as kernels/scores.cpp has it."""

CLUSTERS = 12
"""Channel of `core13` that depends on the whole frame."""

Map = npt.NDArray[np.float32]


class KernelScorer(ctypes.Structure):
    """`Scorer` of kernels/scores.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rows", "cols", "film", "fresh")),
        ("stride", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("weights", "seen", "kept", "asked", "changed")),
    )


class KernelBalance(ctypes.Structure):
    """`Balance` of kernels/scores.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rows", "cols", "width", "learned", "asked", "hears")),
        *((name, ctypes.c_void_p) for name in ("statistics", "bias", "out", "out_bias")),
        ("recall", ctypes.c_float * 2),
        *((name, ctypes.c_float) for name in ("weak", "doubt", "alone", "faint")),
        *((name, ctypes.c_float) for name in ("looked_away", "looked_at", "sure", "tiny")),
    )


class CompiledScores:
    """Scores and relevance of one stream's pictures of one grid for one question; used by one thread.

    They are those of `RelevanceRealiser`, but for rounding (below 1e-6).
    """

    def __init__(
        self,
        kernel: ctypes.CDLL,
        realiser: RelevanceRealiser,
        shape: tuple[int, int],
        query: torch.Tensor | None,
        query_weights: QueryWeights | None,
        arrays: ArrayPool,
    ) -> None:
        """`query` [1, Lq, D] and `query_weights` as `RelevanceRealiser` takes them."""
        self._kernel = kernel
        self._realiser = realiser
        self.shape = shape
        self._arrays = arrays
        if query_weights is None:
            self._query_scorer = None
        else:
            self._query_scorer = realiser.participation.asked
        self._query_weights = query_weights
        film = isinstance(self._query_scorer, QueryAttention)
        # weights that came back from a device while frames were allocated are not trained any more
        self._parameters = [parameter for parameter in realiser.parameters() if not parameter.is_inference()]
        self._built_versions = self._versions
        self._scores = arrays.copy(np.zeros((3, *shape), np.float32))
        self._weights = pack_weights(realiser, query_weights if isinstance(query_weights, FilmWeights) else None)
        rows, cols = self.shape
        chunks = -(-cols // LANES)
        stride = chunks * LANES + 2
        self._state: list[npt.NDArray[Any]] = [
            self._weights,
            np.zeros((CORE + 1, rows + 2, stride), np.float32),
            np.zeros((rows, chunks, 2 * HIDDEN, LANES), np.float32),
            np.zeros((NARROW if film else 0, rows + 2, stride), np.float32),
            np.zeros((rows, cols), np.uint8),
        ]
        self._scorer = KernelScorer(rows, cols, film, 1, stride, *(array.ctypes.data for array in self._state))
        self._balance = self._make_balance(query)

    def _make_balance(self, query: torch.Tensor | None) -> KernelBalance:
        balancer = self._realiser.balancer
        participation = self._realiser.participation
        self._balance_weights = pack_balance(balancer, query)
        balance = KernelBalance(*self.shape, len(self._balance_weights[1]), self._query_scorer is not None)
        balance.asked = query is not None and balancer.query is not None
        balance.hears = query is not None and participation.asked is not None
        for name, array in zip(("statistics", "bias", "out", "out_bias"), self._balance_weights, strict=True):
            setattr(balance, name, array.ctypes.data)
        balance.recall[:] = participation.recall.detach().softmax(dim=0).tolist()
        balance.weak = WEAK_SALIENCY
        balance.doubt = DOUBT
        balance.alone = ALONE
        balance.faint = FAINT
        balance.looked_away = contradiction.LOOKED_AWAY
        balance.looked_at = contradiction.LOOKED_AT
        balance.sure = contradiction.GLANCE_TRUST
        balance.tiny = contradiction.TINY
        return balance

    @property
    def is_outdated(self) -> bool:
        """True if a weight of the realiser was written to since, as in training."""
        return self._versions != self._built_versions

    @property
    def _versions(self) -> list[int]:
        return [parameter._version for parameter in self._parameters]

    def score(self, texture: TextureArray) -> None:
        """Take a picture in: its scores, as far as they follow from picture and question."""
        channels = texture.channels.contiguous()
        entropy = texture.entropy.contiguous()
        places = channels.data_ptr(), entropy.data_ptr(), self._arrays.address(self._scores)
        self._kernel.scores_picture(ctypes.byref(self._scorer), *places)
        self._scorer.fresh = 0
        if self._query_scorer is not None and not self._scorer.film:
            batch = TextureArray(texture.channels[None], texture.entropy[None])
            self._scores[2] = self._query_scorer(batch, self._query_weights)[0].detach().numpy()

    def balance(self, prior: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """Relevance [gh, gw], scores [3, gh, gw] and weights [3] of the picture, with a `prior` [3, gh, gw]; None if
        they are not finite."""
        arrays = self._arrays
        scores = arrays.copy(self._scores)
        relevance = arrays.take(self.shape)
        weights = arrays.take((3,))
        prior_map = None if prior is None else prior.contiguous()
        places = (arrays.address(array) for array in (scores, weights, relevance))
        if prior_map is None:
            prior_at = None
        else:
            prior_at = prior_map.data_ptr()
        finite = self._kernel.scores_balance(ctypes.byref(self._balance), prior_at, *places)
        if not finite:
            return None
        return torch.from_numpy(relevance), torch.from_numpy(scores), torch.from_numpy(weights)


def follows(realiser: RelevanceRealiser) -> bool:
    """Return True if the kernel computes what this realiser does: each of its parts is the product's own class, and
    nothing is hooked to them."""
    classes: dict[str, type[nn.Module]] = {
        "": RelevanceRealiser,
        "information": InformationScorer,
        "perspective": PerspectivalScorer,
        "participation": ParticipatoryScorer,
        "balancer": AdaptiveTensionBalancer,
    }
    if any(type(realiser.get_submodule(name)) is not kind for name, kind in classes.items()):
        return False
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in realiser.modules())
    return not hooked and type(realiser.participation.asked) in (type(None), QueryAttention, QueryCrossAttention)


def pack_weights(realiser: RelevanceRealiser, film: FilmWeights | None = None) -> Map:
    """Return the weights that `picture` of kernels/scores.h reads, in its order; zeros for those of a question without
    one."""
    perspective = realiser.perspective
    query_scorer = realiser.participation.asked
    first = [_first_layer(perspective.wide)]
    first.append(
        _first_layer(query_scorer.near) if isinstance(query_scorer, QueryAttention) else torch.zeros_like(first[0])
    )
    first_weights = torch.cat(first, dim=2)
    bias = [_bias(perspective.wide), torch.zeros(HIDDEN)]
    parts = [
        *(realiser.information.gate.weight, _bias(realiser.information.gate)),
        *(torch.zeros(2 * HIDDEN), first_weights[[*range(CLUSTERS), CORE]], first_weights[CLUSTERS]),
        *(_by_input(perspective.narrow), _bias(perspective.narrow), perspective.out.weight, _bias(perspective.out)),
    ]
    if isinstance(query_scorer, QueryAttention) and film is not None:
        bias[1] = _bias(query_scorer.near)
        parts += [film.weight[0].T, film.bias, _by_input(query_scorer.narrow), _bias(query_scorer.narrow)]
        parts += [
            query_scorer.around.weight,
            _bias(query_scorer.around),
            query_scorer.out.weight,
            _bias(query_scorer.out),
        ]
    parts[2] = torch.cat(bias)
    return np.concatenate([_array(part).ravel() for part in parts])


def pack_balance(balancer: AdaptiveTensionBalancer, query: torch.Tensor | None = None) -> list[Map]:
    """Return a balancer's weights as kernels read them: of statistics [W, 6], their bias [W], to which a `query`
    [1, Lq, D] adds, of the output [3, W], and its bias [3]."""
    bias = balancer.statistics.bias.detach()
    if query is not None and balancer.query is not None:
        bias = bias + balancer.pool_query(query)[0]
    return [_array(part) for part in (balancer.statistics.weight, bias, balancer.out.weight, balancer.out.bias)]


def _first_layer(layer: nn.Conv2d) -> torch.Tensor:
    """Return a first layer's weights by input, neighbour and output [14, 9, 32]: 0 for entropy if it does not see
    that."""
    weight = layer.weight.detach().flatten(2).permute(1, 2, 0)
    if len(weight) > CORE:
        return weight
    return torch.cat([weight, torch.zeros_like(weight[:1])])


def _by_input(layer: nn.Conv1d | nn.Conv2d) -> torch.Tensor:
    return layer.weight.flatten(1).T


def _bias(layer: nn.Conv1d | nn.Conv2d) -> torch.Tensor:
    assert layer.bias is not None
    return layer.bias.detach()


def _array(part: torch.Tensor) -> Map:
    return np.ascontiguousarray(part.detach().numpy(), np.float32)


class CachedRelevance:
    """The relevance of one stream's pictures, computed again only if texture, prior or question changed."""

    def __init__(self, realiser: RelevanceRealiser, arrays: ArrayPool | None = None, *, stays: bool = False) -> None:
        """`arrays`: pool for relevance and scores. `stays`: they stay on the texture's device."""
        self._realiser = realiser.eval()
        self._arrays = arrays or ArrayPool()
        self._stays = stays
        self._device = torch.device("cpu")
        self.question: npt.NDArray[np.float32] | None = None
        """Components float32 [16] of the question's mean embedding, for realisers with axes that know its model."""
        self._query: torch.Tensor | None = None
        self._query_weights: QueryWeights | None = None
        if realiser.channels == "core13" and follows(realiser):
            self._kernel = kernel_or_none()
        else:
            self._kernel = None
        self._compiled: CompiledScores | None = None
        self._texture: TextureArray | None = None
        self._prior: torch.Tensor | None = None
        self._realised: RelevanceMaps | None = None

    def copy_of_realiser(self) -> RelevanceRealiser:
        """Return a copy of the realiser in host memory."""
        return copy.deepcopy(self._realiser).cpu()

    @property
    def trained(self) -> bool:
        """True if the scorers were trained for a model."""
        return bool(self._realiser.trained_for)

    def hears(self, query: QueryEmbedding) -> bool:
        """Return whether relevance depends on a question: learned parts know its model."""
        return self._realiser.knows(query.model_id)

    def copy_for(self, query: QueryEmbedding) -> CachedRelevance:
        """Return the relevance of the same pictures for another question; it shares the realiser."""
        copy = CachedRelevance(self._realiser, self._arrays, stays=self._stays)
        copy.set_query(query)
        return copy

    def set_query(self, query: QueryEmbedding) -> None:
        """Ask another question; only learned parts that know its model's embeddings hear it."""
        is_known = self._realiser.knows(query.model_id)
        axes = self._realiser.axes
        self.question = None
        if is_known and axes is not None:
            pooled = torch.from_numpy(query.tokens.astype(np.float32)).mean(dim=0)
            self.question = axes(pooled.to(axes.mean.device)).detach().cpu().numpy()
        if is_known:
            self._query = torch.from_numpy(query.tokens.astype(np.float32))[None].to(self._device)
        else:
            self._query = None
        self._encode_query()

    def _encode_query(self) -> None:
        with torch.no_grad():
            self._query_weights = self._realiser.participation.encode_query(self._query)
        self._compiled = self._realised = None

    def compute(self, texture: TextureArray, prior: torch.Tensor | None) -> RelevanceMaps:
        """Relevance of one picture, not batched, with a `prior` float32 [3, gh, gw]; on the CPU, unless it stays.

        It is made on the texture's device. Arguments are compared by identity: the same objects give the same result
        object. Raises NonFiniteError, if it does not stay on a device, which is not waited for; DeviceLost if that has
        no memory left.
        """
        try:
            return self._compute(texture, prior)
        except torch.OutOfMemoryError as error:
            reason = str(error).splitlines()[0]
            raise DeviceLost(f"no memory is left on {texture.channels.device} to score frames: {reason}") from error

    def _compute(self, texture: TextureArray, prior: torch.Tensor | None) -> RelevanceMaps:
        previous = self._realised
        same_picture = texture is self._texture
        if previous is not None and same_picture and prior is self._prior:
            return previous
        # scorers and question follow the texture, which changes its device if hardware fails
        if texture.channels.device != self._device:
            self._device = texture.channels.device
            self._realiser.to(texture.channels.device)
            if self._query is None:
                self._query = None
            else:
                self._query = self._query.to(texture.channels.device)
            self._encode_query()
        reuses_scores = previous is not None and same_picture
        maps = None
        if self._kernel is not None and self._device.type == "cpu":
            maps = self._compute_compiled(self._kernel, texture, prior, same_picture=reuses_scores)
        if maps is None:
            maps = self._compute_by_modules(texture, prior, previous if reuses_scores else None)
        self._texture = texture
        self._prior = prior
        self._realised = maps
        return maps

    def _compute_by_modules(
        self, texture: TextureArray, prior: torch.Tensor | None, previous: RelevanceMaps | None
    ) -> RelevanceMaps:
        """Relevance by the realiser's modules; `previous`, of the same picture, saves its scores."""
        if previous is None:
            picture_scores = None
        else:
            picture_scores = previous.scores[None, :2].to(self._device)
        batch = TextureArray(texture.channels[None], texture.entropy[None])
        if prior is None:
            batch_prior = None
        else:
            batch_prior = prior[None].to(self._device)
        stays = self._stays
        checked = not stays or self._device.type == "cpu"
        maps = self._realiser(batch, self._query, batch_prior, picture_scores, self._query_weights, checked=checked)
        if stays:
            return RelevanceMaps(maps.relevance[0], maps.scores[0], maps.weights[0])
        host_maps = torch.cat([maps.relevance, maps.scores[0]]).cpu()
        return RelevanceMaps(host_maps[0], host_maps[1:], maps.weights[0].cpu())

    @torch.no_grad()
    def _compute_compiled(
        self, kernel: ctypes.CDLL, texture: TextureArray, prior: torch.Tensor | None, *, same_picture: bool
    ) -> RelevanceMaps | None:
        """Return the same by the compiled kernel; None if a value is not finite."""
        rows, cols = texture.entropy.shape
        scores = self._compiled
        if scores is None or scores.shape != (rows, cols) or scores.is_outdated:
            scores = CompiledScores(
                kernel, self._realiser, (rows, cols), self._query, self._query_weights, self._arrays
            )
            same_picture = False
            self._compiled = scores
        if not same_picture:
            scores.score(texture)
        maps = scores.balance(prior)
        return None if maps is None else RelevanceMaps(*maps)
