"""JSON schemas of events, in the subset of JSON Schema that Foxglove reads: one type per field, no references."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from msgspec import inspect

from stream.events import OF_FRAMES, PICTURE, AnyEvent, Event, FrameReady

LOGGED: tuple[type[Event], ...] = tuple(
    kind for kind in get_args(AnyEvent) if kind not in OF_FRAMES or kind is FrameReady
)
"""Events that are written as JSON: the events of a .jsonl, and each frame's figures."""


def topic_of(kind: type[Event]) -> str:
    """Return the topic of a kind of event: a slash and its tag, which is also its ZeroMQ topic."""
    return f"/{inspect.type_info(kind).tag}"  # type: ignore[attr-defined]


def schema_of(kind: type[Event]) -> dict[str, Any]:
    """Return the JSON schema of the output of `encode_event` for a kind of event. A field may be null or absent."""
    return {"title": kind.__name__, **_schema(inspect.type_info(kind))}


def _schema(kind: inspect.Type) -> dict[str, Any]:
    if isinstance(kind, inspect.UnionType):
        (kind,) = (member for member in kind.types if not isinstance(member, inspect.NoneType))
    if isinstance(kind, inspect.Metadata):
        return _schema(kind.type)
    if isinstance(kind, inspect.StructType):
        if kind.tag_field is None:
            tag = {}
        else:
            tag = {kind.tag_field: {"type": "string"}}
        fields = {field.encode_name: _schema(field.type) for field in kind.fields if field.name not in PICTURE}
        return {"type": "object", "properties": {**tag, **fields}}
    if isinstance(kind, inspect.DictType):
        return {"type": "object"}
    if isinstance(kind, inspect.ListType):
        return {"type": "array", "items": _schema(kind.item_type)}
    return {"type": _SIMPLE[type(kind)]}


_SIMPLE: dict[type[inspect.Type], str] = {
    inspect.BoolType: "boolean",
    inspect.FloatType: "number",
    inspect.IntType: "integer",
    inspect.StrType: "string",
}


def schema_text(kind: type[Event]) -> bytes:
    """Return the schema as JSON."""
    return msgspec.json.encode(schema_of(kind))
