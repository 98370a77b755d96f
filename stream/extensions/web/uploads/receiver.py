"""Uploads of the page: one limit of bytes, number, rate and time for all of them, and one decoder at a time."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import numpy as np
from starlette.requests import ClientDisconnect, Request

from stream.clock import RateLimit
from stream.extensions.web.uploads import decoder
from stream.extensions.web.uploads.decoder import REFUSED, SIZE, PictureRefused
from stream.extensions.web.uploads.store import Rgb
from stream.untrusted import MIB

UPLOAD_BYTES_MAX = 16 * MIB
"""Largest file of a picture; a phone's have some 5 MB."""

ALL_BYTES_MAX = 64 * MIB
"""Bytes of all files that arrive or wait for the decoder."""

UPLOADS_MAX = 8
"""Uploads at a time, from the first byte to the reply."""

UPLOADS_A_SECOND = 2.0
UPLOADS_AT_ONCE = 10.0

ARRIVAL_LIMIT_S = 60.0
"""Time that a picture may take to arrive."""

SILENCE_LIMIT_S = 5.0
"""Longest wait for the next part of a picture."""

DECODE_LIMIT_S = 30.0
"""Time that the decoder may take; a few seconds on a busy machine."""


class PictureUploads:
    """Uploads of all viewers to all parts of the page. Belongs to the event loop."""

    def __init__(self) -> None:
        self._rate = RateLimit(UPLOADS_A_SECOND, UPLOADS_AT_ONCE)
        self._count = 0
        self._bytes = 0
        self._decoding = asyncio.Lock()

    def check_rate(self) -> None:
        """Count one more picture. Raises PictureRefused if there were too many just now."""
        if not self._rate.take(asyncio.get_running_loop().time()):
            raise PictureRefused("too many pictures at once; give it again in a moment", 429)

    @asynccontextmanager
    async def picture(self, request: Request, longest_px: int) -> AsyncIterator[Rgb]:
        """Give the picture in a request's body, as `decoder.read_picture` does, as uint8 RGB [H, W, 3].

        The upload counts against the limits until the block ends. Raises PictureRefused; a body that breaks a limit is
        not read to its end.
        """
        self.check_rate()
        if self._count >= UPLOADS_MAX:
            raise PictureRefused(f"{UPLOADS_MAX} pictures are on their way; give it again in a moment", 503)
        self._count += 1
        try:
            yield await self._receive(request, longest_px)
        finally:
            self._count -= 1

    async def _receive(self, request: Request, longest_px: int) -> Rgb:
        data = bytearray()
        try:
            await asyncio.wait_for(self._fill(data, request), ARRIVAL_LIMIT_S)
            async with self._decoding:
                return await _decode(data, longest_px)
        except asyncio.TimeoutError as error:
            raise PictureRefused(
                f"the picture did not arrive within {ARRIVAL_LIMIT_S:.0f} s; save it smaller"
            ) from error
        except ClientDisconnect as error:
            raise PictureRefused("the picture did not arrive whole; send it again") from error
        finally:
            self._bytes -= len(data)

    async def _fill(self, data: bytearray, request: Request) -> None:
        """Append the body of a request to `data`."""
        parts = request.stream()
        while True:
            try:
                part = await asyncio.wait_for(anext(parts, None), SILENCE_LIMIT_S)
            except asyncio.TimeoutError as error:
                raise PictureRefused(
                    f"no part of the picture came for {SILENCE_LIMIT_S:.0f} s; send it again"
                ) from error
            if part is None:
                return
            data += part
            self._bytes += len(part)
            if len(data) > UPLOAD_BYTES_MAX:
                raise PictureRefused(f"a picture has at most {UPLOAD_BYTES_MAX // MIB} MiB; save it smaller")
            if self._bytes > ALL_BYTES_MAX:
                raise PictureRefused("other pictures are on their way; give this one again in a moment", 503)


async def _decode(data: bytearray, longest_px: int) -> Rgb:
    """Return the picture in a file, decoded by a separate process, whose memory is freed when it ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", decoder.__file__, str(longest_px), *filter(os.path.isabs, sys.path)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        reply, _ = await asyncio.wait_for(process.communicate(data), DECODE_LIMIT_S)
    except asyncio.TimeoutError as error:
        raise PictureRefused(f"the picture took more than {DECODE_LIMIT_S:.0f} s to read; save it smaller") from error
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == REFUSED:
        raise PictureRefused(reply.decode())
    if process.returncode != 0:
        raise PictureRefused(f"the picture cannot be read: its decoder ended with status {process.returncode}")
    width, height = SIZE.unpack_from(reply)
    return np.frombuffer(reply, np.uint8, offset=SIZE.size).reshape(height, width, 3)
