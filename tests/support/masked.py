"""A run with every output at once, and the pictures that each of them shows.

The source has a block of one colour, `SECRET`, that nothing else has. It lies well within the zone `hidden`.
"""

from __future__ import annotations

import base64
import io
import re
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import av
import cv2
import msgspec
import numpy as np
import numpy.typing as npt
import zmq
from rosbags.rosbag2 import Reader
from websockets.sync.client import connect

from arr_coc.types import FramePacket
from stream.config import AnswerConfig, Config, OutputConfig, WatchConfig, ZoneConfig
from stream.events import Event, FrameReady, pack_event
from stream.extensions.clips.section import ClipsSection
from stream.extensions.heatmap.section import HeatmapSection
from stream.extensions.metrics.section import MetricsSection
from stream.extensions.mqtt.section import MqttSection
from stream.extensions.otlp.section import OtlpSection
from stream.extensions.overlay.section import OverlaySection
from stream.extensions.past.section import PastSection
from stream.extensions.record.format import Recording, SentMessage, decompress_arrays
from stream.extensions.record.section import RecordSection
from stream.extensions.robotics.section import RoboticsSection
from stream.extensions.shared_texture.reader import SharedTexture
from stream.extensions.shared_texture.section import SharedTextureSection
from stream.extensions.web.section import WebSection
from stream.extensions.webhook.section import WebhookSection
from stream.extensions.why.section import WhySection
from stream.extensions.zeromq.section import ZeromqSection
from stream.protocol.messages import TokenPacketMessage
from stream.runtime.frame_stages import run_in_threads
from stream.runtime.run import Run
from stream.runtime.session import run_session
from stream.sinks.base import Display, Sink
from tests.support.answer_models import FakeAnswerModel
from tests.support.collector import collecting
from tests.support.http_server import LoopbackServer, QuietHandler
from tests.support.mosquitto import broker, subscribed
from tests.support.network import LIMIT_S, free_port, until
from tests.support.recordings import read_mcap
from tests.support.web import PageClient

Picture = npt.NDArray[np.uint8]

SECRET = (255, 0, 255)
WIDTH, HEIGHT = 256, 192
HIDDEN = ZoneConfig(box=(0.5, 0.0, 1.0, 0.5), mask=True)
BLOCK = (slice(16, 80), slice(144, 240))
"""Rows and columns of the secret: 16 pixels of the mask are around it, more than a codec mixes."""

SEEN: list[Picture] = []
"""Pixels that the model was given."""

RERUN = find_spec("rerun") is not None


def frames(count: int, secret: tuple[int, int, int] = SECRET) -> Iterator[Picture]:
    """Grey frames with a square that moves, and the secret, which flickers."""
    for index in range(count):
        picture = np.full((HEIGHT, WIDTH, 3), 110, np.uint8)
        picture[128:160, 8 + 2 * index % 200 :][:, :32] = 200
        rows, cols = BLOCK
        picture[rows, cols] = secret
        picture[rows, cols][8 * (index % 8) :][:8] = 60
        yield picture


def secret_pixels(picture: Picture) -> int:
    """Number of pixels that have the secret's colour, uint8 RGB [..., 3]."""
    red, green, blue = (picture[..., channel] for channel in range(3))
    return int(np.count_nonzero((red > 180) & (green < 90) & (blue > 180)))


def pictures_in(data: bytes) -> list[Picture]:
    """The JPEG and PNG pictures that lie in bytes, raw or as base64: uint8 RGB [H, W, 3] each."""
    encoded = re.findall(rb"(?:/9j/|iVBORw0KGgo)[A-Za-z0-9+/]{40,}={0,2}", data)
    pictures = []
    for part in (data, *(base64.b64decode(text[: len(text) & ~3]) for text in encoded)):
        for start in re.finditer(rb"\xff\xd8\xff|\x89PNG\r\n", part):
            image = cv2.imdecode(np.frombuffer(part[start.start() :], np.uint8), cv2.IMREAD_COLOR)
            if image is not None:
                pictures.append(np.asarray(image[..., ::-1], np.uint8))
    return pictures


def decode_video(video: Path | io.BytesIO) -> list[Picture]:
    """The frames of a video, uint8 RGB [H, W, 3] each."""
    with av.open(str(video) if isinstance(video, Path) else video) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


class SeeingModel(FakeAnswerModel):
    """Keeps the pixels of every packet; it must be of this process."""

    def score_yes_no(self, packet: Any, query: str) -> tuple[float, float]:
        return 0.99, super().score_yes_no(packet, query)[1]

    def answer(self, packet: Any, query: str) -> Iterator[str]:
        if isinstance(packet, FramePacket):
            SEEN.append(np.array(packet.image))
        else:
            SEEN.append(np.moveaxis(np.array(packet.pixels), 1, -1))
        yield from super().answer(packet, query)


class EventKeeper(Sink):
    """Keeps every event as it is sent between processes, and ends the run once `ready` says so."""

    def __init__(self, ready: threading.Event) -> None:
        self.events: list[bytes] = []
        self.run: Run | None = None
        self._ready = ready
        self._frames = 0

    def write(self, event: Event) -> None:
        self.events.append(pack_event(event))
        if isinstance(event, FrameReady):
            self._frames += 1
            if self._frames > 30 and self._ready.wait(0.02):  # a viewer gets its picture of the next frame
                assert self.run is not None
                self.run.end()

    def close(self) -> None:
        pass


class NoDisplay(Display):
    """Shows nothing."""

    def write(self, event: Event, camera: str = "") -> None:
        pass

    def show_message(self, message: str) -> None:
        pass

    def close(self) -> None:
        pass


FILMS = (".mkv", ".mov", ".webm")
"""Of the films with captions. `.mp4` is the same as `.mov`, and the suffix of the heat map."""


@dataclass
class RunOutputs:
    """What a run has written and sent: files in `folder`, and bytes by the key of their output."""

    folder: Path
    outputs: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    model: list[Picture] = field(default_factory=list)


class Clients:
    """Readers of the services of a run, each in a thread; `ready` is set once each has what it waits for."""

    def __init__(self, run: RunOutputs, ports: dict[str, int]) -> None:
        self.ready = threading.Event()
        self._run, self._ports = run, ports
        self._left: set[str] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        readers = {
            "web": self._page, "microscope": self._microscope, "foxglove": self._foxglove, "publish": self._publish,
            "mqtt": self._mqtt, "control": self._control, "metrics_port": self._metrics, "texture": self._texture,
        }  # fmt: skip
        self._left = set(readers)
        for name, reader in readers.items():
            self._threads.append(threading.Thread(target=self._read, args=(name, reader), daemon=True))
            self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(LIMIT_S)

    def _read(self, name: str, reader: Callable[[], Iterator[tuple[bytes, bool]]]) -> None:
        with suppress(OSError):
            for data, is_last in reader():
                self._run.outputs[name].append(data)
                if is_last:
                    break
        with self._lock:
            self._left.discard(name)
            if not self._left:
                self.ready.set()

    def _page(self) -> Iterator[tuple[bytes, bool]]:
        with connect(f"ws://127.0.0.1:{self._ports['web']}/live", max_size=None, compression=None) as socket:
            client = PageClient(socket)
            for count in range(3):
                yield client.picture(), count == 2

    def _microscope(self) -> Iterator[tuple[bytes, bool]]:
        while True:
            connection = HTTPConnection("127.0.0.1", self._ports["web"], timeout=LIMIT_S)
            connection.request("GET", "/microscope/frame?levels=0123")
            body = connection.getresponse().read()
            connection.close()
            yield body, bool(pictures_in(body))

    def _texture(self) -> Iterator[tuple[bytes, bool]]:
        socket = self._run.folder / "texture.sock"
        until(socket.exists)
        with SharedTexture.connect(socket) as texture:
            for count in range(3):
                frame = texture.update(LIMIT_S)
                assert frame is not None
                yield cv2.imencode(".png", frame.pixels[..., ::-1])[1].tobytes(), count == 2

    def _foxglove(self) -> Iterator[tuple[bytes, bool]]:
        address = f"ws://127.0.0.1:{self._ports['foxglove']}"
        with connect(address, subprotocols=["foxglove.sdk.v1"], max_size=None) as client:  # type: ignore[list-item]
            while True:
                message = client.recv(LIMIT_S)
                if isinstance(message, bytes):
                    yield message, bool(pictures_in(message))
                elif channels := msgspec.json.decode(message).get("channels"):
                    subscriptions = [{"id": channel["id"], "channelId": channel["id"]} for channel in channels]
                    client.send(msgspec.json.encode({"op": "subscribe", "subscriptions": subscriptions}).decode())

    def _publish(self) -> Iterator[tuple[bytes, bool]]:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.SUB)
        socket.setsockopt_string(zmq.SUBSCRIBE, "")
        socket.connect(f"tcp://127.0.0.1:{self._ports['publish']}")
        topics: set[bytes] = set()
        try:
            while socket.poll(int(LIMIT_S * 1000)):
                parts = socket.recv_multipart()
                topics.add(parts[0])
                yield b"".join(parts), {b"frame", b"answer"} <= topics
        finally:
            socket.close(linger=0)
            context.term()

    def _mqtt(self) -> Iterator[tuple[bytes, bool]]:
        with subscribed(self._ports["mqtt"]) as subscriber:
            for topic in ("answer", "picture"):
                yield subscriber.next(f"arr_coc/masked/{topic}").payload, topic == "picture"

    def _control(self) -> Iterator[tuple[bytes, bool]]:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.REQ)
        socket.connect(f"tcp://127.0.0.1:{self._ports['control']}")
        try:
            socket.send(msgspec.msgpack.encode({"query": "What is hidden?"}))
            if socket.poll(int(LIMIT_S * 1000)):
                yield socket.recv(), True
        finally:
            socket.close(linger=0)
            context.term()

    def _metrics(self) -> Iterator[tuple[bytes, bool]]:
        for path in ("/metrics", "/healthz"):
            connection = HTTPConnection("127.0.0.1", self._ports["metrics_port"], timeout=LIMIT_S)
            connection.request("GET", path)
            yield connection.getresponse().read(), path == "/healthz"
            connection.close()


@contextmanager
def hook(received: list[bytes]) -> Iterator[str]:
    """The address of a webhook that keeps what is posted."""

    class Handler(QuietHandler, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.content())
            self.send_response(204)
            self.end_headers()

    with LoopbackServer(Handler) as server:
        yield f"{server.address}/hook"


def show(source: str, folder: Path, *, masked: bool) -> RunOutputs:
    """Run a source with every output at once."""
    run = RunOutputs(folder)
    ports = {name: free_port() for name in ("web", "publish", "control", "foxglove", "metrics_port")}
    (folder / "hls").mkdir(parents=True)
    suffixes = [".vtt", ".srt", ".jsonl", ".mcap", ".rosbag", *FILMS, *([".rrd"] if RERUN else [])]
    with ExitStack() as stack:
        mosquitto = stack.enter_context(broker(folder))
        collector = stack.enter_context(collecting())
        url = stack.enter_context(hook(run.outputs["webhook"]))
        clients = Clients(run, {**ports, "mqtt": mosquitto.port})
        keeper = EventKeeper(clients.ready)
        config = Config(
            source=source,
            answer=AnswerConfig(query="What is hidden?", captions=True, every_s=0.2),
            watch=(WatchConfig(question="Is it there?", name="there"),),
            zones={"hidden": HIDDEN} if masked else {},
            output=OutputConfig(
                paths=(*(str(folder / f"a{suffix}") for suffix in suffixes), str(folder / "hls" / "a.m3u8")),
                pictures_every=5,
            ),
            heatmap=HeatmapSection(file=str(folder / "heat.mp4")),
            why=WhySection(file=str(folder / "why.jsonl")),
            overlay=OverlaySection(file=str(folder / "now.txt")),
            record=RecordSection(folder=str(folder / "record")),
            past=PastSection(file=str(folder / "past.sqlite")),
            clips=ClipsSection(folder=str(folder / "clips"), before_s=1.0, after_s=0.5),
            zeromq=ZeromqSection(
                publish=f"tcp://127.0.0.1:{ports['publish']}", control=f"tcp://127.0.0.1:{ports['control']}"
            ),
            metrics=MetricsSection(port=ports["metrics_port"]),
            web=WebSection(address=f"127.0.0.1:{ports['web']}", rate=60.0),
            mqtt=MqttSection(url=f"mqtt://127.0.0.1:{mosquitto.port}", name="masked"),
            robotics=RoboticsSection(foxglove=str(ports["foxglove"])),
            shared_texture=SharedTextureSection(socket=str(folder / "texture.sock")),
            webhook=WebhookSection(url=url),
            otlp=OtlpSection(url=collector.url, text=True),
            pipeline={"single_process": True},  # type: ignore[arg-type]
        )

        def make_run(config: Config) -> Run:
            keeper.run = run_in_threads(config, model_loader="tests.support.masked:SeeingModel")
            clients.start()
            return keeper.run

        SEEN.clear()
        run_session(config, NoDisplay(), [keeper], make_run, signals=False)
        run.model = list(SEEN)
        clients.join()
        run.outputs["events"] = keeper.events
        run.outputs["otlp"] = [repr(span).encode() for span in collector.spans]
    return run


def of_hls(run: RunOutputs) -> list[Picture]:
    folder = run.folder / "hls"
    headers, parts = (sorted(folder.glob(f"**/*{suffix}")) for suffix in (".mp4", ".m4s"))
    assert headers
    return decode_video(io.BytesIO(b"".join(path.read_bytes() for path in (headers[0], *parts))))


def of_mcap(run: RunOutputs) -> list[Picture]:
    return [picture for message in read_mcap(run.folder / "a.mcap") for picture in pictures_in(message.data)]


def of_rosbag(run: RunOutputs) -> list[Picture]:
    with Reader(run.folder / "a.rosbag") as reader:
        return [picture for _, _, data in reader.messages() for picture in pictures_in(bytes(data))]


def of_record(run: RunOutputs) -> list[Picture]:
    """The tokens of every packet to the model."""
    pictures = []
    for record in Recording(run.folder / "record").records():
        if isinstance(record, SentMessage) and isinstance(record.message, TokenPacketMessage):
            for part in decompress_arrays(record):
                if part and len(part) % (3 * 32 * 32) == 0:
                    pictures.append(np.moveaxis(np.frombuffer(part, np.uint8).reshape(-1, 3, 32, 32), 1, -1))
    return pictures


def of_clips(run: RunOutputs) -> list[Picture]:
    """The picture and the video of a match."""
    pictures, videos = (sorted((run.folder / "clips").glob(f"*{suffix}")) for suffix in (".jpg", ".mp4"))
    assert pictures
    assert videos
    stills = [picture for path in pictures for picture in pictures_in(path.read_bytes())]
    return [*stills, *(picture for path in videos for picture in decode_video(path))]


def of_film(suffix: str) -> Callable[[RunOutputs], list[Picture]]:
    return lambda run: decode_video(run.folder / f"a{suffix}")


def of_remembered(run: RunOutputs) -> list[Picture]:
    with closing(sqlite3.connect(run.folder / "past.sqlite")) as file:
        return [picture for (jpeg,) in file.execute("SELECT jpeg FROM picture") for picture in pictures_in(jpeg)]


def of_rerun_file(run: RunOutputs) -> list[Picture]:
    return pictures_in((run.folder / "a.rrd").read_bytes())


def of_model(run: RunOutputs) -> list[Picture]:
    return run.model


def of_sent(name: str) -> Callable[[RunOutputs], list[Picture]]:
    return partial(_of_sent, name)


def _of_sent(name: str, run: RunOutputs) -> list[Picture]:
    assert run.outputs[name], f"nothing came from {name}"
    return [picture for data in run.outputs[name] for picture in pictures_in(data)]


def of_file(name: str) -> Callable[[RunOutputs], list[Picture]]:
    return partial(_of_file, name)


def _of_file(name: str, run: RunOutputs) -> list[Picture]:
    return pictures_in((run.folder / name).read_bytes())
