"""Connection to an MQTT broker; belongs to the thread that makes it."""

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

from stream.extensions.mqtt.broker import PASSWORD, Broker
from stream.extensions.mqtt.topics import MqttMessage
from stream.sinks.background import Unreachable
from stream.untrusted import KIB

CONNECT_LIMIT_S = 5.0
"""Time limit each for the connection to the broker's host, for TLS, and for the broker's acceptance."""

PACKET_BYTES_MAX = 128 * KIB
"""Size limit of a broker's packet: a question has at most 16 kB, and a topic 64 KiB."""

REFUSED = {
    132: ("it does not speak MQTT 3.1.1", "name another broker"),
    133: ("it does not take this client's name", "give another with --mqtt-name"),
    134: ("wrong user or password", f"write mqtt://USER@HOST, and put the password into {PASSWORD}"),
    135: ("this user is not let in", f"write mqtt://USER@HOST, and put the password into {PASSWORD}"),
}
"""Problem and remedy by the code of a refusal (MQTT 5.0, 3.2.2.2; paho maps those of 3.1.1 to the same numbers). After
other codes a later attempt may succeed."""


class BrokerRefuses(Exception):
    """The broker rejects this client until the configuration is changed; has `problem` and `remedy`."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


class BrokerLost(Unreachable):
    """The broker cannot be reached, or is gone."""


class _BoundedClient(Client):
    """Client that disconnects from a broker whose packets exceed the limits: paho has none."""

    def _sock_recv(self, bufsize: int) -> bytes:
        if bufsize > PACKET_BYTES_MAX:
            raise BrokerLost(f"it sends a message of {bufsize} bytes, and at most {PACKET_BYTES_MAX} are taken")
        if self._in_messages:  # they are kept until the broker releases them
            raise BrokerLost("it sends messages of QoS 2, which were not asked for")
        return super()._sock_recv(bufsize)


class BrokerSession:
    """Connection to a broker. `command`: a topic, and the handler of its messages, except for retained ones, which may
    be out of date."""

    def __init__(
        self,
        broker: Broker,
        client_id: str,
        last_will: MqttMessage,
        command: tuple[str, Callable[[bytes], None]] | None,
    ) -> None:
        self._broker = broker
        self._command = command
        self._connack: ReasonCode | None = None
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
        """True while sent data wait for the broker: another message would only wait in memory."""
        return self._client.want_write()

    def connect(self) -> None:
        """Connect. Raises BrokerRefuses and BrokerLost."""
        broker = self._broker
        try:
            if broker.tls:
                self._client.tls_set_context(ssl.create_default_context(cafile=broker.ca))
            # keep-alive in seconds: a broker that does not answer for longer is gone
            self._client.connect(broker.host, broker.port, 30)
        except ssl.SSLCertVerificationError as error:
            remedy = "name the file of its authority's certificate in mqtt.ca"
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
        while self._connack is None:
            if time.monotonic() > limit_s:
                raise BrokerLost("it does not answer as a broker does")
            self.step(None, 0.5)
        if self._connack.is_failure:
            if self._connack.value in REFUSED:
                raise BrokerRefuses(*REFUSED[self._connack.value])
            raise BrokerLost(str(self._connack).lower())
        if self._command is not None:
            self._client.subscribe(self._command[0], qos=1)

    def send(self, message: MqttMessage) -> None:
        """Send a message, or as much of it as the connection takes; the next steps send the rest."""
        self._client.publish(message.topic, message.payload, retain=message.retain)

    def step(self, woken: int | None, wait_s: float) -> None:
        """Read and write available data, after a wait that the pipe `woken` may end. Raises BrokerLost."""
        connection: Any = self._client.socket()
        if connection is None:
            raise BrokerLost(self._cut_off())
        if self._broker.tls and not self.busy:
            decrypted = bool(connection.pending())
        else:
            decrypted = False
        poller = select.poll()
        # Do not read while writes wait: each message read may add a confirmation to them.
        poller.register(connection, select.POLLOUT if self.busy else select.POLLIN)
        if woken is not None:
            poller.register(woken, select.POLLIN)
        ready = dict(poller.poll(0 if decrypted else round(wait_s * 1000)))
        if woken is not None and woken in ready:
            os.read(woken, 4096)
        events = ready.get(connection.fileno(), 0)
        if decrypted or events & ~select.POLLOUT:
            self._client.loop_read()
        if events & select.POLLOUT:
            self._client.loop_write()
        self._client.loop_misc()

    def leave(self) -> None:
        """Disconnect cleanly, so that the broker does not publish the last will."""
        self._client.disconnect()

    def close(self) -> None:
        """Drop the connection."""
        connection: Any = self._client.socket()
        if connection is not None:
            connection.close()

    def _cut_off(self) -> str:
        if self._connack is not None:
            return "it closed the connection"
        if self._broker.tls:
            hint = "one without TLS needs mqtt://"
        else:
            hint = "one with TLS needs mqtts://"
        return f"it closed the connection at once ({hint})"

    def _on_connect(self, client: Client, _: Any, __: ConnectFlags, code: ReasonCode, ___: Any) -> None:
        self._connack = code

    def _on_message(self, client: Client, _: Any, message: MQTTMessage) -> None:
        if self._command is not None and not message.retain:
            self._command[1](bytes(message.payload))
