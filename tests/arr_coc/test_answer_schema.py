"""Schemas of answers: the short form, JSON Schema, their limits, and which answers fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from arr_coc.answer_schema import AnswerSchema, kind_of
from arr_coc.errors import OptionError
from arr_coc.schema_reader import (
    CHOICE_CHARS_MAX,
    CHOICES_MAX,
    DESCRIPTION_CHARS_MAX,
    ITEMS,
    LEVELS_MAX,
    PARTS_MAX,
    SCHEMA_BYTES_MAX,
    STRING_CHARS,
    STRING_CHARS_MAX,
)

STREET = (
    '{"people": "integer", "weather": ["sun", "rain"], "tags": "string[]", '
    '"car": {"red": "boolean"}, "share": "number"}'
)
FIELDS = {"people": 2, "weather": "sun", "tags": ["a", "b"], "car": {"red": True}, "share": 0.5}


def object_with(**node: Any) -> dict[str, Any]:
    """JSON Schema of an object with the field `a`."""
    return {"type": "object", "properties": {"a": node}, "required": ["a"]}


def nested(levels: int) -> dict[str, Any]:
    node: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        node = {"type": "object", "properties": {"a": node}, "required": ["a"]}
    return node


def test_the_short_form_is_a_json_schema() -> None:
    schema = AnswerSchema.parse(STREET)
    assert schema.node["required"] == list(FIELDS)
    assert schema.node["properties"]["tags"] == {"type": "array", "items": {"type": "string"}}
    assert schema.node["properties"]["weather"] == {"enum": ["sun", "rain"]}
    assert AnswerSchema.parse(schema.text) == schema
    assert [kind_of(node) for node in schema.fields.values()] == ["integer", "enum", "array", "object", "number"]


def test_the_properties_of_a_json_schema_are_one() -> None:
    properties = {"people": {"type": "integer", "minimum": 0}, "seen": {"type": "array", "items": {"type": "string"}}}
    schema = {"type": "object", "properties": properties, "required": ["people", "seen"]}
    assert AnswerSchema.of(properties) == AnswerSchema.of(schema)
    with pytest.raises(OptionError, match="'pattern' is not supported in a schema; leave it out"):
        AnswerSchema.of({"name": {"type": "string", "pattern": "x"}})
    short = AnswerSchema.of({"car": {"type": "string", "red": "boolean"}, "sky": "string"})
    assert json.loads(short.text)["properties"]["car"]["properties"].keys() == {"type", "red"}


def test_an_answer_has_fields_and_a_text_for_people() -> None:
    schema = AnswerSchema.parse(STREET)
    text = schema.text_of(FIELDS)
    assert json.loads(text) == FIELDS
    assert schema.fields_of(text) == FIELDS
    assert schema.fields_of(f"\n```json\n{text}\n```\n") == FIELDS
    assert schema.readable(FIELDS) == "people: 2, weather: sun, tags: [a, b], car: (red: yes), share: 0.5"


def test_whole_numbers_are_integers_however_they_are_written() -> None:
    fields = AnswerSchema.parse('{"a": "integer"}').fields_of('{"a": 2.0}')
    assert fields == {"a": 2}
    assert isinstance(fields["a"], int)


@pytest.mark.parametrize("text", ["open", " open\n", '"open"', '{"answer": "open"}'])
def test_one_of_several_texts_is_the_field_answer(text: str) -> None:
    schema = AnswerSchema.of_choices(["open", " closed "])
    assert schema.choices == ("open", "closed")
    fields = schema.fields_of(text)
    assert fields == {"answer": "open"}
    assert schema.readable(fields) == schema.text_of(fields) == "open"
    assert schema.instruction == "Answer with one of: open, closed."
    assert AnswerSchema.parse(schema.text) == schema


def test_a_server_gets_an_object_with_types() -> None:
    choices = AnswerSchema.of_choices(["open", "closed"])
    assert choices.object_schema["properties"] == {"answer": {"type": "string", "enum": ["open", "closed"]}}
    schema = AnswerSchema.of(object_with(type="array", items={"anyOf": [{"enum": [1, 2]}, {"type": "null"}]}))
    items = schema.object_schema["properties"]["a"]["items"]
    assert items == {"anyOf": [{"type": "integer", "enum": [1, 2]}, {"type": "null"}]}
    assert choices.all_required
    assert schema.all_required
    inner = {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "boolean"}}}}
    assert not AnswerSchema.of(object_with(**inner)).all_required


def test_a_json_schema_of_pydantic_is_read() -> None:
    schema = AnswerSchema.of(
        {
            "$defs": {"Colour": {"enum": ["red", "blue"], "title": "Colour", "type": "string"}},
            "properties": {
                "colour": {"$ref": "#/$defs/Colour"},
                "speed": {"anyOf": [{"type": "number", "minimum": 0}, {"type": "null"}], "default": None},
                "kind": {"const": "car"},
                "tyres": {"type": ["integer", "null"], "description": "how  many\nthere are"},
            },
            "required": ["colour"],
            "title": "Car",
            "type": "object",
        }
    )
    assert schema.fields_of('{"colour": "red"}') == {"colour": "red"}
    assert schema.fields_of('{"tyres": null, "speed": null, "colour": "red"}')["speed"] is None
    assert schema.readable({"colour": "red", "speed": None}) == "colour: red, speed: none"
    assert '"tyres": integer or null (how many there are)' in schema.instruction
    assert [kind_of(node) for node in schema.fields.values()] == ["enum", "number", "enum", "integer"]


def test_a_single_choice_is_refused() -> None:
    with pytest.raises(OptionError, match=r"one of several choices, got only \"open\"; give two or more"):
        AnswerSchema.of_choices(["open"])


def test_the_kinds_of_choices() -> None:
    schema = AnswerSchema.parse('{"a": [1, 2], "b": [1, 2.5], "c": [true], "d": ["x", 1]}')
    assert [kind_of(node) for node in schema.fields.values()] == ["integer", "number", "boolean", "enum"]
    fields = {"a": 1, "b": 2.5, "c": True, "d": "x"}
    assert schema.fields_of(json.dumps(fields)) == fields


def test_everything_decoded_has_a_limit() -> None:
    node = AnswerSchema.parse('{"a": "string", "b": "integer[]", "c": "number", "d": {"e": "boolean"}}').bounded_schema
    properties = node["properties"]
    assert properties["a"]["maxLength"] == STRING_CHARS
    assert properties["b"]["maxItems"] == ITEMS
    assert properties["b"]["items"] == {"type": "integer", "minimum": -(10**9), "maximum": 10**9}
    assert properties["c"]["multipleOf"] == 0.001
    assert (
        AnswerSchema.of(object_with(type="string", minLength=300)).bounded_schema["properties"]["a"]["maxLength"] == 300
    )
    low = AnswerSchema.of(object_with(type="integer", minimum=2**40)).bounded_schema["properties"]["a"]
    assert low["minimum"] <= low["maximum"]
    null = AnswerSchema.of(object_with(type=["string", "null"])).bounded_schema["properties"]["a"]
    assert null["anyOf"][0]["maxLength"] == STRING_CHARS


@pytest.mark.parametrize(
    ("schema", "text", "reason"),
    [
        (STREET, "", "it is empty"),
        (STREET, '{"people": 2, "wea', "it is not whole JSON"),
        (STREET, "[" * 100_000, "nested deeper"),
        (STREET, "```" + "\n" * 60_000 + "```", "it is not whole JSON"),
        (STREET, "a man walks", "it is not whole JSON"),
        (STREET, "[1]", "it should be of the type object, got a list: [1]"),
        (STREET, '{"people": 2}', "weather is missing"),
        (STREET, '{"people": NaN}', "not finite"),
        (STREET, '{"people": 1e999}', "not finite"),
        (STREET, f'{{"people": {"1" * 5_000}}}', "it is not whole JSON"),
        (STREET, '{"people": 1.5}', "people should be of the type integer"),
        (STREET, '{"people": true}', "people should be of the type integer, got a boolean"),
        (STREET, '{"people": 2000000000}', "people is not in -1000000000 to 1000000000"),
        (STREET, '{"people": 1, "weather": "snow"}', "weather is none of the choices"),
        (STREET, '{"people": 1, "weather": "sun", "tags": [1]}', "tags.[] should be of the type string"),
        (STREET, json.dumps({**FIELDS, "tags": ["a"] * (ITEMS + 1)}), f"tags has {ITEMS + 1} items, not 0 to {ITEMS}"),
        (STREET, json.dumps({**FIELDS, "tags": ["a" * 999]}), f"tags.[] has 999 characters, not 0 to {STRING_CHARS}"),
        (STREET, json.dumps({**FIELDS, "car": {"red": 1}}), "car.red should be of the type boolean"),
        (STREET, json.dumps({**FIELDS, "more": 1}), "more is no field"),
        (STREET, json.dumps({**FIELDS, "tags": ["\ud800"]}), "tags.[] has half of a character"),
        ('{"a": [1, 2]}', '{"a": true}', "a is none of the choices"),
        ('{"enum": ["a", "b"]}', "c", "it is not whole JSON"),
        ('{"enum": ["a", "b"]}', '{"answer": "c"}', "answer is none of the choices"),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_with_the_reason(schema: str, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"(?s).") as refused:
        AnswerSchema.parse(schema).fields_of(text)
    assert reason in str(refused.value)
    assert len(str(refused.value)) < 300


BOMB = {
    f"d{level}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/d{level + 1}"} for name in "ab"}}
    for level in range(5)
}
BOMB["d5"] = {"type": "array", "items": {"$ref": "#/$defs/d0"}}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "a schema is a JSON object, got []"),
        ("integer", "a schema is a JSON object"),
        ({}, "an object without a field"),
        ({"a": "int"}, 'a: there is no type "int"'),
        ({"a": 1}, "a: 1 is no type"),
        ({"a": []}, "a: choices are a list that is not empty"),
        ({"a": ["x", "x"]}, "a: a choice stands there twice"),
        ({"a": [None]}, "a: null is no choice"),
        ({"a": [" x"]}, "is no choice"),
        ({"a": ["x\n"]}, "is no choice"),
        ({"a": ["x" * (CHOICE_CHARS_MAX + 1)]}, "is no choice"),
        ({"a": [float("nan")]}, "is no choice"),
        (object_with(description="\ud800", type="integer"), "half of a character"),
        ({"a": [10**40]}, "is no choice"),
        ({"a": [str(number) for number in range(CHOICES_MAX + 1)]}, "at most 256 choices"),
        ({"{{ x }}": "integer"}, "is no name of a field"),
        ({"x" * 65: "integer"}, "is no name of a field"),
        ({f"a{number}": "integer" for number in range(PARTS_MAX)}, "at most 128 values"),
        ({"type": "object", "properties": {}}, "an object without a field"),
        ({"type": "object", "properties": []}, "an object has properties"),
        (
            {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True},
            "additionalProperties",
        ),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]}, "required names a field"),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": 1}, "required names a field"),
        ({"$schema": "x", "type": "integer"}, "a schema describes an object"),
        ({"enum": [1, 2]}, "a schema describes an object"),
        (object_with(), "a: type null is not supported"),
        (object_with(type="file"), 'a: type "file" is not supported'),
        (object_with(type={}), "a: type {} is not supported"),
        ({"type": "object", "properties": {"a": 3}}, "a: 3 is no schema"),
        (object_with(type="string", pattern="^((a+)+)+$"), "a: 'pattern' is not supported"),
        (object_with(type="string", format="date"), "a: 'format' is not supported"),
        (object_with(type="integer", patternProperties={}), "is not supported"),
        (object_with(type="string", maxLength=STRING_CHARS_MAX + 1), "a: maxLength is a number from 0 to 2000"),
        (object_with(type="string", maxLength=True), "a: maxLength is a number"),
        (object_with(type="string", minLength=5, maxLength=4), "a: minLength is more than maxLength"),
        (object_with(type="array", items={"type": "integer"}, maxItems=10**9), "a: maxItems is a number from 0 to 256"),
        (object_with(type="array"), "a: a list needs items"),
        (object_with(type="integer", maximum=10**300), "a: maximum is a number"),
        (object_with(type="integer", maximum=1.5), "a: maximum is a number"),
        (object_with(type="number", maximum=float("inf")), "a: maximum is a number"),
        (object_with(anyOf=[{"type": "integer"}, {"type": "string"}]), "a: alternatives are not supported"),
        (object_with(anyOf="x"), "a: alternatives are not supported"),
        (object_with(**{"$ref": "#/$defs/b"}), 'a: there is no "#/$defs/b"'),
        (object_with(**{"$ref": "http://example.com/schema"}), "a: there is no"),
        (object_with(**{"$ref": 1}), "a: the reference 1 leads to itself"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "leads to itself"),
        ({"$defs": {"a": object_with(**{"$ref": "#/$defs/a"})}, "$ref": "#/$defs/a"}, "nested at most 6 deep"),
        ({"$defs": BOMB, "$ref": "#/$defs/d0"}, "at most"),
        (nested(LEVELS_MAX + 1), "nested at most 6 deep"),
    ],
)
def test_schemas_beyond_the_limits_are_refused_in_one_line(value: object, problem: str) -> None:
    with pytest.raises(OptionError) as refused:
        AnswerSchema.of(value)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_text_that_is_no_schema_is_refused_in_one_line() -> None:
    for text in ("{", "[" * 100_000, " " * (SCHEMA_BYTES_MAX + 1), '{"a": ' * 1_000):
        with pytest.raises(OptionError) as refused:
            AnswerSchema.parse(text)
        assert "\n" not in str(refused.value)
    assert AnswerSchema.of(nested(LEVELS_MAX)).node["type"] == "object"


def test_a_schema_is_given_as_text_a_mapping_or_choices() -> None:
    value = {"a": "integer"}
    assert AnswerSchema.of_value(json.dumps(value)) == AnswerSchema.of_value(value) == AnswerSchema.of(value)
    assert AnswerSchema.of_value(["x", "y"]).choices == ("x", "y")
    with pytest.raises(OptionError, match="a schema describes an object"):
        AnswerSchema.of_value([1])  # type: ignore[list-item]


def test_a_long_description_is_cut() -> None:
    schema = AnswerSchema.of(object_with(type="integer", description="x" * 5_000))
    assert len(schema.node["properties"]["a"]["description"]) == DESCRIPTION_CHARS_MAX
