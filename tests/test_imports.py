"""Who may import whom: the rules of docs/architecture.md, read off the sources."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(path for package in ("arr_coc", "stream") for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it, as absolute dotted names."""
    names: set[str] = set()
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names.add(origin)
            names.update(f"{origin}.{alias.name}" for alias in node.names)
    return names


IMPORTS = {module_name(path): imports_of(path) for path in SOURCES}


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def local(names: set[str]) -> set[str]:
    return {name for name in names if within(name, "arr_coc") or within(name, "stream")}


ONLY_IN = {
    "zmq": "stream.transport stream.extensions.zeromq",
    "av": "stream.sources stream.sinks stream.extensions",
    "transformers": "arr_coc.qwen arr_coc.finetune",
    "OpenGL": "arr_coc.backends.gl",
    "cuda": "arr_coc.backends.cuda",
    "httpx2": "stream.extensions.api stream.extensions.mcp",
    "mcp": "stream.extensions.mcp",
    "starlette": "stream.extensions.web stream.extensions.past",
    "uvicorn": "stream.http",
    "h11": "stream.http",
    "websockets": "stream.extensions.web",
    "paho": "stream.extensions.mqtt",
    "ray": "stream.extensions.fleet.on_ray.cluster",
    "rerun": "stream.extensions.rerun",
    "opentelemetry": "stream.extensions.otlp",
    "sqlite3": "stream.extensions.past",
    "pyarrow": "stream.extensions.lerobot",
    "foxglove": "stream.extensions.robotics",
    "rosbags": "stream.extensions.robotics",
    "llguidance": "arr_coc.qwen.constraint",
    "training": "",
    "benchmarks": "",
    "tests": "",
    "evaluation": "",
    "stream": "stream",
    "stream.stages.allocate": "stream.runtime",
    "stream.stages.capture": "stream.runtime",
    "stream.stages.texture": "stream.runtime",
}
"""Packages that import a library, or a part of this project. No others do."""

ALLOWED = {
    **dict.fromkeys(("arr_coc.types", "arr_coc.errors", "arr_coc.resources", "stream.errors", "stream.clock"), ""),
    "arr_coc.texture": "arr_coc.types arr_coc.errors arr_coc.budget arr_coc.resources arr_coc.texture",
    "arr_coc.backends": "arr_coc.types arr_coc.errors arr_coc.resources arr_coc.texture arr_coc.backends",
    "arr_coc.ops": "arr_coc.types arr_coc.errors arr_coc.budget arr_coc.texture arr_coc.backends arr_coc.ops",
}
"""All project modules that a module or package may import."""


def within_any(name: str, packages: str) -> bool:
    return any(within(name, package) for package in packages.split())


def test_imports_go_the_allowed_way() -> None:
    breaches = {
        f"{name} imports {imported}"
        for name, names in IMPORTS.items()
        for imported in names
        if any(within(imported, library) and not within_any(name, places) for library, places in ONLY_IN.items())
        or any(
            within(name, package) and imported in local(names) - {"arr_coc"} and not within_any(imported, allowed)
            for package, allowed in ALLOWED.items()
        )
    }
    assert not breaches


FRONTS = {"arr_coc", "arr_coc.knowing", "arr_coc.ops", "arr_coc.texturevlm", "stream"}
"""Packages that name the contents of others."""

FLAT_MAX = {"arr_coc": 12, "stream": 12}


def test_no_module_imports_itself_by_way_of_others() -> None:
    uses = {name: names & IMPORTS.keys() - {name} for name, names in IMPORTS.items()}
    for front in FRONTS:
        uses[front] = set()
    while uses:
        leaves = {name for name, dependencies in uses.items() if not dependencies & uses.keys()}
        assert leaves, f"these import each other: {sorted(uses)}"
        uses = {name: dependencies for name, dependencies in uses.items() if name not in leaves}


def test_a_class_name_is_used_once() -> None:
    defined = Counter(
        node.name
        for path in SOURCES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not {name for name, count in defined.items() if count > 1}


def test_few_modules_lie_flat_in_a_package() -> None:
    assert {package: len(list((ROOT / package).glob("*.py"))) for package in FLAT_MAX} == FLAT_MAX


def test_kernels_cannot_shadow_the_package_of_that_name() -> None:
    """transformers looks for an importable `kernels`; a folder with `__init__.py` would be imported in its place."""
    assert not list((ROOT / "kernels").glob("**/__init__.py"))
    assert not list((ROOT / "kernels").glob("**/*.py"))
