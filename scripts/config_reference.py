"""Contents of docs/configuration.md, from the models in stream/config.py and the options that set their keys."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from stream.config import Config
from stream.config_loading import section_of
from stream.extension.options import every_option
from stream.extension.registry import section_models
from stream.options.option import Option

INTRODUCTION = """\
# Configuration reference

```
$ python run_stream.py caption clip.mp4 -c webcam --set allocate.budgt=64
error: --set: unknown key allocate.budgt; did you mean allocate.budget?
```

All keys, by the sections of a TOML file such as [`configs/webcam.toml`](../configs/webcam.toml):

```toml
[answer]
max_tokens = 48
```

`--config FILE` reads a file, `--set answer.max_tokens=48` sets a key, and so does the option beside it. Later ones win:
presets and files in their order, `--set`, options. Unknown keys and wrong values are refused before anything runs. A
linked key leads to its explanation; `make docs` writes this page.
"""

TABLES = {
    "answer": ("", "answer"),
    "Memory, glances, checks": (
        *("answer.memory", "history", "answer.glance", "answer.incremental"),
        *("shadow", "latency"),
    ),
    "allocate": ("allocate",),
    "capture": ("capture",),
    "[[watch]]": ("watch[]", "on_match", "clips", "zones.NAME", "detections"),
    "Output files": ("output", "heatmap", "why", "record", "past", "overlay", "hls"),
    "web": ("web",),
    "api": ("api",),
    "Other programs": ("mqtt", "webhook", "zeromq", "robotics", "shared_texture", "rerun", "metrics", "otlp"),
    "Processes and hardware": ("pipeline", "network", "texture", "texture.cut"),
}
"""Heading → sections of its table, in the order of the page. Any other section has a table of its own at the end."""

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = "configuration.md"

END_OF_SENTENCE = re.compile(r"(?<=[.)])\s+(?=[`A-Z0-9\"])")
DEFAULT = re.compile(r" \[[^\]]*\]$")
"""Default at the end of an option's help."""
REFERENCE = re.compile(r"docs/([\w-]+\.md)(#[\w-]+)?")

KINDS = {"integer": "integer", "number": "number", "boolean": "true, false"}


def configuration_page() -> str:
    """Return the page."""
    models = dict(all_sections())
    tables = dict(TABLES)
    listed = {section for sections in TABLES.values() for section in sections}
    tables |= {section: (section,) for section in models if section not in listed}
    lines = [INTRODUCTION]
    for heading, sections in tables.items():
        lines.append(f"\n## {heading}\n\n| key, option | default, values | meaning |\n| --- | --- | --- |\n")
        for section in sections:
            if section and section != heading:
                about = models[section].__doc__ or ""
                title = with_reference(_title(section), about, PAGE)
                lines.append(f"| **{title}** | | {without_references(first_sentence(about))} |\n")
            lines += _rows(section, models[section])
    return "".join(lines)


def _rows(section: str, model: type[BaseModel]) -> Iterator[str]:
    """Yield a row for each key: its meaning is the help of its option, else the first sentence below its field."""
    schema, texts = model.model_json_schema(), docstrings(model)
    for name, field in model.model_fields.items():
        if section_of(field.annotation) is not None:
            continue
        key = f"{section}.{name}" if section else name
        key_options = [option for option in every_option() if option.key == key]
        names = dict.fromkeys(f"`{option_name}`" for option in key_options for option_name in option.names)
        meaning = first_sentence(_help(key_options[0], field.annotation) if key_options else texts[name])
        cells = (
            ", ".join([with_reference(f"`{key}`", texts[name], PAGE), *names]),
            _default_and_values(field.default, schema["properties"][name]),
            without_references(meaning),
        )
        yield f"| {' | '.join(cells)} |\n"


def _help(option: Option, annotation: Any) -> str:
    """Return an option's help without the default and without the values, which have a column."""
    text = DEFAULT.sub("", option.help)
    if get_origin(annotation) is Literal:
        values = ", ".join(value for value in get_args(annotation) if value != "auto")
        text = re.sub(f": {re.escape(values)}[^.]*", "", text)
    return text


def documented_keys() -> dict[str, str]:
    """Return every key of the configuration and the text below its field."""
    return {
        f"{section}.{name}" if section else name: text
        for section, model in all_sections()
        for name, text in docstrings(model).items()
    }


def first_sentence(text: str | None) -> str:
    """Return the first sentence of a docstring."""
    return END_OF_SENTENCE.split(text_of(text))[0]


def with_reference(name: str, text: str, page: str) -> str:
    """Return a name as a link to what its `text` refers to, such as `docs/gpu.md`; alone if it refers to nothing."""
    reference = REFERENCE.search(text)
    if reference is None:
        return name
    target, anchor = reference[1], reference[2] or ""
    return f"[{name}]({'' if target == page else target}{anchor})"


def without_references(text: str) -> str:
    """Return a text without the references to pages in parentheses."""
    return re.sub(rf" \({REFERENCE.pattern}\)", "", text)


def linked(text: str, page: str) -> str:
    """Return a text of `page` in which the paths of other pages are links: `docs/gpu.md`, `docs/cli.md#heat-map`."""

    def link(match: re.Match[str]) -> str:
        name, anchor = match[1], match[2] or ""
        headings = re.findall(r"^#+ (.+)$", (DOCS / name).read_text(encoding="utf-8"), re.MULTILINE)
        title = next((heading for heading in headings if heading.lower().replace(" ", "-") == anchor[1:]), name)
        return f"[{title}]({'' if name == page else name}{anchor})"

    return REFERENCE.sub(link, text)


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
    """Return the name of a section as TOML writes it."""
    return f"[[{section.removesuffix('[]')}]]" if section.endswith("[]") else f"[{section}]"


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


def _default_and_values(default: Any, schema: Mapping[str, Any]) -> str:
    """Return a key's default, and what else its JSON schema accepts as far as the default does not show it."""
    if default is PydanticUndefined:
        shown = "must be given"
    else:
        shown = "none" if default is None else f"`{json.dumps(default)}`"
    others = [accepted({**schema, **branch}, default) for branch in schema.get("anyOf", [schema])]
    text = " or ".join(other for other in others if other and other != f"such as {shown}")
    return f"{shown}, {text}" if text else shown


def accepted(schema: Mapping[str, Any], default: Any) -> str:
    """Return the values that a JSON schema without `anyOf` accepts, in words, without what the default shows."""
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value != default)
    kind = schema["type"]
    if kind == "object" or (kind == "string" and "pattern" in schema):
        return f"such as `{schema['examples'][0]}`"
    if kind == "array":
        if "$ref" in schema.get("items", {}):
            return "list of tables or texts"
        lists = {"string": "list of texts", "array": "list of points"}
        return lists.get(schema.get("items", {}).get("type"), "list of numbers")
    if kind == "null":
        return "" if default is None else "none"
    bounds = _bounds(schema)
    if "maxLength" in schema:
        bounds.append(f"≤ {schema['maxLength']} characters")
    if kind == "string" or isinstance(default, int | float):
        return ", ".join(bounds)
    return " ".join([KINDS[kind], ", ".join(bounds)]).strip()


def _bounds(schema: Mapping[str, Any]) -> list[str]:
    """Return the limits of a number: `0…1` includes both, others have their signs."""
    if "minimum" in schema and "maximum" in schema:
        return [f"{schema['minimum']:.9g}…{schema['maximum']:.9g}"]
    limits = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    return [f"{sign} {schema[name]:.9g}" for name, sign in limits.items() if name in schema]


def text_of(docstring: str | None) -> str:
    """Return a text in one line, as a cell of a table takes it."""
    return " ".join((docstring or "").split()).replace("|", "\\|")
