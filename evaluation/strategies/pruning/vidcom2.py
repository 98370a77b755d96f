"""VidCom2: frames that are unlike the clip have a larger share, tokens that are unlike frame and clip stay.

Liu et al. 2025, "Video Compression Commander: Plug-and-Play Inference Acceleration for Video Large Language Models"
(arXiv:2505.14454), before the language model, with the paper's numbers: the half of the channels that varies least,
Gaussian kernels of five widths around the mean of the clip and that of the frame, and frames' shares by a softmax of
temperature 0.01. As in vLLM's `--video-pruning-rate`, rounding is made good so that the clip has exactly its budget. A
single picture is a clip of one frame.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from evaluation.strategies.pruning.base import Pruner
from evaluation.strategies.pruning.staged import Candidates

CHANNELS = 0.5
WIDTHS = tuple(2.0**power for power in range(-3, 2))
TEMPERATURE = 0.01


class VidCom2(Pruner):
    """Uniqueness of frames in the clip, and of tokens in frame and clip."""

    name = "vidcom2"

    def choose(self, candidates: Candidates, count: int) -> torch.Tensor:
        states = candidates.states[candidates.visual].float()
        tokens = steady_features(states)
        candidates.charge(2 * 2 * tokens.numel())
        in_clip = nearness(tokens, tokens.mean(dim=0))
        in_frame = torch.cat([nearness(tokens[frame], tokens[frame].mean(dim=0)) for frame in candidates.frames])
        likeness = in_clip + in_frame
        frame_likeness = torch.stack([in_clip[frame].mean() for frame in candidates.frames])
        mask = torch.zeros(len(states), dtype=torch.bool, device=states.device)
        for frame, tokens_kept in zip(candidates.frames, _shares(frame_likeness, candidates, count), strict=True):
            mask[frame.start + likeness[frame].topk(tokens_kept, largest=False).indices] = True
        return _exactly(mask, likeness, count)


def steady_features(states: torch.Tensor) -> torch.Tensor:
    """Return the channels of float32 states [N, D] that vary least, normalised: [N, d]."""
    steady = states.var(dim=0, unbiased=False).topk(max(1, int(CHANNELS * states.shape[1])), largest=False).indices
    return F.normalize(states[:, steady], dim=-1)


def nearness(tokens: torch.Tensor, centre: torch.Tensor) -> torch.Tensor:
    """Sum of Gaussian kernels of each of [N, D] around [D]: float32 [N]."""
    distance = (tokens - centre).square().sum(dim=-1)
    return torch.stack([torch.exp(-distance / (2 * width)) for width in WIDTHS]).sum(dim=0)


def _shares(likeness: torch.Tensor, candidates: Candidates, count: int) -> list[int]:
    """Tokens of each frame, at least one, by the frames' likeness to the clip [T]; about `count` together."""
    uniqueness = torch.softmax(-likeness / TEMPERATURE, dim=0)
    share = count / len(candidates.visual) * (1 + uniqueness - uniqueness.mean())
    sizes = torch.tensor([frame.stop - frame.start for frame in candidates.frames], device=likeness.device)
    return [int(tokens) for tokens in (share.clamp(max=1) * sizes).round().clamp(min=1)]


def _exactly(mask: torch.Tensor, likeness: torch.Tensor, count: int) -> torch.Tensor:
    """Rows of `count` tokens: those in `mask`, bool [N], without the most alike, or with the least alike of the
    others."""
    order = torch.where(mask, likeness, likeness + 2 * len(WIDTHS) + 1)
    return order.topk(count, largest=False).indices
