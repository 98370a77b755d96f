"""Requests for pictures of a run: one at a time, paced, and only while a viewer of the page is ready for one."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from stream.extensions.web.viewer import Viewer
from stream.protocol.pictures import PictureRequest, of_camera_number

FRESH_S = 1.0
"""A new viewer is shown the newest picture at once unless it is older than this."""

UNANSWERED_S = 0.25
"""Wait for a picture before it is requested again: there may have been no frame process, or no frame."""


class PictureSource(Protocol):
    """Source of pictures of a run's next frame."""

    def request(self, request: PictureRequest) -> None:
        """Request pictures of the next frame."""
        ...


def call_in(loop: asyncio.AbstractEventLoop | None, call: Callable[..., None], *arguments: Any) -> None:
    """Call a function in a loop, at once if the server has none yet; for any thread."""
    if loop is None:
        call(*arguments)
        return
    with suppress(RuntimeError):  # it has ended
        loop.call_soon_threadsafe(call, *arguments)


class PictureRequests(ABC):
    """Requests to a source of pictures, and the pictures that come. Belongs to the event loop `loop`, but for `attach`
    and `show`.

    A request is answered by the next frame only, so nothing is encoded while no viewer is ready. At most one is made
    every `interval_s`, and it is made again after `unanswered_s`.
    """

    def __init__(self, interval_s: float, unanswered_s: float) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._interval_s = interval_s
        self._unanswered_s = unanswered_s
        self._source: PictureSource | None = None
        self._next_s = 0.0
        self._requested_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def attach(self, source: PictureSource | None) -> None:
        """Request pictures of this source from here on, none for None; for any thread."""
        call_in(self.loop, self._attach, source)

    def show(self, pictures: dict[int, bytes]) -> None:
        """Take the pictures of a frame, by their keys in a message; for any thread."""
        call_in(self.loop, self._show, pictures)

    def update(self) -> None:
        """Request a picture if a viewer is ready for one, or look again when it is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._source is None or self.loop is None or (due_s := self._due_s()) is None:
            return
        now_s = time.monotonic()
        due_s = max(due_s, self._next_s)
        if self._requested_s is not None:
            due_s = max(due_s, self._requested_s + self._unanswered_s)
        if due_s > now_s:
            self._timer = self.loop.call_later(due_s - now_s, self.update)
            return
        if self._requested_s is None:
            self._next_s = max(self._next_s, now_s - self._interval_s) + self._interval_s
        self._requested_s = now_s
        self._source.request(self._request(now_s))
        self._timer = self.loop.call_later(self._unanswered_s, self.update)

    def _attach(self, source: PictureSource | None) -> None:
        self._source = source
        self._requested_s = None
        self.update()

    def _show(self, pictures: dict[int, bytes]) -> None:
        self._requested_s = None
        self._give(pictures)
        self.update()

    @abstractmethod
    def _due_s(self) -> float | None:
        """Return when the first viewer is ready, by the monotonic clock; None if none will be."""

    @abstractmethod
    def _request(self, now_s: float) -> PictureRequest:
        """Return the request for all viewers that are ready."""

    @abstractmethod
    def _give(self, pictures: dict[int, bytes]) -> None:
        """Give the pictures that have come to the viewers that are ready."""


class LivePictures(PictureRequests):
    """Pictures for the live page: each of the `viewers` gets the newest one in its width when it is ready.

    `number` is that of the camera among those of the page.
    """

    def __init__(self, viewers: set[Viewer], rate: float, number: int) -> None:
        super().__init__(1 / rate, UNANSWERED_S)
        self._viewers = viewers
        self._number = number
        self._newest: dict[int, tuple[bytes, float]] = {}

    def show(self, pictures: dict[int, bytes]) -> None:
        """Take the pictures of a frame, by their widths; for any thread."""
        super().show({width: of_camera_number(body, self._number) for width, body in pictures.items()})

    def show_newest(self, viewer: Viewer) -> None:
        """Show a viewer the newest picture unless it is old."""
        now_s = time.monotonic()
        newest = self._newest.get(viewer.width)
        if newest is not None and now_s - newest[1] < FRESH_S:
            viewer.show(newest[0], now_s)

    async def next(self, width: int, limit_s: float) -> bytes | None:
        """Return the next picture, at most `width` pixels wide, or the newest unless it is old; None if none comes in
        time."""
        viewer = Viewer(1 / self._interval_s, width)
        self._viewers.add(viewer)
        try:
            self.show_newest(viewer)
            self.update()
            return await asyncio.wait_for(_picture_of(viewer), limit_s)
        except asyncio.TimeoutError:
            return None
        finally:
            self._viewers.discard(viewer)

    def clear(self) -> None:
        """Forget the newest picture and its source: the run is over."""
        self._newest = {}
        self._attach(None)

    def _due_s(self) -> float | None:
        return min((due_s for viewer in self._viewers if (due_s := viewer.due_s()) is not None), default=None)

    def _request(self, now_s: float) -> PictureRequest:
        soon_s = now_s + self._interval_s
        widths = {viewer.width for viewer in self._viewers if (due_s := viewer.due_s()) is not None and due_s <= soon_s}
        return PictureRequest(tuple(sorted(widths)))

    def _give(self, pictures: dict[int, bytes]) -> None:
        now_s = time.monotonic()
        self._newest = {width: (body, now_s) for width, body in pictures.items()}
        for viewer in self._viewers:
            self.show_newest(viewer)


async def _picture_of(viewer: Viewer) -> bytes:
    """Return the next picture for a viewer that reads nothing else."""
    while not isinstance(message := viewer.next(), bytes):
        viewer.wake.clear()
        if message is None:
            await viewer.wake.wait()
    return message
