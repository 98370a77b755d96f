"""Socket that publishes the frames of a viewer's camera to a source on this machine."""

from __future__ import annotations

import msgspec
import zmq

from stream.errors import TransportError


class CameraSender:
    """PUB end of a ZeroMQ source; belongs to the thread that made it. Raises TransportError if it cannot be bound.

    A frame is dropped if no subscriber takes it at once.
    """

    def __init__(self, endpoint: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 2)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(f"cannot open {endpoint}: {error}") from error

    def send(self, jpeg: bytes, width: int, height: int, t_ns: int, seq: int) -> None:
        """Publish a frame as JPEG.

        Args:
            jpeg: the frame, encoded.
            width: width of the frame, in pixels.
            height: height of the frame, in pixels.
            t_ns: capture time on the monotonic clock, in nanoseconds.
            seq: number of the frame.
        """
        header = {"v": 1, "width": width, "height": height, "format": "jpeg", "t_ns": t_ns, "seq": seq}
        self._socket.send_multipart([msgspec.msgpack.encode(header), jpeg])

    def close(self) -> None:
        """Close the socket at once."""
        self._socket.close(linger=0)
        self._context.term()
