"""Import of transformers without the parts that answering does not need: compiler, distributed and unused modules.

`import transformers.modeling_utils` takes longer than `import torch`. Most of the time goes to torch's compiler,
torch.distributed, accelerate and a list of all models that is built from two thousand files. These imports are deferred
until an attribute of them is used. Answers are the same; a version of transformers that needs one of them during its
import gets it then.

A process that imports transformers this way has no tensor parallelism and no device maps of transformers, and the
functions that transformers marks for the compiler during the import stay unmarked.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from arr_coc.qwen.checkpoint import may_be_quantised

COMPILER = "torch._dynamo"
LIBRARY = "transformers"
MODELS = "transformers.models"

MASK_HELPER = "torch._dynamo._trace_wrapped_higher_order_op"
"""Module of the compiler with a class for transformers' masks, the only part of the compiler that these need."""


@contextmanager
def deferred_imports(*models: str | Path | None) -> Iterator[None]:
    """Context manager in which imports of transformers leave out the parts that a loaded model does not need.

    For a process that loads `models` (folders, names on the hub, None for the bundled one), each on one device, and
    compiles nothing. It has no effect if transformers has been imported before. If a model may be quantised, accelerate
    stays visible: transformers then requires it, and checks for it when it is imported.
    """
    if LIBRARY in sys.modules:
        yield
        return
    import torch

    library = _put(LIBRARY)
    import_utils = importlib.import_module("transformers.utils.import_utils")
    _answer_no(import_utils, "is_torch_distributed_available", _without(torch.distributed.__dict__, "is_available"))
    if not any(map(may_be_quantised, models)):
        _answer_no(import_utils, "is_accelerate_available", _without(sys.modules, "accelerate"))
    kernels = find_spec("kernels")
    if kernels is not None and kernels.origin is None:  # a folder, whose version would be sought in all packages
        _answer_no(import_utils, "is_kernels_available", _without(sys.modules, "kernels"))
    for module in (import_utils, sys.modules["transformers.utils"]):
        if hasattr(module, "direct_transformers_import"):
            vars(module)["direct_transformers_import"] = lambda *_args, **_options: library
    _put(MODELS)
    if COMPILER in sys.modules:
        yield
        return
    compiler = DeferredCompiler()
    try:
        yield
    finally:
        compiler.remove()


class DeferredListing(ModuleType):
    """Stand-in for a package whose code only lists its modules; the code runs when an attribute other than a module is
    used."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        spec = find_spec(name)
        assert spec is not None, f"{name} is not installed"
        self.__spec__ = spec
        self.__loader__ = spec.loader
        self.__package__ = name
        self.__file__ = spec.origin
        self.__path__ = list(spec.submodule_search_locations or ())
        self._has_run = False

    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return importlib.metadata.version(LIBRARY)
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if find_spec(f"{self.__name__}.{name}") is not None:
            return importlib.import_module(f"{self.__name__}.{name}")
        if not self._has_run:
            self._has_run = True
            assert self.__loader__ is not None
            self.__loader__.exec_module(self)  # type: ignore[attr-defined]
        package = sys.modules[self.__name__]  # the package's code may have replaced this module
        if package is self:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(package, name)


class DeferredCompiler(ModuleType):
    """Stand-in for torch's compiler, until it is removed or another attribute of the compiler is used."""

    def __init__(self) -> None:
        super().__init__(COMPILER)
        spec = find_spec(COMPILER)
        assert spec is not None, "torch is whole"
        self.__spec__ = spec
        self.__package__ = COMPILER
        self.__path__ = list(spec.submodule_search_locations or ())
        self._finder = _CompilerFinder(self)
        self._torch = sys.modules["torch"]
        vars(self._torch)["_dynamo"] = self
        sys.modules[COMPILER] = self
        importlib.import_module(MASK_HELPER)
        sys.meta_path.insert(0, self._finder)

    def remove(self) -> None:
        """Remove the stand-in, so that the next import gets the compiler. May be called twice."""
        if sys.modules.get(COMPILER) is self:
            sys.meta_path.remove(self._finder)
            del sys.modules[COMPILER], vars(self._torch)["_dynamo"]

    def disable(self, function: Any = None, recursive: bool = True, **options: Any) -> Callable[..., Any]:
        """Stand-in for the compiler's `disable`: calls the function directly until the compiler is imported."""
        if function is None:
            return functools.partial(self.disable, recursive=recursive, **options)

        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            compiler = sys.modules.get(COMPILER, self)
            if compiler is self:
                return function(*args, **keywords)
            return compiler.disable(function, recursive, **options)(*args, **keywords)

        return call

    def allow_in_graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function unchanged."""
        return function

    assume_constant_result = allow_in_graph

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"module {COMPILER!r} has no attribute {name!r}")
        self.remove()
        return getattr(importlib.import_module(COMPILER), name)


class _CompilerFinder(MetaPathFinder, Loader):
    """Finder that imports the compiler before any of its modules."""

    def __init__(self, stand_in: DeferredCompiler) -> None:
        self._stand_in = stand_in

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(f"{COMPILER}."):
            return None
        self._stand_in.remove()
        importlib.import_module(COMPILER)
        if name in sys.modules:
            return ModuleSpec(name, self)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]  # the compiler has imported it

    def exec_module(self, module: ModuleType) -> None:
        pass


def _put(name: str) -> DeferredListing:
    package = DeferredListing(name)
    sys.modules[name] = package
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, package)
    return package


@contextmanager
def _without(names: dict[str, Any], name: str) -> Iterator[None]:
    """Context manager that makes a module appear not to be installed; a function in its place returns False."""
    present = name in names
    before = names.get(name)
    names[name] = (lambda: False) if callable(before) else None
    try:
        yield
    finally:
        if present:
            names[name] = before
        else:
            del names[name]


def _answer_no(module: ModuleType, question: str, absent: Any) -> None:
    """Call transformers' check for a package while that appears absent; the check caches its result."""
    check: Any = getattr(module, question, None)
    with absent:
        if hasattr(check, "cache_info"):
            check()
