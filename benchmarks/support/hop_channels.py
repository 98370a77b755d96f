"""Channels and peers of `hops`.

A channel makes a sender and a receiver. A receiver says which frame it holds, and afterwards that it has done with it;
what that means (a credit, a reply, nothing) is each library's own way.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import FramePacket, FramePlanes, FrameStamp, Question, TileGrid, TokenPacket
from stream.protocol.buffers import Mailbox, SharedFrameReader, SharedFrameWriter, SlotTable
from stream.protocol.codec import frame_message, frame_packet, token_message, token_packet
from stream.protocol.messages import Credit, FrameCaptured, FramePacketMessage, TokenPacketMessage
from stream.transport import Link, Transport

Picture = npt.NDArray[np.uint8]

GRID = TileGrid.of(1080, 1920)
TOKENS = 273
WAIT_MS = 10_000
END = 65_535
"""Number of the frame after which nothing follows."""


class Sender(Protocol):
    @property
    def dropped_count(self) -> int:
        """Frames that a newer one replaced before they were sent."""
        ...

    def prepare(self, number: int, picture: Picture) -> object:
        """The frame as this way of sending wants it; not part of the hop."""
        ...

    def send(self, number: int, frame: Any) -> None: ...

    def idle(self, until_ns: int) -> None:
        """Wait until then, and do a sender's work meanwhile."""
        ...

    def close(self) -> None: ...


class Receiver(Protocol):
    def receive(self) -> int:
        """Wait for a frame and read it as an array; returns its number."""
        ...

    def release(self) -> None: ...

    def close(self) -> None: ...


class Channel(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def carries(self) -> str: ...

    def sender(self) -> Sender: ...

    def receiver(self) -> Receiver: ...

    def close(self) -> None:
        """Free what both ends share; they have been closed."""
        ...


class OwnSender:
    """Newest wins, as between the stages: one slot, sent for a credit. `pack` makes the message and its arrays."""

    def __init__(self, link: Link, transport: Transport | None = None) -> None:
        self._link = link
        self._transport = transport
        self._outbox: Mailbox[tuple[int, Any]] = Mailbox()

    @property
    def dropped_count(self) -> int:
        return self._outbox.replaced_count

    def send(self, number: int, frame: Any) -> None:
        self._outbox.put((number, frame))
        self._hear(WAIT_MS if number == END else 0)

    def idle(self, until_ns: int) -> None:
        while (left_ns := until_ns - time.monotonic_ns()) > 0:
            wait_ms, rest_ns = divmod(left_ns, 1_000_000)
            self._hear(wait_ms)
            if not wait_ms:
                time.sleep(rest_ns / 1e9)

    def close(self) -> None:
        self._link.close()
        if self._transport is not None:
            self._transport.close()

    def _hear(self, timeout_ms: int) -> None:
        while not self._outbox.ready and (received := self._link.receive(timeout_ms)) is not None:
            assert isinstance(received.message, Credit)
            self._outbox.grant(received.message.count)
        if self._outbox.ready:
            self._send(*self._outbox.take())

    def prepare(self, number: int, picture: Picture) -> object:
        raise NotImplementedError

    def _send(self, number: int, frame: Any) -> None:
        raise NotImplementedError


class OwnReceiver:
    def __init__(self, link: Link, transport: Transport | None = None) -> None:
        self._link = link
        self._transport = transport
        self.release()

    def release(self) -> None:
        self._link.offer(Credit())

    def close(self) -> None:
        self._link.close()
        if self._transport is not None:
            self._transport.close()

    def receive(self) -> int:
        received = self._link.receive(WAIT_MS)
        assert received is not None, "nothing came"
        return self.number_of(received.message, received.parts)

    def number_of(self, message: Any, parts: Any) -> int:
        raise NotImplementedError


@dataclass
class OwnThreads:
    """Capture to texture: planes stay in place, a descriptor travels over inproc."""

    name: str = "this project, capture to texture"
    carries: str = "4:2:0 planes, left in place, and a descriptor"
    transport: Transport = field(default_factory=Transport)
    slots: SlotTable[FramePlanes] = field(default_factory=lambda: SlotTable(4))

    def sender(self) -> Sender:
        slots = self.slots

        class PlanesSender(OwnSender):
            def prepare(self, number: int, picture: Picture) -> FramePlanes:
                packed = np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2YUV_I420), np.uint8)
                return FramePlanes("yuv", (packed[:1080], *packed[1080:].reshape(2, 540, 960)))

            def _send(self, number: int, frame: FramePlanes) -> None:
                slot = slots.put(frame, 1.0)
                assert slot is not None
                self._link.send(FrameCaptured(slot=slot, frame_index=number, media_ns=0, capture_ns=0))

        return PlanesSender(self.transport.link("inproc://hop", bind=True))

    def receiver(self) -> Receiver:
        slots = self.slots

        class PlanesReceiver(OwnReceiver):
            def number_of(self, message: FrameCaptured, parts: Any) -> int:
                slots.take(message.slot)
                return message.frame_index

        return PlanesReceiver(self.transport.link("inproc://hop"))

    def close(self) -> None:
        self.transport.close()


@dataclass
class OwnTokens:
    """Allocate to answer: what is sent of a frame is its 273 chosen tokens, over ipc."""

    endpoint: str
    name: str = "this project, allocate to answer"
    carries: str = f"{TOKENS} tokens of 3 KB, not the frame"

    def sender(self) -> Sender:
        packet = _token_packet()

        class TokenSender(OwnSender):
            def prepare(self, number: int, picture: Picture) -> TokenPacket:
                return dataclasses.replace(packet, pixels=packet.pixels.copy())

            def _send(self, number: int, frame: TokenPacket) -> None:
                self._link.send(*token_message(number, 0, frame, Question("what?")))

        transport = Transport()
        return TokenSender(transport.link(self.endpoint, bind=True), transport)

    def receiver(self) -> Receiver:
        class TokenReceiver(OwnReceiver):
            def number_of(self, message: TokenPacketMessage, parts: Any) -> int:
                token_packet(message, parts)
                return message.answer

        transport = Transport()
        return TokenReceiver(transport.link(self.endpoint), transport)

    def close(self) -> None:
        """Its ends share nothing."""


@dataclass
class OwnWholeFrames:
    """Allocate to answer with `encode = "full"`: the frame is copied into memory that both processes share."""

    endpoint: str
    name: str = "this project, allocate to answer, whole frame"
    carries: str = "the frame in RGB, copied once into shared memory"
    descriptor: int = -1

    def sender(self) -> Sender:
        snapshot = SharedFrameWriter()
        self.descriptor = snapshot.descriptor
        tokens = _token_packet()
        relevance = np.ones(GRID.shape, np.float32)

        class FrameSender(OwnSender):
            def prepare(self, number: int, picture: Picture) -> FramePacket:
                image = cv2.copyMakeBorder(picture, 0, GRID.padded_height_px - 1080, 0, 0, cv2.BORDER_REPLICATE)
                return FramePacket(FrameStamp(0, 0, 0), GRID, tokens.regions, relevance, np.asarray(image, np.uint8))

            def _send(self, number: int, frame: FramePacket) -> None:
                snapshot.write(frame.image)
                self._link.send(*frame_message(number, 0, frame, Question("what?"), in_snapshot=True))

        transport = Transport()
        return FrameSender(transport.link(self.endpoint, bind=True), transport)

    def receiver(self) -> Receiver:
        reader = SharedFrameReader(os.open(f"/proc/{os.getppid()}/fd/{self.descriptor}", os.O_RDONLY))

        class FrameReceiver(OwnReceiver):
            def number_of(self, message: FramePacketMessage, parts: Any) -> int:
                image = reader.read(message.grid.padded_height_px, message.grid.padded_width_px)
                frame_packet(message, parts, image)
                return message.answer

        transport = Transport()
        return FrameReceiver(transport.link(self.endpoint), transport)

    def close(self) -> None:
        os.close(self.descriptor)


def _token_packet() -> TokenPacket:
    regions, relevance = np.zeros((TOKENS, 3), np.int32), np.ones(TOKENS, np.float32)
    pixels = np.random.default_rng(0).integers(0, 256, (TOKENS, 3, 32, 32), dtype=np.uint8)
    return TokenPacket(FrameStamp(0, 0, 0), GRID, regions, relevance, pixels)


BLOCK_PX, BITS = 16, 16


def stamp_number(number: int, picture: Picture) -> Picture:
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
        return PeerReceiver(
            lambda: int(hub.recv_image()[0]), hub.send_reply if self.replies else _do_nothing, hub.close
        )

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
        return PeerReceiver(lambda: number_of(gear.recv()), _do_nothing, gear.close)

    def close(self) -> None:
        """Its ends share nothing."""


def _do_nothing() -> None:
    """The library does nothing here."""


class PeerSender:
    dropped_count = 0

    def __init__(self, send: Any, close: Any) -> None:
        self.send = send
        self.close = close

    def prepare(self, number: int, picture: Picture) -> Picture:
        return stamp_number(number, picture)

    def idle(self, until_ns: int) -> None:
        sleep_until(until_ns)


class PeerReceiver:
    def __init__(self, receive: Any, release: Any, close: Any) -> None:
        self.receive = receive
        self.release = release
        self.close = close
