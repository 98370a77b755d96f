"""ROS 2 bag of a run, without ROS: a folder with an MCAP file of CDR messages, and its metadata."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from rosbags.interfaces import Connection
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer, WriterError
from rosbags.rosbag2.storage_mcap import McapWriter

from stream.config import Config
from stream.errors import OutputError, OutputFailed
from stream.events import Answer, AskedPicture, Detections, Event
from stream.extension import SinkOpening
from stream.extensions.robotics.bag_folder import check_new_folder, folder_exists
from stream.extensions.robotics.mcap_records import end_records
from stream.extensions.robotics.pictures import EventClock, PictureSequence
from stream.extensions.robotics.ros_messages import DETECTIONS, GRID, PICTURE, TEXT, RosMessages
from stream.extensions.robotics.section import RoboticsSection
from stream.sinks.base import Sink
from stream.sinks.detections import placed
from stream.untrusted import printable

VERSION: Literal[8] = 8
"""Version of the metadata: newer ones write quality of service in a form that ROS 2 Humble does not read."""

TOPICS = {"/picture/compressed": PICTURE, "/answer": TEXT, "/regions": DETECTIONS, "/relevance": GRID}


class RosbagSink(Sink):
    """Writer of answers, their boxes, pictures, regions and relevance into a new bag at `path`.

    Messages have the times of their frames. The folder is created at once, and removed if nothing was written. Raises
    OutputError if it exists or cannot be created, and OutputFailed if a later write fails: its MCAP file then stays
    readable, and `ros2 bag reindex` restores the bag.
    """

    def __init__(self, path: str, config: Config) -> None:
        check_new_folder(path)
        self._path = path
        section = RoboticsSection.of(config)
        self._clock = EventClock(unix=section.log_time == "unix")
        self._messages = RosMessages(section.frame_id)
        self._writer = Writer(path, version=VERSION, storage_plugin=StoragePlugin.MCAP)
        self._writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
        with self._failing():
            try:
                self._writer.open()
            except WriterError:
                raise OutputError(folder_exists(path)) from None
        self._connections: dict[str, Connection] = {}
        self._pictures = PictureSequence()
        self._size: tuple[int, int] | None = None
        self._open = True

    @classmethod
    def open(cls, opening: SinkOpening) -> RosbagSink:
        """Open the sink of a run."""
        return cls(opening.path, opening.config)

    def write(self, event: Event) -> None:
        at_ns = self._clock.time_ns(event)
        if isinstance(event, Answer):
            self._put("/answer", at_ns, self._messages.text(printable(event.text)))
        elif isinstance(event, Detections) and self._size is not None:
            self._put("/detections", at_ns, self._messages.things(placed(event, *self._size), at_ns))
        elif isinstance(event, AskedPicture) and (update := self._pictures.take(event)) is not None:
            picture, new = update
            self._size = picture.size
            if new:
                self._put("/picture/compressed", at_ns, self._messages.picture(event.jpeg, at_ns))
            self._put("/regions", at_ns, self._messages.detections(picture.boxes(), at_ns))
            self._put("/relevance", at_ns, self._messages.grid(picture.relevance, at_ns))
        else:
            return
        # write the open chunk too, so that the file holds every message
        storage = self._writer.storage
        assert isinstance(storage, McapWriter)
        if storage.chunk.msgs:
            with self._failing():
                storage.close_chunk()
                storage.bio.flush()

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if not self._connections:
            self._writer.abort()
            shutil.rmtree(self._path, ignore_errors=True)
            return
        with self._failing():
            self._writer.close()

    def _put(self, topic: str, at_ns: int, data: bytes) -> None:
        with self._failing():
            if not self._connections:
                self._connections = {
                    name: self._writer.add_connection(name, kind, typestore=self._messages.store)
                    for name, kind in TOPICS.items()
                }
            if topic not in self._connections:  # only a bag with boxes has their topic
                store = self._messages.store
                self._connections[topic] = self._writer.add_connection(topic, DETECTIONS, typestore=store)
            self._writer.write(self._connections[topic], at_ns, data)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Context manager that ends the bag and raises OutputFailed if a write fails."""
        try:
            yield
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            self._open = False
            with suppress(OSError):
                self._writer.abort()
            for path in Path(self._path).glob("*.mcap"):
                with suppress(OSError), open(path, "r+b") as file:
                    if not end_records(file.fileno()):
                        shutil.rmtree(self._path, ignore_errors=True)
            raise OutputFailed(f"cannot write {self._path!r}: {error.strerror}") from error
