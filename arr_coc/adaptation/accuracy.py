"""Accuracy of an allocator: shares of the wanted tiles that it shows, and IoU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.adaptation.cases import AllocatorCase, Embedder
from arr_coc.adaptation.losses import LEAST_SHARE
from arr_coc.allocation.attending import allocate
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import TextureArray
from arr_coc.texture.regions import shape_map

SMALL_SHARE = 0.10

Tiles = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MapAccuracy:
    """Result of one case, or its mean over several.

    `recall`: the share of the asked tiles that are shown at level 0, of 25 % of the tokens, and `recall_small` of 10 %;
    `iou` of the tiles at level 0 with the asked ones, which cannot exceed `iou_bound`, as the number of tiles shown is
    fixed; `matched_iou`: that of as many most relevant tiles as are asked about.
    """

    recall: float
    recall_small: float
    iou: float
    iou_bound: float
    matched_iou: float


def map_accuracy(relevance: torch.Tensor, target: torch.Tensor, levels: bool) -> MapAccuracy:
    """Measure a map of relevance against the target of each tile.

    Args:
        relevance: float32 [gh, gw].
        target: Target relevance, float32 [gh, gw] in [0, 1].
        levels: As `fine_tiles`.
    """
    positives = (target > LEAST_SHARE).numpy()
    selection = fine_tiles(relevance, 0.25, levels)  # share of the frame's tokens that is spent
    small_selection = fine_tiles(relevance, SMALL_SHARE, levels)
    return MapAccuracy(
        recall=_share(selection, positives),
        recall_small=_share(small_selection, positives),
        iou=_iou(selection, positives),
        iou_bound=min(1.0, positives.sum() / max(1, selection.sum())),
        matched_iou=_iou(_tiles(relevance, int(positives.sum()), "topk"), positives),
    )


def fine_tiles(relevance: torch.Tensor, share: float, levels: bool) -> Tiles:
    """Return the tiles that a share of the tokens shows at level 0: bool [gh, gw].

    Args:
        relevance: float32 [gh, gw].
        share: Share of the frame's tokens, in [0, 1].
        levels: Whether the whole frame is covered, which leaves the fewest tiles; else a quarter is spread evenly.
    """
    strategy = "foveated" if levels else "mixed"
    return _tiles(relevance, max(1, round(share * relevance.numel())), strategy)


def _tiles(relevance: torch.Tensor, tokens: int, strategy: str) -> Tiles:
    regions = allocate(relevance, tokens, strategy).regions.numpy()
    return np.asarray(shape_map(regions, (relevance.shape[0], relevance.shape[1])) == 0)


def _share(selection: Tiles, positives: Tiles) -> float:
    return float((selection & positives).sum() / positives.sum())


def _iou(selection: Tiles, positives: Tiles) -> float:
    return float((selection & positives).sum() / (selection | positives).sum())


@torch.inference_mode()
def measure(
    realiser: RelevanceRealiser, cases: Sequence[AllocatorCase], embed: Embedder, *, levels: bool
) -> dict[str, dict[str, float]]:
    """Means by kind of question, and over the kinds ("all"), each with the number of its cases.

    Args:
        realiser: The model of relevance. One without learned parts does not get the question.
        cases: The cases to measure on.
        embed: Embedder of the questions.
        levels: As `fine_tiles`.
    """
    realiser.eval()

    def relevance_of(case: AllocatorCase) -> torch.Tensor:
        texture = TextureArray(case.texture.channels[None], case.texture.entropy[None])
        if realiser.participation.asked is not None:
            query = embed([case.question])
        else:
            query = None
        prior = None if case.prior is None else case.prior[None]
        return realiser(texture, query, prior).relevance[0]

    return _table(((case, relevance_of(case)) for case in cases), levels)


def measure_map(cases: Sequence[AllocatorCase], *, levels: bool) -> dict[str, dict[str, float]]:
    """Return the same of a relevance equal to the targets of every tile: the upper bound."""
    return _table(((case, (case.target > LEAST_SHARE).float()) for case in cases), levels)


def _table(maps: Iterable[tuple[AllocatorCase, torch.Tensor]], levels: bool) -> dict[str, dict[str, float]]:
    by_kind: dict[str, list[MapAccuracy]] = defaultdict(list)
    for case, relevance in maps:
        if (case.target > LEAST_SHARE).any():
            by_kind[case.kind].append(map_accuracy(relevance, case.target, levels))
    kinds = {kind: {**_means(results), "cases": len(results)} for kind, results in sorted(by_kind.items())}
    names = [field.name for field in fields(MapAccuracy)]
    overall = {name: round(float(np.mean([of[name] for of in kinds.values()])), 4) for name in names}
    return {"all": {**overall, "cases": sum(of["cases"] for of in kinds.values())}, **kinds}


def _means(results: Iterable[MapAccuracy]) -> dict[str, float]:
    rows = [asdict(result) for result in results]
    return {name: round(float(np.mean([row[name] for row in rows])), 4) for name in rows[0]}
