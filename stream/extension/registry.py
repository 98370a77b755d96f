"""The extensions of this program: those of `stream.extensions`, and those of other packages that are installed."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from stream.errors import ConfigError
from stream.extension import Extension

if TYPE_CHECKING:
    from stream.config import ExtensionSection

GROUP = "arr_coc_stream.extensions"
"""Group of entry points in which a package names its `Extension`."""

IN_TREE = "stream.extensions"
"""Package with a package for each feature. It is found by its name: the core imports no extension."""


@cache
def extensions() -> tuple[Extension, ...]:
    """Return the extensions, those of this program first.

    Raises ConfigError, which names the package, if one of another package cannot be loaded.
    """
    names = import_module(IN_TREE).NAMES
    own = [import_module(f"{IN_TREE}.{name}").EXTENSION for name in names]
    return (*own, *_installed({extension.name for extension in own}))


def _installed(taken: set[str]) -> list[Extension]:
    found = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        package = entry.dist.name if entry.dist is not None else entry.value
        try:
            extension = entry.load()
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"the extension {entry.name} of {package} cannot be loaded: {reason}; repair it, or "
                f"remove it with pip uninstall {package}"
            ) from error
        if not isinstance(extension, Extension):
            raise ConfigError(f"{entry.value} of {package} is no Extension; pip uninstall {package}")
        if extension.name in taken:
            raise ConfigError(
                f"the extension {extension.name} of {package} has the name of another one; pip uninstall {package}"
            )
        taken.add(extension.name)
        found.append(extension)
    return found


@cache
def section_models() -> dict[str, type[ExtensionSection]]:
    """Return the models of the sections of extensions, by name."""
    models = {extension.name: extension.load_section() for extension in extensions()}
    return {name: model for name, model in models.items() if model is not None}
