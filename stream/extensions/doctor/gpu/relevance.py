"""Channels, scores, blending and choice by OpenGL's compute shaders against the host's."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import torch

from arr_coc.allocation.device_relevance import DeviceRelevance
from arr_coc.allocation.strategies import AllocationHistory, AllocationRequest, choose
from arr_coc.allocation.temporal import TemporalBlend
from arr_coc.allocation.warping import Warp
from arr_coc.backends.gl.store import GlStore
from arr_coc.errors import counted, of_counted
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.cached_relevance import CachedRelevance
from arr_coc.relevance.channels import texture_array
from arr_coc.texture.regions import UNKNOWN
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.types import TileGrid
from stream.extensions.doctor.gpu.checks import CheckFailed, CheckResult
from stream.extensions.doctor.gpu.reference import (
    Picture,
    random_picture,
    require_close,
    require_equal,
    rgb_planes,
    stamp,
)

RELEVANCE_ERROR = 2e-5

OTHERS_SHARE = 0.02
"""Share of tiles for which a GPU's rounding may decide between near-equals."""

WAIT_MS = 2000

SIZES = ((97, 301), (270, 480))
LARGE = (1080, 1920)
"""For a real device."""


def gl_choice() -> CheckResult:
    """Follow streams with relevance on OpenGL, and compare each frame's choice with the host's."""
    from arr_coc.backends.gl.device import open_device

    device = open_device()
    if device.software:
        frames = sum(follow(size, seed) for seed, size in enumerate(SIZES))
    else:
        frames = sum(follow(size, seed, OTHERS_SHARE) for seed, size in enumerate((*SIZES, LARGE)))
    finding = f"{counted(frames, 'frame')} scored, blended and chosen from as on the CPU"
    return CheckResult(finding, {"renderer": device.renderer}, software=device.software)


def follow(size: tuple[int, int], seed: int, others_share: float = 0.0) -> int:
    """Follow a stream on both, and return the number of frames.

    Its weights are random, so that every channel counts; tiles move, answers teach, and what was shown counts for more.

    Args:
        size: (height, width) of the frames, in pixels.
        seed: Seed of pictures, weights and all else.
        others_share: Share of the chosen tiles that may be others; 0: all are the same, in the same order.

    Raises:
        CheckFailed: Relevance or a choice differs.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    realiser = random_realiser()
    shape = TileGrid.of(*size).shape
    tokens = max(1, shape[0] * shape[1] // 4)
    on_host, blend, on_device = CachedRelevance(realiser), TemporalBlend(), DeviceRelevance(realiser)
    shown: torch.Tensor | None = None
    pictures = stream_of(rng, size)
    with closing(GlStore(PlaneFormat.of(rgb_planes(pictures[0])), Thresholds(), WAIT_MS)) as store:
        for index, picture in enumerate(pictures):
            epoch = int(index == len(pictures) - 1)
            if epoch:
                blend = TemporalBlend()
            store.update(rgb_planes(picture), stamp(index, epoch))
            taught = _uniform(rng, (3, *shape))
            if shown is not None:  # the model looked away from what was worth showing, which makes scores doubtful
                taught[0] *= shown != 0
            prior = taught if index % 3 == 2 else None
            factor = 0.8 + 0.2 * _uniform(rng, shape) if index % 2 else None
            motion = rng.uniform(-1.5, 1.5, (2, *shape)).astype(np.float32) if index == 3 else None
            warp = None if motion is None else Warp.by(motion)
            memory = AllocationHistory(shown, _uniform(rng, shape), explore=0.1 if index % 2 else 0.0)
            with store.lease() as view, torch.inference_mode():
                on_device.step(view, prior=prior, factor=factor, warp=warp)
                texture = texture_array(view)
                realised = on_host.compute(texture, prior)
                relevance = realised.relevance if factor is None else realised.relevance * factor
                if warp is not None:
                    blend.follow(warp)
                expected = blend.step(relevance, texture.looks, view.stamp.media_ns)
            maps = on_device.read()
            require_close(maps[:3], realised.scores, f"scores of frame {index}", RELEVANCE_ERROR)
            require_close(maps[3], relevance, f"relevance of frame {index}", RELEVANCE_ERROR)
            require_close(maps[4], expected, f"blended relevance of frame {index}", RELEVANCE_ERROR)
            choice = on_device.choose(tokens, memory)
            reference = choose(AllocationRequest(expected, tokens, 0.25, 0, memory), "topk")
            others = int((choice.levels != reference.levels).sum()) // 2
            if others > others_share * tokens or len(choice.regions) != tokens:
                raise CheckFailed(f"frame {index}: {of_counted(others, tokens, 'tile')} not chosen by the CPU")
            if not others:
                require_equal(choice.regions, reference.regions, f"regions of frame {index}")
            shown = reference.levels.where(torch.from_numpy(rng.random(shape) < 0.9), UNKNOWN)
    return len(pictures)


def random_realiser() -> RelevanceRealiser:
    """Return scorers in which every channel counts, and scores lie apart."""
    realiser = RelevanceRealiser()
    with torch.no_grad():
        scorer = realiser.perspective
        for layer in (realiser.information.gate, scorer.wide, scorer.narrow, scorer.out):
            layer.weight.add_(torch.randn_like(layer.weight) * 0.2)
    return realiser.eval()


def stream_of(rng: np.random.Generator, size: tuple[int, int]) -> list[Picture]:
    """Return frames: a picture twice, parts that change, and another picture, of another epoch."""
    first = random_picture(rng, *size, "soft")
    frames = [first, first]
    for _ in range(3):
        frame = frames[-1].copy()
        frame[: size[0] // 2, size[1] // 3 :] = np.roll(frame[: size[0] // 2, size[1] // 3 :], 7, axis=1)
        frame[size[0] // 2 :, : size[1] // 4] = rng.integers(0, 256, 3)
        frames.append(frame)
    return [*frames, random_picture(rng, *size)]


def _uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(rng.random(shape, dtype=np.float32))
