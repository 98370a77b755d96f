"""Schema of structured answers: a bounded subset of JSON Schema, and answers as objects of typed fields.

JSON Schema: https://json-schema.org/draft/2020-12. Schemas come from users and from other programs, so each part is
bounded. Regular expressions are refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from arr_coc.bounded_json import parse_json
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
STRING_CHARS, STRING_CHARS_MAX = 200, 2_000
"""Longest text of a field, without and with `maxLength`."""
ITEMS, ITEMS_MAX = 16, 256
"""Longest list, without and with `maxItems`."""
NUMBER_MAX = 10**9
"""Limit of a number without `minimum` or `maximum`."""
EXACT_MAX = 2**53
"""Largest limit: beyond it a number is not the same in every language that reads JSON."""
DECIMALS = 0.001
"""Step of numbers that are decoded: without one, a model may write decimals without end."""
DESCRIPTION_CHARS_MAX = 200

ANSWER = "answer"
"""Name of the only field of an answer that is one of several choices."""

TYPES = ("string", "integer", "number", "boolean")

_NAME = re.compile(rf"\w[\w .-]{{0,{NAME_CHARS_MAX - 1}}}")
_FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL)
_IGNORED = {"$schema", "$id", "$comment", "title", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_KEYWORDS = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "minItems", "maxItems"},
    "string": {"minLength", "maxLength"},
    "integer": {"minimum", "maximum"},
    "number": {"minimum", "maximum"},
    "boolean": set[str](),
}
_NULL = {"type": "null"}

Node = dict[str, Any]


@dataclass(frozen=True)
class AnswerSchema:
    """Schema of an answer. `text`: the schema as canonical JSON; schemas that demand the same are equal.

    An answer is a JSON object, or one of several `choices`, which is then the field `answer`.
    """

    text: str

    @classmethod
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
                f"a schema is a JSON object, got {_shown(value)}",
                'give such as {"people": "integer", "weather": ["sun", "rain"]}',
            )
        reader = _Reader(value.get("$defs", value.get("definitions", {})))
        node = reader.node(value, "", 0) if _is_json_schema(value) else reader.short(value, "", 0)
        if node.get("type") != "object" and not _is_choices(node):
            raise OptionError(
                "a schema describes an object with properties, or a text by its enum",
                f'put it into an object: {{"{ANSWER}": …}}',
            )
        return cls(json.dumps(node, ensure_ascii=False))

    @classmethod
    def given(cls, value: str | Mapping[str, Any] | Sequence[str]) -> AnswerSchema:
        """Return the schema of JSON text, of a mapping as `of` takes it, or of a sequence of choices. Raises
        OptionError."""
        if isinstance(value, str):
            return cls.parse(value)
        return cls.of_choices(value) if isinstance(value, (list, tuple)) else cls.of(value)

    @classmethod
    def of_choices(cls, choices: Sequence[str]) -> AnswerSchema:
        """Return the schema of an answer that is one of these texts. Raises OptionError."""
        return cls.of({"enum": [choice.strip() if isinstance(choice, str) else choice for choice in choices]})

    @cached_property
    def node(self) -> Node:
        """The schema as JSON Schema: of the supported keywords, with references replaced by what they refer to."""
        node: Node = json.loads(self.text)
        return node

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The texts of which an answer is one; None if answers are objects."""
        return tuple(self.node["enum"]) if "enum" in self.node else None

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
        return self.node if self.choices is None else _object({ANSWER: self.node}, [ANSWER])

    @property
    def bounded(self) -> Node:
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
        fenced = _FENCE.fullmatch(text)
        try:
            value = parse_json(stripped if fenced is None else fenced[1])
        except ValueError as error:
            raise ValueError(f"it is not whole JSON ({error})") from None
        if self.choices is not None and not isinstance(value, dict):
            value = {ANSWER: value}
        fields: dict[str, Any] = _checked(self._whole, value, "")
        return fields

    def text_of(self, fields: Mapping[str, Any]) -> str:
        """Return an answer's text as a model writes it."""
        return str(fields[ANSWER]) if self.choices is not None else json.dumps(fields, ensure_ascii=False)

    def readable(self, fields: Mapping[str, Any]) -> str:
        """Return an answer's text for people: `people: 2, weather: sun`."""
        return str(fields[ANSWER]) if self.choices is not None else _readable(fields)[1:-1]


def nullable(node: Node) -> tuple[Node, bool]:
    """Return a field's schema without null, and whether it may be null."""
    return (node["anyOf"][0], True) if "anyOf" in node else (node, False)


def kind_of(node: Node) -> str:
    """Return the type of a field: one of TYPES, `enum` for a choice of texts, `array` or `object`."""
    node, _ = nullable(node)
    if "enum" not in node:
        return str(node["type"])
    kinds = {_type_of(value) for value in node["enum"]}
    if kinds <= {"integer", "number"}:
        return "integer" if kinds == {"integer"} else "number"
    return "boolean" if kinds == {"boolean"} else "enum"


def _is_json_schema(value: Mapping[str, Any]) -> bool:
    """Return True for a JSON Schema, False for the short form, whose fields may have names of keywords."""
    return (
        value.get("type") == "object"
        or isinstance(value.get("properties"), dict)
        or bool(value.keys() & {"$schema", "$ref", "$defs"})
        or (value.keys() <= {"enum", "type"} | _IGNORED and "enum" in value)
    )


def _is_choices(node: Node) -> bool:
    return "enum" in node and all(isinstance(value, str) for value in node["enum"])


class _Reader:
    """Reader of one schema, which counts its parts and choices; `definitions` are what references name."""

    def __init__(self, definitions: object) -> None:
        self._definitions = definitions if isinstance(definitions, dict) else {}
        self._parts = self._choices = 0

    def short(self, value: object, where: str, level: int) -> Node:
        """Return the JSON Schema of a short form: a type's name, with [] for a list, a list of choices, an object."""
        if isinstance(value, str):
            name, brackets = (value[:-2], True) if value.endswith("[]") else (value, False)
            if name not in TYPES:
                raise _refusal(where, f"there is no type {_shown(value)}", f"name one of {', '.join(TYPES)}, or a list")
            return self.node({"type": "array", "items": {"type": name}} if brackets else {"type": name}, where, level)
        if isinstance(value, list):
            return self.node({"enum": value}, where, level)
        if not isinstance(value, dict):
            raise _refusal(
                where, f"{_shown(value)} is no type", f"name one of {', '.join(TYPES)}, or a list of choices"
            )
        self._enter(where, level)
        properties = {
            _field(name, where): self.short(item, _in(where, name), level + 1) for name, item in value.items()
        }
        return _object(_some(properties, where), list(properties))

    def node(self, value: object, where: str, level: int) -> Node:
        """Return the normal form of a JSON Schema."""
        self._enter(where, level)
        value = self._resolved(value, where)
        made = self._made(value, where, level)
        described, description = nullable(made)[0], value.get("description")
        if isinstance(description, str) and description.strip():
            described["description"] = " ".join(description.split())[:DESCRIPTION_CHARS_MAX]
        return made

    def _made(self, value: Mapping[str, Any], where: str, level: int) -> Node:
        if (either := value.get("anyOf", value.get("oneOf"))) is not None:
            return self._nullable(either, where, level)
        if "const" in value:
            return self._enum([value["const"]], where)
        if "enum" in value:
            return self._enum(value["enum"], where)
        kind = value.get("type")
        if isinstance(kind, list):
            return self._nullable([{**value, "type": one} if one != "null" else _NULL for one in kind], where, level)
        if not isinstance(kind, str) or kind not in _KEYWORDS:
            raise _refusal(where, f"type {_shown(kind)} is not supported", f"use object, array, {', '.join(TYPES)}")
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

    def _resolved(self, value: object, where: str) -> Mapping[str, Any]:
        """Return a schema, or that which its reference names. Raises OptionError for a loop of references."""
        seen: set[str] = set()
        while isinstance(value, dict) and "$ref" in value:
            name = value["$ref"]
            if not isinstance(name, str) or name in seen:
                raise _refusal(where, f"the reference {_shown(name)} leads to itself", "write the part in its place")
            seen.add(name)
            root, _, key = name.rpartition("/")
            if root not in ("#/$defs", "#/definitions") or key not in self._definitions:
                raise _refusal(where, f"there is no {_shown(name)}", "references lead to #/$defs/NAME")
            value = self._definitions[key]
        if not isinstance(value, dict):
            raise _refusal(where, f"{_shown(value)} is no schema", 'give such as {"type": "integer"}')
        return value

    def _nullable(self, either: object, where: str, level: int) -> Node:
        options = either if isinstance(either, list) else []
        others = [option for option in options if option != _NULL]
        if len(others) != 1 or len(options) > 2:
            raise _refusal(where, "alternatives are not supported but for one type and null", "name one type")
        made = self.node(others[0], where, level)
        return made if len(options) == 1 or "anyOf" in made else {"anyOf": [made, _NULL]}

    def _of_kind(self, kind: str, value: Mapping[str, Any], where: str, level: int) -> Node:
        if kind == "object":
            properties = value.get("properties", {})
            if not isinstance(properties, dict) or value.get("additionalProperties", False) is not False:
                raise _refusal(
                    where, "an object has properties, and no additionalProperties", "name each of its fields"
                )
            made = {
                _field(name, where): self.node(item, _in(where, name), level + 1) for name, item in properties.items()
            }
            required = value.get("required", [])
            if not isinstance(required, list) or any(name not in made for name in required):
                raise _refusal(where, f"required names a field that is no property: {_shown(required)}")
            return _object(_some(made, where), [name for name in made if name in required])
        if kind == "array":
            if "items" not in value:
                raise _refusal(where, "a list needs items", 'give such as "items": {"type": "string"}')
            items = self.node(value["items"], _in(where, "[]"), level + 1)
            return {"type": kind, "items": items, **_limits(value, "minItems", "maxItems", 0, ITEMS_MAX, where)}
        if kind == "string":
            return {"type": kind, **_limits(value, "minLength", "maxLength", 0, STRING_CHARS_MAX, where)}
        if kind == "boolean":
            return {"type": kind}
        return {"type": kind, **_limits(value, "minimum", "maximum", -EXACT_MAX, EXACT_MAX, where, kind)}

    def _enum(self, values: object, where: str) -> Node:
        if not isinstance(values, list) or not values:
            raise _refusal(where, f"choices are a list that is not empty, got {_shown(values)}")
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
                    f"{_shown(value)} is no choice",
                    f"choices are numbers, true, false, and texts of 1 to {CHOICE_CHARS_MAX} characters in one line",
                )
        return {"enum": values}


def _field(name: str, where: str) -> str:
    if not _NAME.fullmatch(name):
        raise _refusal(
            where,
            f"{_shown(name)} is no name of a field",
            f"names are 1 to {NAME_CHARS_MAX} letters, digits, spaces, and _ . -",
        )
    return name


def _some(properties: dict[str, Node], where: str) -> dict[str, Node]:
    if not properties:
        raise _refusal(where, "an object without a field says nothing", "name its fields")
    return properties


def _object(properties: dict[str, Node], required: list[str]) -> Node:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _limits(
    value: Mapping[str, Any], low: str, high: str, least: int, most: int, where: str, kind: str = "integer"
) -> Node:
    """Return the lower and upper limit of a size or a number, of those that are given."""
    given = {name: value[name] for name in (low, high) if name in value}
    for name, limit in given.items():
        if _type_of(limit) not in {kind, "integer"} or not least <= limit <= most:
            raise _refusal(where, f"{name} is a number from {least} to {most}, got {_shown(limit)}")
    if given.get(low, least) > given.get(high, most):
        raise _refusal(where, f"{low} is more than {high}", "raise the one or lower the other")
    return given


def _type_of(value: object) -> str:
    """Return the name of a scalar's type in JSON Schema; the Python name of anything else."""
    if isinstance(value, float):
        return "number" if math.isfinite(value) else "number that is not finite"
    names = {"bool": "boolean", "int": "integer", "str": "string", "NoneType": "null", "dict": "object"}
    return names.get(type(value).__name__, type(value).__name__)


def _typed(node: Node) -> Node:
    """Return a schema whose choices have a type, if they are of one."""
    if "anyOf" in node:
        return {"anyOf": [_typed(node["anyOf"][0]), _NULL]}
    if "enum" in node:
        types = {_type_of(value) for value in node["enum"]}
        return {"type": types.pop(), **node} if len(types) == 1 else node
    if node["type"] == "object":
        return {**node, "properties": {name: _typed(item) for name, item in node["properties"].items()}}
    return {**node, "items": _typed(node["items"])} if node["type"] == "array" else node


def _all_required(node: Node) -> bool:
    node, _ = nullable(node)
    if node.get("type") == "object":
        items = node["properties"]
        return len(node["required"]) == len(items) and all(map(_all_required, items.values()))
    return _all_required(node["items"]) if node.get("type") == "array" else True


def _bounded(node: Node) -> Node:
    if "anyOf" in node:
        return {"anyOf": [_bounded(node["anyOf"][0]), _NULL]}
    made = {key: value for key, value in node.items() if key != "description"}
    match node.get("type"):
        case "object":
            made["properties"] = {name: _bounded(item) for name, item in node["properties"].items()}
        case "array":
            made |= {"items": _bounded(node["items"]), "maxItems": _upper(node, "minItems", "maxItems", ITEMS)}
        case "string":
            made["maxLength"] = _upper(node, "minLength", "maxLength", STRING_CHARS)
        case "integer" | "number":
            made["minimum"] = node.get("minimum", min(-NUMBER_MAX, node.get("maximum", 0)))
            made["maximum"] = _upper(node, "minimum", "maximum", NUMBER_MAX)
            made |= {"multipleOf": DECIMALS} if node["type"] == "number" else {}
    return made


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
        raise ValueError(f"{where or 'it'} is none of the choices: {_shown(value)}")
    limits, kind = _bounded(inner) if inner["type"] not in ("object", "array") else inner, inner["type"]
    if kind == "object" and isinstance(value, dict):
        return dict(_members(inner, value, where))
    if kind == "array" and isinstance(value, list):
        _check_size(where, len(value), inner.get("minItems", 0), _upper(inner, "minItems", "maxItems", ITEMS), "item")
        return [_checked(inner["items"], item, _in(where, "[]")) for item in value]
    if kind == "string" and isinstance(value, str):
        _check_size(where, len(value), limits.get("minLength", 0), limits["maxLength"], "character")
        return value
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind in ("integer", "number") and _type_of(value) in ("integer", "number"):
        if not limits["minimum"] <= value <= limits["maximum"]:
            raise ValueError(f"{where} is not in {limits['minimum']} to {limits['maximum']}: {_shown(value)}")
        if kind == "number" or value == int(value):
            return value if kind == "number" else int(value)
    raise ValueError(f"{where or 'it'} should be of the type {kind}, got a {_type_of(value)}: {_shown(value)}")


def _members(node: Node, value: dict[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    properties = node["properties"]
    for name in value:
        if name not in properties:
            raise ValueError(f"{_in(where, name)[:NAME_CHARS_MAX]} is no field")
    for name, item in properties.items():
        if name in value:
            yield name, _checked(item, value[name], _in(where, name))
        elif name in node["required"]:
            raise ValueError(f"{_in(where, name)} is missing")


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
    return f"{form} ({inner['description']})" if "description" in inner else form


def _readable(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"({', '.join(f'{name}: {_readable(item)}' for name, item in value.items())})"
    if isinstance(value, list):
        return f"[{', '.join(map(_readable, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)


def _in(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _refusal(where: str, problem: str, remedy: str | None = None) -> OptionError:
    return OptionError(f"{where[:NAME_CHARS_MAX]}: {problem}" if where else problem, remedy)
