"""Configuration models of every section, and endpoint addresses as text; no input or output."""

from __future__ import annotations

import ipaddress
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError
from pydantic_core.core_schema import ErrorType
from typing_extensions import Self

from arr_coc.answer_schema import AnswerSchema
from arr_coc.budget import DEFAULT_LIMITS, SHARE_PATTERN, TokenLimits
from arr_coc.errors import counted
from arr_coc.qwen.checkpoint_decoding import DecodingSource
from arr_coc.types import NEEDS_TOKENS_ONLY
from stream.errors import ConfigError
from stream.options.option import Option
from stream.options.schedule import EXAMPLE as SCHEDULE_EXAMPLE
from stream.options.schedule import check_schedule
from stream.untrusted import GROUP_TOKENS_MAX, QUERY_LIMIT_CHARS, WATCH_CHARS_MAX, WATCH_NAME

DEFAULT_QUERY = "Say what happens."
SLOTS_MAX = 64
SLOTS_TOGETHER = 8
"""Answers at once, if `answer.slots` is not a number, by a model on a processor or a server, and for several runs. With
more, an answer of the bundled model is hardly cheaper (benchmarks/README.md), and takes longer."""
MAX_PIXELS = 1 << 26
"""67 million: twice an 8K frame, and what cameras of 64 megapixels take."""

YEAR_S = 31_536_000
"""Longest time of a trigger, of a hold and of a part of a file, in seconds."""


def _not_empty(name: str) -> str:
    if not name:
        raise PydanticKnownError("string_too_short", {"min_length": 1})
    return name


FileName = Annotated[str, AfterValidator(_not_empty)]
"""Name of a file or folder; `min_length` would refuse bytes that are not UTF-8, which a file system allows."""


class Section(BaseModel):
    """Section of the configuration. Types are strict: `"3"` is not a number, `true` is not 1."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ExtensionSection(Section):
    """Section of an extension, in a model of its own: a top-level table of the configuration, named as it is there."""

    section: ClassVar[str]
    """Name of the table."""
    switch: ClassVar[str] = ""
    """Key that turns the feature on. Options of the other keys need it, if their names begin as its option does."""
    changes_answers: ClassVar[bool] = False
    """Answers depend on it, so a run that is resumed needs the same values."""
    without_effect: ClassVar[frozenset[str]] = frozenset()
    """Its keys that change no answer nevertheless."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the section in a configuration, or its defaults."""
        section = (config.__pydantic_extra__ or {}).get(cls.section)
        if section is None:
            return cls()
        assert isinstance(section, cls)
        return section

    def for_camera(self, name: str) -> Self:
        """Return the section of a run that is one of several cameras: what it makes is named after it."""
        return self

    @classmethod
    def check_together(cls, cameras: Mapping[str, Config]) -> None:
        """Raise ConfigError for what several cameras cannot have, by name; each is checked alone elsewhere."""

    def shown(self) -> Self:
        """Return the section for logs and recordings, without secrets."""
        return self

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        """Yield keys whose values are right alone and not together, and the remedy."""
        yield from ()


class CaptureConfig(Section):
    """Source: the part that is read, its size and its pace."""

    fit: Literal["pad", "resize"] = "pad"
    """`pad`: edge replication to multiples of 32; `resize`: as Qwen's processor, for parity with the stock model. See
    docs/sources.md#processing-resolution."""
    size: str | None = Field(default=None, pattern=r"^[1-9]\d{0,4}x[1-9]\d{0,4}$", examples=["640x480"])
    """Work size "WxH"; the source's own when absent."""
    aspect: str = Field(default="auto", pattern=r"^(auto|off|[1-9]\d{0,4}:[1-9]\d{0,4})$", examples=["16:9"])
    """Shape of the picture: `auto`, as the stream states it; `off`, as many pixels as are coded; or width to height as
    it is shown. See docs/sources.md#shape."""
    deinterlace: Literal["auto", "on", "off"] = "auto"
    """Make whole pictures of interlaced video: of frames that are flagged so (`auto`), of all, or of none. See
    docs/sources.md#interlaced-video."""
    max_tiles: int | None = Field(default=None, ge=1)
    """Most tiles; a frame with more is scaled down as Qwen's processor would. See
    docs/sources.md#processing-resolution."""
    max_frames: Annotated[
        int | None, Option("--max-frames N", "Stop after this many frames. [no limit]", without="web")
    ] = Field(default=None, ge=1)
    """Stop after this many frames."""
    start_s: Annotated[
        float, Option("--start TIME", "Start of the part to read: 90, 1:30, 0:01:30.5. [{default}]", without="web")
    ] = Field(default=0.0, ge=0, le=YEAR_S)
    """Begin a file here, in seconds of its media time, with the first frame of that time or later. Times stay those of
    the file. See docs/cli.md#a-part-of-a-file."""
    duration_s: Annotated[
        float | None, Option("--duration TIME", "Length of the part to read. [to the end]", without="web")
    ] = Field(default=None, gt=0, le=YEAR_S)
    """Length of the part of a file to read, in seconds of media time from `start_s`; to its end when absent."""
    stream: Annotated[
        int | None,
        Option("--stream N", "Video stream of a file with several, from 0. [its default]", without="web demo"),
    ] = Field(default=None, ge=0)
    """Video stream of a file or a playlist that holds several, counted from 0; its default one, or the variant that
    fits the run (docs/sources.md#hls-and-dash), when absent."""
    follow: Annotated[
        bool, Option("--follow", "Wait for more at the end of a file that still grows.", only="caption watch")
    ] = False
    """Wait for more at the end of a file that still grows, such as a recording that goes on. See
    docs/sources.md#files-that-still-grow."""
    follow_idle_s: float = Field(default=30.0, gt=0)
    """Time without growth after which a followed file has ended, in seconds. See
    docs/sources.md#files-that-still-grow."""
    realtime: Annotated[
        bool,
        Option("--realtime", "Play a file at its own pace; late frames are dropped.", only="caption bench"),
        Option("--realtime", "Play a file at its own pace; late frames are dropped. [always]", only="watch fleet"),
    ] = False
    """Play a file at its own pace, as a camera would: frames may then be dropped, and are counted."""
    loop: bool = False
    """Begin a drawn scene anew at its end, until the run is ended. The command `web` does so."""
    max_pixels: int = Field(default=MAX_PIXELS, ge=1)
    """Largest picture, width times height, that is decoded; a larger one is refused."""
    decoder: Literal["software", "auto", "cuda", "vaapi", "videotoolbox"] = "software"
    """Decoder of files, standard input and network streams: in software, by a device, or by the first device that works
    (`auto`). What a device cannot decode is decoded in software. See docs/sources.md#decoding-in-hardware."""
    fps: float | None = Field(default=None, gt=0, le=1000)
    """Frames a second of an image folder (25 when absent), or requested of a camera."""
    camera_mode: str | None = Field(
        default=None, pattern=r"^[1-9]\d{0,4}x[1-9]\d{0,4}(:\w+)?$", examples=["1280x720:mjpeg"]
    )
    """Mode of a camera, "WxH" or "WxH:FORMAT", as `devices` lists them, the driver's when absent; size of the captured
    area of a screen."""
    rtsp_transport: Literal["tcp", "udp"] = "tcp"
    """Transport of RTSP media: `tcp` loses nothing, `udp` is sooner on a bad network."""
    tls_verify: Literal["auto"] | bool = "auto"
    """Check the certificate of a source over TLS; `auto`: of `https` and `rtmps`, and of cameras if `ca_file` is given.
    See docs/sources.md#certificates."""
    ca_file: FileName | None = Field(default=None, examples=['"camera.pem"'])
    """PEM file with trusted certificates, such as a camera's own; those of the system when absent. See
    docs/sources.md#certificates."""
    headers: dict[str, str] = Field(default={}, examples=['{Authorization = "Bearer $CAMERA_TOKEN"}'])
    """Headers of requests over HTTP and HTTPS; `$NAME` is an environment variable, `$$` a $. No value is written
    anywhere (docs/sources.md#headers)."""
    reconnect: bool = True
    """Open a lost live source again, with growing waits; otherwise its loss ends the run. See
    docs/sources.md#when-it-is-lost."""
    open_timeout_s: float = Field(default=10.0, gt=0)
    """Time limit of one attempt to open a live source, in seconds. See docs/sources.md#delay."""
    stall_s: float = Field(default=5.0, gt=0)
    """Time without a frame after which a live source counts as lost, in seconds."""


class CutConfig(Section):
    """Detection of scene cuts; its thresholds are constants of `arr_coc/video/cuts.py` (docs/methods.md#scene-cuts)."""

    enabled: bool = True
    """Detect scene cuts."""


class TextureConfig(Section):
    """Texture store, and the change that makes a tile new."""

    backend: Annotated[
        Literal["auto", "cpu", "gl", "cuda"],
        Option("--backend NAME", "Texture backend: {choices}. [{default}]", also="doctor"),
    ] = "auto"
    """Texture backend: `cpu`, `gl` (OpenGL), `cuda`; `auto` is `cuda` if there is one, else `cpu`. See
    docs/cli.md#texture-backends."""
    interop: Literal["auto", "off"] = "auto"
    """How a model on CUDA reads a texture of OpenGL: on the GPU if `gl` draws on the model's (`auto`), or read back
    (`off`). See docs/gpu.md#sharing-with-opengl."""
    mean_threshold: float = Field(default=3.5, ge=0, le=255)
    """A tile is dirty if its mean absolute difference in luma or chroma exceeds this, of 255."""
    max_threshold: float = Field(default=12.0, ge=0, le=255)
    """A tile is also dirty if the largest 2x2 mean of the difference exceeds this, of 255."""
    lease_timeout_ms: int = Field(default=2000, ge=1)
    """Longest wait between writer and readers of the texture, in milliseconds."""
    cut: CutConfig = CutConfig()


class FixationConfig(Section):
    """Cortical magnification of the strategy `fixation` (docs/methods.md#regions-and-positions)."""

    e0: float | None = Field(default=None, gt=0, le=100)
    """Distance from the fixation, in frame widths, at which magnification has halved. When absent, full detail stands
    just at the fixation, and falls off as slowly as the budget allows."""
    m0: float | None = Field(default=None, gt=0, le=100)
    """A pixel at distance e from the fixation shows m0 / (e + e0) texels, or fewer if the budget asks for it; with
    `e0`. When absent, as much as the budget allows."""


class AllocateConfig(Section):
    """Choice of visual tokens."""

    strategy: Annotated[
        Literal["auto", "topk", "mixed", "foveated", "fixation", "grid", "uniform", "random", "evs", "querystream"],
        Option("--strategy NAME", "Choice of tokens: {choices}. [{default}]"),
    ] = "auto"
    """`auto`: `topk`, the most relevant tiles, and `grid` for a picture without structure. `evs`: what changed since
    the last answer; `querystream`: of that, what is relevant to the question. docs/models.md explains each."""
    budget: Annotated[
        Annotated[int, Field(ge=1)] | Literal["auto", "adaptive"] | Annotated[str, Field(pattern=f"^{SHARE_PATTERN}$")],
        Option("--budget N", "Visual tokens per frame: 64, 27%, adaptive. [27%, 64 to 400]", also="doctor"),
    ] = Field(default="auto", examples=["27%"])
    """Visual tokens a frame: a number, or a share of its tiles such as `"27%"`. `auto`: 27 % of them, within
    `min_tokens` to `max_tokens`; `adaptive`: within these too, by how spread the relevance is. With `encode` full and
    weighted the model gets one for every tile. See docs/cli.md#how-many-tokens."""
    min_tokens: Annotated[int, Option("--min-budget N", "Least tokens of a budget that adapts. [{default}]")] = Field(
        default=DEFAULT_LIMITS.min_tokens, ge=1
    )
    """Least visual tokens a frame with a budget that is `auto` or `adaptive`, or adapts to `latency.target_ms`; a frame
    with fewer tiles is shown whole. See docs/cli.md#how-many-tokens."""
    max_tokens: Annotated[
        int, Option("--max-budget N", "Most tokens of a budget that adapts. [{default}]", also="doctor")
    ] = Field(default=DEFAULT_LIMITS.max_tokens, ge=1)
    """Most visual tokens a frame with a budget that adapts. See docs/cli.md#how-many-tokens."""
    explore: float = Field(default=0.10, ge=0, le=1)
    """Share of the budget for tiles that were not shown for longest."""
    coverage: float = Field(default=0.25, ge=0, le=1)
    """Share of the budget that `mixed` spreads evenly."""
    wide: Literal["auto"] | bool = "auto"
    """Wide and tall tokens for lines of text, with `topk`, `mixed` and `foveated`; `auto`: if the model knows them."""
    tau_ms: float = Field(default=93.0, gt=0)
    """Time constant of blending relevance; 93 ms keeps 0.7 a frame at 30 fps."""
    seed: int = 0
    """Seed of the strategy `random`."""
    fixation: FixationConfig = FixationConfig()
    channels: Literal["auto", "core13", "full40", "full40+text"] = "auto"
    """Channels of a tile that relevance is made of; `auto`: those that the model's allocator was trained on, else
    `core13`. A trained allocator wins over another name, and `full40` is experimental (docs/methods.md)."""

    @property
    def limits(self) -> TokenLimits:
        """Limits of budgets that adapt. Raises BudgetError if `min_tokens` is more than `max_tokens`."""
        return TokenLimits(self.min_tokens, self.max_tokens)


class IncrementalConfig(Section):
    """Limits of `encode = "incremental"` (docs/cli.md#incremental-encoding)."""

    every_frames: int | None = Field(default=64, ge=1)
    """Frames after which all regions are encoded afresh; none for never."""
    share: float = Field(default=0.10, ge=0, le=1)
    """Share of the unchanged regions that are encoded again with every frame."""
    drift_limit: float | None = Field(default=0.2, gt=0)
    """Error of these regions above which the next frame is encoded afresh; none for no limit."""
    memory_mb: float = Field(default=1024.0, ge=0)
    """Memory for kept keys and values, in MB; a frame that needs more is encoded as with `sparse`."""


class MemoryConfig(Section):
    """Visual memory, with `encode` sparse and incremental (docs/cli.md#visual-memory)."""

    enabled: Annotated[
        bool | Literal["auto"],
        Option(
            "--memory / --no-memory",
            "Keep what the model was shown, and show it only what is new. [{default}]",
            also="serve-answers doctor",
        ),
    ] = "auto"
    """Keep what the model was shown, and append only what is new. `auto`: if `encode` and the model allow it. With
    `--server` both sides need it. See docs/cli.md#visual-memory."""
    frames: Annotated[
        int,
        Option(
            "--memory-frames N",
            "Newest frames that the model sees, each whole; 1: one picture kept up to date. [{default}]",
            also="serve-answers doctor",
        ),
    ] = Field(default=1, ge=1)
    """Number of the newest answered frames that the model sees, each whole and under its time, for questions about
    movement; more than one switch the memory on. 1: one picture that is kept up to date. With `api.url`: number of
    frames that are sent. See docs/cli.md#several-frames."""
    tokens: int = Field(default=2048, ge=64, le=GROUP_TOKENS_MAX)
    """Most visual tokens that a group of pictures shows; a frame that does not fit begins a new group."""
    seconds: float = Field(default=60.0, gt=0)
    """Age at which a group of which tokens were superseded begins anew, in seconds of media time."""
    patch: bool = False
    """Go on with a group of which something has changed: sooner, but some answers name what is gone. See
    docs/cli.md#visual-memory."""
    idle: Annotated[
        Annotated[float, Field(ge=0, le=1)] | Literal["auto"],
        Option(
            "--memory-idle SHARE",
            "Share of the time in which the model reads ahead between answers; 0: never. [{default}]",
            also="serve-answers",
        ),
    ] = "auto"
    """Share of the time in which the model reads ahead: what changed, then tiles not yet shown in full resolution, the
    most relevant first; then the group is written anew. It gives way to every question. `auto`: 0.25 on a CPU, 0.5 on a
    GPU. A file that is read frame by frame counts its frames' time in place of the clock's, so that results do not
    depend on the machine. See docs/cli.md#visual-memory."""

    def idle_share(self, auto: float) -> float:
        """Return `idle`, with this share for `auto`."""
        return auto if self.idle == "auto" else self.idle


class WatchConfig(Section):
    """Watch: a yes/no question that is checked again when something relevant changed (docs/watch.md). A `[[watch]]`
    each; one that is text is its question."""

    question: str = Field(max_length=WATCH_CHARS_MAX, pattern=r"\S", examples=['"is there a red car?"'])
    """The question."""
    name: str = Field(default="", pattern=f"^{WATCH_NAME}$", examples=['"front_door"'])
    """Name in events, topics and commands; made from the question when absent."""
    threshold: float = Field(default=0.6, gt=0, le=1)
    """Lowest probability of a yes."""
    no_below: float | None = Field(default=None, ge=0, lt=1)
    """Highest probability of a no, 0.4 or `threshold` when absent; in between a check says nothing."""
    sure: float = Field(default=0.95, ge=0.5, le=1)
    """A check of this probability changes the answer alone; any other must be confirmed by the next."""
    certain: float = Field(default=0.1, ge=0, le=1)
    """Least probability of yes and no together; below it a check says nothing."""
    hold_s: float = Field(default=0.0, ge=0, le=YEAR_S)
    """Time for which the answer must stay yes before a match, in seconds."""
    cooldown_s: float = Field(default=0.0, ge=0, le=YEAR_S)
    """Time after a match in which there is no other, in seconds."""
    schedule: Annotated[str, AfterValidator(check_schedule)] | None = Field(default=None, examples=[SCHEDULE_EXAMPLE])
    """Days and hours of checks, `[DAYS] HH:MM-HH:MM [ZONE]`, several separated by `;`; always when absent, and for a
    source that is not live."""
    zone: str | None = Field(default=None, min_length=1, examples=['"porch"'])
    """Name of the zone that it is about. Tokens show the zones of all questions of the run, or the whole picture if one
    has none (docs/zones.md)."""
    every_s: float | None = Field(default=30.0, gt=0, le=YEAR_S)
    """Longest time between checks, in seconds; none to check only on change."""
    on_change: float | None = Field(default=0.02, gt=0, le=1)
    """Check when the relevance-weighted change since the last check reaches this."""
    on_cut: bool = True
    """Check at a scene cut, at another size or format, and when a lost source is back."""
    least_s: float = Field(default=0.25, ge=0, le=YEAR_S)
    """Shortest time between checks, in seconds; a cut does not wait."""
    on_match: str | None = Field(default=None, pattern=r"\S", examples=['"notify-send {watch} {question}"'])
    """Command that each match starts, in place of `on_match.command`."""
    mqtt: bool = True
    """Send the answer and matches to the broker of `mqtt.url`."""
    webhook: bool = True
    """Post matches to `webhook.url`."""
    ends_run: bool = False
    """End the run with the first match, as `--until` does."""
    force: bool = False
    """Check also if the model does not know the source or a word; each check then says that it means nothing."""

    @model_validator(mode="before")
    @classmethod
    def _question_alone(cls, value: object) -> object:
        if isinstance(value, str):
            return {"question": value}
        return value

    @property
    def most_of_no(self) -> float:
        """Highest probability of a no."""
        if self.no_below is None:
            return min(0.4, self.threshold)
        return self.no_below


_NAME_CHARS = 40


def name_watches(watches: tuple[WatchConfig, ...]) -> tuple[WatchConfig, ...]:
    """Return watches that all have names. Names made from different questions differ; given ones stay as they are."""
    given_names = {watch.name for watch in watches if watch.name}
    questions: dict[str, str] = {}
    named_watches = []
    for watch in watches:
        name = watch.name
        if not name:
            plain = unicodedata.normalize("NFKD", watch.question.casefold()).encode("ascii", "ignore").decode()
            first = name = re.sub(r"[^a-z0-9]+", "_", plain)[:_NAME_CHARS].strip("_") or "watch"
            number = 1
            while name in given_names or questions.get(name, watch.question) != watch.question:
                number += 1
                name = f"{first[: _NAME_CHARS - 3]}_{number}"
            questions[name] = watch.question
        named_watches.append(watch.model_copy(update={"name": name}))
    return tuple(named_watches)


class GlanceConfig(Section):
    """Glances at an overview before an answer, with `encode` sparse and incremental (docs/cli.md#glances)."""

    enabled: Annotated[
        bool | Literal["auto"],
        Option(
            "--glance / --no-glance",
            "Look at an overview before answering something new. [auto: see docs/cli.md#glances]",
        ),
    ] = "auto"
    """Look at an overview before the answer to a new question, after a cut, after much came into view, and after
    `every_s`. `auto`: with a model that knows coarse tokens and has no trained allocator: the attention of others to
    an overview misleads. See docs/cli.md#glances."""
    every_s: float = Field(default=60.0, gt=0)
    """Longest time between glances, in seconds of media time."""
    tokens: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    """Most visual tokens of an overview, counted in the budget; `auto`: 64, and no more than half the budget."""


class AnswerConfig(Section):
    """Model, question, and the moments of answers."""

    model: Annotated[
        FileName | None,
        Option(
            "-m, --model NAME",
            "Folder or hub name of a Qwen-VL model; with --api its name there. [bundled]",
            also="adapt serve-answers recap",
        ),
        Option("-m, --model NAME", "The model to check. [bundled]", only="doctor"),
    ] = None
    """Folder or hub name; when absent the bundled model, which only knows drawn scenes. With `api.url`: its name there.
    See docs/models.md."""
    allocator: Annotated[
        FileName | None,
        Option(
            "--allocator FOLDER", "Allocator for the model, made by `adapt`. [the model's own]", also="serve-answers"
        ),
    ] = None
    """Folder or hub name of an allocator for the model, as `adapt` makes one (docs/adapt.md); one for another model is
    refused. When absent, the one that came with the model, if any."""
    query: Annotated[str, Option("-q, --query TEXT", "The question. [{default}]")] = Field(
        default=DEFAULT_QUERY, min_length=1, max_length=QUERY_LIMIT_CHARS
    )
    """The question or instruction."""
    captions: bool = False
    """Ask `query` beside watches, as `-q` does; otherwise they are all that is asked."""
    system: Annotated[
        str | None, Option("--system TEXT", "System prompt. [the model's own]", also="serve-answers", without="demo")
    ] = Field(default=None, min_length=1, max_length=QUERY_LIMIT_CHARS)
    """System prompt: what stands before all pictures and questions, such as how to answer. When absent, that of the
    model's chat template, if it has one."""
    json_schema: Annotated[
        str | None,
        Option(
            "--schema FILE|JSON", "Answers as fields: a JSON Schema, or JSON of names and types. [off]", without="demo"
        ),
    ] = Field(default=None, min_length=1, examples=['\'{"people": "integer", "weather": ["sun", "rain"]}\''])
    """Schema of the answers, whose fields are then events', outputs' and sensors' (docs/structured-answers.md): a file
    with a JSON Schema, or JSON, also in the short form of field names and types. Answers are text when absent."""
    choices: Annotated[
        str | None, Option("--choices TEXT,…", "Answers that are one of these texts. [off]", without="demo")
    ] = Field(default=None, min_length=1, examples=['"sun,rain"'])
    """Texts, separated by commas, of which each answer is one. In place of `answer.json_schema`
    (docs/structured-answers.md)."""
    zone: Annotated[
        str | None, Option("--zone NAME", "Show the model only this zone of the configuration. [the whole picture]")
    ] = Field(default=None, min_length=1, examples=['"porch"'])
    """Name of the zone that the question is about: tiles outside have no relevance, and no token shows them. The whole
    picture when absent. See docs/zones.md."""
    when: Annotated[
        Literal["always", "news"],
        Option("--when NAME", "Give every answer, or only those that say something new: {choices}. [{default}]"),
    ] = "always"
    """`news`: an answer that is the same as the one before is not given; the event `unchanged` reports it. See
    docs/cli.md#earlier-answers."""
    same_above: float = Field(default=0.5, gt=0, le=1)
    """With `when = "news"`: probability from which on the previous answer still holds. It is that of the answer's least
    likely token in the new frame; of a model behind `api.url`, that it is still right. See
    docs/cli.md#earlier-answers."""
    every_s: Annotated[
        float | None, Option("--every SECONDS", "Time between answers, or none: only at cuts. [{default}]")
    ] = Field(default=2.0, gt=0, le=YEAR_S)
    """Seconds of media time between answers; none to answer only on change and on cuts."""
    encode: Annotated[
        Literal["sparse", "incremental", "prune", "weighted", "full", "picture"],
        Option(
            "--encode NAME",
            "Vision encoding: {choices} (with --api). [{default}]",
            also="doctor serve-answers",
        ),
    ] = "sparse"
    """Tokens for the vision encoder: only the chosen tokens (`sparse`), those of them that are new or changed
    (`incremental`), or all. `picture`: for a server of `--api`, as `api.picture` says; `sparse` if that is `tokens`.
    See docs/models.md#choice-of-tokens."""
    incremental: IncrementalConfig = IncrementalConfig()
    memory: MemoryConfig = MemoryConfig()
    glance: GlanceConfig = GlanceConfig()
    overview: Literal["auto", "keep", "drop"] = "auto"
    """Keep the overview of a glance in the answer's prompt, or drop it; `auto`: the better one by evaluation. See
    docs/cli.md#glances."""
    on_change: float | None = Field(default=None, gt=0, le=1)
    """Answer when the relevance-weighted change since the last answer exceeds this."""
    on_cut: bool | Literal["finish", "cancel"] = "finish"
    """Answer at a cut after the answer in progress (`finish`, true), in its place (`cancel`), or not (false). See
    docs/cli.md#at-a-cut."""
    feedback: bool = True
    """Let the regions that an answer attended to draw the tokens of later frames. See
    docs/cli.md#feedback-from-answers."""
    max_tokens: Annotated[
        int, Option("--max-tokens N", "Maximum length of an answer, in text tokens. [{default}]", only="serve-answers")
    ] = Field(default=64, ge=1)
    """Longest answer, in tokens of text."""
    decoding: Annotated[
        DecodingSource,
        Option(
            "--decoding NAME",
            "What is taken from the model's own decoding options: {choices}. [{default}]",
            without="demo",
            also="serve-answers",
        ),
    ] = "auto"
    """What is taken from the model's `generation_config.json` for keys that are not set: its penalties, and with a
    temperature also `top_p`, `top_k` and `min_p` (`auto`); its sampling too, if it asks for that, with the seed of
    `answer.seed` (`checkpoint`); or nothing (`plain`). See docs/models.md#decoding-and-thoughts."""
    temperature: float = Field(default=0.0, ge=0)
    """0 is greedy, the same answer on every run; with `decoding = "checkpoint"` 0 is the model's own."""
    thinking: Annotated[
        Literal["hide", "show", "off"],
        Option(
            "--thinking NAME",
            "Thoughts of the model before an answer: {choices}. [{default}]",
            without="demo",
            also="serve-answers",
        ),
    ] = "off"
    """Thoughts of a model before its answer: not asked for (`off`), made and left out of the answer (`hide`), or shown
    with it (`show`). They count for `answer.max_tokens`, which then has to be larger. See
    docs/models.md#decoding-and-thoughts."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling: draw from the likeliest tokens that together reach this probability, the model's own or 1 when
    absent. With a temperature."""
    top_k: int | None = Field(default=None, ge=0)
    """Draw from this number of the likeliest tokens; 0 for all, the model's own or 0 when absent. With a
    temperature."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Draw from tokens this many times as likely as the likeliest; the model's own or 0 when absent. With a
    temperature."""
    repetition_penalty: float | None = Field(default=None, gt=0, le=100)
    """Divides the logits of tokens that question or answer have: 1.05 is mild, 1 is none; the model's own or 1 when
    absent."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Is subtracted from the logit of a token that the answer has: Qwen3-VL's card names 1.5; the model's own or 0 when
    absent."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Is subtracted from the logit of a token each time that the answer has it; the model's own or 0 when absent."""
    no_repeat_ngram_size: int | None = Field(default=None, ge=0)
    """Runs of this many tokens come only once in question and answer; 0 for any, the model's own or 0 when absent."""
    stop_loops: bool = True
    """End an answer that repeats itself, without a schema, after its second repetition. A loop is
    3 or more equal parts of at most 32 tokens each, 32 or more tokens in all, 128 if there is no letter in them. See
    docs/methods.md#penalties-and-loops."""
    seed: int = 0
    """Seed of sampling, with a temperature."""
    server: Annotated[
        str | None,
        Option("--server ADDRESS,…", "Address of a `serve-answers`, or several: tcp://HOST:PORT. [a process here]"),
    ] = Field(default=None, min_length=1)
    """Address of a `serve-answers`, such as tcp://10.0.0.2:5555, or several, separated by commas
    (docs/processes.md#several-servers); a process of this run when absent. The server chooses the model, so `-m`,
    `--device` and `--dtype` are refused."""
    server_choice: Literal["spread", "order"] = "spread"
    """Server that answers: the one with the fewest clients for each slot, or the first of the list that is ready."""
    slots: Annotated[
        Annotated[int, Field(ge=1, le=SLOTS_MAX)] | Literal["auto"],
        Option(
            "--slots N", "Clients answered at once, in one batch; auto: by memory. [{default}]", only="serve-answers"
        ),
    ] = 1
    """Number of clients that a server of several answers at once, in one batch; with `api.url`, of requests that are
    open at once. `auto`: as many as memory holds. 1: one after the other, and each answer is the same as if there were
    no other client. See docs/processes.md#answers-together."""
    device: Annotated[
        str,
        Option(
            "--device NAME",
            "Device of the model: cpu, cuda, cuda:1... [{default}]",
            also="adapt doctor serve-answers recap",
        ),
    ] = "auto"
    """Device of the model: `auto`, `cpu`, `cuda`, `cuda:1`…"""
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8", "int4"],
        Option(
            "--dtype NAME", "Data type of the model: {choices}. [{default}]", also="adapt doctor serve-answers recap"
        ),
    ] = "auto"
    """Data type that the model computes with. `auto`: as stored; on a CPU `float32`, but `bfloat16` for large models if
    its processor multiplies it (AMX, AVX-512 BF16). `int8` and `int4`: weights of 8 or 4 bits, made as the model is
    loaded, on a CPU. See docs/models.md#data-types."""
    cache_weights: Annotated[
        bool,
        Option(
            "--cache-weights",
            "With --dtype int8 or int4: keep the weights beside the model for later starts.",
            without="demo",
            also="serve-answers",
        ),
    ] = False
    """Keep weights in `int8` or `int4` in the folder `arr_coc_weights` of the model's folder, and load them from there:
    a later start makes none. They take about as much space there as memory (docs/models.md#data-types)."""

    @property
    def schema_of_answers(self) -> AnswerSchema | None:
        """Schema of the answers, from `json_schema` or `choices`; None if they are text. Raises OptionError."""
        if self.json_schema is not None:
            return AnswerSchema.parse(self.json_schema)
        if self.choices is None:
            return None
        return AnswerSchema.of_choices(self.choices.split(","))


class NetworkConfig(Section):
    """Access to sockets that leave this machine."""

    keys: Annotated[
        FileName | None,
        Option("--keys FOLDER", "CURVE keys, made by `keys`, for sockets that leave this machine."),
        Option("--keys FOLDER", "Keys made by `keys`; only their holders may connect.", only="serve-answers"),
        Option("--keys FOLDER", "CURVE keys of the run, made by `keys`.", only="ask"),
    ] = None
    """Folder of CURVE keys, made by the command `keys`; without it sockets stay on this machine."""
    plain_tcp: Annotated[
        bool,
        Option("--plain-tcp", "Let sockets leave this machine without keys: any program may connect."),
        Option(
            "--plain-tcp", "Allow TCP from other machines without keys: any program may connect.", only="serve-answers"
        ),
        Option("--plain-tcp", "Allow TCP to other machines without keys.", only="ask"),
    ] = False
    """Allow TCP without keys beyond this machine: every program that reaches the port can read and send."""


Share = Annotated[float, Field(ge=0, le=1)]
"""Place in the picture, as a share of its width or height."""

Point = Annotated[tuple[Share, Share], Field(strict=False)]

ZONE_POINTS_MAX = 256
"""Most points of a zone."""


class ZoneConfig(Section):
    """Zone: a named part of the picture, as `points` or as `box` (docs/zones.md). `NAME` is its name, of letters,
    digits, `_` and `-`. A polygon that crosses itself has its inside by the even-odd rule."""

    points: Annotated[tuple[Point, ...], Field(strict=False)] | None = Field(
        default=None, examples=["[[0.1, 0.2], [0.5, 0.2], [0.3, 0.9]]"]
    )
    """Corners of a polygon, three or more, each [x, y] in shares of the picture from the upper left."""
    box: Annotated[tuple[Share, Share, Share, Share], Field(strict=False)] | None = Field(
        default=None, examples=["[0.1, 0.2, 0.5, 0.9]"]
    )
    """Rectangle [left, top, right, bottom], in shares of the picture, in place of `points`."""
    weight: float = Field(default=1.0, ge=0, le=4)
    """Factor of the relevance of its tiles: 0 for none, 4 for four times as much. A tile counts by the share of it that
    the zone covers; factors of zones that overlap are multiplied (docs/zones.md)."""
    mask: bool = False
    """Make the zone black before anything reads the picture."""

    @property
    def polygon(self) -> tuple[tuple[float, float], ...]:
        """Corners (x, y) of `points` or `box`."""
        if self.box is None:
            return self.points or ()
        left, top, right, bottom = self.box
        return (left, top), (right, top), (right, bottom), (left, bottom)

    @property
    def problem(self) -> str | None:
        """Reason for which it is no part of a picture; None if it is one."""
        if (self.points is None) == (self.box is None):
            if self.box is None:
                return "needs `points` or `box`"
            return "has both `points` and `box`; leave one of them out"
        if self.box is not None and not (self.box[0] < self.box[2] and self.box[1] < self.box[3]):
            return "has a `box` without an inside; write [left, top, right, bottom], in shares of the picture"
        if self.points is not None and not 3 <= len(self.points) <= ZONE_POINTS_MAX:
            return f"has {counted(len(self.points), 'point')}; a polygon has 3 to {ZONE_POINTS_MAX}"
        return None


class OutputConfig(Section):
    """Files and sockets that text and pictures go to."""

    paths: Annotated[
        tuple[str, ...],
        Option("-o, --output FILE", "As {suffixes}, - for JSON; repeatable. [stdout]", only="caption"),
        Option("-o, --output FILE", "Also write {suffixes}, - for JSON; repeatable.", only="watch fleet"),
    ] = Field(default=(), strict=False)
    """Caption files and recordings; the suffix chooses the format (docs/cli.md#caption). `-` is JSON lines on standard
    output (docs/cli.md#json-lines)."""
    timing: Annotated[
        bool,
        Option(
            "--timing / --no-timing",
            "Latencies in .jsonl; without them two runs write the same bytes. [timing]",
            only="caption",
        ),
    ] = True
    """Write latencies to JSONL; without them two runs give the same bytes."""
    pictures_every: int | None = Field(default=None, ge=1)
    """Number of frames after which recordings, Foxglove and Rerun get a picture; only frames that are answered about
    when absent."""


class PipelineConfig(Section):
    """Queues between the stages, and restarts of processes that die."""

    single_process: Annotated[
        bool, Option("--single-process", "Run the model in a thread, for debugging.", without="web")
    ] = False
    """Run the answer stage as a thread instead of a process."""
    restart: Annotated[
        bool | None,
        Option(
            "--restart / --no-restart", "Restart a process that dies or hangs. [for live sources]", without="web demo"
        ),
    ] = None
    """Start a process that died or hangs again, with the frame stages in a process of their own; for live sources when
    absent. With `answer.server`: connect again when the server is lost, also for files, but not in `bench`. See
    docs/processes.md."""
    restart_limit: int = Field(default=5, ge=1)
    """Deaths of one process within a minute that end the run."""
    heartbeat_s: float = Field(default=5.0, gt=0)
    """Time without a heartbeat after which a process is restarted, in seconds."""
    frames: Literal["lossless", "newest"] = "lossless"
    """Between the stages: wait for each frame, or drop all but the newest."""
    answers: Literal["lockstep", "newest"] = "lockstep"
    """At an answer point: wait for the answer, or go on and answer the newest packet."""
    steady: bool = True
    """Live frames at even intervals, with a small delay unless `zeromq.publish` is set. Their process has short pauses
    (garbage, change of threads)."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest silence of the answer stage, in seconds; then the run is given up."""


def _section_models() -> dict[str, type[ExtensionSection]]:
    """Return the models of the sections of extensions, which build on this module: they are found by name."""
    models: dict[str, type[ExtensionSection]] = resolve_name("stream.extension.registry:section_models")()
    return models


def _at_section(section: str, detail: Any) -> dict[str, Any]:
    """Return an error of a section as one of the whole configuration."""
    loc = (section, *detail["loc"]) if section else detail["loc"]
    kind: Any = detail["type"]
    if kind not in get_args(ErrorType):  # of a validator that an extension has
        kind = PydanticCustomError(kind, detail["msg"])
    return {**detail, "type": kind, "loc": loc}


class Config(Section):
    """Configuration of a run, with the sections of extensions beside those of the core."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, SerializeAsAny[ExtensionSection]] = Field(init=False)

    source: str = ""
    """File, camera, address, folder of pictures, "-" or `scene:NAME` (docs/sources.md)."""
    capture: CaptureConfig = CaptureConfig()
    texture: TextureConfig = TextureConfig()
    allocate: AllocateConfig = AllocateConfig()
    answer: AnswerConfig = AnswerConfig()
    zones: dict[str, ZoneConfig] = Field(default_factory=dict)
    """Named parts of the picture."""
    watch: Annotated[
        tuple[WatchConfig, ...],
        Option(
            "--watch QUESTION",
            "Report when the answer to a yes-or-no question is yes; repeatable. [off]",
            without="demo",
        ),
    ] = Field(default=(), strict=False)
    """Watches, as [[watch]] tables, or their questions (docs/watch.md)."""
    output: OutputConfig = OutputConfig()
    network: NetworkConfig = NetworkConfig()
    pipeline: PipelineConfig = PipelineConfig()

    @cached_property
    def file(self) -> Path | None:
        """The user's file that it was read from, the last of several; None without one, and in other processes. It
        takes no part when configurations are compared."""
        return None

    def encode(self) -> str:
        """Return the configuration as ASCII for another process of this program, with any name of a file as it is:
        one that is not UTF-8 has surrogates (PEP 383), which JSON may spell and pydantic's own refuses."""
        return json.dumps(self.model_dump(mode="json"))

    @classmethod
    def decode(cls, text: str) -> Config:
        """Return the configuration that `encode` has given."""
        # types were checked when it was made; JSON has no tuples
        return cls.of_tables(json.loads(text), strict=False)

    @classmethod
    def of_tables(cls, tables: Mapping[str, Any], *, strict: bool | None = None) -> Config:
        """Return the configuration of nested tables. Raises ValidationError; it names places with their section."""
        values = dict(tables)
        problems: list[Any] = []
        for name, model in _section_models().items():
            if name in values:
                try:
                    values[name] = model.model_validate(values[name], strict=strict)
                except ValidationError as error:
                    del values[name]
                    problems += [_at_section(name, detail) for detail in error.errors()]
        try:
            config = cls.model_validate(values, strict=strict)
        except ValidationError as error:
            problems = [_at_section("", detail) for detail in error.errors()] + problems
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        return config

    def part(self, section: str) -> Section:
        """Return a section, also of an extension, by its name."""
        part = getattr(self, section, None)
        if part is None:
            part = _section_models()[section]()
        return part

    def sections(self) -> dict[str, ExtensionSection]:
        """Return the sections of extensions, by name."""
        return {name: model.of(self) for name, model in _section_models().items()}

    def value(self, key: str) -> Any:
        """Return the value of a dotted key, also of an extension's section."""
        section, _, name = key.partition(".")
        return getattr(self.part(section), name)

    def with_values(self, values: Mapping[str, object]) -> Config:
        """Return a copy with other values of dotted keys, which are not checked."""
        changes: dict[str, dict[str, object]] = {}
        for key, value in values.items():
            section, _, name = key.partition(".")
            changes.setdefault(section, {})[name] = value
        return self.model_copy(
            update={section: self.part(section).model_copy(update=change) for section, change in changes.items()}
        )

    @property
    def model_key(self) -> str | None:
        """Key of the address of another program that has the model, such as `api.url`; None for a Qwen model of this
        program."""
        keys: tuple[str, ...] = resolve_name("stream.extension.registry:model_keys")()
        return next((key for key in keys if self.value(key) is not None), None)

    @property
    def uses_server(self) -> bool:
        """True if a server answers: another program of this project, or a model server."""
        return self.answer.server is not None or self.model_key is not None

    @property
    def keeps_groups(self) -> bool:
        """True if groups of pictures are kept, by a model that can."""
        memory = self.answer.memory
        if memory.enabled != "auto":
            return memory.enabled
        takes_tokens = self.answer.encode in NEEDS_TOKENS_ONLY
        if self.model_key is not None:  # a server's cache holds whole frames, and no picture that is kept up to date
            return takes_tokens and memory.frames > 1
        return takes_tokens or memory.frames > 1

    @property
    def requires_groups(self) -> bool:
        """True if the user asked for groups of pictures, so that what cannot be kept is refused or reported."""
        memory = self.answer.memory
        return self.keeps_groups and (memory.enabled is True or memory.frames > 1)

    @property
    def masks(self) -> tuple[tuple[tuple[float, float], ...], ...]:
        """Polygons of the masked zones: a run that has some copies no packets of its source to an output."""
        return tuple(zone.polygon for zone in self.zones.values() if zone.mask)

    @field_validator("watch", mode="after")
    @classmethod
    def _all_named(cls, watches: tuple[WatchConfig, ...]) -> tuple[WatchConfig, ...]:
        return name_watches(watches)

    @property
    def watches_only(self) -> bool:
        """True if watches are all that is asked."""
        return bool(self.watch) and not self.answer.captions

    @property
    def first_question(self) -> str:
        """First question: `answer.query`, or that of the first watch if watches are all that is asked."""
        if self.watches_only:
            return self.watch[0].question
        return self.answer.query


PORT_MAX = 65_535
"""ZeroMQ takes a larger number modulo 65536, and binds or reaches another port than was asked for."""


def is_local(endpoint: str) -> bool:
    """Return True if an endpoint stays on this machine: inproc, ipc, or TCP on loopback."""
    scheme, _, rest = endpoint.partition("://")
    if scheme != "tcp":
        return True
    host = rest.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in {"localhost", "lo"}


def needs_keys(network: NetworkConfig, endpoint: str) -> bool:
    """Return True if keys are used for `endpoint`. Raises ConfigError for what is no endpoint, and if keys are
    missing."""
    scheme, separator, rest = endpoint.partition("://")
    host, colon, port = rest.rpartition(":")
    if scheme == "ipc" and rest:
        return False
    if scheme == "inproc":
        raise ConfigError(f"{endpoint!r} works inside one process only; write tcp://HOST:PORT or ipc://PATH")
    if scheme != "tcp" or not separator or not host or not colon or not (port.isdigit() or port == "*"):
        raise ConfigError(f"{endpoint!r} is not a socket address; write tcp://HOST:PORT or ipc://PATH")
    if network.keys is not None:
        return True
    if not is_local(endpoint) and not network.plain_tcp:
        raise ConfigError(
            f"{endpoint} leaves this machine without keys: make some with `keys FOLDER` and give --keys FOLDER, or "
            "allow connections without keys by --plain-tcp"
        )
    return False


ASSIGNED_SERVERS = "assigned"
"""Value of `answer.server` of a run whose answer servers come and go: `SetServers` names them."""


def server_addresses(server: str) -> tuple[str, ...]:
    """Return the addresses of `answer.server`. Raises ConfigError if one is missing or stands there twice."""
    addresses = tuple(address.strip() for address in server.split(","))
    for address in addresses:
        if not address:
            raise ConfigError(f"{server!r} has an empty address; write tcp://HOST:PORT,tcp://HOST:PORT")
        if addresses.count(address) > 1:
            raise ConfigError(f"{address} stands twice in {server!r}; leave one out")
    return addresses


def check_reachable(endpoint: str) -> None:
    """Raises ConfigError for a port that no server can have, to connect to."""
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and port.isdigit() and not 0 < int(port) <= PORT_MAX:
        raise ConfigError(f"{endpoint!r} is not a valid address: a port is a number from 1 to {PORT_MAX}")
