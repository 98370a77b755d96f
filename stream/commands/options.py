"""Options that commands share, the configuration keys that they set, and the reading of durations and counts."""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from arr_coc.resources import presets
from stream.commands.help import group_of
from stream.errors import ConfigError

if TYPE_CHECKING:
    from stream.config import Config
    from stream.config_loading import ConfigLayer

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|min|s|m|h|$)")


def parse_duration(option: str, text: str) -> float:
    """Read a duration above 0; a number alone is seconds. Raises ConfigError, which names the option."""
    written = "".join(text.split()).lower()
    seconds, at = 0.0, 0
    while part := _PART.match(written, at):
        seconds += float(part[1]) * _SECONDS[part[2] or "s"]
        at = part.end()
    if at < len(written) or not 0 < seconds < math.inf:
        raise ConfigError(f"{option} needs a length of time above 0, such as 60s, 10m or 1h30m; got {text!r}")
    return seconds


_CLOCK = re.compile(r"(?:(\d+):)?(\d{1,2}):(\d{1,2}(?:\.\d*)?)")


def parse_media_time(option: str, text: str) -> float:
    """Read a media time or a length of it, in seconds: `90`, `1:30`, `0:01:30.5`, or as `parse_duration` takes it.

    Raises ConfigError, which names the option.
    """
    written = text.strip()
    if clock := _CLOCK.fullmatch(written):
        hours, minutes, seconds = int(clock[1] or 0), int(clock[2]), float(clock[3])
        if seconds < 60 and (minutes < 60 or clock[1] is None):
            return hours * 3600 + minutes * 60 + seconds
    elif re.fullmatch(r"0+(\.0*)?s?", written):
        return 0.0
    else:
        with suppress(ConfigError):
            return parse_duration(option, written)
    raise ConfigError(f"{option} needs seconds or h:mm:ss, such as 90, 1:30 or 0:01:30.5; got {text!r}")


def parse_count(option: str, text: str, most: int | None = None) -> int:
    """Read a whole number from 1 to `most`. Raises ConfigError, which names the option."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1 or (most is not None and count > most):
        wanted = "of at least 1" if most is None else f"from 1 to {most}"
        raise ConfigError(f"{option} needs a whole number {wanted}; got {text!r}")
    return count


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """Configuration key that an option sets, in the option's annotation.

    `read` makes the key's value of the option's name and text; without it the text is a TOML value or bare text.
    """

    name: str
    read: Callable[[str, str], object] | None = None


def layers_from_options(owner: Callable[..., object], **given: object) -> list[ConfigLayer]:
    """Return a layer for each option of `owner` that was given and carries a key. Raises ConfigError.

    `given` has the options' values by their names: None, or False for a flag that only switches on, where nothing was
    given.
    """
    from stream.config_loading import ConfigLayer, layer_from_option

    layers = []
    for name, hint in get_type_hints(owner, include_extras=True).items():
        kind, *details = get_args(hint) or (hint,)
        key = next((detail for detail in details if isinstance(detail, ConfigKey)), None)
        value = given.get(name)
        if key is None or value is None or (kind is bool and not value):
            continue
        option = f"--{name.replace('_', '-')}"
        if not isinstance(value, str):
            layers.append(ConfigLayer(option, {key.name: value}))
        elif key.read is not None:
            layers.append(ConfigLayer(option, {key.name: key.read(option, value)}))
        else:
            layers.append(layer_from_option(option, key.name, value))
    return layers


def text_option(*names: str, metavar: str, help: str) -> Any:
    """Return the option under all of its `names`; its default, which `help` tells, is not shown."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)


Model = Annotated[
    str | None,
    text_option(
        "--model",
        "-m",
        metavar="NAME",
        help="Folder or hub name of a Qwen-VL model; with --api its name there. [bundled]",
    ),
    ConfigKey("answer.model"),
]
Api = Annotated[
    str | None,
    text_option(
        "--api", metavar="URL", help="OpenAI-compatible server that answers: http://HOST:PORT/v1. [a process here]"
    ),
    ConfigKey("answer.api.url", lambda _, text: text),
]
Allocator = Annotated[
    str | None,
    text_option("--allocator", metavar="FOLDER", help="Allocator for the model, made by `adapt`. [the model's own]"),
    ConfigKey("answer.allocator"),
]
Encode = Annotated[
    str | None,
    text_option(
        "--encode",
        metavar="NAME",
        help="Vision encoding: sparse, incremental, prune, weighted, full; picture with --api. [sparse]",
    ),
    ConfigKey("answer.encode"),
]
Backend = Annotated[
    str | None,
    text_option("--backend", metavar="NAME", help="Texture backend: cpu, gl, cuda. [auto]"),
    ConfigKey("texture.backend"),
]
Device = Annotated[
    str | None,
    text_option("--device", metavar="NAME", help="Device of the model: cpu, cuda, cuda:1... [auto]"),
    ConfigKey("answer.device"),
]
Dtype = Annotated[
    str | None,
    text_option("--dtype", metavar="NAME", help="Data type of the model: float32, bfloat16, float16. [auto]"),
    ConfigKey("answer.dtype"),
]
MaxBudget = Annotated[
    str | None,
    text_option("--max-budget", metavar="N", help="Most tokens of a budget that adapts. [400]"),
    ConfigKey("allocate.max_tokens"),
]
ConfigFiles = Annotated[
    list[str] | None,
    text_option(
        "--config",
        "-c",
        metavar="FILE",
        help=f"TOML file or preset: {', '.join(presets())}; may be repeated, later ones win.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    text_option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Any key, such as answer.max_tokens=48; may be repeated. All keys: docs/configuration.md",
    ),
]


Output = Annotated[
    list[str] | None,
    text_option(
        "--output",
        "-o",
        metavar="FILE",
        help="Also write .vtt, .srt, .jsonl, .m3u8, .mcap, .rosbag, .rrd, - for JSON lines on stdout; repeatable.",
    ),
    ConfigKey("output.paths"),
]
ForTime = Annotated[
    str | None, text_option("--for", metavar="TIME", help="End this long after the first frame: 60s, 10m, 1h.")
]
StatsEvery = Annotated[
    str,
    text_option(
        "--stats-every", metavar="TIME", help="Without a terminal: time between lines of figures, or none. [10s]"
    ),
]
STATS_EVERY = "10s"
AskStdin = Annotated[
    bool, typer.Option("--ask-stdin", help="Read questions from standard input, even if it is not a terminal.")
]

AT_ITS_OWN_PACE = {"capture.realtime": True}
"""A file is played as a camera would give it."""


def limits_of(for_time: str | None, stats_every: str) -> tuple[float | None, float | None]:
    """Return the seconds of `--for`, and those of `--stats-every`; None for none. Raises ConfigError."""
    limit_s = None if for_time is None else parse_duration("--for", for_time)
    return limit_s, None if stats_every == "none" else parse_duration("--stats-every", stats_every)


CUES = (".vtt", ".srt")
"""Suffixes of files that hold captions only."""


def check_standing_query_options(config: Config, *, go_on: bool, force: bool) -> None:
    """Check the options of a standing query.

    Raises ConfigError where `--go-on` or `--force` has nothing to act on, and for captions, or a latency target, where
    there are no answers.
    """
    until = config.answer.until
    if go_on and until.question is None:
        raise ConfigError('--go-on needs --until; give for example --until "is there a red car?"')
    if force and until.question is None:
        raise ConfigError('--force needs --until; give for example --until "is there a red car?"')
    if until.alone and config.answer.target_ms is not None:
        raise ConfigError("answer.target_ms needs answers, and a run with --until alone gives none; give -q as well")
    silent = [path for path in config.output.paths if path.lower().endswith(CUES)]
    if until.alone and silent:
        raise ConfigError(
            f"nothing would be said in {silent[0]!r}: a run with --until only looks for something; give -q as well for "
            "captions, or name a .jsonl"
        )


@dataclass(frozen=True)
class RunOptions:
    """Options of the command line; None where an option was not given."""

    query: Annotated[
        str | None,
        text_option("--query", "-q", metavar="TEXT", help="The question. [Say what happens.]"),
        ConfigKey("answer.query"),
    ] = None
    model: Model = None
    allocator: Allocator = None
    every: Annotated[
        str | None,
        text_option("--every", metavar="SECONDS", help="Time between answers, or none: only at cuts. [2]"),
        ConfigKey("answer.every_s"),
    ] = None
    budget: Annotated[
        str | None,
        text_option("--budget", metavar="N", help="Visual tokens per frame: 64, 27%, adaptive. [27%, 64 to 400]"),
        ConfigKey("allocate.budget"),
    ] = None
    min_budget: Annotated[
        str | None,
        text_option("--min-budget", metavar="N", help="Least tokens of a budget that adapts. [64]"),
        ConfigKey("allocate.min_tokens"),
    ] = None
    max_budget: MaxBudget = None
    target_ms: Annotated[
        str | None,
        text_option(
            "--target-ms", metavar="MS", help="Adapt the budget to keep p95 time to first token below this. [off]"
        ),
        ConfigKey("answer.target_ms"),
    ] = None
    strategy: Annotated[
        str | None,
        text_option(
            "--strategy",
            metavar="NAME",
            help="Allocation strategy: topk, mixed, foveated, fixation, grid, uniform, random. [auto]",
        ),
        ConfigKey("allocate.strategy"),
    ] = None
    encode: Encode = None
    glance: Annotated[
        bool | None,
        typer.Option(
            "--glance/--no-glance",
            help="Look at an overview before answering something new. [for models without a trained allocator]",
            show_default=False,
        ),
        ConfigKey("answer.glance.enabled"),
    ] = None
    window: Annotated[
        str | None,
        text_option("--window", metavar="N", help="Frames per answer. [1]"),
        ConfigKey("answer.window.frames"),
    ] = None
    until: Annotated[
        str | None,
        text_option("--until", metavar="QUESTION", help="End when the answer to this yes-or-no question is yes. [off]"),
        ConfigKey("answer.until.question"),
    ] = None
    go_on: Annotated[
        bool,
        typer.Option("--go-on", help="With --until: continue after a yes, and report each change."),
        ConfigKey("answer.until.go_on"),
    ] = False
    force: Annotated[
        bool,
        typer.Option("--force", help="With --until: run even if the model was not made for this source."),
        ConfigKey("answer.until.force"),
    ] = False
    max_frames: Annotated[
        str | None,
        text_option("--max-frames", metavar="N", help="Stop after this many frames. [no limit]"),
        ConfigKey("capture.max_frames"),
    ] = None
    start: Annotated[
        str | None,
        text_option("--start", metavar="TIME", help="Start of the part to read: 90, 1:30, 0:01:30.5. [0]"),
        ConfigKey("capture.start_s", parse_media_time),
    ] = None
    duration: Annotated[
        str | None,
        text_option("--duration", metavar="TIME", help="Length of the part to read. [to the end]"),
        ConfigKey("capture.duration_s", parse_media_time),
    ] = None
    stream: Annotated[
        str | None,
        text_option("--stream", metavar="N", help="Video stream of a file with several, from 0. [its default]"),
        ConfigKey("capture.stream"),
    ] = None
    heatmap: Annotated[
        str | None,
        text_option(
            "--heatmap", metavar="FILE", help="Also write an .mp4 or .png that shows which tokens were chosen."
        ),
        ConfigKey("output.heatmap"),
    ] = None
    why: Annotated[
        str | None,
        text_option("--why", metavar="FILE", help="Also write the reasons for each token, as .jsonl."),
        ConfigKey("output.why"),
    ] = None
    record: Annotated[
        str | None,
        text_option("--record", metavar="FOLDER", help="Also record packets, questions and answers, for `replay`."),
        ConfigKey("output.record"),
    ] = None
    server: Annotated[
        str | None,
        text_option(
            "--server",
            metavar="ADDRESS,…",
            help="Address of a `serve-answers`, or several: tcp://HOST:PORT. [a process here]",
        ),
        ConfigKey("answer.server"),
    ] = None
    api: Api = None
    publish: Annotated[
        str | None,
        text_option(
            "--publish", metavar="ENDPOINT", help="Publish events over ZeroMQ, for example at tcp://127.0.0.1:5556."
        ),
        ConfigKey("output.publish"),
    ] = None
    control: Annotated[
        str | None,
        text_option(
            "--control", metavar="ENDPOINT", help="Accept questions over ZeroMQ, for example at tcp://127.0.0.1:5557."
        ),
        ConfigKey("output.control"),
    ] = None
    metrics_port: Annotated[
        str | None,
        text_option("--metrics-port", metavar="PORT", help="Serve Prometheus metrics and health on 127.0.0.1."),
        ConfigKey("output.metrics_port"),
    ] = None
    mqtt: Annotated[
        str | None,
        text_option("--mqtt", metavar="URL", help="Send answers to an MQTT broker: mqtt://[USER@]HOST[:PORT]. [off]"),
        ConfigKey("output.mqtt", lambda _, text: text),
    ] = None
    mqtt_name: Annotated[
        str | None,
        text_option("--mqtt-name", metavar="NAME", help="Name of the device and its topics. [made from the source]"),
        ConfigKey("output.mqtt_name", lambda _, text: text),
    ] = None
    mqtt_ask: Annotated[
        bool,
        typer.Option("--mqtt-ask", help="With --mqtt: accept questions from there."),
        ConfigKey("output.mqtt_ask"),
    ] = False
    webhook: Annotated[
        str | None,
        text_option("--webhook", metavar="URL", help="Post answers to this address, over HTTP. [off]"),
        ConfigKey("output.webhook", lambda _, text: text),
    ] = None
    foxglove: Annotated[
        str | None,
        text_option("--foxglove", metavar="[HOST:]PORT", help="Let the Foxglove app connect, on this machine. [off]"),
        ConfigKey("output.foxglove", lambda _, text: text),
    ] = None
    otlp: Annotated[
        str | None,
        text_option("--otlp", metavar="URL", help="Send a trace of each answer to an OpenTelemetry collector. [off]"),
        ConfigKey("output.otlp", lambda _, text: text),
    ] = None
    rerun: Annotated[
        str | None,
        text_option("--rerun", metavar="ADDRESS", help="Show the run in a Rerun viewer: spawn, or HOST:PORT. [off]"),
        ConfigKey("output.rerun", lambda _, text: text),
    ] = None
    overlay: Annotated[
        str | None,
        text_option("--overlay", metavar="FILE", help="Keep the newest answer in a .txt, for OBS."),
        ConfigKey("output.overlay", lambda _, text: text),
    ] = None
    keys: Annotated[
        str | None,
        text_option(
            "--keys", metavar="FOLDER", help="CURVE keys, made by `keys`, for sockets that leave this machine."
        ),
        ConfigKey("network.keys"),
    ] = None
    backend: Backend = None
    device: Device = None
    dtype: Dtype = None
    config: ConfigFiles = None
    set: Assignments = None
    realtime: Annotated[
        bool,
        typer.Option("--realtime", help="Play a file at its own pace; late frames are dropped."),
        ConfigKey("capture.realtime"),
    ] = False
    single_process: Annotated[
        bool,
        typer.Option("--single-process", help="Run the model in a thread, for debugging."),
        ConfigKey("pipeline.single_process"),
    ] = False
    restart: Annotated[
        bool | None,
        typer.Option(
            "--restart/--no-restart",
            help="Restart a process that dies or hangs. [for live sources]",
            show_default=False,
        ),
        ConfigKey("pipeline.restart"),
    ] = None
    plain_tcp: Annotated[
        bool,
        typer.Option("--plain-tcp", help="Let sockets leave this machine without keys: anybody may connect."),
        ConfigKey("network.plain_tcp"),
    ] = False
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Events and log as JSON lines on stderr, instead of progress.")
    ] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")] = False

    def configuration(self, base: Sequence[ConfigLayer] = (), top: Sequence[ConfigLayer] = ()) -> Config:
        """Build it from `base`, the files in their order, `--set`, options and `top`. Raises ConfigError."""
        from stream.config_loading import ConfigLayer, build_config, layer_from_assignment, layer_from_file

        layers = [*base, *(layer_from_file(name) for name in self.config or ())]
        layers += [layer_from_assignment(assignment) for assignment in self.set or ()]
        layers += layers_from_options(RunOptions, **vars(self))
        if self.until is not None and self.query is not None:
            layers.append(ConfigLayer("--query", {"answer.until.captions": True}))
        config = build_config([*layers, *top])
        check_standing_query_options(config, go_on=self.go_on, force=self.force)
        self._check_server(config)
        self._check_mqtt(config)
        return config

    def _check_mqtt(self, config: Config) -> None:
        """Raise ConfigError for an option about a broker where there is none."""
        for option, given in (("--mqtt-name", self.mqtt_name), ("--mqtt-ask", self.mqtt_ask or None)):
            if given is not None and config.output.mqtt is None:
                raise ConfigError(f"{option} needs --mqtt; give for example --mqtt mqtt://homeassistant.local")

    def _check_server(self, config: Config) -> None:
        """Raise ConfigError for an option about the model where that is elsewhere."""
        if config.answer.server is None:
            return
        about_model = (
            *(("-m", self.model), ("--allocator", self.allocator)),
            *(("--device", self.device), ("--dtype", self.dtype)),
        )
        for option, given in about_model:
            if given is not None:
                raise ConfigError(
                    f"{option} {given} has no effect with --server: the model is the one that {config.answer.server} "
                    f"serves; leave {option} out, or give it to `serve-answers` there"
                )


@dataclass(frozen=True)
class WebOptions:
    """Options of the live page; None where an option was not given."""

    web_rate: Annotated[
        str | None,
        text_option("--web-rate", metavar="N", help="Most pictures per second for a viewer of the page. [15]"),
        ConfigKey("output.web_rate"),
    ] = None
    web_width: Annotated[
        str | None,
        text_option("--web-width", metavar="N", help="Greatest width of a picture in the page. [1280]"),
        ConfigKey("output.web_width"),
    ] = None
    web_control: Annotated[
        bool | None,
        typer.Option(
            "--web-control/--no-web-control", help="Let viewers ask. [on this machine only]", show_default=False
        ),
        ConfigKey("output.web_control"),
    ] = None
    web_token: Annotated[
        str | None,
        text_option(
            "--web-token",
            metavar="TEXT",
            help="Secret that viewers must give; auto: make one. In the process list; ARR_COC_WEB_TOKEN is not. [none]",
        ),
        ConfigKey("output.web_token", lambda _, text: text),
    ] = None
    web_cert: Annotated[
        str | None,
        text_option("--web-cert", metavar="FILE", help="Certificate for HTTPS, as PEM. [off]"),
        ConfigKey("output.web_cert", lambda _, text: text),
    ] = None
    web_key: Annotated[
        str | None,
        text_option("--web-key", metavar="FILE", help="Private key of the certificate, as PEM. [off]"),
        ConfigKey("output.web_key", lambda _, text: text),
    ] = None

    def layers(self) -> list[ConfigLayer]:
        """Return a layer for each option that was given. Raises ConfigError."""
        return layers_from_options(WebOptions, **vars(self))

    def check(self, config: Config) -> None:
        """Raise ConfigError for an option about the page where there is none."""
        given = next((name for name, value in vars(self).items() if value is not None), None)
        if given is not None and config.output.web is None:
            raise ConfigError(f"--{given.replace('_', '-')} needs --web; give for example --web 8090")


_GROUPS = (RunOptions, WebOptions)


def takes_run_options(
    command: Callable[..., int], without: Collection[str] = (), implied: Collection[str] = ()
) -> Callable[..., int]:
    """Give a command, whose parameters are a RunOptions and maybe a WebOptions, the options themselves in their place,
    and each option its group in the help.

    `without`: fields whose options mean nothing to this command, which does not get them. `implied`: fields that are
    set in any case, as their help adds.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if hint in _GROUPS}
    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            shown += _parameters(groups[name], without, implied)
        else:
            shown.append(parameter.replace(annotation=_grouped(name, hints[name])))

    @wraps(command)
    def with_options(**given: Any) -> int:
        for name, group in groups.items():
            own = [field.name for field in fields(group) if field.name not in without]
            given[name] = group(**{option: given.pop(option) for option in own})
        return command(**given)

    with_options.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    with_options.__annotations__ = {**{p.name: p.annotation for p in shown}, "return": int}
    return with_options


def _parameters(group: type, without: Collection[str], implied: Collection[str]) -> list[inspect.Parameter]:
    """Return a parameter for each option of a group."""
    options = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=_grouped(field.name, options[field.name], implied=field.name in implied),
        )
        for field in fields(group)
        if field.name not in without
    ]


def _grouped(name: str, annotation: Any, *, implied: bool = False) -> Any:
    """Return the annotation of a parameter; that of an option with its group in the help."""
    kind, *details = get_args(annotation)
    if not isinstance(details[0], OptionInfo):
        return annotation
    option = copy.copy(details[0])
    key = next((detail.name for detail in details if isinstance(detail, ConfigKey)), name)
    option.rich_help_panel = group_of(key)
    option.help = f"{option.help} [always]" if implied else option.help
    return Annotated[(kind, option, *details[1:])]
