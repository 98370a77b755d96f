"""Reader of schemas: a bounded subset of JSON Schema (https://json-schema.org/draft/2020-12), and a short form of it.

Schemas come from users and from other programs, so each part is bounded. Regular expressions are refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from arr_coc.errors import OptionError, counted

SCHEMA_BYTES_MAX = 64 * 1024
LEVELS_MAX = 6
"""Objects and lists inside each other."""
PARTS_MAX = 128
"""Values that a schema describes: fields, nested ones included, and items of lists."""
CHOICES_MAX = 256
"""Choices of a whole schema."""
NAME_CHARS_MAX = 64
CHOICE_CHARS_MAX = 100
STRING_CHARS = 200
STRING_CHARS_MAX = 2_000
"""Longest text of a field, without and with `maxLength`."""
ITEMS = 16
ITEMS_MAX = 256
"""Longest list, without and with `maxItems`."""
NUMBER_MAX = 10**9
"""Limit of a number without `minimum` or `maximum`."""
EXACT_MAX = 2**53
"""Largest limit: beyond it a number is not the same in every language that reads JSON."""
DECIMALS = 0.001
"""Step of numbers that are decoded: without one, a model may write decimals without end."""
DESCRIPTION_CHARS_MAX = 200

TYPES = ("string", "integer", "number", "boolean")

_NAME = re.compile(rf"\w[\w .-]{{0,{NAME_CHARS_MAX - 1}}}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_IGNORED = {"$schema", "$id", "$comment", "title", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength"},
    "integer": {"minimum", "maximum"},
    "number": {"minimum", "maximum"},
    "boolean": set[str](),
}
NULL = {"type": "null"}

Node = dict[str, Any]


class SchemaReader:
    """Reader of one schema, which counts its parts and choices; `definitions` are what references name."""

    def __init__(self, definitions: object) -> None:
        if isinstance(definitions, dict):
            self._definitions = definitions
        else:
            self._definitions = {}
        self._parts = self._choices = 0

    def short(self, value: object, where: str, level: int) -> Node:
        """Return the JSON Schema of a short form: a type's name, with [] for a list, a list of choices, an object."""
        if isinstance(value, str):
            name, brackets = (value[:-2], True) if value.endswith("[]") else (value, False)
            if name not in TYPES:
                raise _refusal(
                    where, f"there is no type {excerpt(value)}", f"name one of {', '.join(TYPES)}, or a list"
                )
            return self.node({"type": "array", "items": {"type": name}} if brackets else {"type": name}, where, level)
        if isinstance(value, list):
            return self.node({"enum": value}, where, level)
        if not isinstance(value, dict):
            raise _refusal(
                where, f"{excerpt(value)} is no type", f"name one of {', '.join(TYPES)}, or a list of choices"
            )
        self._enter(where, level)
        properties = {
            _field(name, where): self.short(item, name_in(where, name), level + 1) for name, item in value.items()
        }
        return object_of(_checked_fields(properties, where), list(properties))

    def node(self, value: object, where: str, level: int) -> Node:
        """Return the normal form of a JSON Schema."""
        self._enter(where, level)
        references: set[str] = set()  # a loop of them is refused
        while isinstance(value, dict) and "$ref" in value:
            name = value["$ref"]
            if not isinstance(name, str) or name in references:
                raise _refusal(where, f"the reference {excerpt(name)} leads to itself", "write the part in its place")
            references.add(name)
            root, _, key = name.rpartition("/")
            if root not in ("#/$defs", "#/definitions") or key not in self._definitions:
                raise _refusal(where, f"there is no {excerpt(name)}", "references lead to #/$defs/NAME")
            value = self._definitions[key]
        if not isinstance(value, dict):
            raise _refusal(where, f"{excerpt(value)} is no schema", 'give such as {"type": "integer"}')
        schema = self._parse(value, where, level)
        described = nullable(schema)[0]
        description = value.get("description")
        if isinstance(description, str) and description.strip():
            described["description"] = " ".join(description.split())[:DESCRIPTION_CHARS_MAX]
        return schema

    def _parse(self, value: Mapping[str, Any], where: str, level: int) -> Node:
        if (alternatives := value.get("anyOf", value.get("oneOf"))) is not None:
            return self._nullable(alternatives, where, level)
        if "const" in value:
            return self._enum([value["const"]], where)
        if "enum" in value:
            return self._enum(value["enum"], where)
        kind = value.get("type")
        if isinstance(kind, list):
            return self._nullable([{**value, "type": name} if name != "null" else NULL for name in kind], where, level)
        if not isinstance(kind, str) or kind not in _KEYWORDS:
            raise _refusal(where, f"type {excerpt(kind)} is not supported", f"use object, array, {', '.join(TYPES)}")
        unknown = value.keys() - _KEYWORDS[kind] - _IGNORED - {"type", "description", "$defs", "definitions"}
        if unknown:
            raise _refusal(where, f"{min(unknown)!r} is not supported in a schema", "leave it out")
        return self._of_kind(kind, value, where, level)

    def _enter(self, where: str, level: int) -> None:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise OptionError(f"a schema describes at most {counted(PARTS_MAX, 'value')}", "ask for fewer fields")
        if level > LEVELS_MAX:
            raise _refusal(where, f"a schema is nested at most {LEVELS_MAX} deep", "ask for fewer levels")

    def _nullable(self, alternatives: object, where: str, level: int) -> Node:
        if isinstance(alternatives, list):
            options = alternatives
        else:
            options = []
        others = [option for option in options if option != NULL]
        if len(others) != 1 or len(options) > 2:
            raise _refusal(where, "alternatives are not supported but for one type and null", "name one type")
        schema = self.node(others[0], where, level)
        if len(options) == 1 or "anyOf" in schema:
            return schema
        return {"anyOf": [schema, NULL]}

    def _of_kind(self, kind: str, value: Mapping[str, Any], where: str, level: int) -> Node:
        if kind == "object":
            properties = value.get("properties", {})
            if not isinstance(properties, dict) or value.get("additionalProperties", False) is not False:
                raise _refusal(
                    where, "an object has properties, and no additionalProperties", "name each of its fields"
                )
            nodes = {
                _field(name, where): self.node(item, name_in(where, name), level + 1)
                for name, item in properties.items()
            }
            required = value.get("required", [])
            if not isinstance(required, list) or any(name not in nodes for name in required):
                raise _refusal(where, f"required names a field that is no property: {excerpt(required)}")
            return object_of(_checked_fields(nodes, where), [name for name in nodes if name in required])
        if kind == "array":
            if "items" not in value:
                raise _refusal(where, "a list needs items", 'give such as "items": {"type": "string"}')
            items = self.node(value["items"], name_in(where, "[]"), level + 1)
            return {"type": kind, "items": items, **_limits(value, "minItems", "maxItems", 0, ITEMS_MAX, where)}
        if kind == "string":
            return {"type": kind, **_limits(value, "minLength", "maxLength", 0, STRING_CHARS_MAX, where)}
        if kind == "boolean":
            return {"type": kind}
        return {"type": kind, **_limits(value, "minimum", "maximum", -EXACT_MAX, EXACT_MAX, where, kind)}

    def _enum(self, values: object, where: str) -> Node:
        if not isinstance(values, list) or not values:
            raise _refusal(where, f"choices are a list that is not empty, got {excerpt(values)}")
        self._choices += len(values)
        if self._choices > CHOICES_MAX:
            raise OptionError(f"a schema has at most {counted(CHOICES_MAX, 'choice')}", "give fewer")
        if len({json.dumps(value) for value in values}) < len(values):
            raise _refusal(where, "a choice stands there twice", "leave one out")
        for value in values:
            fits = isinstance(value, bool) or (isinstance(value, int | float) and abs(value) <= EXACT_MAX)
            if isinstance(value, str):
                fits = 0 < len(value) <= CHOICE_CHARS_MAX and value.isprintable() and value == value.strip()
            if not fits:
                raise _refusal(
                    where,
                    f"{excerpt(value)} is no choice",
                    f"choices are numbers, true, false, and texts of 1 to {CHOICE_CHARS_MAX} characters in one line",
                )
        return {"enum": values}


def is_json_schema(value: Mapping[str, Any]) -> bool:
    """Return True for a JSON Schema, False for the short form, whose fields may have names of keywords."""
    return (
        value.get("type") == "object"
        or isinstance(value.get("properties"), dict)
        or bool(value.keys() & {"$schema", "$ref", "$defs"})
        or (value.keys() <= {"enum", "type"} | _IGNORED and "enum" in value)
    )


def is_property_map(value: Mapping[str, Any]) -> bool:
    """Return True for the `properties` of a JSON Schema alone: each field is a schema with a type."""
    kinds = [item.get("type") if isinstance(item, dict) else None for item in value.values()]
    return bool(kinds) and all(isinstance(kind, str) and kind in _KEYWORDS for kind in kinds)


def is_choices(node: Node) -> bool:
    return "enum" in node and all(isinstance(value, str) for value in node["enum"])


def nullable(node: Node) -> tuple[Node, bool]:
    """Return a field's schema without null, and whether it may be null."""
    if "anyOf" in node:
        return (node["anyOf"][0], True)
    return (node, False)


def _field(name: str, where: str) -> str:
    if not _NAME.fullmatch(name):
        raise _refusal(
            where,
            f"{excerpt(name)} is no name of a field",
            f"names are 1 to {NAME_CHARS_MAX} letters, digits, spaces, and _ . -",
        )
    return name


def _checked_fields(properties: dict[str, Node], where: str) -> dict[str, Node]:
    if not properties:
        raise _refusal(where, "an object without a field says nothing", "name its fields")
    return properties


def object_of(properties: dict[str, Node], required: list[str]) -> Node:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _limits(
    value: Mapping[str, Any], low: str, high: str, least: int, most: int, where: str, kind: str = "integer"
) -> Node:
    """Return the lower and upper limit of a size or a number, of those that are given."""
    limits = {name: value[name] for name in (low, high) if name in value}
    for name, limit in limits.items():
        if type_of(limit) not in {kind, "integer"} or not least <= limit <= most:
            raise _refusal(where, f"{name} is a number from {least} to {most}, got {excerpt(limit)}")
    if limits.get(low, least) > limits.get(high, most):
        raise _refusal(where, f"{low} is more than {high}", "raise the one or lower the other")
    return limits


def is_whole(text: str) -> bool:
    """Return False for text with a lone surrogate, which JSON can spell and UTF-8 cannot carry."""
    return text.isascii() or not _SURROGATE.search(text)


def type_of(value: object) -> str:
    """Return the name of a scalar's type in JSON Schema; the Python name of anything else."""
    if isinstance(value, float):
        if math.isfinite(value):
            return "number"
        return "number that is not finite"
    names = {"bool": "boolean", "int": "integer", "str": "string", "NoneType": "null", "dict": "object"}
    return names.get(type(value).__name__, type(value).__name__)


def name_in(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def excerpt(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _refusal(where: str, problem: str, remedy: str | None = None) -> OptionError:
    return OptionError(f"{where[:NAME_CHARS_MAX]}: {problem}" if where else problem, remedy)
