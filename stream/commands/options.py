"""The options that every run takes, and how they become layers of configuration."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import Annotated, Any, get_args, get_type_hints

import typer

from stream.commands.durations import media_time_of
from stream.commands.text_options import Assignments, Backend, ConfigFiles, Device, Dtype, Encode, Model, text_option
from stream.commands.until import check_watching
from stream.config import DEFAULT_QUERY, Config
from stream.errors import ConfigError
from stream.layers import Layer, build_config, file_layer, option_layer, set_layer

KEYS = {
    "query": "answer.query",
    "model": "answer.model",
    "every": "answer.every_s",
    "budget": "allocate.budget",
    "target_ms": "answer.target_ms",
    "strategy": "allocate.strategy",
    "encode": "answer.encode",
    "window": "answer.window.frames",
    "until": "answer.until.question",
    "max_frames": "capture.max_frames",
    "stream": "capture.stream",
    "server": "answer.server",
    "record": "output.record",
    "publish": "output.publish",
    "control": "output.control",
    "metrics_port": "output.metrics_port",
    "keys": "network.keys",
    "backend": "texture.backend",
    "device": "answer.device",
    "dtype": "answer.dtype",
}
"""Options that are another word for one key of the configuration."""


@dataclass(frozen=True)
class RunOptions:
    """What the user asked for on the command line; None where nothing was said."""

    query: Annotated[
        str | None, text_option("--query", "-q", metavar="TEXT", help=f"What to ask. [{DEFAULT_QUERY}]")
    ] = None
    model: Model = None
    every: Annotated[
        str | None, text_option("--every", metavar="SECONDS", help="Time between answers, or none: only at cuts. [2]")
    ] = None
    budget: Annotated[
        str | None,
        text_option("--budget", metavar="N", help="Visual tokens a frame: 64, 27%, adaptive. [27%, within 64 to 400]"),
    ] = None
    target_ms: Annotated[
        str | None,
        text_option(
            "--target-ms", metavar="MS", help="Move the budget so that answers begin within this time (p95). [off]"
        ),
    ] = None
    strategy: Annotated[
        str | None,
        text_option(
            "--strategy",
            metavar="NAME",
            help="How tokens are chosen: topk, mixed, foveated, fixation, grid, uniform, random. [auto]",
        ),
    ] = None
    encode: Encode = None
    window: Annotated[
        str | None, text_option("--window", metavar="N", help="How many frames an answer speaks of. [1]")
    ] = None
    until: Annotated[
        str | None,
        text_option("--until", metavar="QUESTION", help="End when the answer to this yes-or-no question is yes. [off]"),
    ] = None
    go_on: Annotated[
        bool, typer.Option("--go-on", help="With --until: go on after a yes, and say each time the answer changes.")
    ] = False
    force: Annotated[
        bool, typer.Option("--force", help="With --until: watch even if the model was not made for this source.")
    ] = False
    max_frames: Annotated[
        str | None, text_option("--max-frames", metavar="N", help="Stop after so many frames. [no limit]")
    ] = None
    start: Annotated[
        str | None, text_option("--start", metavar="TIME", help="Begin a file here: 90, 1:30, 0:01:30.5. [0]")
    ] = None
    duration: Annotated[
        str | None, text_option("--duration", metavar="TIME", help="Read so much of a file. [to its end]")
    ] = None
    stream: Annotated[
        str | None,
        text_option(
            "--stream", metavar="N", help="Which video stream of a file that has several, from 0. [its default]"
        ),
    ] = None
    heatmap: Annotated[
        str | None,
        text_option("--heatmap", metavar="FILE", help="Also write an .mp4 that shows which tokens were chosen."),
    ] = None
    why: Annotated[
        str | None, text_option("--why", metavar="FILE", help="Also write why each token was chosen, as .jsonl.")
    ] = None
    record: Annotated[
        str | None,
        text_option("--record", metavar="FOLDER", help="Also record what is asked and answered, for `replay`."),
    ] = None
    server: Annotated[
        str | None,
        text_option(
            "--server",
            metavar="ADDRESS",
            help="Where `serve-answers` runs the model: tcp://HOST:PORT. [a process here]",
        ),
    ] = None
    publish: Annotated[
        str | None,
        text_option(
            "--publish", metavar="ENDPOINT", help="Publish events over ZeroMQ, for example at tcp://127.0.0.1:5556."
        ),
    ] = None
    control: Annotated[
        str | None,
        text_option(
            "--control", metavar="ENDPOINT", help="Take questions over ZeroMQ, for example at tcp://127.0.0.1:5557."
        ),
    ] = None
    metrics_port: Annotated[
        str | None,
        text_option("--metrics-port", metavar="PORT", help="Serve Prometheus metrics and health on 127.0.0.1."),
    ] = None
    keys: Annotated[
        str | None,
        text_option(
            "--keys", metavar="FOLDER", help="CURVE keys, made by `keys`, for sockets that leave this machine."
        ),
    ] = None
    backend: Backend = None
    device: Device = None
    dtype: Dtype = None
    config: ConfigFiles = None
    set: Assignments = None
    realtime: Annotated[
        bool, typer.Option("--realtime", help="Play a file at its own pace; late frames are dropped.")
    ] = False
    single_process: Annotated[
        bool, typer.Option("--single-process", help="Run the model in a thread, for debugging.")
    ] = False
    restart: Annotated[
        bool | None,
        typer.Option(
            "--restart/--no-restart",
            help="Start a process that dies or hangs again. [for live sources]",
            show_default=False,
        ),
    ] = None
    plain_tcp: Annotated[
        bool, typer.Option("--plain-tcp", help="Let sockets leave this machine without keys: anybody may connect.")
    ] = False
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Events and log as lines of JSON on stderr, instead of progress.")
    ] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")] = False

    def configuration(self, base: Sequence[Layer] = (), top: Sequence[Layer] = ()) -> Config:
        """The configuration: `base`, then the files in their order, `--set`, options and `top`. Raises ConfigError."""
        layers = [*base, *(file_layer(name) for name in self.config or ())]
        layers += [set_layer(assignment) for assignment in self.set or ()]
        for name, key in KEYS.items():
            text = getattr(self, name)
            if text is not None:
                layers.append(option_layer(f"--{name.replace('_', '-')}", key, text))
        for option, key, text in (
            ("--start", "capture.start_s", self.start),
            ("--duration", "capture.duration_s", self.duration),
        ):
            if text is not None:
                layers.append(Layer(option, {key: media_time_of(option, text)}))
        if self.until is not None and self.query is not None:
            layers.append(Layer("--query", {"answer.until.captions": True}))
        if self.go_on:
            layers.append(Layer("--go-on", {"answer.until.go_on": True}))
        if self.force:
            layers.append(Layer("--force", {"answer.until.force": True}))
        if self.heatmap is not None:
            layers.append(Layer("--heatmap", {"output.heatmap": self.heatmap}))
        if self.why is not None:
            layers.append(Layer("--why", {"output.why": self.why}))
        if self.realtime:
            layers.append(Layer("--realtime", {"capture.realtime": True}))
        if self.single_process:
            layers.append(Layer("--single-process", {"pipeline.single_process": True}))
        if self.plain_tcp:
            layers.append(Layer("--plain-tcp", {"network.plain_tcp": True}))
        if self.restart is not None:
            layers.append(Layer("--restart", {"pipeline.restart": self.restart}))
        config = build_config([*layers, *top])
        check_watching(config, go_on=self.go_on, force=self.force)
        self._check_server(config)
        return config

    def _check_server(self, config: Config) -> None:
        """Raises ConfigError for an option about the model where that is elsewhere."""
        if config.answer.server is None:
            return
        for option, given in (("-m", self.model), ("--device", self.device), ("--dtype", self.dtype)):
            if given is not None:
                raise ConfigError(
                    f"{option} {given} has no effect with --server: the model is the one that {config.answer.server} "
                    f"serves; leave {option} out, or give it to `serve-answers` there"
                )


def takes_run_options(
    command: Callable[..., int], without: Collection[str] = (), hidden: Collection[str] = ()
) -> Callable[..., int]:
    """Gives a command, whose parameter `run` is a RunOptions, the options themselves in its place.

    `without`: fields of RunOptions whose options mean nothing to this command, which does not get them.
    `hidden`: fields whose options change nothing for it; it takes them, and its help leaves them out.
    """
    hints = get_type_hints(command, include_extras=True)
    options = get_type_hints(RunOptions, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "run"
    ]
    added = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=_hidden(options[field.name]) if field.name in hidden else options[field.name],
        )
        for field in fields(RunOptions)
        if field.name not in without
    ]

    @wraps(command)
    def with_options(**given: Any) -> int:
        run = RunOptions(**{name: given.pop(name) for name in options if name not in without})
        return command(run=run, **given)

    with_options.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    with_options.__annotations__ = {**{p.name: p.annotation for p in (*own, *added)}, "return": int}
    return with_options


def _hidden(annotation: Any) -> Any:
    """The annotation of an option that is taken, and not shown."""
    kind, shown = get_args(annotation)
    option = copy.copy(shown)
    option.hidden = True
    return Annotated[kind, option]
