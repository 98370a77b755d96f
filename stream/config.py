"""The configuration: frozen models, read from TOML, one section for each stage."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

DEFAULT_QUERY = "Say what happens."
DEFAULT_BUDGET = 273


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CaptureConfig(Section):
    """How frames come in."""

    fit: Literal["pad", "resize"] = "pad"
    """`pad`: edge replication to multiples of 32. `resize`: as Qwen's processor, for parity with the stock model."""
    size: str | None = None
    """Work size "WxH"; native when absent."""
    max_tiles: int | None = Field(default=None, ge=1)
    """Largest number of tiles; the frame is scaled down as Qwen's processor would."""
    max_frames: int | None = Field(default=None, ge=1)
    realtime: bool = False
    """Play a file at its own pace, as a camera would: frames may then be dropped, and are counted."""


class CutConfig(Section):
    """The scene-cut verdict; thresholds are documented with `arr_coc.cuts.SceneCutDetector`."""

    enabled: bool = True


class TextureConfig(Section):
    """How the texture follows the frames."""

    backend: Literal["auto", "cpu"] = "auto"
    mean_threshold: float = Field(default=3.0, ge=0, le=255)
    """A tile is dirty where its mean absolute difference in luma or chroma exceeds this, of 255."""
    max_threshold: float = Field(default=12.0, ge=0, le=255)
    """…or where the largest 2x2 mean of the difference exceeds this, of 255."""
    lease_timeout_ms: int = Field(default=2000, ge=1)
    cut: CutConfig = CutConfig()


class AllocateConfig(Section):
    """Which tokens are chosen."""

    strategy: Literal["auto", "topk", "mixed", "foveated", "grid", "uniform", "random"] = "auto"
    budget: int | Literal["adaptive"] = DEFAULT_BUDGET
    explore: float = Field(default=0.10, ge=0, le=1)
    coverage: float = Field(default=0.25, ge=0, le=1)
    tau_ms: float = Field(default=93.0, gt=0)
    seed: int = 0


class AnswerConfig(Section):
    """What is asked, of which model, and when it speaks."""

    model: str | None = None
    """Folder or hub name; the bundled model when absent."""
    query: str = DEFAULT_QUERY
    encode: Literal["full", "prune", "sparse", "weighted"] = "sparse"
    every_s: float | None = Field(default=2.0, gt=0)
    on_change: float | None = Field(default=None, gt=0, le=1)
    """Speak when the relevance-weighted change since the last answer exceeds this."""
    on_cut: bool = True
    max_tokens: int = Field(default=64, ge=1)
    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = 0
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"


class OutputConfig(Section):
    """Where text and pictures go."""

    paths: tuple[str, ...] = ()
    heatmap: str | None = None
    timing: bool = True
    """Whether JSONL carries latencies; without them two runs give the same bytes."""


class PipelineConfig(Section):
    """How the stages are joined."""

    single_process: bool = False
    frames: Literal["lossless", "newest"] = "lossless"
    answers: Literal["lockstep", "newest"] = "lockstep"
    timeout_s: float = Field(default=60.0, gt=0)


class Config(Section):
    """The whole configuration of a run."""

    source: str = ""
    capture: CaptureConfig = CaptureConfig()
    texture: TextureConfig = TextureConfig()
    allocate: AllocateConfig = AllocateConfig()
    answer: AnswerConfig = AnswerConfig()
    output: OutputConfig = OutputConfig()
    pipeline: PipelineConfig = PipelineConfig()
