"""MQTT: the broker's address, the topics of a run, and the connection. Needs the extra `mqtt`."""

from stream.extension import Extension, SinkType
from stream.options.extra import Extra

MQTT = Extra("mqtt", "mqtt", "--mqtt", ("paho-mqtt",), ("paho.mqtt",))

EXTENSION = Extension(
    name="mqtt",
    section="stream.extensions.mqtt.section:MqttSection",
    sinks=(
        SinkType(
            key="mqtt.url",
            option="--mqtt",
            extra=MQTT,
            pictures="asked",
            pictures_key="mqtt.picture",
            check="stream.extensions.mqtt.broker:Broker.of",
            open="stream.extensions.mqtt.sink:MqttSink.open",
        ),
    ),
)
