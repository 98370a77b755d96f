"""Hours that a public benchmark takes on a card of 24 GB, estimated from counts of questions, frames and operations.

Nothing of it was measured on a GPU. Operations are those of `arr_coc.qwen.flops` at Qwen3-VL's published dimensions,
with one pass over a benchmark by one strategy, which encodes and shows the same tokens. They run at 60 TFLOP/s, half
the peak of a current consumer card; each token of an answer reads all weights in bfloat16 at 600 GB/s; and each answer
takes a tenth of a second besides. Decoding of videos was measured on a core: 1.7 ms a frame of 720p, 0.17 s a seek; it
is done once for all strategies of a run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

FLOPS_A_SECOND = 60e12
BYTES_A_SECOND = 600e9
OVERHEAD_S = 0.1

FRAME_S, SEEK_S, FPS = 0.0017, 0.17, 25
"""Processor time of one decoded frame of 720p and of a seek; usual frames a second of a video."""

PATCH_VALUES = 3 * 16 * 16
PATCHES_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Dimensions of a dense Qwen3-VL. `weights_gb` in bfloat16."""

    name: str
    wide: int
    layers: int
    heads: int
    inner: int
    vision_wide: int
    vision_inner: int
    blocks: int
    weights_gb: float

    HEAD: ClassVar[int] = 128
    KEY_HEADS: ClassVar[int] = 8
    VOCABULARY: ClassVar[int] = 151936
    DEEPSTACK: ClassVar[int] = 3

    @property
    def layer_weights(self) -> int:
        """Weights of one layer that a token is multiplied with."""
        attended, keys = self.heads * self.HEAD, self.KEY_HEADS * self.HEAD
        return 2 * self.wide * attended + 2 * self.wide * keys + 3 * self.wide * self.inner

    @property
    def cached_bytes(self) -> int:
        """Keys and values of one token, in bfloat16."""
        return 2 * 2 * self.layers * self.KEY_HEADS * self.HEAD

    def encode(self, tokens: int) -> float:
        """Operations of encoding `tokens` of one frame."""
        patches, deep = PATCHES_A_TOKEN * tokens, self.vision_wide
        through = PATCH_VALUES * deep + self.blocks * (4 * deep * deep + 2 * deep * self.vision_inner)
        merged = (1 + self.DEEPSTACK) * (PATCHES_A_TOKEN * deep) * (PATCHES_A_TOKEN * deep + self.wide)
        return 2 * patches * through + 4 * patches * patches * deep * self.blocks + 2 * tokens * merged

    def prefill(self, tokens: int) -> float:
        """Operations of a prompt, and of its first logits."""
        pairs = tokens * (tokens + 1) / 2 * self.layers
        through = 2 * self.layers * self.layer_weights * tokens
        return through + 4 * self.heads * self.HEAD * pairs + 2 * self.wide * self.VOCABULARY

    def answer_s(self, frames: int, tokens: int, text_tokens: int, answer_tokens: int) -> float:
        """Seconds of one answer.

        Args:
            frames: Number of frames that are shown.
            tokens: Visual tokens of each frame.
            text_tokens: Text tokens of the prompt.
            answer_tokens: Tokens of the answer.
        """
        operations = frames * self.encode(tokens) + self.prefill(text_tokens + frames * tokens)
        reading_s = answer_tokens * self.weights_gb * 1e9 / BYTES_A_SECOND
        return operations / FLOPS_A_SECOND + reading_s + OVERHEAD_S


MODELS = (
    ModelSize("2B", 2048, 28, 16, 6144, 1024, 4096, 24, 4.3),
    ModelSize("8B", 4096, 36, 32, 12288, 1152, 4304, 27, 17.5),
)

SHARE = 0.27


@dataclass(frozen=True, slots=True)
class Load:
    """A split: its `answers`, each about `frames` of `tokens`; `reads` parts of videos that are decoded, each of
    `read_s` seconds of processor time."""

    name: str
    answers: int
    frames: int
    tokens: int
    text_tokens: int
    answer_tokens: int
    disk: str
    reads: int = 0
    read_s: float = 0.0

    def hours(self, model: ModelSize, share: float) -> float:
        """Hours of one strategy that shows and encodes this share of the tokens."""
        visual_tokens = round(share * self.tokens)
        return self.answers * model.answer_s(self.frames, visual_tokens, self.text_tokens, self.answer_tokens) / 3600

    @property
    def decoding_hours(self) -> float:
        return self.reads * self.read_s / 3600

    def cached_gb(self, model: ModelSize) -> float:
        """Keys and values of a prompt with all tokens."""
        return (self.frames * self.tokens + self.text_tokens) * model.cached_bytes / 1e9


def through(seconds: float) -> float:
    """Processor time of decoding so much of a video."""
    return seconds * FPS * FRAME_S


WIDE_TILES = 144
"""A frame of 16:9 with at most 147 tiles."""

LOADS = (
    Load("StreamingBench, `real`", 2500, 148, WIDE_TILES, 150, 2, "90 GB", 2500, through(309)),
    Load("… `omni`", 1500, 148, WIDE_TILES, 150, 2, "50 GB", 1500, through(309)),
    Load("… `sqa`", 250, 148, WIDE_TILES, 400, 2, "9 GB", 250, through(309)),
    Load("… `proactive`", 3000, 7, WIDE_TILES, 150, 2, "9 GB", 3000, through(7)),
    Load("OVO-Bench", 3100, 64, WIDE_TILES, 120, 2, "44 or 144 GB", 3100, through(263)),
    Load("Video-MME", 2700, 64, WIDE_TILES, 120, 2, "101 GB", 900, 64 * SEEK_S),
    Load("TextVQA, `val`", 5000, 1, 768, 40, 5, "7 GB"),
    Load("DocVQA, `val`", 5349, 1, 3657, 40, 8, "9 GB"),
    Load("VQAv2, `val2014`", 214354, 1, 300, 30, 3, "7 GB"),
    Load("COCO, `val2017`", 14600, 1, 300, 20, 1, "2 GB"),
)
"""Frames and times of StreamingBench are means of the first 20 questions of `questions_real.json`, the polls of its
first 20 instructions; the time of OVO-Bench is its published mean. Pictures: 640×480, of TextVQA 1024×768, pages
1700×2200."""

HEAD = (
    "benchmark",
    "answers",
    "frames × tokens",
    "disk",
    *(f"{model.name}, hours: all, 27 %" for model in MODELS),
    "decoding, core hours",
    "weights + cache, GB: " + ", ".join(model.name for model in MODELS),
)


def rows() -> Iterator[tuple[str, ...]]:
    """One row a split, as text."""
    for load in LOADS:
        yield (
            load.name,
            f"{load.answers:,}",
            f"{load.frames} × {load.tokens:,}",
            load.disk,
            *(f"{load.hours(model, 1.0):.1f}, {load.hours(model, SHARE):.1f}" for model in MODELS),
            f"{load.decoding_hours:.1f}" if load.reads else "–",
            ", ".join(f"{model.weights_gb + load.cached_gb(model):.1f}" for model in MODELS),
        )
