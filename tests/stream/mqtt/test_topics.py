"""The device's description follows Home Assistant's discovery."""

from __future__ import annotations

import json
from typing import Any

from stream.mqtt.topics import RunTopics


def described(**has: Any) -> dict[str, Any]:
    message = RunTopics("door", **has).discovery("homeassistant", "1.2")
    assert (message.topic, message.retain) == ("homeassistant/device/arr_coc_door/config", True)
    fields: dict[str, Any] = json.loads(message.payload)
    return fields


def test_the_whole_device_is_one_message() -> None:
    device = described(watches=(("cat", "is there a cat?"),), ask=True)
    assert device["device"]["identifiers"] == ["arr_coc_door"]
    assert device["origin"] == {"name": "arr-coc-stream", "sw_version": "1.2"}
    assert device["availability_topic"] == "arr_coc/door/availability"
    platforms = {key: component["platform"] for key, component in device["components"].items()}
    assert platforms == {
        "answer": "sensor",
        "until": "binary_sensor",
        "watch_cat": "binary_sensor",
        "match_cat": "event",
        "question": "text",
        "picture": "image",
        "state": "sensor",
        "fps": "sensor",
        "latency": "sensor",
        "dropped": "sensor",
    }
    ids = [component["unique_id"] for key, component in device["components"].items() if key != "until"]
    assert len(set(ids)) == len(platforms) - 1
    assert device["components"]["watch_cat"]["name"] == "is there a cat?"
    assert device["components"]["match_cat"]["event_types"] == ["match"]
    assert device["components"]["question"]["command_topic"] == "arr_coc/door/question/set"
    diagnostic = {key for key, one in device["components"].items() if one.get("entity_category") == "diagnostic"}
    assert diagnostic == {"state", "fps", "latency", "dropped"}


def test_components_that_a_run_lacks_are_removed() -> None:
    components = described(picture=False)["components"]
    assert components["until"] == {"platform": "binary_sensor"}
    assert components["question"] == {"platform": "text"}
    assert components["picture"] == {"platform": "image"}


def test_states_are_as_long_as_home_assistant_takes_them() -> None:
    topics = RunTopics("door")
    assert len(topics.set_question("é" * 400).payload.decode()) == 255
    assert "[:255]" in described()["components"]["answer"]["value_template"]
    assert [topics.set_verdict("cat", holds).payload for holds in ("yes", "no", None)] == [b"ON", b"OFF", b"None"]
