"""Options of the commands, made from the fields of the keys that they set; the reading of durations and counts."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from arr_coc.resources import presets
from stream.commands.help import group_of, rank_of
from stream.errors import ConfigError
from stream.extension.registry import installed_extensions
from stream.options.durations import parse_duration
from stream.options.option import RUN, Option
from stream.options.table import OPTIONS

if TYPE_CHECKING:
    from stream.config import Config
    from stream.config_loading import ConfigLayer

_CLOCK = re.compile(r"(?:(\d+):)?(\d{1,2}):(\d{1,2}(?:\.\d*)?)")


def parse_media_time(option: str, text: str) -> float:
    """Read a media time or a length of it, in seconds: `90`, `1:30`, `0:01:30.5`, or as `parse_duration` takes it.

    Raises ConfigError, which names the option.
    """
    trimmed_text = text.strip()
    if clock := _CLOCK.fullmatch(trimmed_text):
        hours = int(clock[1] or 0)
        minutes = int(clock[2])
        seconds = float(clock[3])
        if seconds < 60 and (minutes < 60 or clock[1] is None):
            return hours * 3600 + minutes * 60 + seconds
    elif re.fullmatch(r"0+(\.0*)?s?", trimmed_text):
        return 0.0
    else:
        with suppress(ConfigError):
            return parse_duration(option, trimmed_text)
    raise ConfigError(f"{option} needs seconds or h:mm:ss, such as 90, 1:30 or 0:01:30.5; got {text!r}")


def parse_count(option: str, text: str, most: int | None = None) -> int:
    """Read a whole number from 1 to `most`. Raises ConfigError, which names the option."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1 or (most is not None and count > most):
        if most is None:
            bounds = "of at least 1"
        else:
            bounds = f"from 1 to {most}"
        raise ConfigError(f"{option} needs a whole number {bounds}; got {text!r}")
    return count


def text_option(*names: str, metavar: str, help: str) -> Any:
    """Return the option under all of its `names`; its default, which `help` names, is not shown."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=False)


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

LogJson = Annotated[
    bool, typer.Option("--log-json", help="Events and log as JSON lines on stderr, instead of progress.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Also count tokens, groups of pictures and the rest in the closing line.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")]

SERVE = "serve-answers"

WATCHING = " ".join(command for command in RUN.split() if command != "demo")

SHARED: dict[str, tuple[Any, object, str]] = {
    "until": (
        Annotated[
            str | None,
            text_option(
                "--until",
                metavar="QUESTION",
                help="Also watch for this, and end when the answer is yes. [off]",
            ),
        ],
        None,
        WATCHING,
    ),
    "go_on": (
        Annotated[bool, typer.Option("--go-on", help="With --until: continue after a yes, and report each change.")],
        False,
        WATCHING,
    ),
    "force": (
        Annotated[
            bool,
            typer.Option(
                "--force", help="With --watch or --until: run even if the model was not made for this source."
            ),
        ],
        False,
        WATCHING,
    ),
    "config": (ConfigFiles, None, f"{RUN} {SERVE} recap"),
    "set": (Assignments, None, f"{RUN} {SERVE} recap"),
    "verbose": (Verbose, False, RUN),
    "log_json": (LogJson, False, RUN),
    "debug": (Debug, False, f"{RUN} {SERVE} ask adapt recap"),
}
"""Options without a key → declaration, default, and the commands that have them."""


class GivenOptions(Mapping[str, Any]):
    """Options of a command that set keys, or are in `SHARED`, by their parameters; None if one was not given."""

    def __init__(self, command: str, values: Mapping[str, Any]) -> None:
        self._command = command
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def layers(self) -> list[ConfigLayer]:
        """Return a layer for each option that was given and sets a key. Raises ConfigError."""
        from stream.config_loading import ConfigLayer, layer_from_option

        layers = []
        for option in options_of(self._command):
            value = self[option.parameter]
            name = f"--{option.parameter.replace('_', '-')}"
            if value is None or (value is False and option.kind == "flag"):
                continue
            if option.kind == "value":
                layers.append(layer_from_option(name, option.key, value))
            else:
                if option.kind == "time":
                    setting = parse_media_time(name, value)
                else:
                    setting = value
                layers.append(ConfigLayer(name, {option.key: setting}))
        return layers

    def configuration(self, base: Sequence[ConfigLayer] = (), top: Sequence[ConfigLayer] = ()) -> Config:
        """Build it from `base`, the files in their order, `--set`, options and `top`. Raises ConfigError."""
        from stream.config_loading import build_config, layer_from_assignment, layer_from_file

        layers = [*base, *(layer_from_file(name) for name in self.get("config") or ())]
        layers += [layer_from_assignment(assignment) for assignment in self.get("set") or ()]
        layers += self.layers()
        layers += self._watch_layers(layers)
        config = build_config([*layers, *top])
        self._check(config)
        return config

    def _watch_layers(self, layers: Sequence[ConfigLayer]) -> list[ConfigLayer]:
        """Return the layers of `--until`, which adds a watch that ends the run, of `--force`, and of `-q` beside
        watches."""
        from stream.config_loading import ConfigLayer

        origins = [layer.origin for layer in layers if "watch" in layer.values]
        watches: list[Any] = []
        for layer in layers:
            value = layer.values.get("watch", [])
            if not isinstance(value, (list, tuple)):
                return []  # refused with the layer that has it
            if "watch" in layer.values:
                watches = [*(watches if layer.origin == "--watch" else ()), *value]
        until = self.get("until")
        if until is not None:
            watches.append({"question": until, "ends_run": not self.get("go_on")})
            origins.append("--until")
        if not watches:
            return []
        if self.get("force"):
            watches = [
                {**({"question": watch} if isinstance(watch, str) else watch), "force": True} for watch in watches
            ]
        if self.get("query") is not None:
            captions = [ConfigLayer("--query", {"answer.captions": True})]
        else:
            captions = []
        return [ConfigLayer(", ".join(dict.fromkeys(origins)), {"watch": watches}), *captions]

    def _check(self, config: Config) -> None:
        """Raise ConfigError for an option that has nothing to act on: no page, no broker, no model here."""
        given_options = {name: value for name, value in self.items() if value not in (None, False)}
        check_watch_options(config, given_options)
        self._check_switches(config, given_options)
        if config.answer.server is None or self._command not in RUN.split():
            return
        for name, option in (
            *(("model", "-m"), ("allocator", "--allocator")),
            *(("device", "--device"), ("dtype", "--dtype")),
        ):
            if name in given_options:
                raise ConfigError(
                    f"{option} {given_options[name]} has no effect with --server: the model is the one that "
                    f"{config.answer.server} serves; leave {option} out, or give it to `serve-answers` there"
                )

    def _check_switches(self, config: Config, given_options: Collection[str]) -> None:
        """Raise ConfigError for an option such as `--mqtt-name` without `--mqtt`, the switch of its section."""
        parameters = {option.key: option for option in options_of(self._command) if option.parameter in given_options}
        switches = {option.key: option for option in all_options()}
        for name, section in config.sections().items():
            key = f"{name}.{section.switch}"
            if key not in switches or config.value(key) is not None:
                continue
            switch = switches[key].names[0]
            for option in parameters.values():
                if option.key.startswith(f"{name}.") and option.names[0].startswith(f"{switch}-"):
                    examples = type(section).model_fields[section.switch].examples or [""]
                    example = str(examples[0]).strip('"')
                    raise ConfigError(f"{option.names[0]} needs {switch}; give for example {switch} {example}")


def all_options() -> tuple[Option, ...]:
    """Return the options that set keys: those of this program, and of installed extensions."""
    if not installed_extensions():
        return OPTIONS
    from stream.extension.options import every_option  # loads pydantic

    return every_option()


def options_of(command: str) -> list[Option]:
    """Return the options of a command that set keys, in the order of their fields."""
    return [option for option in all_options() if command in option.commands]


def takes_options(function: Callable[..., int]) -> Callable[..., int]:
    """Give a command, whose parameter `options` is a GivenOptions, the options themselves in its place, and all of them
    the order of the help, and their groups."""
    command = function.__name__.replace("_", "-")
    keyed = {option.parameter: option for option in options_of(command)}
    shared = {name: declared for name, (*declared, commands) in SHARED.items() if command in commands.split()}
    hints = get_type_hints(function, include_extras=True)
    command_options = {
        name: (hints[name], parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "options"
    }
    declared = {**command_options, **{name: _declared(option) for name, option in keyed.items()}, **shared}
    keys = {name: keyed[name].key if name in keyed else name for name in declared}
    groups = {name: keyed[name].group if name in keyed else "" for name in declared}
    groups = {name: group or group_of(keys[name]) for name, group in groups.items()}
    parameters = []
    for name in sorted(declared, key=lambda name: rank_of(command, name, keys[name], groups[name])):
        hint, default = declared[name]
        kind, info = get_args(hint)
        info = copy.copy(info)
        info.rich_help_panel = groups[name]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[(kind, info)])
        )

    @wraps(function)
    def with_options(**values: Any) -> int:
        options = {name: values.pop(name) for name in (*keyed, *shared)}
        return function(**values, options=GivenOptions(command, options))

    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {**{p.name: p.annotation for p in parameters}, "return": int}
    return with_options


def _declared(option: Option) -> tuple[Any, object]:
    """Return the declaration and the default of an option that sets a key."""
    kinds = {"flag": bool, "switch": bool | None, "list": list[str] | None}
    info = typer.Option(*option.names, metavar=option.metavar, help=option.help, show_default=False)
    return Annotated[kinds.get(option.kind, str | None), info], False if option.kind == "flag" else None


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

REALTIME = {"capture.realtime": True}
"""A file is played as a camera would give it."""


def limits_of(for_time: str | None, stats_every: str) -> tuple[float | None, float | None]:
    """Return the seconds of `--for`, and those of `--stats-every`; None for none. Raises ConfigError."""
    if for_time is None:
        limit_s = None
    else:
        limit_s = parse_duration("--for", for_time)
    return limit_s, None if stats_every == "none" else parse_duration("--stats-every", stats_every)


CUES = (".vtt", ".srt")
"""Suffixes of files that hold captions only."""


def check_watch_options(config: Config, given_options: Collection[str] = ()) -> None:
    """Check the options of watches, of which those `given_options` stand on the command line.

    Raises ConfigError if `--go-on`, `--force` or `--on-match` has nothing to act on, and for captions if there are no
    answers.
    """
    if "go_on" in given_options and "until" not in given_options:
        raise ConfigError('--go-on needs --until; give for example --until "is there a red car?"')
    for name in ("force", "on_match"):
        if name in given_options and not config.watch:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f'{option} needs --watch or --until; give for example --watch "is there a red car?"')
    if not config.watches_only:
        return
    silent = [path for path in config.output.paths if path.lower().endswith(CUES)]
    if silent:
        raise ConfigError(
            f"nothing would be written to {silent[0]!r}: a run with watches alone gives no answers; give -q as well "
            "for captions, or name a .jsonl"
        )
