"""Profile `full40`: forty channels a tile, those of the picture and those of what came before.

| channel | content | range | from |
| --- | --- | --- | --- |
| 0, 1, 2 | red, green, blue | [0, 1] | level 5 |
| 3, 4 | row, column: 0 at the first, 1 at the last | [0, 1] | the grid |
| 5 | eccentricity: distance to the last relevance peak, by the grid's diagonal | [0, 1] | history |
| 6 | Sobel magnitude, mean over the tile | [0, 1] | level 1, halo of one texel |
| 7 | 1 − channel 6 | [0, 1] | level 1, halo of one texel |
| 8 | absolute Laplacian of luma, mean over the tile | [0, 1] | level 1, halo of one texel |
| 9 | Gaussian low-pass of luma, σ of 1.5 tiles | [0, 1] | level 5 |
| 10 | motion since the frame before, 32 px and more are 1, times its confidence | [0, 1] | history |
| 11 | centre–surround saliency: the sum of `core13`'s three | [0, 1] | levels 4 and 5 |
| 12 | distance to the nearest edge, mean over the tile, 64 px and more are 1 | [0, 1] | level 1, by 8 px |
| 13 | share of the neighbouring tiles that belong to another colour cluster | [0, 1] | level 5 |
| 14 | share of the frame's tiles that belong to the tile's cluster | [0, 1] | level 5 |
| 15 | colour contrast of the tile's cluster to the frame: CIE76 ΔE by 100 | [0, 1] | level 5 |
| 16 | text-likeness; 0 unless the profile is `full40+text` | [0, 1] | level 1 |
| 17 … 32 | sixteen components of the model's own embedding of the tile | [−1, 1] | history |
| 33 | cosine of these and of the question's | [−1, 1] | history |
| 34, 35, 36 | previous relevance; its confidence; time since the tile changed, by 5 s | [0, 1] | history |
| 37, 38, 39 | attention of the last answer, its mean over 5 s, and how far to trust it | [0, 1] | history |

Channels of the picture are computed by kornia (Riba et al., 2020, arXiv:1910.02190) from `core13` and luma, on the
device that holds them. Those of the history are 0 while nothing is known; `arr_coc.relevance.history` fills them in.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from kornia.color import rgb_to_grayscale, rgb_to_lab
from kornia.filters import gaussian_blur2d, laplacian
from torch.nn import functional as F

from arr_coc.relevance.profiles import CLUSTER_START, CLUSTER_STEPS, EDGES, LUMA_SIDE, RGB, SALIENCY

EDGE_BLOCK = 4
"""Texels of level 1 on a side of the blocks in which edges are located: 8 px."""

EDGE_REACH = 8
"""Distances end here, in blocks: 64 px."""

LOW_PASS_TEXELS = (5, 5)
LOW_PASS_SIGMA = (1.5, 1.5)
LARGEST_CONTRAST = 100.0

LEAST_STROKE = 24
"""Least difference of luma over two texels at the border of a stroke."""


@dataclass(frozen=True, slots=True)
class LumaDetail:
    """Detail of luma of level 1 by tiles: `laplacian` and `text` float32 [B, h, w] in [0, 1], and `edges` bool
    [B, 4h, 4w], the blocks of 8 px that hold an edge."""

    laplacian: torch.Tensor
    text: torch.Tensor
    edges: torch.Tensor

    @classmethod
    def of(cls, luma: torch.Tensor, *, text: bool) -> LumaDetail:
        """Measure luma [B, 16h + 2, 16w + 2] of whole numbers, 0…255, with a halo of one texel. Sums are of whole
        numbers, so parts of a picture give the same bits as all of it."""
        image = luma[:, None].float()
        curved = laplacian(image, 3, "replicate", normalized=False)[:, 0, 1:-1, 1:-1].abs()
        strongest = curved.unflatten(1, (-1, EDGE_BLOCK)).amax(dim=2).unflatten(2, (-1, EDGE_BLOCK)).amax(dim=3)
        means = tile_means(curved) / (8 * 255)
        if text:
            likeness = text_likeness(luma)
        else:
            likeness = torch.zeros_like(means)
        # least absolute Laplacian of an edge: that of a step of 32 of 255
        return cls(means, likeness, strongest >= 96.0)

    def put(self, mask: torch.Tensor, tiles: LumaDetail) -> None:
        """Write tiles [n, 1, 1], measured alone, to the places `mask` bool [h, w] of a picture [1, h, w]."""
        self.laplacian[0, mask] = tiles.laplacian.flatten()
        self.text[0, mask] = tiles.text.flatten()
        blocks = LUMA_SIDE // EDGE_BLOCK
        by_tile = self.edges[0].unflatten(1, (-1, blocks)).unflatten(0, (-1, blocks)).transpose(1, 2)
        by_tile[mask] = tiles.edges


def tile_means(image: torch.Tensor) -> torch.Tensor:
    """Means over tiles of level 1: float32 [B, 16h, 16w] → [B, h, w]."""
    sums = image.unflatten(2, (-1, LUMA_SIDE)).sum(dim=3).unflatten(1, (-1, LUMA_SIDE)).sum(dim=2)
    return sums / (LUMA_SIDE * LUMA_SIDE)


def text_likeness(luma: torch.Tensor) -> torch.Tensor:
    """Return the share of each tile in thin bright and dark strokes that take turns along its rows: float32 [B, h, w]
    in [0, 1].

    A stroke lies between two opposite steps of luma that are at most 10 px apart (the stroke width of Epshtein, Ofek
    and Wexler, 2010). Letters have bright and dark strokes in like number, an edge or a wire has one of them at most:
    the geometric mean counts. `luma` [B, 16h + 2, 16w + 2] of whole numbers, with a halo of one texel.
    """
    row = luma[:, 1:-1].short()
    step = row[:, :, 2:] - row[:, :, :-2]
    up = _row_bits(step >= LEAST_STROKE)
    down = _row_bits(step <= -LEAST_STROKE)
    texels = _bit_counts(luma.device)
    bright, dark = (
        texels[_strokes(*steps)].unflatten(1, (-1, LUMA_SIDE)).sum(dim=2) / (LUMA_SIDE * LUMA_SIDE)
        for steps in ((up, down), (down, up))
    )
    # a tile counts as text if this share of it belongs to bright strokes, and as much to dark ones
    return ((bright * dark).sqrt() / 0.2).clamp(max=1)


def _row_bits(texels: torch.Tensor) -> torch.Tensor:
    """Return each tile's rows of sixteen texels bool [B, 16h, 16w] as bits of a number: int32 [B, 16h, w]."""
    powers = torch.tensor([float(1 << bit) for bit in range(LUMA_SIDE)], device=texels.device)
    return (texels.unflatten(2, (-1, LUMA_SIDE)).float() @ powers).int()


@cache
def _bit_counts(device: torch.device) -> torch.Tensor:
    """Return the number of bits set in every number of sixteen bits: float32 [65536]."""
    return torch.tensor([float(bits.bit_count()) for bits in range(1 << LUMA_SIDE)], device=device)


def _strokes(opening: torch.Tensor, closing: torch.Tensor) -> torch.Tensor:
    """Return the texels from an opening step to a closing one within reach, inside a tile's row, as bits."""
    strokes = torch.zeros_like(opening)
    for width in range(1, 5 + 1):  # widest stroke, in texels of level 1: 10 px
        starts = opening & (closing >> width)
        for offset in range(width):
            strokes |= starts << offset
    return strokes


def edge_distance(edges: torch.Tensor) -> torch.Tensor:
    """Return the mean distance of each tile's blocks to the nearest block with an edge, 64 px and more being 1: [B, h,
    w].

    `edges` bool [B, 4h, 4w]. The exact Euclidean distance between block centres, by columns and then rows (Felzenszwalb
    and Huttenlocher, 2012).
    """
    down = torch.full(edges.shape, EDGE_REACH * 2.0, device=edges.device).masked_fill(edges, 0)
    for _ in range(EDGE_REACH):
        down[:, 1:] = torch.minimum(down[:, 1:], down[:, :-1] + 1)
        down[:, :-1] = torch.minimum(down[:, :-1], down[:, 1:] + 1)
    squared = down.square()
    padded = F.pad(squared, (EDGE_REACH, EDGE_REACH), value=float(4 * EDGE_REACH * EDGE_REACH))
    width = edges.shape[2]
    nearest = squared
    for offset in range(-EDGE_REACH, EDGE_REACH + 1):
        at = EDGE_REACH + offset
        nearest = torch.minimum(nearest, padded[:, :, at : at + width] + offset * offset)
    distance = (nearest.sqrt() / EDGE_REACH).clamp(max=1)
    blocks = LUMA_SIDE // EDGE_BLOCK
    return distance.unflatten(2, (-1, blocks)).mean(dim=3).unflatten(1, (-1, blocks)).mean(dim=2)


def low_pass(colours: torch.Tensor) -> torch.Tensor:
    """Luma of the tiles' mean colours [B, 3, h, w], blurred over their neighbours: [B, h, w]."""
    return gaussian_blur2d(rgb_to_grayscale(colours), LOW_PASS_TEXELS, LOW_PASS_SIGMA, "replicate")[:, 0].clamp(0, 1)


def grouping(colours: torch.Tensor) -> torch.Tensor:
    """Grouping of the tiles' mean colours [B, 3, h, w] into the frame's four colour clusters: [B, 3, h, w].

    Share of a tile's four neighbours in another cluster, share of the frame in the tile's own, and the distance of
    that cluster's mean colour to the frame's in CIELAB.
    """
    labels = _clusters(colours.detach())
    members = F.one_hot(labels, len(CLUSTER_START)).float()
    count = members.sum(dim=1).clamp(min=1)
    area = (count / labels.shape[1]).gather(1, labels)
    points = colours.flatten(2)
    means = (points @ members) / count[:, None]
    lab = rgb_to_lab(torch.cat([means, points.mean(dim=2, keepdim=True)], dim=2)[:, :, None])[:, :, 0]
    contrast = (lab[..., :-1] - lab[..., -1:]).norm(dim=1) / LARGEST_CONTRAST
    shape = colours.shape[2:]
    cluster_map = labels.unflatten(1, shape)
    return torch.stack(
        [
            _boundary_share(cluster_map),
            area.unflatten(1, shape),
            contrast.clamp(max=1).gather(1, labels).unflatten(1, shape),
        ],
        dim=1,
    )


def _clusters(colours: torch.Tensor) -> torch.Tensor:
    """Numbers of the colour clusters by the k-means of `core13`: int64 [B, h·w]."""
    points = (colours * 255).flatten(2).mT
    start = torch.from_numpy(CLUSTER_START).to(points.device)
    centres = start.expand(len(points), -1, -1)
    labels = _nearest(points, centres)
    for _ in range(CLUSTER_STEPS):
        members = F.one_hot(labels, len(start)).float()
        count = members.sum(dim=1)[..., None]
        centres = torch.where(count > 0, members.mT @ points / count.clamp(min=1), centres)
        labels = _nearest(points, centres)
    return labels


def _nearest(points: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    return (2 * points @ centres.mT - centres.square().sum(dim=2)[:, None]).argmax(dim=2)


def _boundary_share(labels: torch.Tensor) -> torch.Tensor:
    """Return the share of the four neighbours inside the frame whose label [B, h, w] is another."""
    other = torch.zeros(labels.shape, device=labels.device)
    neighbours = torch.zeros(labels.shape, device=labels.device)
    for axis in (1, 2):
        size = labels.shape[axis] - 1
        differ = (labels.narrow(axis, 0, size) != labels.narrow(axis, 1, size)).float()
        for start in (0, 1):
            other.narrow(axis, start, size).add_(differ)
            neighbours.narrow(axis, start, size).add_(1)
    return other / neighbours.clamp(min=1)


def picture_channels(core: torch.Tensor, detail: LumaDetail) -> torch.Tensor:
    """Return the forty channels [40, gh, gw] of a picture without earlier frames, from its `core13` [13, gh, gw] and
    the detail of its luma, a batch of one."""
    colours = core[None, RGB]
    magnitude = core[EDGES][2:]
    unknown = torch.zeros_like(core[:1])
    channels = [
        core[:5],
        unknown,
        magnitude,
        1 - magnitude,
        detail.laplacian,
        low_pass(colours),
        unknown,
        core[SALIENCY].sum(dim=0, keepdim=True).clamp(max=1),
        edge_distance(detail.edges),
        grouping(colours)[0],
        detail.text,
        unknown.expand(23, -1, -1),
    ]
    return torch.cat(channels)
