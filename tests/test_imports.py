"""Who may import whom: the rules of docs/architecture.md, read off the sources."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(path for package in ("arr_coc", "stream") for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it, as absolute dotted names."""
    found: set[str] = set()
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            found.add(origin)
            found.update(f"{origin}.{alias.name}" for alias in node.names)
    return found


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def local(names: set[str]) -> set[str]:
    return {name for name in names if within(name, "arr_coc") or within(name, "stream")}


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_go_the_allowed_way(path: Path) -> None:
    name, names = module_name(path), imports_of(path)

    def refuse(package: str, *allowed_in: str) -> None:
        breach = sorted(used for used in names if within(used, package))
        assert not breach or any(within(name, place) for place in allowed_in), f"{name} imports {breach}"

    refuse("zmq", "stream.transport")
    refuse("av", "stream.sources", "stream.sinks")
    refuse("transformers", "arr_coc.qwen")
    refuse("OpenGL", "arr_coc.ops.gl")
    refuse("cuda", "arr_coc.ops.cuda")
    refuse("httpx2", "stream.answer.api")
    for server in ("starlette", "uvicorn", "websockets"):
        refuse(server, "stream.web")
    refuse("paho", "stream.mqtt")
    refuse("ray", "stream.fleet.on_ray.cluster")
    refuse("rerun", "stream.sinks.rerun")
    refuse("opentelemetry", "stream.sinks.otlp")
    refuse("pyarrow", "stream.sources")
    for library in ("foxglove", "rosbags"):
        refuse(library, "stream.sinks.robotics")
    for training_only in ("training", "benchmarks", "tests", "evaluation"):
        refuse(training_only)
    if within(name, "arr_coc"):
        refuse("stream")
    if name in {"arr_coc.types", "arr_coc.errors", "arr_coc.resources", "stream.errors", "stream.clock"}:
        assert not local(names), f"{name} imports {sorted(local(names))}"
    if within(name, "arr_coc.ops"):
        allowed = ("arr_coc.types", "arr_coc.errors", "arr_coc.budget", "arr_coc.resources", "arr_coc.ops")
        breach = {used for used in local(names) if used != "arr_coc" and not any(within(used, a) for a in allowed)}
        assert not breach, f"{name} imports {sorted(breach)}"
    if within(name, "stream.stages") and name != "stream.stages.base":
        siblings = {used for used in names if within(used, "stream.stages")}
        others = {
            used
            for used in siblings
            if used != "stream.stages" and not within(used, "stream.stages.base") and not within(used, name)
        }
        assert not others, f"{name} imports {sorted(others)}"


LAYERS = {
    "stream": [
        {"clock", "errors", "untrusted"},
        {"options"},
        {"config"},
        {"control"},
        {"logs"},
        {"config_loading", "events", "media", "scenes"},
        {"protocol"},
        {"transport"},
        {"recording"},
        {"answer", "sources"},
        {"monitor", "stages"},
        {"mqtt", "web"},
        {"sinks"},
        {"display", "runtime"},
        {"adaptation", "bench", "compare", "doctor", "fleet"},
        {"commands"},
        {"cli"},
        {"start"},
    ],
    "arr_coc": [
        {"bounded_json", "errors", "resources", "types"},
        {"budget"},
        {"ops.kernels", "ops.packing", "ops.pictures", "ops.regions"},
        {"hub", "ops.store", "relevance"},
        {"allocation", "ops.gl"},
        {"layer", "ops.cuda"},
        {"ops.backends", "qwen"},
        {"ops.texturevlm", "video"},
        {"adaptation", "model"},
    ],
}
"""A module imports its own part and parts of the lines above; never a part below, nor one beside it in its line."""

FRONTS = {"arr_coc", "arr_coc.ops", "arr_coc.texturevlm", "stream"}
"""Packages that name what others hold."""

FLAT_MAX = {"arr_coc": 9, "stream": 12}


def place(module: str) -> tuple[str, int, str] | None:
    """(package, layer, part) of a module; None for a front."""
    top, _, rest = module.partition(".")
    for layer, parts in enumerate(LAYERS.get(top, ())):
        for part in parts:
            if within(rest, part):
                return top, layer, part
    return None


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_go_down_the_layers(path: Path) -> None:
    name = module_name(path)
    if name in FRONTS:
        return
    here = place(name)
    assert here is not None, f"{name} has no layer"
    for used in imports_of(path):
        there = place(used)
        if there is None or there[0] != here[0] or there[2] == here[2]:
            continue
        assert there[1] < here[1], f"{name} ({here[2]}) imports {used} ({there[2]}), which is not below it"


def test_no_module_imports_itself_by_way_of_others() -> None:
    names = {module_name(path) for path in SOURCES}
    uses = {module_name(path): imports_of(path) & names - {module_name(path)} for path in SOURCES}
    for front in FRONTS:
        uses[front] = set()
    while uses:
        leaves = {name for name, used in uses.items() if not used & uses.keys()}
        assert leaves, f"these import each other: {sorted(uses)}"
        uses = {name: used for name, used in uses.items() if name not in leaves}


def test_a_class_name_is_used_once() -> None:
    defined = Counter(
        node.name
        for path in SOURCES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not {name for name, count in defined.items() if count > 1}


@pytest.mark.parametrize("package", FLAT_MAX)
def test_few_modules_lie_flat_in_a_package(package: str) -> None:
    assert len(list((ROOT / package).glob("*.py"))) <= FLAT_MAX[package]


def test_kernels_cannot_shadow_the_package_of_that_name() -> None:
    """transformers looks for an importable `kernels`; a folder with `__init__.py` would be imported in its place."""
    assert not list((ROOT / "kernels").glob("**/__init__.py"))
    assert not list((ROOT / "kernels").glob("**/*.py"))
