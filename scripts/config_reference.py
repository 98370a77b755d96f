"""Writes docs/configuration.md from the models in stream/config.py and the options that set their keys.

python -m scripts.config_reference > docs/configuration.md
"""

from __future__ import annotations

import ast
import inspect
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel

from stream import config as models
from stream.commands.caption import caption
from stream.commands.options import ConfigKey, RunOptions
from stream.commands.serve import ask, serve_answers
from stream.commands.watch import watch
from stream.config import Config

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

KINDS = {"integer": "whole number", "number": "number", "boolean": "true, false", "string": "text", "null": "none"}


def main() -> None:
    """Print the reference."""
    print(INTRODUCTION, end="")
    options = options_of_keys()
    for section, model in sections(Config):
        print(f"\n## {section or 'Top level'}\n\n{text_of(model.__doc__)}\n")
        print("| key | value | default | meaning | option |\n| --- | --- | --- | --- | --- |")
        meanings = docstrings(model)
        schema = model.model_json_schema()
        for name, field in model.model_fields.items():
            if not is_section(field.annotation):
                key = f"{section}.{name}" if section else name
                cells = (f"`{key}`", accepted(schema["properties"][name]), default_of(field.default))
                print(f"| {' | '.join((*cells, meanings[name], ', '.join(options[key])))} |")


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield each section's dotted name and its model, the top level first."""
    yield prefix, model
    for name, field in model.model_fields.items():
        if is_section(field.annotation):
            yield from sections(field.annotation, f"{prefix}.{name}" if prefix else name)


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the text below each field of a model."""
    (definition,) = (
        node
        for node in ast.parse(inspect.getsource(models)).body
        if isinstance(node, ast.ClassDef) and node.name == model.__name__
    )
    found = {}
    for node, after in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[ast.unparse(node.target)] = text_of(after.value.value)
    return found


def options_of_keys() -> defaultdict[str, list[str]]:
    """Return the options and arguments that set each key, as code."""
    options: defaultdict[str, list[str]] = defaultdict(list, {"source": ["argument"]})
    for owner in (RunOptions, caption, watch, serve_answers, ask):
        for hint in get_type_hints(owner, include_extras=True).values():
            for key in (detail for detail in get_args(hint) if isinstance(detail, ConfigKey)):
                option = get_args(hint)[1]
                shown = ", ".join(f"`{name}`" for name in (option.default, *option.param_decls))
                if shown not in options[key.name]:
                    options[key.name].append(shown)
    return options


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
        return "list of texts"
    limits = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    shown = [f"{sign} {schema[name]:g}" for name, sign in limits.items() if name in schema]
    if "maxLength" in schema:
        shown.append(f"≤ {schema['maxLength']} characters")
    return " ".join([KINDS[schema["type"]], *([", ".join(shown)] if shown else [])])


def default_of(value: Any) -> str:
    return "none" if value is None else f"`{json.dumps(value)}`"


def text_of(docstring: str | None) -> str:
    return " ".join((docstring or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
