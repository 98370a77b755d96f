"""Extension of the program: what a feature, or a package of someone else, adds. All that takes long is named.

A name is that of an object, `package.module:object`, as entry points have it. docs/extensions.md has examples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal

from stream.errors import ConfigError
from stream.options.extra import Extra
from stream.sinks.paths import STDOUT

if TYPE_CHECKING:
    from stream.answer.model import AnswerModel
    from stream.answer.text_model import TextModel
    from stream.clock import Clock
    from stream.config import CaptureConfig, Config, NetworkConfig
    from stream.display import WatchOptions
    from stream.events import Summary
    from stream.media import Source
    from stream.monitor.health import RunMonitor
    from stream.sinks.base import SharedSink, Sink
    from stream.sources.segments import SegmentRecorder

Need = Literal["maps", "reasons", "viewer pictures", "overlays", "video", "segments", "record", "frames at once"]
"""What a run provides on demand: maps of relevance with frames, the reasons for tokens, pictures that viewers ask for,
drawn overlays of each frame, the source's video, the video as files in the output's folder, what the answer stage gets
and gives, frames without a delay."""

PathForm = Literal["file", "new folder", "file in own folder"]
"""What a path of `output.paths` names: a file, a folder that the run makes, or a file in a folder that the run may make
and fills."""


@dataclass(frozen=True, slots=True)
class SinkOpening:
    """Arguments with which a sink is opened."""

    config: Config
    """Configuration of the run."""
    monitor: RunMonitor
    """State of the run, and the run itself once there are events."""
    path: str = ""
    """File of the sink; empty if it writes none."""
    camera: str = ""
    """Name of the run's camera, for events of several; empty for one."""
    resume: bool = False
    """The run continues an earlier one, whose files are there."""


@dataclass(frozen=True, slots=True)
class SharedOpening:
    """Arguments with which a sink of several cameras is opened."""

    configs: Mapping[str, Config]
    """Configuration of each camera's run, by name."""
    monitors: Mapping[str, RunMonitor]
    """State of each camera's run."""
    refused: Mapping[str, str]
    """Reason by name of each camera that is not started."""
    processes: Callable[[], Mapping[str, int]]
    """Return the processes that belong to no camera, by what they do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkType:
    """Type of sink: for the paths of `output.paths` with its suffixes, or for a key of the configuration."""

    open: str
    """Name of the function, or class, that opens the sink: `(SinkOpening) -> Sink`."""
    shared: str = ""
    """Name of a function that opens one for several cameras, `(SharedOpening) -> SharedSink`, in the place of one
    each."""
    help: str = ""
    """Description of the output in messages and documents."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of its files. Without `key` it writes the paths of `output.paths` with one of them."""
    form: PathForm = "file"
    """What these paths name."""
    key: str = ""
    """Key that turns it on, such as `otlp.url`: if it has a value."""
    option: str = ""
    """Option that sets this key, for messages."""
    applies_if: str = ""
    """Name of a function that takes a Config and returns whether it has such an output, in the place of a key."""
    place: Literal["", "file", "folder", "shared file", "shared folder", "address"] = ""
    """What the key's value names: a file, a folder or an address of one run, or a place that several runs share."""
    lasts: bool = True
    """What it wrote is there after the run."""
    needs: frozenset[Need] = frozenset()
    """What the run must provide for it, beside its events."""
    extra: Extra | None = None
    """Optional libraries that it needs."""
    check: str = ""
    """Name of a function that raises ConfigError for a configuration that would fail at once: `(Config) -> object`. It
    loads nothing heavy. With several sources, one of `output.paths` is checked before the first run, too."""
    pictures: Literal["none", "asked", "every"] = "none"
    """Pictures for the sink: none, of frames with an answer, or also every few frames (`output.pictures_every`)."""
    pictures_key: str = ""
    """Key that turns these pictures off."""

    @property
    def is_caption(self) -> bool:
        """True if it writes paths of `output.paths`, by their suffix."""
        return not self.key and not self.applies_if

    @property
    def claims(self) -> bool:
        """True if it makes a file or a folder as it is opened."""
        return self.is_caption or self.writes_place

    @property
    def writes_place(self) -> bool:
        """True if the value of its key is a file or a folder that the run makes."""
        return self.place in ("file", "folder", "shared folder")

    @property
    def writes_file(self) -> bool:
        """True if it writes a file of its own key, which is claimed before the run begins."""
        return self.place == "file"

    def applies(self, config: Config) -> bool:
        """Return True if the configuration has an output of this type."""
        if self.applies_if:
            return bool(resolve_name(self.applies_if)(config))
        if self.key:
            return config.value(self.key) is not None
        return any(self.takes(path) for path in config.output.paths)

    def takes(self, path: str) -> bool:
        """Return True if an output of this path is of this type."""
        return path != STDOUT and PurePath(path).suffix.lower() in self.suffixes

    def require(self, config: Config) -> None:
        """Raise ConfigError if the configuration has an output of this type and its library is missing."""
        if self.extra is not None and self.applies(config):
            path = next((f"-o {PurePath(path).name}" for path in config.output.paths if self.takes(path)), "")
            self.extra.require(path or self.option)

    def check_config(self, config: Config) -> None:
        """Raise ConfigError if the sink of this configuration would fail at once."""
        self.require(config)
        if self.check:
            resolve_name(self.check)(config)

    def open_shared(self, opening: SharedOpening) -> SharedSink:
        """Import the sink's module and open the sink of several cameras. Raises OutputError or ConfigError."""
        return resolve_name(self.shared)(opening)

    def open_sink(self, opening: SinkOpening) -> Sink:
        """Import the sink's module and open the sink. Raises OutputError or ConfigError."""
        return resolve_name(self.open)(opening)


@dataclass(frozen=True, slots=True)
class SourceOpening:
    """Arguments of a source; `network` has the access rules of ZeroMQ, `segments` records the video."""

    address: str
    capture: CaptureConfig
    clock: Clock
    network: NetworkConfig
    segments: SegmentRecorder | None = None

    @property
    def path(self) -> Path:
        """The address as a path."""
        return Path(os.path.expanduser(self.address))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceType:
    """Type of source, chosen by the form of an address."""

    forms: str
    """Forms of its addresses in the documents."""
    help: str
    """Description in the documents."""
    open: str
    """Name of the function, or class, that opens the source: `(SourceOpening) -> Source`."""
    prefixes: tuple[str, ...] = ()
    """Beginnings of its addresses."""
    matches: str = ""
    """Name of a function that tells its addresses, `(str) -> bool`, in the place of prefixes."""
    check: str = ""
    """Name of a function that raises SourceError or ConfigError for an address that cannot be opened:
    `(str, CaptureConfig, NetworkConfig) -> object`. It loads nothing heavy."""
    one_stream: bool = False
    """True if the source has one video stream, so that `capture.stream` is refused before it is opened."""
    extra: Extra | None = None
    """Optional libraries that it needs."""

    def is_of(self, address: str) -> bool:
        """Return True if an address is of this type."""
        if self.matches:
            return bool(resolve_name(self.matches)(address))
        return address.startswith(self.prefixes)

    def check_address(self, address: str, capture: CaptureConfig, network: NetworkConfig) -> None:
        """Raise SourceError or ConfigError if the source at an address cannot be opened."""
        if self.check:
            resolve_name(self.check)(address, capture, network)

    def open_source(self, opening: SourceOpening) -> Source:
        """Import the source's module and open the source. Raises SourceError."""
        return resolve_name(self.open)(opening)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelType:
    """Type of model that another program runs, such as a server with an API: it answers in the place of a Qwen model of
    this program, which then loads no torch for it."""

    key: str
    """Key of the program's address, such as `api.url`: the model answers if it has a value."""
    option: str
    """Option that sets this key, for messages."""
    name: str
    """Name of a function that returns the model's name, as shown to users: `(Config) -> str`. It raises ConfigError for
    a configuration that would fail at once, before anything is opened, and loads nothing heavy."""
    load: str
    """Name of the function, or class, that connects to the program: `(Config) -> AnswerModel`."""
    load_text: str = ""
    """Name of a function that gives the same model for prompts of text, as `recap` has them:
    `(Config) -> TextModel`."""
    encode: str = ""
    """Name of a function that gives the default of `answer.encode`, in the place of `sparse`: `(Config) -> str`. With
    `picture` the model gets whole frames."""
    wait: str = ""
    """Name of a function that waits until a program that is being started answers:
    `(Config, goes_on: Callable[[], bool]) -> bool`. It asks again and again as long as `goes_on()`, and returns whether
    the program answers."""
    provider: str = "arr_coc"
    """Name of the provider in traces (`gen_ai.provider.name`)."""
    extra: Extra | None = None
    """Optional libraries that it needs."""

    def name_of(self, config: Config) -> str:
        """Return the model's name. Raises ConfigError if a library is missing, or a run would fail at once."""
        if self.extra is not None:
            self.extra.require(self.option)
        name: str = resolve_name(self.name)(config)
        return name

    def encoding_of(self, config: Config) -> str:
        """Return the default of `answer.encode`."""
        if not self.encode:
            return config.answer.encode
        encoding: str = resolve_name(self.encode)(config)
        return encoding

    def load_model(self, config: Config) -> AnswerModel:
        """Import the model's module and connect to the program. Raises ModelError and StreamError."""
        return resolve_name(self.load)(config)

    def load_text_model(self, config: Config) -> TextModel:
        """Import the module of the model for text and connect to the program. Raises as `load_model`."""
        if not self.load_text:
            raise ConfigError(f"a model of {self.option} answers about pictures only; leave {self.option} out")
        return resolve_name(self.load_text)(config)

    def wait_for_program(self, config: Config, goes_on: Callable[[], bool]) -> bool:
        """Wait until the program answers; return False if `goes_on` returned False before."""
        return resolve_name(self.wait)(config, goes_on)


@dataclass(frozen=True, slots=True)
class DisplayOpening:
    """Terminal on which the cameras of a run are shown."""

    names: Sequence[str]
    """Names of the cameras; one empty name for one."""
    out: int
    """Descriptor of the terminal."""
    keys: int | None
    """Descriptor of the terminal that questions are typed on; None if they cannot be."""
    questions_fd: int | None
    """Descriptor from which lines to ask are read; None if there is none."""


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """Sources of the command `watch`, and how one is watched."""

    config: Config
    """Configuration of the run."""
    sources: tuple[str, ...]
    """Sources on the command line; none if the configuration names one."""
    limit_s: float | None
    """Seconds from the first frame to the end; None for no limit."""
    options: WatchOptions
    """Options of the display."""
    watch_one: Callable[[Config], Summary]
    """Watch one source to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandType:
    """Command of the command line."""

    function: str
    """Name of its function, as Typer takes it; its module loads nothing heavy."""
    before: str = ""
    """Command before which the help lists it; at the end when empty."""
    grouped: bool = False
    """Its options stand in groups in its help, as those of a run."""

    @property
    def name(self) -> str:
        """Word on the command line."""
        return self.function.rpartition(":")[2].replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A feature that hangs on the core: its section of the configuration, and what it adds."""

    name: str
    """Name of its section of the configuration, if it has one."""
    section: str = ""
    """Name of the model of its section, an `ExtensionSection`, whose fields carry their options."""
    sinks: tuple[SinkType, ...] = ()
    sources: tuple[SourceType, ...] = ()
    """Types of sources; they are asked before those of the core."""
    models: tuple[ModelType, ...] = ()
    """Types of models; they are asked before those of the core."""
    commands: tuple[CommandType, ...] = ()
    boxes: str = ""
    """Name of a function that gives boxes from outside, which draw tokens: `(Config, paced: bool) -> BoxFeeder |
    None`. It raises ConfigError for a run that cannot have them."""
    answer_filter: str = ""
    """Name of a function that gives the feature's part in the answers of a run: `(Config) -> AnswerFilter | None`."""
    answer_model: str = ""
    """Name of a function that puts a model in the place of the one that was loaded: `(Config, AnswerModel) ->
    AnswerModel | None`."""
    asker: str = ""
    """Name of the class of its part in the questions of a run, `(RunQuestions) -> Asker`."""
    budget: str = ""
    """Name of a function that gives what moves the budget of a run's frames: `(Config, lockstep: bool) -> BudgetSetter
    | None`. In lockstep each frame waits for its answer."""
    notices: str = ""
    """Name of a function that gives notices of settings without effect: `(Config, lockstep: bool) -> list[Notice]`."""
    continuation: str = ""
    """Name of a function that gives what continues an earlier run, of `caption`: `(Config, resume: bool) ->
    Continuation | None`. It raises ResumeError."""
    serving: str = ""
    """Name of a function that opens something beside an answer server, `(Config, ServerStatistics, RunControl)`; it is
    closed with the server, and may be None."""
    frame_observer: str = ""
    """Name of a function that opens an observer of the frame stages, in their process: `(Config, SourceInfo) ->
    stream.stages.frame_observer.FrameObserver | None`."""
    display: str = ""
    """Name of a function that opens the display of cameras that are watched on a terminal: `(DisplayOpening) ->
    stream.sinks.base.Display | None`. The first that opens one shows the run, those of other packages first; else it is
    lines."""
    page_panel: str = ""
    """Name of a function that gives routes of the live page for the configurations of its runs:
    `(Sequence[Config]) -> list[starlette.routing.BaseRoute]`."""
    watch: str = ""
    """Name of a function that `watch` asks first, `(WatchRequest) -> int | None`: it watches sources of a form of its
    own and returns the exit status, or None for other sources."""

    demo: str = ""
    """Name of a function that `demo` asks first, `(Config) -> int | None`: it shows the demo in its own way and returns
    the exit status, or None for files."""

    def check(self) -> None:
        """Raise ValueError for what cannot work: a section whose name is taken, a name that leads nowhere, and a key of
        a sink or a model that its section lacks. For packages of someone else: faults are reported with their names."""
        from stream.config import Config  # loads pydantic

        if (self.section and hasattr(Config, self.name)) or self.name in Config.model_fields:
            raise ValueError(f"its name {self.name} is taken by the configuration")
        model = self.load_section()
        for command in self.commands:
            resolve_name(command.function)
        for key in [*(sink.key for sink in self.sinks if sink.key), *(kind.key for kind in self.models)]:
            section, _, name = key.partition(".")
            if section != self.name or model is None or name not in model.model_fields:
                raise ValueError(f"its section has no key {key}")

    def load_section(self) -> Any:
        """Return the model of the section; None if it has none."""
        return resolve_name(self.section) if self.section else None
