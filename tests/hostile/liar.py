"""An answer stage that lies: it greets a client as it should, and answers with the messages of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import zmq

from stream.errors import TransportError
from stream.protocol.messages import (
    Connect,
    Embed,
    FramePacketMessage,
    GlancePacketMessage,
    TokenPacketMessage,
    TurnGrant,
    TurnRequest,
    decode,
    encode,
)
from tests.hostile.lies import Sent, answered, embedded, glanced, greeting
from tests.support.network import LIMIT_S

Say = Callable[[int], Sequence[Sent]]
"""Messages about a packet, by the number of the answer that it asks for."""


class Liar:
    """Serves one port in a thread. `honest_after`: from this packet on it answers as it should. `look`: its messages
    about overviews, if it wants any; from the third one on it is honest."""

    def __init__(self, say: Say, honest_after: int | None = None, look: Say | None = None) -> None:
        self._say = say
        self._look = look
        self._honest_after = honest_after
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # waits for a client that is slow to read
        self._socket.setsockopt(zmq.SNDTIMEO, 5000)
        self._socket.bind("tcp://127.0.0.1:*")
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.packets = self.overviews = self.messages = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="liar")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        self._context.term()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if self._socket.poll(20):
                    client, head, *_ = self._socket.recv_multipart()
                    with suppress(TransportError, zmq.ZMQError):
                        for parts in self._reply(head):
                            self._socket.send_multipart([client, *parts])
                            self.messages += 1
        finally:
            self._socket.close(linger=0)

    def _reply(self, head: bytes) -> Iterator[Sent]:
        message = decode(head)
        if isinstance(message, Connect):
            yield greeting(can_glance=self._look is not None)
        elif isinstance(message, Embed):
            yield embedded(message.text, is_check=message.is_check)
        elif isinstance(message, TurnRequest):
            yield [encode(TurnGrant(turn=self.packets + self.overviews + 1))]
        elif isinstance(message, GlancePacketMessage):
            assert self._look is not None
            self.overviews += 1
            yield from self._look(message.glance) if self.overviews < 3 else [glanced(message.glance)]
        elif isinstance(message, (TokenPacketMessage, FramePacketMessage)):
            self.packets += 1
            if self._honest_after is None or self.packets <= self._honest_after:
                yield from self._say(message.answer)
            else:
                yield answered(message.answer)


@contextmanager
def lying(say: Say, honest_after: int | None = None, look: Say | None = None) -> Iterator[Liar]:
    liar = Liar(say, honest_after, look)
    liar.start()
    try:
        yield liar
    finally:
        liar.stop()
