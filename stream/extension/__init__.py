"""Extension of the program: what a feature, or a package of someone else, adds. All that takes long is named.

A name is that of an object, `package.module:object`, as entry points have it. docs/extensions.md has examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal

from stream.options.extra import Extra
from stream.sinks.paths import STDOUT

if TYPE_CHECKING:
    from stream.config import Config
    from stream.monitor.health import RunMonitor
    from stream.sinks.base import Sink

Need = Literal["maps", "reasons", "viewer pictures", "overlays", "video", "record", "frames at once"]
"""What a run provides on demand: maps of relevance with frames, the reasons for tokens, pictures that viewers ask for,
drawn overlays of each frame, the source's video, what the answer stage gets and gives, frames without a delay."""


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
    page: Any = None
    """Place of the run in a web page of several cameras."""
    resume: bool = False
    """The run continues an earlier one, whose files are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkType:
    """Type of sink: for the paths of `output.paths` with its suffixes, or for a key of the configuration."""

    open: str
    """Name of the function, or class, that opens the sink: `(SinkOpening) -> Sink`."""
    help: str = ""
    """Description of the output in messages and documents."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of its files. Without `key` it writes the paths of `output.paths` with one of them."""
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
    loads nothing heavy."""
    pictures: Literal["none", "asked", "every"] = "none"
    """Pictures for the sink: none, of frames with an answer, or also every few frames (`output.pictures_every`)."""
    pictures_key: str = ""
    """Key that turns these pictures off."""

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

    def open_sink(self, opening: SinkOpening) -> Sink:
        """Import the sink's module and open the sink. Raises OutputError or ConfigError."""
        return resolve_name(self.open)(opening)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A feature that hangs on the core: its section of the configuration, and what it adds."""

    name: str
    """Name of its section of the configuration, if it has one."""
    section: str = ""
    """Name of the model of its section, an `ExtensionSection`, whose fields carry their options."""
    sinks: tuple[SinkType, ...] = ()

    def load_section(self) -> Any:
        """Return the model of the section; None if it has none."""
        return resolve_name(self.section) if self.section else None
