"""The device's description follows Home Assistant's discovery."""

from __future__ import annotations

import json
from typing import Any

from jinja2 import Environment

from arr_coc.answer_schema import AnswerSchema
from stream.extensions.mqtt.topics import RunTopics


def described(**has: Any) -> dict[str, Any]:
    message = RunTopics("door", **has).discovery("homeassistant", "1.2")
    assert (message.topic, message.retain) == ("homeassistant/device/arr_coc_door/config", True)
    fields: dict[str, Any] = json.loads(message.payload)
    return fields


def test_the_whole_device_is_one_message() -> None:
    device = described(watches=(("cat", "is there a cat?"),), ask=True, clips=True)
    assert device["device"]["identifiers"] == ["arr_coc_door"]
    assert device["origin"] == {"name": "arr-coc-stream", "sw_version": "1.2"}
    assert device["availability_topic"] == "arr_coc/door/availability"
    platforms = {key: component["platform"] for key, component in device["components"].items()}
    assert platforms == {
        "answer": "sensor",
        "detections": "sensor",
        "until": "binary_sensor",
        "watch_cat": "binary_sensor",
        "match_cat": "event",
        "question": "text",
        "picture": "image",
        "match": "image",
        "state": "sensor",
        "fps": "sensor",
        "latency": "sensor",
        "dropped": "sensor",
    }
    ids = [component["unique_id"] for key, component in device["components"].items() if key != "until"]
    assert len(set(ids)) == len(platforms) - 1
    assert device["components"]["watch_cat"]["name"] == "is there a cat?"
    assert device["components"]["match_cat"]["event_types"] == ["match"]
    match = device["components"]["match"]
    assert (match["image_topic"], match["content_type"]) == ("arr_coc/door/match/picture", "image/jpeg")
    assert match["json_attributes_topic"] == "arr_coc/door/match/clip"
    assert device["components"]["question"]["command_topic"] == "arr_coc/door/question/set"
    diagnostic = {
        key for key, component in device["components"].items() if component.get("entity_category") == "diagnostic"
    }
    assert diagnostic == {"state", "fps", "latency", "dropped"}


def test_components_that_a_run_lacks_are_removed() -> None:
    components = described(picture=False)["components"]
    assert components["until"] == {"platform": "binary_sensor"}
    assert components["question"] == {"platform": "text"}
    assert components["picture"] == {"platform": "image"}
    assert components["match"] == {"platform": "image"}


def test_states_are_as_long_as_home_assistant_takes_them() -> None:
    topics = RunTopics("door")
    assert len(topics.set_question("é" * 400).payload.decode()) == 255
    assert "[:255]" in described()["components"]["answer"]["value_template"]
    assert [topics.set_verdict("cat", holds).payload for holds in ("yes", "no", None)] == [b"ON", b"OFF", b"None"]


FIELDS = {"people": "integer", "share of red": "number", "door": "boolean", "sky": ["sun", "rain"], "note": "string"}
NESTED = {"tags": "string[]", "car": {"red": "boolean"}}


def rendered(template: str, fields: dict[str, Any]) -> str:
    """State of a template as Home Assistant renders it."""
    environment = Environment()
    environment.globals["iif"] = lambda value, true, false, other: other if value is None else true if value else false
    environment.filters["to_json"] = json.dumps
    return environment.from_string(template).render(value_json={"fields": fields})


def test_each_field_is_an_entity_of_its_type() -> None:
    components = described(schema=AnswerSchema.of(FIELDS | NESTED))["components"]
    entities = {entity["name"]: entity for key, entity in components.items() if key.startswith("field_")}
    assert {name: entity["platform"] for name, entity in entities.items() if entity["platform"] != "sensor"} == {
        "door": "binary_sensor"
    }
    assert {entity["state_topic"] for entity in entities.values()} == {"arr_coc/door/answer"}
    assert [name for name, entity in entities.items() if entity.get("state_class") == "measurement"] == [
        "people",
        "share of red",
    ]
    assert (entities["sky"]["device_class"], entities["sky"]["options"]) == ("enum", ["sun", "rain"])
    assert len({entity["unique_id"] for entity in entities.values()}) == len(FIELDS | NESTED)
    values = {"people": 2, "share of red": 0.5, "door": False, "sky": "sun", "note": "x" * 300}
    states = {
        name: rendered(entity["value_template"], values | {"tags": ["a", "b"], "car": {"red": True}})
        for name, entity in entities.items()
    }
    assert states == {
        **{"people": "2", "share of red": "0.5", "door": "OFF", "sky": "sun", "note": "x" * 255},
        **{"tags": "a, b", "car": '{"red": true}'},
    }
    absent = {name: rendered(entities[name]["value_template"], {}) for name in FIELDS}
    assert set(absent.values()) == {"None"}


def test_names_that_differ_by_a_space_are_two_entities() -> None:
    components = described(schema=AnswerSchema.parse('{"a b": "integer", "a_b": "integer", "A_b": "integer"}'))[
        "components"
    ]
    assert len([key for key in components if key.startswith("field_")]) == 3


def test_one_of_several_texts_is_the_answers_sensor() -> None:
    components = described(schema=AnswerSchema.of_choices(["open", "closed"]))["components"]
    assert components["answer"]["options"] == ["open", "closed"]
    assert not [key for key in components if key.startswith("field_")]
    assert "options" not in described()["components"]["answer"]
