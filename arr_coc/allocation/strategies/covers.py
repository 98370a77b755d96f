"""Covers of the whole frame: fine at high relevance (`foveated`), or around one place (`fixation`)."""

from __future__ import annotations

import torch

from arr_coc.allocation.choice import STICKINESS, AllocationRequest, RegionChoice, first_true, of_regions
from arr_coc.allocation.text_lines import line_tree
from arr_coc.texture.covers import CoverTree, fixation_cover, fixation_point, quadtree, top_level
from arr_coc.texture.regions import ABSENT, level_shape


def foveated(request: AllocationRequest) -> RegionChoice:
    top = top_level(request.shape, request.tokens)
    memory = request.memory
    tree: CoverTree = quadtree(request.shape, top, request.relevance.device)
    if request.lines is not None:
        tree = line_tree(top, request.lines)
    if tree.roots > request.tokens:
        return _few(request, tree)
    worth = tree.split_worth(request.relevance, memory.previous, STICKINESS)
    split = tree.refine(tree.root(), worth, max(request.tokens - memory.exploring_tokens(request.tokens), tree.roots))
    if memory.staleness is not None:
        split = tree.refine(split, tree.pyramid(memory.staleness, largest=True), request.tokens)
    leaf = tree.are_leaves(split)
    first = first_true(leaf, request.tokens)
    mask = leaf.index_select(0, first)
    index = tree.by_place.index_select(0, first)
    regions = tree.places.index_select(0, index) * mask[:, None]
    means = tree.means(request.relevance).index_select(0, index).masked_fill(~mask, 0)
    return RegionChoice(regions, mask, means, tree.shapes(split))


def fixation(request: AllocationRequest) -> RegionChoice:
    tree = quadtree(request.shape, top_level(request.shape, request.tokens))
    if tree.roots > request.tokens:
        return _few(request, tree)
    if request.entropy is None:
        entropy = None
    else:
        entropy = request.entropy.numpy()
    place = fixation_point(request.relevance.numpy(), entropy)
    return of_regions(request, fixation_cover(request.shape, request.tokens, place)[0])


def _few(request: AllocationRequest, tree: CoverTree) -> RegionChoice:
    """A budget too small for any cover: the best regions of the coarsest level."""
    worth = tree.pyramid(request.relevance)[: tree.roots]
    best = (-worth).argsort(stable=True)[: request.tokens].sort().values
    top, (rows, cols) = int(tree.regions[0, 0]), request.shape
    row, col = (torch.arange(side, device=best.device) >> top for side in (rows, cols))
    visible_roots = torch.zeros(tree.roots, dtype=torch.bool, device=best.device).scatter(0, best, True)
    levels = torch.where(visible_roots[row[:, None] * level_shape((rows, cols), top)[1] + col], top, ABSENT).to(
        torch.int8
    )
    mask = torch.ones_like(best, dtype=torch.bool)
    return RegionChoice(tree.places[best], mask, tree.means(request.relevance)[best], levels)
