"""Observer of the frame stages, in their process: what an extension adds to see their events and messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from stream.events import Event, Notice

if TYPE_CHECKING:
    from arr_coc.allocation.frame import FrameAllocation
    from arr_coc.texture.store.base import TextureView
    from stream.protocol.buffers import SharedFrameWriter
    from stream.transport import LinkObserver


class FrameObserver(ABC):
    """Observer of the events of one frame worker. Created before its stages begin; `close` is called when they ended.

    Its methods are called in several threads. None but `close` may wait: the stages would wait with it.
    """

    @abstractmethod
    def observe_event(self, event: Event) -> None:
        """Observe the next event; the last one is a summary of these stages, unless they were abandoned."""

    @property
    def wants_frames(self) -> bool:
        """True while `observe_frame` is to be called, with regions chosen for every frame."""
        return False

    def observe_frame(self, view: TextureView, frame: FrameAllocation) -> None:
        """Observe the texture with an allocated frame, while its lease lasts; again if it is allocated anew."""
        return

    def link_observer(self, snapshot: SharedFrameWriter | None) -> LinkObserver | None:
        """Return the observer of messages to and from the answer server, whose pictures are in host memory then; None
        if it needs none. `snapshot`: memory in which whole frames are shared with the server, if any."""
        return None

    def take_notice(self) -> Notice | None:
        """Return, once, a notice for the run's events, if there is one."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Complete what it writes and release it. Idempotent."""
