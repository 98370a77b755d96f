"""One connection to an MQTT broker, from its beginning to its end; belongs to the thread that makes it."""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from paho.mqtt.client import Client, ConnectFlags, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.reasoncodes import ReasonCode

from stream.mqtt.broker import PASSWORD, Broker
from stream.mqtt.topics import MqttMessage
from stream.untrusted import KIB

CONNECT_LIMIT_S = 5.0
"""Longest wait for the broker's host, for its TLS, and for its word that this client is let in; each."""

PACKET_BYTES_MAX = 128 * KIB
"""Longest packet of a broker: a question has at most 16 kB, and a topic 64 KiB."""

REFUSED = {
    132: ("it does not speak MQTT 3.1.1", "name another broker"),
    133: ("it does not take this client's name", "give another with --mqtt-name"),
    134: ("wrong user or password", f"write mqtt://USER@HOST, and put the password into {PASSWORD}"),
    135: ("this user is not let in", f"write mqtt://USER@HOST, and put the password into {PASSWORD}"),
}
"""Problem and remedy by the code of a refusal (MQTT 5.0, 3.2.2.2; paho gives those of 3.1.1 the same numbers). With any
other a later attempt may do."""


class BrokerRefuses(Exception):
    """The broker does not let this client in, and will not until somebody changes something: (problem, remedy)."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem, self.remedy = problem, remedy


class BrokerLost(Exception):
    """The broker cannot be reached, or is gone."""


class _BoundedClient(Client):
    """Client that leaves a broker whose packets break the limits: paho itself has none."""

    def _sock_recv(self, bufsize: int) -> bytes:
        if bufsize > PACKET_BYTES_MAX:
            raise BrokerLost(f"it sends a message of {bufsize} bytes, and at most {PACKET_BYTES_MAX} are taken")
        if self._in_messages:  # they are kept until the broker releases them
            raise BrokerLost("it sends messages of QoS 2, which were not asked for")
        return super()._sock_recv(bufsize)


class BrokerSession:
    """A connection. `command`: a topic, and what takes each message there but those that the broker kept, which are
    nobody's wish any more."""

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        last_will: MqttMessage,
        command: tuple[str, Callable[[bytes], None]] | None,
    ) -> None:
        self._broker = broker
        self._command = command
        self._let_in: ReasonCode | None = None
        self._client = _BoundedClient(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTProtocolVersion.MQTTv311
        )
        self._client.connect_timeout = CONNECT_LIMIT_S
        self._client.username_pw_set(broker.user, broker.password)
        self._client.will_set(last_will.topic, last_will.payload, qos=1, retain=last_will.retain)
        self._client.on_connect = self._on_connect
        self._client.on_message = self._on_message

    @property
    def busy(self) -> bool:
        """True while the broker has not taken what was sent: one more message would only wait in memory."""
        return self._client.want_write()

    def connect(self) -> None:
        """Connect. Raises BrokerRefuses and BrokerLost."""
        broker = self._broker
        try:
            if broker.tls:
                self._client.tls_set_context(ssl.create_default_context(cafile=broker.ca))
            # a broker that is silent for so long although it was asked is gone
            self._client.connect(broker.host, broker.port, 30)
        except ssl.SSLCertVerificationError as error:
            remedy = "name the file of its authority's certificate in output.mqtt_ca"
            raise BrokerRefuses(f"its certificate is not valid: {error.verify_message}", remedy) from error
        except ssl.SSLError as error:
            remedy = "check the port, or write mqtt://"
            raise BrokerRefuses(f"no TLS with it: {error.reason or error}", remedy) from error
        except socket.gaierror as error:
            raise BrokerLost(f"the name {broker.host} is not known") from error
        except ConnectionResetError as error:
            raise BrokerLost(self._cut_off()) from error
        except OSError as error:
            raise BrokerLost(error.strerror or str(error) or "no reply") from error
        limit_s = time.monotonic() + CONNECT_LIMIT_S
        while self._let_in is None:
            if time.monotonic() > limit_s:
                raise BrokerLost("it does not answer as a broker does")
            self.step(None, 0.5)
        if self._let_in.is_failure:
            if self._let_in.value in REFUSED:
                raise BrokerRefuses(*REFUSED[self._let_in.value])
            raise BrokerLost(str(self._let_in).lower())
        if self._command is not None:
            self._client.subscribe(self._command[0], qos=1)

    def send(self, message: MqttMessage) -> None:
        """Send a message, or as much of it as the connection takes; the rest goes with the next steps."""
        self._client.publish(message.topic, message.payload, retain=message.retain)

    def step(self, woken: int | None, wait_s: float) -> None:
        """Read and write what is there, after a wait that `woken`, a pipe, ends. Raises BrokerLost."""
        connection: Any = self._client.socket()
        if connection is None:
            raise BrokerLost(self._cut_off())
        decrypted = bool(connection.pending()) if self._broker.tls and not self.busy else False
        poller = select.poll()
        # Each message of the broker may be confirmed: a broker that takes no confirmations is not heard either.
        poller.register(connection, select.POLLOUT if self.busy else select.POLLIN)
        if woken is not None:
            poller.register(woken, select.POLLIN)
        ready = dict(poller.poll(0 if decrypted else round(wait_s * 1000)))
        if woken is not None and woken in ready:
            os.read(woken, 4096)
        found = ready.get(connection.fileno(), 0)
        if decrypted or found & ~select.POLLOUT:
            self._client.loop_read()
        if found & select.POLLOUT:
            self._client.loop_write()
        self._client.loop_misc()

    def leave(self) -> None:
        """End the connection in good order: the broker does not tell the last will."""
        self._client.disconnect()

    def close(self) -> None:
        """Drop the connection."""
        connection: Any = self._client.socket()
        if connection is not None:
            connection.close()

    def _cut_off(self) -> str:
        if self._let_in is not None:
            return "it closed the connection"
        hint = "one without TLS needs mqtt://" if self._broker.tls else "one with TLS needs mqtts://"
        return f"it closed the connection at once ({hint})"

    def _on_connect(self, client: Client, _: Any, __: ConnectFlags, code: ReasonCode, ___: Any) -> None:
        self._let_in = code

    def _on_message(self, client: Client, _: Any, message: MQTTMessage) -> None:
        if self._command is not None and not message.retain:
            self._command[1](bytes(message.payload))
