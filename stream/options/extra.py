"""Optional libraries, each an extra of the package: how they are checked, and how they are installed. Imports none."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from stream.errors import ConfigError, StreamError


@dataclass(frozen=True, slots=True)
class Extra:
    """Extra of the package, and what needs it."""

    name: str
    part: str
    """Name of its row in `doctor`."""
    needed_for: str
    """What a run goes without if it is missing."""
    libraries: tuple[str, ...]
    modules: tuple[str, ...] = ()
    """Modules that show that it is installed; those of the libraries' names when absent."""
    requires: str = ""
    """What else it needs, in messages."""

    @property
    def install(self) -> str:
        """Command that installs it."""
        return f"pip install 'arr-coc-stream[{self.name}]'"

    def missing(self) -> list[str]:
        """Return the libraries that are not installed."""
        if self.modules:
            if all(map(_is_installed, self.modules)):
                return []
            return [*self.libraries]
        return [library for library in self.libraries if not _is_installed(library)]

    def require(self, feature: str, error: type[StreamError] = ConfigError) -> None:
        """Raise an error if a library is missing, which `feature` needs."""
        if missing := self.missing():
            raise error(f"{feature} needs {', '.join(missing)}{self.requires}; {self.install}")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it would lie in
        return False


RAY = Extra("ray", "ray", "fleet --ray", ("ray",))
SCHEMA = Extra("schema", "schemas", "--schema and --choices of a model on this machine", ("llguidance",))
