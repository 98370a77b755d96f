"""RTSP server on loopback (tests use it too).

It sends pictures made in code, over and over, at their rate, interleaved over TCP or by UDP. It can be cut (its sockets
closed), stalled (silent, but there; also by itself after a number of access units), and brought back on the same port.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import re
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt

PAYLOAD_MAX = 1400
"""RTP payload in bytes, so that a packet fits into one Ethernet frame."""

RTP_HZ = 90_000
PAYLOAD_TYPE = 96
REALM, NONCE = "camera", "5ca1ab1e"

_PUBLIC = "OPTIONS, DESCRIBE, SETUP, PLAY, GET_PARAMETER, TEARDOWN"


def encode(pictures: Sequence[npt.NDArray[np.uint8]], fps: int, gop: int, *, b_frames: int = 0) -> list[bytes]:
    """Pictures as H.264 access units; every key frame brings its parameter sets.

    Args:
        pictures: uint8 RGB [H, W, 3] each.
        fps: Frames a second.
        gop: Frames from one key frame to the next.
        b_frames: Most consecutive B frames.
    """
    codec = av.CodecContext.create("libx264", "w")
    codec.height, codec.width = pictures[0].shape[:2]
    codec.pix_fmt, codec.framerate, codec.time_base = "yuv420p", Fraction(fps), Fraction(1, fps)
    tune = {} if b_frames else {"tune": "zerolatency"}
    codec.options = {
        "preset": "ultrafast",
        **tune,
        "x264-params": f"keyint={gop}:min-keyint={gop}:scenecut=0:bframes={b_frames}:repeat-headers=1:annexb=1",
    }
    units = []
    for index, picture in enumerate(pictures):
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts = index
        units += [bytes(packet) for packet in codec.encode(frame)]
    return units + [bytes(packet) for packet in codec.encode(None)]


def payloads(unit: bytes) -> list[bytes]:
    """An access unit as RTP payloads: NAL units alone, or in fragments (FU-A)."""
    result = []
    for nal in (part.rstrip(b"\0") for part in re.split(rb"\0\0\0?\x01", unit) if part.rstrip(b"\0")):
        if len(nal) <= PAYLOAD_MAX:
            result.append(nal)
            continue
        indicator, kind = (nal[0] & 0xE0) | 28, nal[0] & 0x1F
        pieces = [nal[at : at + PAYLOAD_MAX - 2] for at in range(1, len(nal), PAYLOAD_MAX - 2)]
        for number, piece in enumerate(pieces):
            flags = (0x80 if number == 0 else 0) | (0x40 if number == len(pieces) - 1 else 0)
            result.append(bytes([indicator, flags | kind]) + piece)
    return result


@dataclass(eq=False)
class _Client:
    """One connection. `send` hands an RTP packet to it, once it plays."""

    control: socket.socket
    playing: bool = False
    udp: tuple[socket.socket, tuple[str, int]] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, packet: bytes) -> None:
        if self.udp is not None:
            self.udp[0].sendto(packet, self.udp[1])
            return
        with self.lock:
            self.control.sendall(struct.pack(">cBH", b"$", 0, len(packet)) + packet)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        self.control.close()
        if self.udp is not None:
            self.udp[0].close()


class RtspServer:
    """RTSP server of rtsp://127.0.0.1:PORT/live. `login` is (user, password), `auth` Basic or Digest; with `waits` the
    first unit waits for a client that plays, as from a camera that begins with a key frame."""

    def __init__(
        self,
        units: Sequence[bytes],
        fps: int,
        login: tuple[str, str] | None = None,
        auth: str = "Digest",
        *,
        waits: bool = False,
    ) -> None:
        self._units = [payloads(unit) for unit in units]
        self._fps = fps
        self._login = login
        self._auth = auth
        self._clients: list[_Client] = []
        self._lock = threading.Lock()
        self._listening: socket.socket | None = None
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self.port = 0
        self.stalled = False
        self.stall_after: int | None = None
        self._waits = waits
        self.sent_units = 0
        self.connections = 0
        self.start()

    @property
    def url(self) -> str:
        return f"rtsp://127.0.0.1:{self.port}/live"

    def start(self) -> None:
        """Listen, on the same port as before, and send to each client that plays."""
        self._ended = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listening.getsockname()[1]
        ended, listening = self._ended, self._listening
        self._threads = [
            threading.Thread(target=self._accept, args=(listening,), daemon=True),
            threading.Thread(target=self._send, args=(ended,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def cut(self) -> None:
        """Close every socket, as a camera that loses its power."""
        if self._listening is None:
            return
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._listening = None
        with self._lock:
            clients, self._clients = self._clients, []
        for client in clients:
            client.close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> RtspServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def _accept(self, listening: socket.socket) -> None:
        serving = []
        with contextlib.suppress(OSError):
            while True:
                client = _Client(listening.accept()[0])
                with self._lock:
                    self._clients.append(client)
                    self.connections += 1
                serving.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
                serving[-1].start()
        for thread in serving:
            thread.join(5)

    def _send(self, ended: threading.Event) -> None:
        """Send access units at their pace, to every client that plays."""
        while self._waits and not any(client.playing for client in list(self._clients)):
            if ended.wait(0.001):
                return
        numbers, begun_s = itertools.count(), time.monotonic()
        for index in itertools.count():
            if ended.wait(max(0.0, begun_s + index / self._fps - time.monotonic())):
                return
            timestamp = index * RTP_HZ // self._fps
            unit = self._units[index % len(self._units)]
            packets = [
                struct.pack(
                    ">BBHII", 0x80, PAYLOAD_TYPE | (0x80 if last else 0), next(numbers) & 0xFFFF, timestamp, 0xC0FFEE
                )
                + payload
                for payload, last in zip(unit, [False] * (len(unit) - 1) + [True], strict=True)
            ]
            with self._lock:
                self.stalled = self.stalled or self.sent_units == self.stall_after
                playing = [] if self.stalled else [client for client in self._clients if client.playing]
                self.sent_units += bool(playing)
            for client, packet in itertools.product(playing, packets):
                with contextlib.suppress(OSError):
                    client.send(packet)

    def _serve(self, client: _Client) -> None:
        """Answer one client's requests until it has gone."""
        waiting = b""
        with contextlib.suppress(OSError):
            while data := client.control.recv(4096):
                waiting += data
                while waiting:
                    if waiting[:1] == b"$":
                        size = 4 + int.from_bytes(waiting[2:4], "big")
                        if len(waiting) < size:
                            break
                        waiting = waiting[size:]
                        continue
                    head, separator, waiting_after = waiting.partition(b"\r\n\r\n")
                    if not separator:
                        break
                    waiting = waiting_after
                    answer = self._answer(client, head.decode("latin-1"))
                    with client.lock:
                        client.control.sendall(answer.encode("latin-1"))
        with self._lock:
            if client in self._clients:
                self._clients.remove(client)
        client.close()

    def _answer(self, client: _Client, request: str) -> str:
        first, *lines = request.split("\r\n")
        method, url, _ = first.split(" ")
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        common = f"CSeq: {headers.get('cseq', '0')}\r\n"
        if method == "OPTIONS":
            return f"RTSP/1.0 200 OK\r\n{common}Public: {_PUBLIC}\r\n\r\n"
        if not self._is_authorized(method, headers.get("authorization", "")):
            challenge = f'{self._auth} realm="{REALM}"' + (f', nonce="{NONCE}"' if self._auth == "Digest" else "")
            return f"RTSP/1.0 401 Unauthorized\r\n{common}WWW-Authenticate: {challenge}\r\n\r\n"
        if not url.partition("://")[2].partition("/")[2].startswith("live"):
            return f"RTSP/1.0 404 Not Found\r\n{common}\r\n"
        if method == "DESCRIBE":
            sdp = (
                "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=made in code\r\nt=0 0\r\n"
                f"m=video 0 RTP/AVP {PAYLOAD_TYPE}\r\na=rtpmap:{PAYLOAD_TYPE} H264/{RTP_HZ}\r\n"
                f"a=fmtp:{PAYLOAD_TYPE} packetization-mode=1\r\na=framerate:{self._fps}\r\na=control:trackID=0\r\n"
            )
            described = f"Content-Type: application/sdp\r\nContent-Base: {self.url}/\r\nContent-Length: {len(sdp)}"
            return f"RTSP/1.0 200 OK\r\n{common}{described}\r\n\r\n{sdp}"
        common += "Session: 12345678;timeout=60\r\n"
        if method == "SETUP":
            transport = self._set_up(client, headers.get("transport", ""))
            return f"RTSP/1.0 200 OK\r\n{common}Transport: {transport}\r\n\r\n"
        if method in ("PLAY", "TEARDOWN"):
            client.playing = method == "PLAY"
        return f"RTSP/1.0 200 OK\r\n{common}\r\n"

    def _set_up(self, client: _Client, transport: str) -> str:
        ports = re.search(r"client_port=(\d+)", transport)
        if ports is None:
            return "RTP/AVP/TCP;unicast;interleaved=0-1"
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.bind(("127.0.0.1", 0))
        server_port, client_port = sender.getsockname()[1], int(ports[1])
        client.udp = sender, ("127.0.0.1", client_port)
        return (
            f"RTP/AVP;unicast;client_port={client_port}-{client_port + 1};server_port={server_port}-{server_port + 1}"
        )

    def _is_authorized(self, method: str, authorization: str) -> bool:
        """True if the request carries the right login (RFC 2617)."""
        if self._login is None:
            return True
        user, password = self._login
        if self._auth == "Basic":
            return authorization == "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
        uri = re.search(r'uri="([^"]*)"', authorization)
        response = re.search(r'response="([0-9a-f]+)"', authorization)
        if uri is None or response is None:
            return False
        secret = hashlib.md5(f"{user}:{REALM}:{password}".encode()).hexdigest()
        request_hash = hashlib.md5(f"{method}:{uri[1]}".encode()).hexdigest()
        return response[1] == hashlib.md5(f"{secret}:{NONCE}:{request_hash}".encode()).hexdigest()
