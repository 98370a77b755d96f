"""The newest message of each topic waits; retained messages are sent to every new connection."""

from __future__ import annotations

from stream.extensions.mqtt.link import Outbox
from stream.extensions.mqtt.topics import MqttMessage


def taken(outbox: Outbox) -> list[bytes]:
    payloads = []
    while (message := outbox.take()) is not None:
        payloads.append(message.payload)
    return payloads


def test_the_newest_of_a_topic_takes_the_place_of_the_one_before() -> None:
    outbox = Outbox()
    for payload in (b"1", b"2", b"3"):
        outbox.put(MqttMessage("answer", payload))
    outbox.put(MqttMessage("other", b"4"))
    assert (len(outbox), outbox.dropped) == (2, 2)
    assert taken(outbox) == [b"3", b"4"]
    assert len(outbox) == 0


def test_a_new_connection_sends_retained_messages_first_and_in_order() -> None:
    outbox = Outbox()
    for message in (MqttMessage("config", b"c", True), MqttMessage("there", b"1", True), MqttMessage("answer", b"a")):
        outbox.put(message)
    assert taken(outbox) == [b"c", b"1", b"a"]
    outbox.put(MqttMessage("answer", b"b"))
    outbox.put(MqttMessage("there", b"2", True))
    outbox.renew()
    assert taken(outbox) == [b"c", b"2", b"b"]
    outbox.renew()
    assert taken(outbox) == [b"c", b"2"]
