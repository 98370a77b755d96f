"""The texture microscope's server: inspections of the newest frame, or of a picture, on request.

A request is answered once. Without requests, nothing is computed or sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from arr_coc.types import LEVELS
from stream.extensions.web.access import WebAccess
from stream.extensions.web.picture_requests import PictureRequests
from stream.extensions.web.uploads.decoder import PictureRefused
from stream.extensions.web.uploads.receiver import PictureUploads
from stream.protocol.inspection import InspectionRequest, PictureToInspect, known_levels, pack_failure
from stream.protocol.pictures import INSPECTION, PictureRequest

WAITING_MAX = 16
"""Limit of waiting requests; further ones are refused."""

FRAME_LIMIT_S = 5.0
"""Longest wait for the next frame."""

PICTURE_LIMIT_S = 20.0
"""Longest wait for the inspection of a picture."""

UNANSWERED_S = 0.5
"""A request for a frame is made again after this: there may have been no frame process, or no frame."""

INTERVAL_S = 0.1
"""Least time between two inspections."""

LONGEST_PX = 2048
"""A larger picture is inspected smaller."""

Rgb = npt.NDArray[np.uint8]

NO_FRAME = pack_failure("no frame has come; the source may be lost, or the model is still loading")

NO_CAMERA = "no camera has that name; add ?camera=NAME"

MEDIA_TYPE = "application/octet-stream"


class Microscope(PictureRequests):
    """Inspections of one run.

    Those who wait for the newest frame share an inspection; pictures are inspected one after another.
    """

    def __init__(self) -> None:
        super().__init__(INTERVAL_S, UNANSWERED_S)
        self._waiting: dict[asyncio.Future[bytes], tuple[int, ...]] = {}
        self._turn = asyncio.Lock()
        self._of_picture: asyncio.Future[bytes] | None = None
        self._number = 0

    @property
    def is_crowded(self) -> bool:
        """True if no further request may wait."""
        return len(self._waiting) >= WAITING_MAX

    async def newest(self, levels: tuple[int, ...]) -> bytes | None:
        """Return an inspection of the next frame with pictures of these levels; None if no frame comes in time."""
        self.loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = self.loop.create_future()
        self._waiting[answer] = levels
        self.update()
        try:
            return await asyncio.wait_for(answer, FRAME_LIMIT_S)
        except asyncio.TimeoutError:
            return None
        finally:
            self._waiting.pop(answer, None)

    async def picture(self, pixels: Rgb, levels: tuple[int, ...]) -> bytes | None:
        """Return the inspection of a picture uint8 RGB [H, W, 3]; None if it does not come in time."""
        async with self._turn:
            if self._source is None:
                return None
            self.loop = asyncio.get_running_loop()
            self._of_picture = self.loop.create_future()
            self._number += 1
            picture = PictureToInspect(self._number, pixels.shape[0], pixels.shape[1], pixels.tobytes())
            self._source.request(PictureRequest(inspect=InspectionRequest(levels, picture=picture)))
            try:
                return await asyncio.wait_for(self._of_picture, PICTURE_LIMIT_S)
            except asyncio.TimeoutError:
                return None
            finally:
                self._of_picture = None
                self.update()

    def _due_s(self) -> float | None:
        # A source holds one request: a frame's would take the place of the picture's.
        if self._waiting and self._of_picture is None:
            return 0.0
        return None

    def _request(self, now_s: float) -> PictureRequest:
        levels = known_levels(level for levels in self._waiting.values() for level in levels)
        return PictureRequest(inspect=InspectionRequest(levels))

    def _give(self, pictures: dict[int, bytes]) -> None:
        of_picture = pictures.get(-self._number)
        of_frame = pictures.get(INSPECTION)
        if of_picture is not None and self._of_picture is not None and not self._of_picture.done():
            self._of_picture.set_result(of_picture)
        if of_frame is None:
            return
        for answer in self._waiting:
            if not answer.done():
                answer.set_result(of_frame)
        self._waiting.clear()


def microscope_routes(
    microscope_of: Callable[[Request], Microscope | None], access: WebAccess, uploads: PictureUploads
) -> list[BaseRoute]:
    """Return the routes of the microscope: the newest frame's inspection, and that of a picture sent.

    `microscope_of` returns the one of the camera that a request names, None if there is no such camera.
    """

    async def newest(request: Request) -> Response:
        microscope = microscope_of(request)
        if microscope is None:
            raise PictureRefused(NO_CAMERA, 404)
        if microscope.is_crowded:
            raise PictureRefused("too many look through the microscope; try again in a moment", 503)
        message = await microscope.newest(_levels(request))
        return Response(message or NO_FRAME, media_type=MEDIA_TYPE)

    async def picture(request: Request) -> Response:
        if not access.control:
            raise PictureRefused("this page only shows; it takes no pictures", 403)
        microscope = microscope_of(request)
        if microscope is None:
            raise PictureRefused(NO_CAMERA, 404)
        async with uploads.picture(request, LONGEST_PX) as rgb:
            message = await microscope.picture(rgb, _levels(request))
        if message is None:
            raise PictureRefused("the run does not answer; the model may still be loading", 503)
        return Response(message, media_type=MEDIA_TYPE)

    return [Route("/microscope/frame", newest), Route("/microscope/picture", picture, methods=["POST"])]


def _levels(request: Request) -> tuple[int, ...]:
    """Return the levels that a request names as digits."""
    digits = request.query_params.get("levels", "0")[:LEVELS]
    return known_levels(int(digit) for digit in digits if digit in "0123456789") or (0,)
