"""Topics of a run at an MQTT broker, and its device for Home Assistant's MQTT discovery.

https://www.home-assistant.io/integrations/mqtt/#device-discovery-payload
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from arr_coc.answer_schema import AnswerSchema, kind_of
from arr_coc.schema_reader import Node, nullable
from stream.untrusted import cut_to

STATE_CHARS_MAX = 255
"""Limit of a state in Home Assistant."""

UNKNOWN = b"None"
"""State that Home Assistant shows as unknown."""

MATCH = "match"
"""Type of the event that a match is in Home Assistant."""

ONLINE = b"online"
OFFLINE = b"offline"


class MqttMessage(NamedTuple):
    """Message for a broker. `retain`: the broker keeps it for later subscribers."""

    topic: str
    payload: bytes
    retain: bool = False


@dataclass(frozen=True, slots=True)
class RunTopics:
    """Topics of the run called `name`, all under arr_coc/NAME. `watches`: names and questions of its watches; `ask`: it
    takes questions; `picture`: it sends pictures; `schema`: its answers have fields; `clips`: it writes pictures of
    matches."""

    name: str
    watches: tuple[tuple[str, str], ...] = ()
    ask: bool = False
    picture: bool = True
    schema: AnswerSchema | None = None
    clips: bool = False

    @property
    def availability(self) -> str:
        """`online` or `offline`."""
        return self._of("availability")

    @property
    def answer(self) -> str:
        """Each answer, as in a .jsonl."""
        return self._of("answer")

    @property
    def detections(self) -> str:
        """Boxes and points of an answer that has some, as in a .jsonl."""
        return self._of("detections")

    def verdict(self, watch: str) -> str:
        """`ON`, `OFF` or `None`: the answer to a watch's question."""
        return self._of(f"watch/{watch}")

    def verdict_details(self, watch: str) -> str:
        """The last check of a watch, as in a .jsonl."""
        return self._of(f"watch/{watch}/details")

    def match(self, watch: str) -> str:
        """Each match of a watch, as in a .jsonl, with `event_type`, as Home Assistant's events have it."""
        return self._of(f"watch/{watch}/match")

    @property
    def question(self) -> str:
        """The current question."""
        return self._of("question")

    @property
    def question_set(self) -> str:
        """Command topic for a new question."""
        return self._of("question/set")

    @property
    def picture_topic(self) -> str:
        """JPEG of an answer's frame."""
        return self._of("picture")

    @property
    def match_picture(self) -> str:
        """JPEG of the newest match."""
        return self._of("match/picture")

    @property
    def match_clip(self) -> str:
        """The newest match's files, as in a .jsonl."""
        return self._of("match/clip")

    @property
    def state(self) -> str:
        """State of the run: loading, running, outage, restarting, ended."""
        return self._of("state")

    @property
    def figures(self) -> str:
        """Figures of the run, as one JSON object."""
        return self._of("figures")

    def set_availability(self, online: bool) -> MqttMessage:
        """Return the message that the run is online or offline."""
        return MqttMessage(self.availability, ONLINE if online else OFFLINE, retain=True)

    def set_question(self, text: str) -> MqttMessage:
        """Return the message of the current question, cut to the limit of a state."""
        return MqttMessage(self.question, cut_to(text, STATE_CHARS_MAX).encode("utf-8", "replace"), retain=True)

    def set_verdict(self, watch: str, holds: str | None) -> MqttMessage:
        """Return the message of the answer to a watch's question; None if it is unknown."""
        return MqttMessage(self.verdict(watch), {"yes": b"ON", "no": b"OFF"}.get(holds or "", UNKNOWN), retain=True)

    def discovery(self, prefix: str, version: str) -> MqttMessage:
        """Return Home Assistant's discovery message, which also removes the components that this run lacks."""
        device = {
            "device": {
                "identifiers": [f"arr_coc_{self.name}"],
                "name": self.name,
                "manufacturer": "ARR-COC Stream",
                "sw_version": version,
            },
            "origin": {"name": "arr-coc-stream", "sw_version": version},
            "availability_topic": self.availability,
            "components": {key: self._component(key, **fields) for key, fields in self._components().items()},
        }
        return MqttMessage(f"{prefix}/device/arr_coc_{self.name}/config", json.dumps(device).encode(), retain=True)

    def _components(self) -> dict[str, dict[str, Any]]:
        figure = {"state_topic": self.figures, "platform": "sensor", "entity_category": "diagnostic"}
        measured = {**figure, "state_class": "measurement"}
        return {
            "answer": {
                "platform": "sensor",
                "name": "Answer",
                "icon": "mdi:message-text",
                "state_topic": self.answer,
                "value_template": f"{{{{ value_json.text[:{STATE_CHARS_MAX}] }}}}",
                "json_attributes_topic": self.answer,
                **self._choices(),
            },
            "detections": {
                "platform": "sensor",
                "name": "Detections",
                "icon": "mdi:vector-rectangle",
                "state_topic": self.detections,
                "value_template": "{{ value_json.objects | length }}",
                "json_attributes_topic": self.detections,
                "state_class": "measurement",
                "enabled_by_default": False,
            },
            **self._fields(),
            "until": {"platform": "binary_sensor", "enabled": False},  # of an earlier version
            **{f"watch_{name}": self._verdict_sensor(name, question) for name, question in self.watches},
            **{f"match_{name}": self._match_event(name, question) for name, question in self.watches},
            "question": {
                "platform": "text",
                "name": "Question",
                "icon": "mdi:comment-question",
                "state_topic": self.question,
                "command_topic": self.question_set,
                "min": 1,
                "max": STATE_CHARS_MAX,
                "enabled": self.ask,
            },
            "picture": {
                "platform": "image",
                "name": "Picture",
                "image_topic": self.picture_topic,
                "content_type": "image/jpeg",
                "enabled": self.picture,
            },
            "match": {
                "platform": "image",
                "name": "Match",
                "image_topic": self.match_picture,
                "content_type": "image/jpeg",
                "json_attributes_topic": self.match_clip,
                "enabled": self.clips,
            },
            "state": {
                "platform": "sensor",
                "name": "State",
                "state_topic": self.state,
                "entity_category": "diagnostic",
            },
            "fps": {**measured, "name": "Frame rate", "value_template": "{{ value_json.fps }}"},
            "latency": {
                **measured,
                "name": "Time to first word",
                "value_template": "{{ value_json.ttft_p95_ms }}",
                "unit_of_measurement": "ms",
            },
            "dropped": {
                **figure,
                "state_class": "total_increasing",
                "name": "Dropped frames",
                "value_template": "{{ value_json.dropped }}",
            },
        }

    def _choices(self) -> dict[str, Any]:
        """Return what makes the answer's sensor one of several texts."""
        if self.schema is None:
            choices = None
        else:
            choices = self.schema.choices
        if choices is None:
            return {}
        return {"device_class": "enum", "options": list(choices)}

    def _fields(self) -> dict[str, dict[str, Any]]:
        """Return a component for each field of the answers."""
        if self.schema is None or self.schema.choices is not None:
            return {}
        return {
            f"field_{_id_of(name)}": {"name": name, "state_topic": self.answer, **_field_sensor(name, node)}
            for name, node in self.schema.fields.items()
        }

    def _verdict_sensor(self, watch: str, question: str) -> dict[str, Any]:
        return {
            "platform": "binary_sensor",
            "name": cut_to(question, STATE_CHARS_MAX),
            "state_topic": self.verdict(watch),
            "json_attributes_topic": self.verdict_details(watch),
        }

    def _match_event(self, watch: str, question: str) -> dict[str, Any]:
        return {
            "platform": "event",
            "name": cut_to(f"Match: {question}", STATE_CHARS_MAX),
            "icon": "mdi:bell-ring",
            "state_topic": self.match(watch),
            "event_types": [MATCH],
        }

    def _component(self, key: str, platform: str, enabled: bool = True, **fields: Any) -> dict[str, Any]:
        """Return a component; if it is not enabled, only its platform, which removes it."""
        if not enabled:
            return {"platform": platform}
        return {"platform": platform, "unique_id": f"arr_coc_{self.name}_{key}", **fields}

    def _of(self, rest: str) -> str:
        return f"arr_coc/{self.name}/{rest}"


def _id_of(name: str) -> str:
    """Return the part of an identifier that a field's name makes; different ones for different names."""
    identifier = re.sub(r"[^a-z0-9_]", "_", name)
    if identifier == name:
        return identifier
    return f"{identifier}_{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _field_sensor(name: str, node: Node) -> dict[str, Any]:
    """Return the platform of a field, and the template of its state. A null, or a missing field, is unknown."""
    # the name of a field has no quotes
    value = f"value_json.fields.get('{name}')"
    kind = kind_of(node)
    if kind == "boolean":
        return {"platform": "binary_sensor", "value_template": f"{{{{ iif({value}, 'ON', 'OFF', 'None') }}}}"}
    if kind in ("integer", "number"):
        return {"platform": "sensor", "state_class": "measurement", "value_template": f"{{{{ {value} }}}}"}
    if kind == "enum":
        options = [str(choice) for choice in nullable(node)[0]["enum"]]
        return {
            "platform": "sensor",
            "device_class": "enum",
            "options": options,
            "value_template": f"{{{{ {value} }}}}",
        }
    text = {"array": f"({value} or []) | join(', ')", "object": f"{value} | to_json"}.get(kind, f"{value} or 'None'")
    return {"platform": "sensor", "value_template": f"{{{{ ({text})[:{STATE_CHARS_MAX}] }}}}"}
