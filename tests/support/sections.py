"""Sections of extensions by the dotted keys of their values."""

from __future__ import annotations

from stream.config import Config, ExtensionSection
from stream.extension.registry import section_models
from stream.monitor.health import RunMonitor
from stream.sinks.base import Sink
from stream.sinks.factory import open_sinks


def sections(**values: object) -> dict[str, ExtensionSection]:
    """Return the sections of keys such as `mqtt__url`, as arguments of `Config`."""
    tables: dict[str, dict[str, object]] = {}
    for key, value in values.items():
        section, _, name = key.partition("__")
        tables.setdefault(section, {})[name] = value
    return {name: section_models()[name].model_validate(table) for name, table in tables.items()}


def opened_sinks(config: Config, monitor: RunMonitor | None = None) -> list[Sink]:
    """Return the sinks of a run."""
    return open_sinks(config, monitor or RunMonitor(config))
