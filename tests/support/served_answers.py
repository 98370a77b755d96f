"""An answer server in a thread, and connections to it: a program's own links, or bare sockets."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import zmq

from stream.answer.admission import ServerOptions
from stream.answer.server import AnswerServer
from stream.config import Config, NetworkConfig
from stream.control import RunControl
from stream.stages.base import StageThread
from stream.transport import Link, Transport
from stream.transport.security import client_curve, make_keys, server_curve
from tests.support.answer_models import FakeAnswerModel
from tests.support.network import LIMIT_S


class ServedAnswers:
    """Any client reaches the server; with `keys`, a folder that is made, only one with the key."""

    def __init__(
        self, stack: ExitStack, endpoint: str, model: type[FakeAnswerModel] = FakeAnswerModel, keys: Path | None = None
    ) -> None:
        self.endpoint, self.control, self.transport = endpoint, RunControl(), Transport()
        stack.callback(self.transport.close)
        if keys is not None:
            make_keys(keys)
        network = NetworkConfig() if keys is None else NetworkConfig(keys=str(keys))
        self._curve = None if keys is None else client_curve(network, endpoint)
        options = ServerOptions(endpoint, curve=None if keys is None else server_curve(network, endpoint), shared=True)
        server = AnswerServer(lambda: model(Config()), options, self.transport, self.control)
        self._thread = StageThread(server, self.control)
        self._thread.start()
        stack.callback(self._stop)
        self._stack = stack

    def _stop(self) -> None:
        self.control.cancel()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()

    def client(self) -> Link:
        link = self.transport.link(self.endpoint, curve=self._curve, watched=self._curve is not None)
        return self._stack.enter_context(closing(link))

    def raw(self) -> zmq.Socket[bytes]:
        socket = self.transport.context.socket(zmq.DEALER)
        self._stack.callback(socket.close, linger=0)
        socket.setsockopt(zmq.SNDTIMEO, int(LIMIT_S * 1000))
        if self._curve is not None:
            self._curve.apply(socket)
        socket.connect(self.endpoint)
        return socket
