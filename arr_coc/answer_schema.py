"""Schema of structured answers: which answers fit, as objects of typed fields, and as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from arr_coc.bounded_json import parse_json
from arr_coc.errors import OptionError, counted
from arr_coc.schema_reader import (
    DECIMALS,
    ITEMS,
    NAME_CHARS_MAX,
    NULL,
    NUMBER_MAX,
    SCHEMA_BYTES_MAX,
    STRING_CHARS,
    Node,
    SchemaReader,
    excerpt,
    is_choices,
    is_json_schema,
    is_property_map,
    is_whole,
    name_in,
    nullable,
    object_of,
    type_of,
)

ANSWER = "answer"
"""Name of the only field of an answer that is one of several choices."""


@dataclass(frozen=True)
class AnswerSchema:
    """Schema of an answer. `text`: the schema as canonical JSON; schemas that demand the same are equal.

    An answer is a JSON object, or one of several `choices`, which is then the field `answer`.
    """

    text: str

    @classmethod
    @lru_cache(maxsize=64)  # each question brings its schema as text
    def parse(cls, text: str) -> AnswerSchema:
        """Read a JSON Schema, or the short form: an object of field names and types, or lists of choices.

        Raises OptionError for what is neither, is not supported, or exceeds the limits of this module.
        """
        if len(text.encode("utf-8", "replace")) > SCHEMA_BYTES_MAX:
            raise OptionError(f"a schema has at most {SCHEMA_BYTES_MAX >> 10} KiB", "give a shorter one")
        try:
            value = parse_json(text)
        except ValueError as error:
            raise OptionError(f"the schema is not JSON: {error}") from None
        return cls.of(value)

    @classmethod
    def of(cls, value: object) -> AnswerSchema:
        """Return the schema of a value as `parse` reads it from JSON. Raises OptionError."""
        if not isinstance(value, dict):
            raise OptionError(
                f"a schema is a JSON object, got {excerpt(value)}",
                'give such as {"people": "integer", "weather": ["sun", "rain"]}',
            )
        if not is_json_schema(value) and is_property_map(value):
            value = {"type": "object", "properties": value, "required": list(value)}
        reader = SchemaReader(value.get("$defs", value.get("definitions", {})))
        if is_json_schema(value):
            node = reader.node(value, "", 0)
        else:
            node = reader.short(value, "", 0)
        if node.get("type") != "object" and not is_choices(node):
            raise OptionError(
                "a schema describes an object with properties, or a text by its enum",
                f'put it into an object: {{"{ANSWER}": …}}',
            )
        text = json.dumps(node, ensure_ascii=False)
        if not is_whole(text):
            raise OptionError("the schema has half of a character, such as \\ud800", "write the whole character")
        return cls(text)

    @classmethod
    def of_value(cls, value: str | Mapping[str, Any] | Sequence[str]) -> AnswerSchema:
        """Return the schema of JSON text, of a mapping as `of` takes it, or of a sequence of choices. Raises
        OptionError."""
        if isinstance(value, str):
            return cls.parse(value)
        if isinstance(value, (list, tuple)):
            return cls.of_choices(value)
        return cls.of(value)

    @classmethod
    def of_choices(cls, choices: Sequence[str]) -> AnswerSchema:
        """Return the schema of an answer that is one of these texts. Raises OptionError, also for a single one."""
        if len(choices) == 1 and isinstance(choices[0], str):
            raise OptionError(
                f"an answer is one of several choices, got only {excerpt(choices[0])}", "give two or more"
            )
        return cls.of({"enum": [choice.strip() if isinstance(choice, str) else choice for choice in choices]})

    @cached_property
    def node(self) -> Node:
        """The schema as JSON Schema: of the supported keywords, with references replaced by what they refer to."""
        node: Node = json.loads(self.text)
        return node

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The texts of which an answer is one; None if answers are objects."""
        if "enum" in self.node:
            return tuple(self.node["enum"])
        return None

    @property
    def fields(self) -> Mapping[str, Node]:
        """Name and JSON Schema of each field of an answer."""
        properties: dict[str, Node] = {ANSWER: self.node} if self.choices else self.node["properties"]
        return properties

    @property
    def object_schema(self) -> Node:
        """JSON Schema for a server: an object, and each value with a type, as OpenAI demands."""
        return _typed(self._whole)

    @property
    def all_required(self) -> bool:
        """True if no field may be left out."""
        return _all_required(self._whole)

    @property
    def _whole(self) -> Node:
        if self.choices is None:
            return self.node
        return object_of({ANSWER: self.node}, [ANSWER])

    @property
    def bounded_schema(self) -> Node:
        """JSON Schema for decoding: every text, list and number has a limit."""
        return _bounded(self.node)

    @property
    def instruction(self) -> str:
        """Sentence for a model: the form of the answer."""
        if self.choices is not None:
            return f"Answer with one of: {', '.join(self.choices)}."
        return f"Answer as JSON: {_form(self.node)}"

    def fields_of(self, text: str) -> dict[str, Any]:
        """Return the fields of an answer. Raises ValueError, with the reason, for one that does not fit."""
        stripped = text.strip()
        if not stripped:
            raise ValueError("it is empty")
        if self.choices is not None and stripped in self.choices:
            return {ANSWER: stripped}
        if len(stripped) > 6 and stripped.startswith("```") and stripped.endswith("```"):  # as Markdown
            stripped = stripped[3:-3].removeprefix("json")
        try:
            value = parse_json(stripped)
        except ValueError as error:
            raise ValueError(f"it is not whole JSON ({error})") from None
        if self.choices is not None and not isinstance(value, dict):
            value = {ANSWER: value}
        fields: dict[str, Any] = _checked(self._whole, value, "")
        return fields

    def text_of(self, fields: Mapping[str, Any]) -> str:
        """Return an answer's text as a model writes it."""
        if self.choices is not None:
            return str(fields[ANSWER])
        return json.dumps(fields, ensure_ascii=False)

    def readable(self, fields: Mapping[str, Any]) -> str:
        """Return an answer's text for people: `people: 2, weather: sun`."""
        if self.choices is not None:
            return str(fields[ANSWER])
        return _readable(fields)[1:-1]


def kind_of(node: Node) -> str:
    """Return the type of a field: one of TYPES, `enum` for a choice of texts, `array` or `object`."""
    node, _ = nullable(node)
    if "enum" not in node:
        return str(node["type"])
    kinds = {type_of(value) for value in node["enum"]}
    if kinds <= {"integer", "number"}:
        return "integer" if kinds == {"integer"} else "number"
    return "boolean" if kinds == {"boolean"} else "enum"


def _typed(node: Node) -> Node:
    """Return a schema whose choices have a type, if they are of one."""
    if "anyOf" in node:
        return {"anyOf": [_typed(node["anyOf"][0]), NULL]}
    if "enum" in node:
        types = {type_of(value) for value in node["enum"]}
        if len(types) == 1:
            return {"type": types.pop(), **node}
        return node
    if node["type"] == "object":
        return {**node, "properties": {name: _typed(item) for name, item in node["properties"].items()}}
    if node["type"] == "array":
        return {**node, "items": _typed(node["items"])}
    return node


def _all_required(node: Node) -> bool:
    node, _ = nullable(node)
    if node.get("type") == "object":
        items = node["properties"]
        return len(node["required"]) == len(items) and all(map(_all_required, items.values()))
    if node.get("type") == "array":
        return _all_required(node["items"])
    return True


def _bounded(node: Node) -> Node:
    if "anyOf" in node:
        return {"anyOf": [_bounded(node["anyOf"][0]), NULL]}
    schema = {key: value for key, value in node.items() if key != "description"}
    match node.get("type"):
        case "object":
            schema["properties"] = {name: _bounded(item) for name, item in node["properties"].items()}
        case "array":
            schema |= {"items": _bounded(node["items"]), "maxItems": _upper(node, "minItems", "maxItems", ITEMS)}
        case "string":
            schema["maxLength"] = _upper(node, "minLength", "maxLength", STRING_CHARS)
        case "integer" | "number":
            schema["minimum"] = node.get("minimum", min(-NUMBER_MAX, node.get("maximum", 0)))
            schema["maximum"] = _upper(node, "minimum", "maximum", NUMBER_MAX)
            schema |= {"multipleOf": DECIMALS} if node["type"] == "number" else {}
    return schema


def _upper(node: Node, low: str, high: str, usual: int) -> Any:
    return node.get(high, max(usual, node.get(low, usual)))


def _checked(node: Node, value: Any, where: str) -> Any:
    """Return a value that fits a schema, with integers as such. Raises ValueError for another."""
    inner, may_be_null = nullable(node)
    if value is None and may_be_null:
        return None
    if "enum" in inner:
        for choice in inner["enum"]:
            if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                return choice
        raise ValueError(f"{where or 'it'} is none of the choices: {excerpt(value)}")
    if inner["type"] not in ("object", "array"):
        limits = _bounded(inner)
    else:
        limits = inner
    kind = inner["type"]
    if kind == "object" and isinstance(value, dict):
        return dict(_members(inner, value, where))
    if kind == "array" and isinstance(value, list):
        _check_size(where, len(value), inner.get("minItems", 0), _upper(inner, "minItems", "maxItems", ITEMS), "item")
        return [_checked(inner["items"], item, name_in(where, "[]")) for item in value]
    if kind == "string" and isinstance(value, str):
        _check_size(where, len(value), limits.get("minLength", 0), limits["maxLength"], "character")
        if not is_whole(value):
            raise ValueError(f"{where} has half of a character, which no output can carry")
        return value
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind in ("integer", "number") and type_of(value) in ("integer", "number"):
        if not limits["minimum"] <= value <= limits["maximum"]:
            raise ValueError(f"{where} is not in {limits['minimum']} to {limits['maximum']}: {excerpt(value)}")
        if kind == "number" or value == int(value):
            return value if kind == "number" else int(value)
    raise ValueError(f"{where or 'it'} should be of the type {kind}, got a {type_of(value)}: {excerpt(value)}")


def _members(node: Node, value: dict[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    properties = node["properties"]
    for name in value:
        if name not in properties:
            raise ValueError(f"{name_in(where, name)[:NAME_CHARS_MAX]} is no field")
    for name, item in properties.items():
        if name in value:
            yield name, _checked(item, value[name], name_in(where, name))
        elif name in node["required"]:
            raise ValueError(f"{name_in(where, name)} is missing")


def _check_size(where: str, size: int, least: int, most: int, unit: str) -> None:
    if not least <= size <= most:
        raise ValueError(f"{where} has {counted(size, unit)}, not {least} to {most}")


def _form(node: Node) -> str:
    """Return a schema as an outline for a model: `{"people": integer, "weather": "sun" or "rain"}`."""
    inner, may_be_null = nullable(node)
    if "enum" in inner:
        form = " or ".join(json.dumps(value, ensure_ascii=False) for value in inner["enum"])
    elif inner["type"] == "object":
        form = ", ".join(f'"{name}": {_form(item)}' for name, item in inner["properties"].items())
        form = f"{{{form}}}"
    elif inner["type"] == "array":
        form = f"[{_form(inner['items'])}, …]"
    else:
        form = inner["type"]
    form = f"{form} or null" if may_be_null else form
    if "description" in inner:
        return f"{form} ({inner['description']})"
    return form


def _readable(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({', '.join(f'{name}: {_readable(item)}' for name, item in value.items())})"
    if isinstance(value, list):
        return f"[{', '.join(map(_readable, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)
