"""Contents of docs/configuration.md, from the models in stream/config.py and the options that set their keys."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from scripts.option_table import options
from stream.config import Config
from stream.config_loading import section_of
from stream.extension.registry import section_models

INTRODUCTION = """\
# Configuration reference

All keys of the configuration. This file is generated: `make docs` writes it anew. A TOML file has sections:

```toml
[answer]
max_tokens = 48
```

and on the command line `--set answer.max_tokens=48` does the same, or the option in the last column. Later layers win,
key by key: preset or `--config` files in their order, `--set`, options. An unknown key or a wrong value is refused in
one line that names the file or option, the key, and what is accepted. [Command line](cli.md) explains
keys in context.
"""

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = "configuration.md"

KINDS = {"integer": "whole number", "number": "number", "boolean": "true, false", "string": "text", "null": "none"}


def configuration_page() -> str:
    """Return the page."""
    lines = [INTRODUCTION]
    spellings = {"source": ["argument"]}
    for option in options():
        names = spellings.setdefault(option.key, [])
        names += [f"`{name}`" for name in option.names if f"`{name}`" not in names]
    meanings = documented_keys()
    for section, model in all_sections():
        lines += [f"\n## {_title(section)}\n\n{linked(text_of(model.__doc__), PAGE)}\n"]
        lines += ["\n| key | value | default | meaning | option |\n| --- | --- | --- | --- | --- |\n"]
        schema = model.model_json_schema()
        for name, field in model.model_fields.items():
            if section_of(field.annotation) is None:
                key = f"{section}.{name}" if section else name
                cells = (f"`{key}`", accepted(schema["properties"][name]), default_of(field.default))
                meaning, option_names = linked(meanings[key], PAGE), ", ".join(spellings.get(key, []))
                lines.append(f"| {' | '.join((*cells, meaning, option_names))} |\n")
    return "".join(lines)


def documented_keys() -> dict[str, str]:
    """Return every key of the configuration and the text below its field."""
    return {
        f"{section}.{name}" if section else name: text
        for section, model in all_sections()
        for name, text in docstrings(model).items()
    }


def linked(text: str, page: str) -> str:
    """Return a text of `page` in which the paths of other pages are links: `docs/gpu.md`, `docs/cli.md#heat-map`."""

    def link(match: re.Match[str]) -> str:
        name, anchor = match[1], match[2] or ""
        headings = re.findall(r"^#+ (.+)$", (DOCS / name).read_text(encoding="utf-8"), re.MULTILINE)
        title = next((heading for heading in headings if heading.lower().replace(" ", "-") == anchor[1:]), name)
        return f"[{title}]({'' if name == page else name}{anchor})"

    return re.sub(r"docs/([\w-]+\.md)(#[\w-]+)?", link, text)


def all_sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the sections of the core, and those of the extensions of this program."""
    yield from sections(Config)
    for name, model in section_models().items():
        yield from sections(model, name)


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield each section's dotted name and its model, the top level first."""
    yield prefix, model
    for name, field in model.model_fields.items():
        if (inner := section_of(field.annotation)) is not None:
            yield from sections(inner[1], f"{prefix}.{name}.{inner[0]}".strip("."))
        elif get_origin(field.annotation) is tuple and section_of(get_args(field.annotation)[0]) is not None:
            yield f"{prefix}.{name}[]".strip("."), get_args(field.annotation)[0]


def _title(section: str) -> str:
    """Return the heading of a section; of tables in a list, as TOML writes them."""
    return f"[[{section.removesuffix('[]')}]]" if section.endswith("[]") else section or "Top level"


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the text below each field of a model."""
    (definition,) = (
        node
        for node in ast.parse(inspect.getsource(sys.modules[model.__module__])).body
        if isinstance(node, ast.ClassDef) and node.name == model.__name__
    )
    texts = {}
    for node, after in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            texts[ast.unparse(node.target)] = text_of(after.value.value)
    return texts


def accepted(schema: Mapping[str, Any]) -> str:
    """Return the values that a JSON schema accepts, in words."""
    branches = schema.get("anyOf", [schema])
    return " or ".join(accepted_branch({**schema, **branch}) for branch in branches)


def accepted_branch(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "pattern" in schema and schema["type"] == "string":
        return f"text such as `{schema['examples'][0]}`"
    if schema["type"] == "array":
        if "$ref" in schema.get("items", {}):
            return "list of tables or texts"
        lists = {"string": "list of texts", "array": "list of points"}
        return lists.get(schema.get("items", {}).get("type"), "list of numbers")
    if schema["type"] == "object":
        return f"table such as `{schema['examples'][0]}`"
    limits = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[name]:g}" for name, sign in limits.items() if name in schema]
    if "maxLength" in schema:
        bounds.append(f"≤ {schema['maxLength']} characters")
    return " ".join([KINDS[schema["type"]], *([", ".join(bounds)] if bounds else [])])


def default_of(value: Any) -> str:
    if value is PydanticUndefined:
        return "must be given"
    return "none" if value is None else f"`{json.dumps(value)}`"


def text_of(docstring: str | None) -> str:
    return " ".join((docstring or "").split()).replace("|", "\\|")
