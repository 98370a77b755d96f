"""The peers of `benchmarks.hops`, used as their documentation uses them: imageZMQ and VidGear's NetGear, over TCP."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.hop_channels import Picture, Receiver, Sender

BLOCK_PX, BITS = 16, 16


def numbered(number: int, picture: Picture) -> Picture:
    """A copy whose upper left corner shows the number as black and white blocks, which survive JPEG."""
    copy = picture.copy()
    for bit in range(BITS):
        copy[:BLOCK_PX, bit * BLOCK_PX : (bit + 1) * BLOCK_PX] = 255 * (number >> bit & 1)
    return copy


def number_of(picture: Picture) -> int:
    middles = picture[BLOCK_PX // 2, BLOCK_PX // 2 : BITS * BLOCK_PX : BLOCK_PX, 1] > 127
    return int((middles * 2 ** np.arange(BITS)).sum())


def sleep_until(until_ns: int) -> None:
    while (left_ns := until_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)


@dataclass
class ImageZmq:
    """imageZMQ over TCP. With `replies`, the consumer replies when it has done, and the producer waits for that."""

    port: int
    replies: bool

    @property
    def name(self) -> str:
        return f"imageZMQ {'REQ/REP' if self.replies else 'PUB/SUB'}"

    carries: str = "the frame in BGR"

    def sender(self) -> Sender:
        import imagezmq

        host = "127.0.0.1" if self.replies else "*"
        peer = imagezmq.ImageSender(f"tcp://{host}:{self.port}", REQ_REP=self.replies)
        return PeerSender(lambda number, frame: peer.send_image(str(number), frame), peer.close)

    def receiver(self) -> Receiver:
        import imagezmq

        host = "*" if self.replies else "127.0.0.1"
        hub = imagezmq.ImageHub(f"tcp://{host}:{self.port}", REQ_REP=self.replies)
        return PeerReceiver(lambda: int(hub.recv_image()[0]), hub.send_reply if self.replies else _nothing, hub.close)

    def close(self) -> None:
        """Its ends share nothing."""


@dataclass
class NetGear:
    """VidGear's NetGear over TCP with its default pattern, PAIR."""

    port: int
    jpeg: bool

    @property
    def name(self) -> str:
        return f"NetGear, {'JPEG (its default)' if self.jpeg else 'not compressed'}"

    @property
    def carries(self) -> str:
        return "the frame in BGR" + (", JPEG at 90 %" if self.jpeg else "")

    def _open(self, receives: bool) -> Any:
        logging.disable(logging.CRITICAL)
        from vidgear.gears import NetGear as Gear

        options = {"jpeg_compression": self.jpeg}
        return Gear(address="127.0.0.1", port=str(self.port), protocol="tcp", receive_mode=receives, **options)

    def sender(self) -> Sender:
        gear = self._open(receives=False)
        return PeerSender(lambda _, frame: gear.send(frame), gear.close)

    def receiver(self) -> Receiver:
        gear = self._open(receives=True)
        return PeerReceiver(lambda: number_of(gear.recv()), _nothing, gear.close)

    def close(self) -> None:
        """Its ends share nothing."""


def _nothing() -> None:
    """The library does nothing here."""


class PeerSender:
    dropped = 0

    def __init__(self, send: Any, close: Any) -> None:
        self.send = send
        self.close = close

    def prepare(self, number: int, picture: Picture) -> Picture:
        return numbered(number, picture)

    def idle(self, until_ns: int) -> None:
        sleep_until(until_ns)


class PeerReceiver:
    def __init__(self, receive: Any, done: Any, close: Any) -> None:
        self.receive = receive
        self.done = done
        self.close = close
