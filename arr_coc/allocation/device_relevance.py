"""`DeviceRelevance`: relevance and choice of a stream's frames, made by a texture's hardware and kept there.

It is what `CachedRelevance`, `TemporalBlend` and the strategy `topk` do on the host. Of a frame nothing comes there but
the regions that are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.strategies import STICKINESS, AllocationHistory, RegionChoice
from arr_coc.allocation.temporal import DEAD_BAND, RENEWAL, SETTLED, TAU_MS
from arr_coc.allocation.warping import Warp
from arr_coc.errors import BudgetError, NonFiniteError, OptionError
from arr_coc.relevance import contradiction
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.cached_relevance import follows, pack_balance, pack_weights
from arr_coc.relevance.knowing import ALONE, DOUBT, FAINT, WEAK_SALIENCY
from arr_coc.texture.covers import DULL
from arr_coc.texture.regions import ABSENT
from arr_coc.types import NS_PER_MS, FrameStamp, TileGrid, TileVersions

Map = npt.NDArray[np.float32]


class HardwareRelevance(Protocol):
    """Relevance of one texture's frames on its hardware (`arr_coc.backends.gl.relevance.GlRelevance`)."""

    @property
    def texture(self) -> object: ...

    def step(
        self,
        *,
        new_picture: bool,
        fresh: bool,
        kept: float,
        prior: Map | None,
        factor: Map | None,
        origin: Map | None,
    ) -> None: ...

    def best_tiles(
        self, best: int, neglected: int, shown: Map | None, staleness: Map | None
    ) -> tuple[npt.NDArray[np.int64], Map]: ...

    def read(self) -> Map: ...


@runtime_checkable
class RelevanceView(Protocol):
    """A view whose hardware scores tiles and chooses among them."""

    stamp: FrameStamp
    grid: TileGrid
    versions: TileVersions

    @property
    def texture(self) -> object: ...

    def start_relevance(self, weights: Map, settings: Mapping[str, float]) -> HardwareRelevance: ...


class DeviceRelevance:
    """Relevance of one stream's frames, which stays on the device; used by one thread.

    Parts of the scorers that read a question do not count; all else is as on the host, but for rounding (1e-5). A new
    epoch forgets the frames before.
    """

    def __init__(self, realiser: RelevanceRealiser, tau_ms: float = TAU_MS) -> None:
        """Take the weights of `realiser` as they are now; `tau_ms` is the time constant of blending.

        Raises OptionError for other scorers than those of `core13`, NonFiniteError for weights that are NaN or Inf.
        """
        if realiser.channels != "core13" or not follows(realiser):
            raise OptionError(
                "hardware scores tiles by the channels core13 with the product's own scorers, "
                f"got {realiser.channels}; score them on the host"
            )
        scorers = pack_weights(realiser)
        balancer = pack_balance(realiser.balancer)
        self._weights = np.concatenate([scorers, *(part.ravel() for part in balancer)])
        if not np.isfinite(self._weights).all():  # shaders need not carry a NaN on
            raise NonFiniteError("the weights of the scorers hold NaN or Inf")
        attention, similarity = realiser.participation.recall.detach().softmax(dim=0).tolist()
        self._settings: dict[str, float] = {
            "balancer": len(scorers),
            "width": len(balancer[1]),
            "renewal": RENEWAL,
            "band": DEAD_BAND,
            "settled": SETTLED,
            "weak": WEAK_SALIENCY,
            "odds_limit": DOUBT,
            "alone": ALONE,
            "faint": FAINT,
            "looked_away": contradiction.LOOKED_AWAY,
            "looked_at": contradiction.LOOKED_AT,
            "sure": contradiction.GLANCE_TRUST,
            "tiny": contradiction.TINY,
            "recall_attention": attention,
            "recall_similarity": similarity,
            "dull": DULL,
            "stickiness": 1 + STICKINESS,
        }
        self._tau_ns = tau_ms * NS_PER_MS
        self._hardware: HardwareRelevance | None = None
        self._versions: TileVersions | None = None
        self._shape = (0, 0)
        self._media_ns = 0

    def step(
        self,
        view: RelevanceView,
        *,
        prior: torch.Tensor | None = None,
        factor: torch.Tensor | None = None,
        warp: Warp | None = None,
    ) -> None:
        """Take in a frame. The device is not waited for.

        Args:
            view: Texture of the frame.
            prior: What answers taught: attention, similarity and trust, float32 [3, gh, gw] in host memory; None
                before the first answer.
            factor: Of each tile's relevance, float32 [gh, gw] in host memory, as the gaze prior and zones have it;
                None for 1.
            warp: From this frame to the one before; None: nothing moved.

        Raises:
            DeviceLost: The device failed.
            StoreError: After the lease has ended.
        """
        hardware = self._hardware
        if hardware is None or hardware.texture is not view.texture:
            hardware = self._hardware = view.start_relevance(self._weights, self._settings)
            self._shape = view.grid.shape
            self._versions = None
        before = self._versions
        fresh = before is None or before.epoch != view.versions.epoch
        elapsed_ns = max(view.stamp.media_ns - self._media_ns, 0)
        hardware.step(
            new_picture=before is None or bool(before.stale(view.versions).any()),
            fresh=fresh,
            kept=math.exp(-elapsed_ns / self._tau_ns),
            prior=None if prior is None else prior.numpy(),
            factor=None if factor is None else factor.numpy(),
            origin=None if warp is None else warp.origin,
        )
        self._versions = view.versions
        self._media_ns = view.stamp.media_ns

    def choose(self, tokens: int, memory: AllocationHistory | None = None) -> RegionChoice:
        """Return the tiles that the strategy `topk` chooses from the newest frame; only they come to the host.

        Args:
            tokens: How many, 1 or more; all tiles, if there are fewer.
            memory: What was shown before, and what deserves a look, in host memory.

        Raises:
            BudgetError: No token, or no frame yet.
            DeviceLost: The device failed.
        """
        hardware = self._started()
        if tokens < 1:
            raise BudgetError(f"a choice takes 1 token or more, got {tokens}")
        memory = memory or AllocationHistory()
        rows, cols = self._shape
        count = min(tokens, rows * cols)
        exploring = memory.exploring_tokens(count)
        shown = None if memory.previous is None else (memory.previous == 0).float().numpy()
        staleness = None if memory.staleness is None else memory.staleness.numpy()
        chosen, relevance = hardware.best_tiles(count - exploring, exploring, shown, staleness)
        index = torch.from_numpy(chosen)
        levels = torch.full((rows * cols,), ABSENT, dtype=torch.int8)
        levels[index] = 0
        return RegionChoice(
            torch.stack([torch.zeros_like(index), index // cols, index % cols], dim=1),
            torch.ones(count, dtype=torch.bool),
            torch.from_numpy(relevance),
            levels.reshape(rows, cols),
        )

    def read(self) -> Map:
        """Return maps of the newest frame, for people: information, perspective, participation, relevance, and that as
        it is blended, float32 [5, gh, gw]. Raises BudgetError before the first frame, DeviceLost."""
        return self._started().read()

    def _started(self) -> HardwareRelevance:
        if self._hardware is None:
            raise BudgetError("there is no frame yet to choose from; give one to `step`")
        return self._hardware
