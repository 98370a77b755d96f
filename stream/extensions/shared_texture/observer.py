"""Observer of a run that shares its picture: writes each frame while a program is connected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream.config import Config
from stream.events import Answer, Event, Notice
from stream.extension import SinkOpening
from stream.extensions.shared_texture.section import SharedTextureSection
from stream.media import SourceInfo
from stream.sinks.base import Sink
from stream.stages.frame_observer import FrameObserver

if TYPE_CHECKING:
    from arr_coc.allocation.frame import FrameAllocation
    from arr_coc.texture.store.base import TextureView
    from stream.extensions.shared_texture.writer import TextureWriter

NOT_SHARED = "texture-not-shared"
"""Code of the notice that there is no memory to share the picture in."""


class TextureSharer(FrameObserver):
    """Sharer of one run's texture. Nothing is copied while no program is connected.

    Raises OutputError if the socket cannot be bound.
    """

    def __init__(self, path: str, source: str) -> None:
        # Imported here, as other runs open no sharer, and not every system has what it needs.
        from stream.extensions.shared_texture.server import TextureServer

        self._server = TextureServer(path, source)
        self._writer: TextureWriter | None = None
        self._notice: Notice | None = None
        self._has_failed = False

    @classmethod
    def open(cls, config: Config, info: SourceInfo) -> TextureSharer | None:
        """Open the sharer of a run; None if it shares nothing."""
        path = SharedTextureSection.of(config).socket
        return None if path is None else cls(path, info.name)

    @property
    def wants_frames(self) -> bool:
        return self._server.has_clients and not self._has_failed

    def observe_frame(self, view: TextureView, frame: FrameAllocation) -> None:
        from stream.extensions.shared_texture.writer import TextureWriter
        from stream.stages.frame_tap import packed_map

        writer = self._writer
        if writer is None or writer.memory.grid != view.grid:
            try:
                writer = TextureWriter(view.grid)
            except OSError as error:
                self._has_failed = True
                message = f"the picture is not shared any more: {error.strerror}"
                self._notice = Notice(NOT_SHARED, message)
                return
            self._writer = writer
        self._server.share(writer, writer.write(view, packed_map(frame)))

    def observe_event(self, event: Event) -> None:
        if isinstance(event, Answer):
            answer = {"frame_index": event.frame_index, "pts_s": event.pts_s, "query": event.query, "text": event.text}
            self._server.share_answer(answer)

    def take_notice(self) -> Notice | None:
        notice = self._notice
        self._notice = None
        return notice

    def close(self) -> None:
        self._server.close()


class NoSink(Sink):
    """Sink of a run that shares its texture: the observer beside the frames does the work."""

    @classmethod
    def open(cls, opening: SinkOpening) -> NoSink:
        """Open the sink of a run."""
        return cls()

    def write(self, event: Event) -> None:
        pass

    def close(self) -> None:
        pass
