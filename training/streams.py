"""Streams to learn from: frames in a row of which the same is asked, seen by an allocator as in a run.

A stream is a drawn clip whose frames are held for a while, or a pan over a page. `StreamCases` lets the layer that is
trained allocate it frame by frame; what its scorers were given for each frame is a case, so channels of the past hold
what they hold in a run with these weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from arr_coc.adaptation.cases import AllocatorCase, Batches, Embedder, tile_shares
from arr_coc.adaptation.losses import box_loss
from arr_coc.adaptation.trainer import MapObjective
from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.layer import ARRCOCLayer
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import TextureArray
from arr_coc.types import NS_PER_S, TILE_PX, FrameStamp
from arr_coc.video.picture_allocator import FrameAllocator, fit_with_planes
from stream.scenes.drawing import Image
from stream.scenes.textures import add_grain
from training.cases import MOST_SHARE
from training.clips.cast import ClipOptions, one
from training.clips.fonts import Split
from training.clips.scenes import MOST_FRAMES, clip_rng, page, random_plan
from training.clips.truth import Box
from training.questions.samples import ask_different

SIZES_PX = (*((256, 256),) * 3, (384, 256), (512, 512), (640, 384))
LENGTH = 6
"""Frames of a stream."""

PAN_SHARE = 1 / 3
NOISE = 3.0
"""Grain of a held frame, in half of the streams; a frame of the others is held as it is."""

EVERY_S = (0.1, 6.0)
"""Between frames: from pans of the suite `pan` to answers of the suite `stream`."""

ANSWERED_SHARE = 0.5
"""Share of the streams in which each frame is answered about, and the answer's attention fed back."""

ANSWER_TOKENS = 4
ROUND = 400
"""Steps from one round of streams to the next."""

BUDGETS = ("10%", "27%")

_CLIP = ClipOptions()
_PAGE = replace(_CLIP, things=(10, 18), moving_share=0.0, event_share=0.0, crowd_share=0.0)


@dataclass(frozen=True, slots=True)
class Stream:
    """Frames uint8 [H, W, 3] at `times_s`, a question, and the `boxes` of what it asks about in each frame.

    `answered`: each frame is answered about, with the tokens of `budget`.
    """

    frames: tuple[Image, ...]
    times_s: tuple[float, ...]
    question: str
    kind: str
    boxes: tuple[tuple[Box, ...], ...]
    answered: bool
    budget: str
    clip: int


def random_streams(split: Split, first: int, clips: int, questions: int = 2) -> Iterator[Stream]:
    """Yield streams with different questions about each of some clips.

    Args:
        split: Split of the clips.
        first: Number of the first clip.
        clips: Number of clips.
        questions: Most questions about a clip.
    """
    for number in range(first, first + clips):
        rng = clip_rng(split, number)
        size_px = one(rng, SIZES_PX)
        if rng.random() < PAN_SHARE:
            plan = page(rng, size_px, LENGTH, _PAGE, split)
            order = np.arange(LENGTH)
        else:
            plan = random_plan(rng, size_px, MOST_FRAMES, split, _CLIP)
            order = np.sort(rng.integers(MOST_FRAMES, size=LENGTH))
        samples = ask_different(rng, plan.facts(), split, questions)
        if not samples:
            continue
        drawn = plan.draw().frames
        grain = NOISE if rng.random() < 0.5 else 0.0
        frames = tuple(add_grain(rng, drawn[index].copy(), grain) if grain else drawn[index] for index in order)
        every_s = float(np.exp(rng.uniform(*np.log(EVERY_S))))
        for sample in samples:
            yield Stream(
                frames,
                tuple(every_s * index for index in range(LENGTH)),
                sample.question,
                sample.kind,
                tuple(sample.boxes[index] for index in order),
                bool(rng.random() < ANSWERED_SHARE),
                one(rng, BUDGETS),
                number,
            )


class StreamCases:
    """Cases of streams as one layer sees them in a run: motion, changes, its own earlier relevance, feedback."""

    def __init__(self, qwen: QwenVL, layer: ARRCOCLayer) -> None:
        self._qwen = replace(qwen, allocator=layer)
        self._layer = layer

    def of(self, stream: Stream) -> Iterator[tuple[AllocatorCase, torch.Tensor]]:
        """Yield the case of each frame that shows something asked about, but not nearly everywhere, and the relevance
        float32 [gh, gw] by which its tokens were chosen."""
        self._layer.eval()
        allocator = FrameAllocator(
            AllocatorOptions(budget=stream.budget).for_model(wide=self._qwen.knows_wide), self._layer.realiser
        )
        allocator.allocator.set_query(self._qwen.embed_query(stream.question))
        session = AnswerSession(self._qwen, AnswerOptions(decoding=Decoding(ANSWER_TOKENS), feedback=True))
        try:
            for index, (image, at_s) in enumerate(zip(stream.frames, stream.times_s, strict=True)):
                _, _, planes = fit_with_planes(self._qwen.preprocessing, image)
                frame = allocator.allocate(planes, FrameStamp(index, round(at_s * NS_PER_S), 0))
                case = _case(stream, index, frame.allocation)
                if case is not None:
                    yield case, frame.allocation.relevance.clone()
                if stream.answered and index < len(stream.frames) - 1:
                    for _ in session.answer([frame.packet], stream.question):
                        pass
                    allocator.on_answer(session.last.feedback)
        finally:
            allocator.close()


def _case(stream: Stream, index: int, allocation: FrameAllocation) -> AllocatorCase | None:
    """What the scorers were given for a frame; None if it shows nothing asked about, or that nearly everywhere."""
    maps = allocation.maps
    assert maps is not None, "the allocator's own frames have them"
    shape = (allocation.relevance.shape[0], allocation.relevance.shape[1])
    target = tile_shares(stream.boxes[index], shape, (TILE_PX, TILE_PX)).astype(np.float32)
    if not target.any() or (target > 0).mean() > MOST_SHARE:
        return None
    texture = TextureArray(maps.scored.channels.clone(), maps.scored.entropy.clone())
    prior = None if maps.prior is None else maps.prior.clone()
    return AllocatorCase(texture, torch.from_numpy(target), stream.question, stream.kind, prior=prior)


class StreamLoss:
    """The loss of a fresh batch of cases of streams. Every `ROUND` steps more streams are seen, by the layer as it is.

    Earlier relevance is the layer's own: cases made by other weights would show what no run with these shows.
    """

    def __init__(self, qwen: QwenVL, layer: ARRCOCLayer, rng: np.random.Generator, clips: range) -> None:
        """`clips` are the numbers of the clips of the first round; each later round has as many that follow. A run
        that is resumed begins with the first round, as its layer sees it."""
        self._streams = StreamCases(qwen, layer)
        self._embed = Embedder(qwen)
        self._rng = rng
        self._clips = clips
        self._step = 0
        self._cases: list[AllocatorCase] = []
        self._rounds = 0
        self._objective: MapObjective | None = None

    def __call__(self, realiser: RelevanceRealiser) -> torch.Tensor:
        while self._rounds <= self._step // ROUND:
            first = self._clips.start + self._rounds * len(self._clips)
            for stream in random_streams("train", first, len(self._clips)):
                self._cases += (case for case, _ in self._streams.of(stream))
            self._objective = MapObjective(Batches(self._cases, self._embed, self._rng), box_loss)
            self._rounds += 1
        self._step += 1
        assert self._objective is not None, "the first round is seen before the first step"
        return self._objective(realiser)
