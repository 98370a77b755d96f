"""`ARRCOCQwen`: a Qwen-VL model that looks at the tokens that matter for the question, as a library."""

from __future__ import annotations

import copy
import io
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import nn

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.budget import DEFAULT_BUDGET, Budget
from arr_coc.errors import OptionError, counted
from arr_coc.layer import ARRCOCConfig, ARRCOCLayer
from arr_coc.qwen.encoding import Packet, VisionStats
from arr_coc.qwen.finetune.forward import ARRCOCOutput, BatchedForward, BatchInputs
from arr_coc.qwen.finetune.saving import save_folder
from arr_coc.qwen.glancing import GlanceChoice, Glancer, OverviewChoice, resolve_glance, unshown_tokens
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding, Frames
from arr_coc.qwen.preprocess import Picture, to_frames
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.resize import widened
from arr_coc.qwen.session import AnswerSession, GlanceResult
from arr_coc.types import NS_PER_S, Encode, FrameStamp, TokenPacket
from arr_coc.video.picture_allocator import PictureAllocator

log = logging.getLogger(__name__)

LONGEST_PX = 1024
"""A larger picture is shown smaller."""

OPACITY = 0.6
"""Of the colour where relevance is 1; where it is 0, the picture shows as it is."""

Rgb = npt.NDArray[np.uint8]


def heat_picture(picture: Rgb, heatmap: npt.NDArray[np.float32]) -> Rgb:
    """The picture uint8 [H, W, 3] with colours over it where `heatmap` [gh, gw], in [0, 1], is high.

    The map is spread over the whole picture, however it is divided. At most 1024 pixels a side; memory of its own.
    """
    height_px, width_px = picture.shape[:2]
    shrink = min(1.0, LONGEST_PX / max(height_px, width_px))
    size = max(1, round(width_px * shrink)), max(1, round(height_px * shrink))
    shown = cv2.resize(picture, size, interpolation=cv2.INTER_AREA).astype(np.float32)
    heat = cv2.resize(heatmap.clip(0, 1).astype(np.float32), size, interpolation=cv2.INTER_LINEAR)
    colours = cv2.applyColorMap(np.rint(heat * 255).astype(np.uint8), cv2.COLORMAP_TURBO)[..., ::-1]
    share = OPACITY * heat[..., None]
    return np.asarray(np.rint(shown * (1 - share) + colours * share), np.uint8)


def png(image: Rgb) -> bytes:
    """An image uint8 [H, W, 3] as the bytes of a PNG file."""
    written = io.BytesIO()
    Image.fromarray(image).save(written, "PNG")
    return written.getvalue()


FRAMES_PER_S = 2.0
"""How far apart frames are taken to be whose times are not given; as Qwen3-VL's processor samples video."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds: choosing tokens, encoding them, from there to the first token, and from there to the last; and what
    glances took while tokens were chosen, which is not part of `allocate_ms`."""

    allocate_ms: float
    encode_ms: float
    prefill_ms: float
    decode_ms: float
    glance_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        return self.allocate_ms + self.glance_ms + self.encode_ms + self.prefill_ms + self.decode_ms


@dataclass(frozen=True, slots=True, repr=False)
class Generation:
    """An answer. Printed it is one line; a notebook shows the newest picture with the heat map over it.

    `heatmap` float32 [gh, gw] in [0, 1]: the newest frame's relevance. `regions` int32 [K, 3] (shape, row, col):
    what was shown of it, the first `overview` of them a coarse overview. `tokens_used`: visual tokens of all frames
    together, also those of overviews that were looked at and not shown again. `vision`: what encoding the newest frame
    took with `encode="incremental"`, which encodes of later frames only what changed. `picture` uint8 [H, W, 3]: the
    newest one. `text_tokens` are those of the answer; `kept_bytes`: memory of frames, keys and values after it.
    """

    text: str
    heatmap: npt.NDArray[np.float32]
    tokens_used: int
    regions: npt.NDArray[np.int32]
    timings: Timings
    vision: VisionStats | None = None
    picture: Rgb | None = None
    overview: int = 0
    text_tokens: int = 0
    kept_bytes: int = 0

    def __repr__(self) -> str:
        rows, cols = self.heatmap.shape
        used = counted(self.tokens_used, "visual token")
        return f"Generation({self.text!r}, {used}, heat map {rows}x{cols}, {self.timings.total_ms:.0f} ms)"

    def _repr_png_(self) -> bytes | None:
        """The newest picture with the heat map over it, as a PNG."""
        return None if self.picture is None else png(heat_picture(self.picture, self.heatmap))


class ARRCOCQwen(nn.Module):
    """A Qwen3-VL (also MoE), Qwen2.5-VL or Qwen2-VL model with a budget of visual tokens.

    A PyTorch module of two parts, both trainable: `model`, the stock transformers model, and `allocator`, the
    `ARRCOCLayer` that chooses its tokens. `generate` answers questions; `forward` computes the loss of a batch.
    `docs/fine-tuning.md` shows training. Not for several threads at once.

    `qwen` holds model, tokenizer and preprocessing together. `encode`: how `forward` shows the chosen tokens.
    `fallbacks` counts frames whose allocation failed, and that were answered with all their tokens.
    """

    accepts_loss_kwargs = False  # transformers' Trainer: the loss is the mean over a batch, as the stock model's

    def __init__(self, qwen: QwenVL, encode: Encode = "sparse") -> None:
        """The allocator is the one that came with the model, else an untrained one that hears no question."""
        super().__init__()
        self.model = qwen.model
        self.allocator = qwen.allocator or ARRCOCLayer(ARRCOCConfig(levels=qwen.knows_levels)).eval()
        for parameter in self.eval().parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        self.allocator.to(qwen.device)
        self.encode = encode
        self.fallbacks = 0
        self._learned = False
        self._bind(qwen)
        self.register_state_dict_post_hook(_drop_tied)
        self.register_load_state_dict_pre_hook(_add_tied)

    @classmethod
    def from_pretrained(
        cls, name: str | Path | None = None, *, encode: Encode = "sparse", **options: Any
    ) -> ARRCOCQwen:
        """Load a model from a folder, a name on the hub, or, for None, the bundled one; `options` and errors as
        `load_qwen`. In eval mode, as a transformers model; all weights may be trained."""
        qwen = load_qwen(name, **options)
        for notice in qwen.notices:
            log.warning("%s: %s", qwen.model_id, notice)
        return cls(qwen, encode)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write model, tokenizer, preprocessing and allocator into a folder that `from_pretrained` reads.

        The allocator, in its folder `arr_coc`, belongs to the weights that it is saved with, also where embeddings were
        trained. What is in the folder already is replaced once everything is written. Raises ModelError where adapters
        of peft are not merged yet, and where the folder cannot be written.
        """
        save_folder(self.qwen, self.allocator, Path(folder))

    @property
    def config(self) -> Any:
        """The stock model's configuration."""
        return self.qwen.model.config

    @property
    def device(self) -> torch.device:
        """The device of the language model's embeddings."""
        return self.qwen.device

    @property
    def dtype(self) -> torch.dtype:
        """The stock model's dtype."""
        return self.qwen.model.dtype

    def get_input_embeddings(self) -> nn.Module:
        """The table of token embeddings."""
        return self.qwen.model.get_input_embeddings()

    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """Keep no activations of the language model's layers for the backward pass, as transformers does."""
        stock = self.qwen.model
        enable = getattr(stock, "activation_checkpointing_enable", None) or stock.gradient_checkpointing_enable
        enable(activation_checkpointing_kwargs, **options)

    def activation_checkpointing_disable(self) -> None:
        """Keep activations again."""
        stock = self.qwen.model
        (getattr(stock, "activation_checkpointing_disable", None) or stock.gradient_checkpointing_disable)()

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any] | None = None) -> None:
        """The same under the name that transformers before version 5 calls."""
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs)

    def new_allocator(self, seed: int = 0, **options: Any) -> None:
        """Replace the allocator by a new one for this model's questions, to be trained.

        `options`: fields of `ARRCOCConfig`; `seed` makes its weights. An optimiser of the old one's weights is of no
        use to the new one. Raises OptionError, StrategyError and BudgetError.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layer = self.qwen.new_allocator(**options)
        self.allocator = layer.to(self.qwen.device).train(self.training)
        self._bind(self.qwen)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        images: Picture | Sequence[Picture | Sequence[Picture]] | None = None,
        question_mask: torch.Tensor | None = None,
        mm_token_type_ids: torch.Tensor | None = None,
    ) -> ARRCOCOutput:
        """Logits of a batch of sequences, each with any number of pictures of any size, and the loss of `labels`.

        `input_ids` int64 [B, S] as the model's chat template and tokenizer make them, where a run of `<|image_pad|>`
        stands for a picture: one for each tile, as Qwen's processor writes it, or a single one. `attention_mask` [B,
        S] is 0 for padding, on either side. `labels` [B, S]: the token ids to be learned, -100 elsewhere.

        Pictures, in the order of their runs, are either `images` (files, Pillow images, arrays or tensors, resized as
        the model's own processor does; one, a list, or a list of lists, one for each sequence), or `pixel_values` float
        [patches, 3 · 2 · p · p] with `image_grid_thw` int64 [pictures, 3]: the normalised patches of all pictures and
        their (1, rows, columns) of patches, as Qwen's processor makes them. The allocator reads the colours from them.

        `question_mask` [B, S] is true on the tokens that the allocator takes for the question about a sequence's
        pictures; without it, that is the text of each picture's turn that is not to be learned. `mm_token_type_ids`,
        which processors make, is not needed.

        The allocator's `config` has budget, strategy and gradient, `encode` says how tokens are shown; see
        `arr_coc.qwen.finetune.forward`. With a budget of all tiles the logits are the stock model's. Raises
        ShapeError, OptionError, NonFiniteError, ContextLengthError and errors of pictures, each in one line.
        """
        forward = BatchedForward(self.qwen, self.allocator, self.encode)
        return forward(
            BatchInputs(input_ids, attention_mask, labels, pixel_values, image_grid_thw, images, question_mask)
        )

    def generate(
        self,
        image_or_frames: Picture | Sequence[Picture],
        query: str,
        max_tokens: int = 64,
        budget: Budget = DEFAULT_BUDGET,
        encode: Encode = "sparse",
        strategy: str = "auto",
        temperature: float = 0.0,
        seed: int = 0,
        *,
        top_p: float = 1.0,
        times_s: Sequence[float] | None = None,
        frames: Frames = "causal",
        glance: GlanceChoice = "auto",
        overview: OverviewChoice = "auto",
        on_text: Callable[[str], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Generation:
        """Answers `query` about one picture, or about several frames in order (a list, or an array [T, …]).

        `budget`: visual tokens a frame, a share of its tiles ("27%"), "auto" (27 %, within 64 to 400) or "adaptive".
        `times_s`: the frames' times; half a second apart if not given.
        `frames`: how several are read. `causal`, as the stock model does: each after those before it. `window`: each by
        itself, so that a frame that comes again in another order or company is not read again.
        `glance`: whether a coarse overview is looked at with the question in mind, before tokens are chosen: at the
        first frame, and at a later one where much is new. `auto`: where no trained allocator came with the model, its
        attention can be read, and `encode` takes chosen tokens only. A `GlanceOptions` says more. `overview`: whether
        it stays in the prompt; the budget pays for it either way.
        `on_text` gets each piece of the answer once it is decoded. `should_stop` is asked after every token; true ends
        the answer.
        Pictures are resized as the model's own processor does, so that with `encode="full"`, or a budget of all tiles,
        the answer about a picture is the stock model's.
        A picture is a file, a Pillow image, an array or a tensor (`arr_coc.ops.pictures.to_rgb`); those of a list may
        be of several sizes. One that is more than 200 times as long as wide is padded by its edge pixels.
        Raises FileNotFoundError, ShapeError, BudgetError, StrategyError, OptionError, ContextLengthError,
        NonFiniteError, and ModelError where a model cannot glance that has to.
        """
        _check_question(query)
        decoding = Decoding(max_tokens, temperature, top_p, seed)
        self._follow_weights()
        self._session.configure(AnswerOptions(encode, decoding, frames=frames, feedback=False))
        glancing = resolve_glance(self._session, glance, overview)
        options = AllocatorOptions(strategy, budget, explore=0.0, seed=seed, glance=glancing)
        allocator = PictureAllocator(self.qwen, query, options, encode)
        pictures = [widened(picture) for picture in to_frames(image_or_frames)]
        stamps = _stamps(len(pictures), times_s)
        packets, glances, allocate_ms = self._allocated(allocator, pictures, stamps, query)
        with closing(self._session.answer(packets, query, should_stop)) as pieces:
            for piece in pieces:
                if on_text is not None:
                    on_text(piece)
        answer, newest = self._session.last, packets[-1]
        return Generation(
            text=answer.text,
            heatmap=allocator.relevance,
            tokens_used=answer.tokens_used + unshown_tokens(glances, packets),
            regions=answer.regions,
            timings=Timings(
                allocate_ms=allocate_ms,
                encode_ms=answer.encode_ms,
                prefill_ms=answer.prefill_ms,
                decode_ms=answer.decode_ms,
                glance_ms=sum(glance.took_ms for glance in glances),
            ),
            vision=answer.vision,
            picture=pictures[-1],
            overview=newest.overview if isinstance(newest, TokenPacket) else 0,
            text_tokens=answer.text_tokens,
            kept_bytes=answer.kept_bytes,
        )

    def forget(self) -> None:
        """Drop what was kept of earlier answers, so that the next one costs what the first one did.

        Without it, frames that come again are not read again.
        """
        self._session.forget()

    def _bind(self, qwen: QwenVL) -> None:
        """Answer with these parts; what was kept of earlier answers is dropped.

        Answers choose with a copy of the allocator, in float32 on the CPU, so that they disturb no training.
        """
        self.qwen = qwen
        if self._learned or qwen.allocator is not None or self.allocator.config.query_dim:
            own = copy.deepcopy(self.allocator).to("cpu", torch.float32).eval().requires_grad_(False)
            self.qwen = replace(qwen, allocator=own)
        self._session = AnswerSession(self.qwen)
        self._versions = _versions(self.model), _versions(self.allocator)

    def _follow_weights(self) -> None:
        """Drop what was kept of earlier answers where weights have changed since."""
        now = _versions(self.model), _versions(self.allocator)
        if now != self._versions:
            self._learned |= now[1] != self._versions[1]
            self._bind(self.qwen)

    def _apply(self, fn: Any, recurse: bool = True) -> ARRCOCQwen:
        super()._apply(fn, recurse)
        self._bind(self.qwen)
        return self

    def _allocated(
        self, allocator: PictureAllocator, pictures: Sequence[Rgb], stamps: Sequence[FrameStamp], query: str
    ) -> tuple[list[Packet], list[GlanceResult], float]:
        """Packets of pictures in order, the glances that were made for them, and the milliseconds beside those."""
        started_s = time.perf_counter()
        packets: list[Packet] = []
        glancer = Glancer(self._session, query, timed=len(pictures) > 1)
        for picture, stamp in zip(pictures, stamps, strict=True):
            packets.append(allocator.allocate(picture, stamp, glancer.after(packets)))
        self.fallbacks += allocator.fallbacks
        allocate_ms = (time.perf_counter() - started_s) * 1e3 - sum(glance.took_ms for glance in glancer.glances)
        return packets, glancer.glances, allocate_ms


def _check_question(query: object) -> None:
    if not isinstance(query, str) or not query.strip():
        raise OptionError(f'a question is text that is not empty, got {query!r}; give one such as "Say what happens."')


def _stamps(frames: int, times_s: Sequence[float] | None) -> list[FrameStamp]:
    if times_s is not None and not all(isinstance(at_s, Real) and math.isfinite(at_s) for at_s in times_s):
        raise OptionError(f"times_s must hold finite numbers of seconds, got {list(times_s)}")
    times = [index / FRAMES_PER_S for index in range(frames)] if times_s is None else list(times_s)
    if len(times) != frames or any(later < earlier for earlier, later in pairwise(times)):
        raise OptionError(f"times_s must hold one time for each frame, {frames} in order, got {times}")
    return [FrameStamp(index, round(at_s * NS_PER_S), round(at_s * NS_PER_S)) for index, at_s in enumerate(times)]


def _versions(module: nn.Module) -> tuple[tuple[int, int], ...]:
    """Place and version of every parameter: another wherever one was replaced or changed."""
    return tuple((parameter.data_ptr(), parameter._version) for parameter in module.parameters())


def _drop_tied(module: nn.Module, state: dict[str, Any], prefix: str, local_metadata: dict[str, Any]) -> None:
    """Leave out weights that are another's too, as a head's that are the embeddings': safetensors writes each once."""
    for name in _tied(module):
        state.pop(prefix + name, None)


def _add_tied(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give such weights again."""
    for name, first in _tied(module).items():
        if prefix + first in state:
            state.setdefault(prefix + name, state[prefix + first])


def _tied(module: nn.Module) -> dict[str, str]:
    """Names of parameters that have another name too, each with its first one."""
    first: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {name: own for name, parameter in named if (own := first.setdefault(id(parameter), name)) != name}
