"""Output of the allocator: packets, the fallback with all tokens, and reasons for every token."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.attending import Tensions
from arr_coc.allocation.frame import FrameAllocation, SelectionInputs, SelectorOptions, TokenPlan
from arr_coc.errors import BudgetError, counted
from arr_coc.texture.regions import level_count, overview_regions, region_mean
from arr_coc.texture.store.base import TextureView, gather_pixels
from arr_coc.types import LEVELS, SCORES, TILE_PX, FramePacket, TokenPacket, TokenReason


def packet_from(view: TextureView, frame: FrameAllocation) -> TokenPacket:
    """Return the allocation's tokens with their pixels as `view` holds them (and its stamp): complete in itself.

    An overview comes first. Pixels of a texture on a device stay there. Raises as `FrameAllocation.allocation`.
    """
    allocation = frame.allocation
    regions = allocation.regions.numpy()
    choice_regions = frame.selection.choice.regions
    return TokenPacket(
        stamp=view.stamp,
        grid=view.grid,
        regions=regions.astype(np.int32),
        relevance=allocation.relevance.numpy().copy(),
        pixels=gather_pixels(view, regions if choice_regions.is_cpu else choice_regions[: len(regions)]),
        overview=allocation.overview,
    )


def overview_packet(view: TextureView, tokens: int, regions: npt.NDArray[np.integer[Any]] | None = None) -> TokenPacket:
    """Return the packet that a glance takes: an overview of the frame, whose regions are all equally relevant.

    Args:
        view: Texture of the frame.
        tokens: Limit of the number of regions.
        regions: Regions int [K, 3] of the overview; None: the finest ones within the limit.

    Raises:
        BudgetError: No level of the frame is so coarse.
    """
    if regions is None:
        regions = overview_regions(view.grid.shape, tokens)
    if not len(regions):
        least = level_count(view.grid.shape, LEVELS - 1)
        raise BudgetError(
            f"an overview of this frame takes at least {counted(least, 'token')}, got {tokens}", "raise the budget"
        )
    return TokenPacket(
        stamp=view.stamp,
        grid=view.grid,
        regions=regions.astype(np.int32),
        relevance=np.ones(len(regions), np.float32),
        pixels=gather_pixels(view, regions),
        overview=len(regions),
    )


def frame_packet_from(view: TextureView, frame: FrameAllocation) -> FramePacket:
    """Return the whole of level 0 with the allocation; `image` is the view's own memory, valid while its lease lasts,
    or a copy in which the tiles are black that the question is not about.

    An overview is left out: it adds nothing if the whole frame is encoded.
    """
    image = view.read(0)
    within = frame.inputs.within
    if within is not None:
        mask = within.numpy().repeat(TILE_PX, axis=0).repeat(TILE_PX, axis=1)
        image = np.where(mask[..., None], image, np.uint8(0))
    return FramePacket(
        stamp=view.stamp,
        grid=view.grid,
        regions=frame.allocation.regions.numpy()[frame.overview :].astype(np.int32),
        relevance=frame.relevance.cpu().numpy().copy(),
        image=image,
    )


def all_tokens(view: TextureView, within: torch.Tensor | None = None) -> FrameAllocation:
    """Return every tile of the frame at level 0, or of those `within`, bool [gh, gw], all equally relevant; for a frame
    whose allocation fails."""
    (rows, cols), no_regions = view.grid.shape, np.zeros((0, 3), np.int64)
    if within is None:
        tokens = rows * cols
    else:
        tokens = int(within.sum())
    relevance = torch.ones(rows, cols)
    plan = TokenPlan(tokens, no_regions, no_regions, tokens)
    inputs = SelectionInputs(SelectorOptions("all", Tensions()), plan, relevance, within=within)
    return FrameAllocation(view.stamp, relevance, torch.zeros(3, rows, cols), torch.zeros(3), inputs)


def weights_of(frame: FrameAllocation) -> dict[str, float]:
    """Return each score's weight in the balance, 1 in all; 0 if nothing was balanced, as in a frame that is shown
    whole."""
    return dict(zip(SCORES, map(float, _normalised(frame)), strict=True))


def explain(frame: FrameAllocation, regions: npt.NDArray[np.integer[Any]] | None = None) -> list[TokenReason]:
    """Return the reasons for every token of a frame, in token order, or for `regions` [K, 3] in its place. Pure; plain
    numbers, fit for JSON."""
    if regions is None:
        regions = frame.allocation.regions.numpy()
    scores = np.stack([region_mean(regions, score) for score in frame.scores.cpu().numpy()])
    parts = _normalised(frame)[:, None] * scores
    balance = parts.sum(axis=0)
    shares = parts / np.where(balance > 0, balance, 1)
    now = balance
    if frame.maps is not None and frame.maps.realised.gaze is not None:
        balanced = np.tensordot(_normalised(frame), frame.scores.cpu().numpy(), 1)
        now = region_mean(regions, balanced * frame.maps.realised.gaze.cpu().numpy())
    relevance = region_mean(regions, frame.relevance.cpu().numpy())
    ranks = np.empty(len(regions), np.int64)
    ranks[np.argsort(-relevance, kind="stable")] = np.arange(1, len(regions) + 1)
    return [
        TokenReason(
            level=int(level),
            row=int(row),
            col=int(col),
            rank=int(ranks[index]),
            relevance=float(relevance[index]),
            now=float(now[index]),
            memory=float(relevance[index] - now[index]),
            scores=_by_score(scores[:, index]),
            shares=_by_score(shares[:, index]),
        )
        for index, (level, row, col) in enumerate(regions)
    ]


def _normalised(frame: FrameAllocation) -> npt.NDArray[np.float32]:
    weights: npt.NDArray[np.float32] = frame.weights.cpu().numpy()
    return weights / max(float(weights.sum()), 1e-6)


def _by_score(values: npt.NDArray[np.floating[Any]]) -> dict[str, float]:
    return dict(zip(SCORES, map(float, values), strict=True))
