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
from stream.commands.text_options import (
    Assignments,
    Backend,
    ConfigFiles,
    Device,
    Dtype,
    Encode,
    Key,
    Model,
    key_layers,
    text_option,
)
from stream.commands.until import check_watching
from stream.config import DEFAULT_QUERY, Config
from stream.errors import ConfigError
from stream.layers import Layer, build_config, file_layer, set_layer


@dataclass(frozen=True)
class RunOptions:
    """What the user asked for on the command line; None where nothing was said."""

    query: Annotated[
        str | None,
        text_option("--query", "-q", metavar="TEXT", help=f"What to ask. [{DEFAULT_QUERY}]"),
        Key("answer.query"),
    ] = None
    model: Model = None
    every: Annotated[
        str | None,
        text_option("--every", metavar="SECONDS", help="Time between answers, or none: only at cuts. [2]"),
        Key("answer.every_s"),
    ] = None
    budget: Annotated[
        str | None,
        text_option("--budget", metavar="N", help="Visual tokens a frame: 64, 27%, adaptive. [27%, within 64 to 400]"),
        Key("allocate.budget"),
    ] = None
    target_ms: Annotated[
        str | None,
        text_option(
            "--target-ms", metavar="MS", help="Move the budget so that answers begin within this time (p95). [off]"
        ),
        Key("answer.target_ms"),
    ] = None
    strategy: Annotated[
        str | None,
        text_option(
            "--strategy",
            metavar="NAME",
            help="How tokens are chosen: topk, mixed, foveated, fixation, grid, uniform, random. [auto]",
        ),
        Key("allocate.strategy"),
    ] = None
    encode: Encode = None
    window: Annotated[
        str | None,
        text_option("--window", metavar="N", help="How many frames an answer speaks of. [1]"),
        Key("answer.window.frames"),
    ] = None
    until: Annotated[
        str | None,
        text_option("--until", metavar="QUESTION", help="End when the answer to this yes-or-no question is yes. [off]"),
        Key("answer.until.question"),
    ] = None
    go_on: Annotated[
        bool,
        typer.Option("--go-on", help="With --until: go on after a yes, and say each time the answer changes."),
        Key("answer.until.go_on"),
    ] = False
    force: Annotated[
        bool,
        typer.Option("--force", help="With --until: watch even if the model was not made for this source."),
        Key("answer.until.force"),
    ] = False
    max_frames: Annotated[
        str | None,
        text_option("--max-frames", metavar="N", help="Stop after so many frames. [no limit]"),
        Key("capture.max_frames"),
    ] = None
    start: Annotated[
        str | None,
        text_option("--start", metavar="TIME", help="Begin a file here: 90, 1:30, 0:01:30.5. [0]"),
        Key("capture.start_s", media_time_of),
    ] = None
    duration: Annotated[
        str | None,
        text_option("--duration", metavar="TIME", help="Read so much of a file. [to its end]"),
        Key("capture.duration_s", media_time_of),
    ] = None
    stream: Annotated[
        str | None,
        text_option(
            "--stream", metavar="N", help="Which video stream of a file that has several, from 0. [its default]"
        ),
        Key("capture.stream"),
    ] = None
    heatmap: Annotated[
        str | None,
        text_option("--heatmap", metavar="FILE", help="Also write an .mp4 that shows which tokens were chosen."),
        Key("output.heatmap"),
    ] = None
    why: Annotated[
        str | None,
        text_option("--why", metavar="FILE", help="Also write why each token was chosen, as .jsonl."),
        Key("output.why"),
    ] = None
    record: Annotated[
        str | None,
        text_option("--record", metavar="FOLDER", help="Also record what is asked and answered, for `replay`."),
        Key("output.record"),
    ] = None
    server: Annotated[
        str | None,
        text_option(
            "--server",
            metavar="ADDRESS",
            help="Where `serve-answers` runs the model: tcp://HOST:PORT. [a process here]",
        ),
        Key("answer.server"),
    ] = None
    publish: Annotated[
        str | None,
        text_option(
            "--publish", metavar="ENDPOINT", help="Publish events over ZeroMQ, for example at tcp://127.0.0.1:5556."
        ),
        Key("output.publish"),
    ] = None
    control: Annotated[
        str | None,
        text_option(
            "--control", metavar="ENDPOINT", help="Take questions over ZeroMQ, for example at tcp://127.0.0.1:5557."
        ),
        Key("output.control"),
    ] = None
    metrics_port: Annotated[
        str | None,
        text_option("--metrics-port", metavar="PORT", help="Serve Prometheus metrics and health on 127.0.0.1."),
        Key("output.metrics_port"),
    ] = None
    keys: Annotated[
        str | None,
        text_option(
            "--keys", metavar="FOLDER", help="CURVE keys, made by `keys`, for sockets that leave this machine."
        ),
        Key("network.keys"),
    ] = None
    backend: Backend = None
    device: Device = None
    dtype: Dtype = None
    config: ConfigFiles = None
    set: Assignments = None
    realtime: Annotated[
        bool,
        typer.Option("--realtime", help="Play a file at its own pace; late frames are dropped."),
        Key("capture.realtime"),
    ] = False
    single_process: Annotated[
        bool,
        typer.Option("--single-process", help="Run the model in a thread, for debugging."),
        Key("pipeline.single_process"),
    ] = False
    restart: Annotated[
        bool | None,
        typer.Option(
            "--restart/--no-restart",
            help="Start a process that dies or hangs again. [for live sources]",
            show_default=False,
        ),
        Key("pipeline.restart"),
    ] = None
    plain_tcp: Annotated[
        bool,
        typer.Option("--plain-tcp", help="Let sockets leave this machine without keys: anybody may connect."),
        Key("network.plain_tcp"),
    ] = False
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Events and log as lines of JSON on stderr, instead of progress.")
    ] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the log.")] = False

    def configuration(self, base: Sequence[Layer] = (), top: Sequence[Layer] = ()) -> Config:
        """The configuration: `base`, then the files in their order, `--set`, options and `top`. Raises ConfigError."""
        layers = [*base, *(file_layer(name) for name in self.config or ())]
        layers += [set_layer(assignment) for assignment in self.set or ()]
        layers += key_layers(RunOptions, **vars(self))
        if self.until is not None and self.query is not None:
            layers.append(Layer("--query", {"answer.until.captions": True}))
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
    kind, shown, *_ = get_args(annotation)
    option = copy.copy(shown)
    option.hidden = True
    return Annotated[kind, option]
