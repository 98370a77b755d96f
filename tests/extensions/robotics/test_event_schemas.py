"""Schemas of events: Foxglove can read them, and events match them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stream.events import Event, encode_event
from stream.extensions.robotics.event_schemas import LOGGED, schema_of, topic_of
from stream.monitor.schema import TOPICS
from tests.stream.test_events import EVENTS

KINDS = {
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "string": str,
    "object": dict,
    "array": list,
}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Return True if a value has the type of a schema and no field that the schema lacks."""
    if value is None:
        return True
    if not isinstance(value, KINDS[schema["type"]]):
        return False
    if isinstance(value, dict) and "properties" in schema:
        return all(
            name in schema["properties"] and fits(item, schema["properties"][name]) for name, item in value.items()
        )
    return all(fits(item, schema["items"]) for item in value) if isinstance(value, list) else True


@pytest.mark.parametrize(
    "event", [event for event in EVENTS if type(event) in LOGGED], ids=lambda event: type(event).__name__
)
def test_an_event_is_as_its_schema_says(event: Event) -> None:
    schema = schema_of(type(event))
    data = json.loads(encode_event(event))
    assert schema["type"] == "object"
    assert fits(data, schema)
    assert data.keys() <= schema["properties"].keys()
    assert not {"slot", "map"} & schema["properties"].keys()


def test_every_event_of_a_run_has_an_example_here() -> None:
    assert {type(event) for event in EVENTS} >= set(LOGGED)


@pytest.mark.parametrize("kind", LOGGED, ids=lambda kind: kind.__name__)
def test_schemas_have_one_plain_type_a_field(kind: type[Event]) -> None:
    text = json.dumps(schema_of(kind))
    assert not any(word in text for word in ("$ref", "anyOf", "oneOf", "null"))


def test_topics_are_named_as_those_of_zeromq() -> None:
    names = {topic_of(kind).removeprefix("/") for kind in LOGGED}
    assert {"answer", "frame", "look", "turned", "summary"} <= names & set(TOPICS)
