"""The extensions of this program: those of `stream.extensions`, and those of other packages that are installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import resolve_name
from traceback import walk_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any

from arr_coc.errors import ArrCocError
from stream.errors import ConfigError, StreamError
from stream.extension import Extension, ModelType

if TYPE_CHECKING:
    from stream.config import Config, ExtensionSection

GROUP = "arr_coc_stream.extensions"
"""Group of entry points in which a package names its `Extension`."""

IN_TREE = "stream.extensions"
"""Package with a package for each feature. It is found by its name: the core imports no extension."""


_packages: dict[str, str] = {}
"""Packages of the installed extensions, by the names of these."""

_modules: dict[str, str] = {}
"""The same packages by their modules' first names."""


@cache
def own_extensions() -> tuple[Extension, ...]:
    """Return the extensions of this program."""
    names = import_module(IN_TREE).NAMES
    return tuple(import_module(f"{IN_TREE}.{name}").EXTENSION for name in names)


@cache
def installed_extensions() -> tuple[Extension, ...]:
    """Return the extensions of other packages, by name.

    Raises ConfigError, which names the package, if one cannot be loaded.
    """
    names = {extension.name for extension in own_extensions()}
    loaded = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        package = entry.dist.name if entry.dist is not None else entry.value
        remedy = _remedy(package)
        try:
            extension = entry.load()
            if isinstance(extension, Extension):
                extension.check()
        except (Exception, SystemExit) as error:
            problem = f"the extension {entry.name} of {package} cannot be loaded: {_reason(error)}"
            raise ConfigError(f"{problem}; {remedy}") from error
        if not isinstance(extension, Extension):
            raise ConfigError(f"{entry.value} of {package} is no stream.extension.Extension; {remedy}")
        if extension.name in names:
            raise ConfigError(f"{package} has an extension {extension.name}, and so has another package; {remedy}")
        names.add(extension.name)
        _packages[extension.name] = package
        _modules[entry.value.partition(":")[0].partition(".")[0]] = package
        loaded.append(extension)
    return tuple(loaded)


def extensions() -> tuple[Extension, ...]:
    """Return all extensions, those of this program first. Raises ConfigError as `installed_extensions`."""
    return (*own_extensions(), *installed_extensions())


def parts_of(part: str, *arguments: Any, **facts: Any) -> Iterator[Any]:
    """Yield what the functions of this part of the extensions return, in their order, without None.

    Raises ConfigError, which names the package, if one of another package fails.
    """
    return _results(extensions(), part, arguments, facts)


def first_part(part: str, *arguments: Any, **facts: Any) -> Any | None:
    """Return what the first function of this part returns that is not None; other packages are asked first.

    Raises ConfigError as `parts_of`.
    """
    return next(_results((*installed_extensions(), *own_extensions()), part, arguments, facts), None)


def _results(
    asked: Sequence[Extension], part: str, arguments: Sequence[Any], facts: Mapping[str, Any]
) -> Iterator[Any]:
    for extension in asked:
        name = getattr(extension, part)
        if not name:
            continue
        try:
            result = resolve_name(name)(*arguments, **facts)
        except (ArrCocError, StreamError):
            raise
        except Exception as error:
            package = _packages.get(extension.name)
            if package is None:
                raise
            problem = f"{name} of {package} cannot be used: {_reason(error)}"
            raise ConfigError(f"{problem}; {_remedy(package)}") from error
        if result is not None:
            yield result


def package_at_fault(error: BaseException) -> str | None:
    """Return the package of the installed extension in whose code an error arose; None if it is of this program."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        modules.append(error.obj.__name__)  # a name of an extension that its module lacks
    if isinstance(error, ModuleNotFoundError):
        modules.append(error.name or "")
    names = [module.partition(".")[0] for module in reversed(modules)]
    return next((_modules[name] for name in names if name in _modules), None)


def remedy_of(name: str) -> str:
    """Return what to do about the installed extension of this name that cannot be used."""
    return _remedy(_packages[name])


def _reason(error: BaseException) -> str:
    """Return the text of an error on one line, or its class if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def _remedy(package: str) -> str:
    return f"repair it, or remove it: pip uninstall {package}"


@cache
def section_models() -> dict[str, type[ExtensionSection]]:
    """Return the models of the sections of extensions, by name."""
    models = {extension.name: extension.load_section() for extension in extensions()}
    return {name: model for name, model in models.items() if model is not None}


@cache
def model_types() -> dict[str, ModelType]:
    """Return the types of the models of extensions, by their keys."""
    return {kind.key: kind for extension in extensions() for kind in extension.models}


def model_keys() -> tuple[str, ...]:
    """Return the keys of the models of extensions."""
    return tuple(model_types())


def model_type_of(config: Config) -> ModelType | None:
    """Return the type of the model that answers; None for a Qwen model of this program."""
    if config.model_key is None:
        return None
    return model_types()[config.model_key]
