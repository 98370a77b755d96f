"""MJPEG over HTTP as cameras and programs send it, each with its faults: another one is another entry of `CAMERAS`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.support.senders import Handler

TEXT_LENGTH = b"{length}"


@dataclass(frozen=True)
class MjpegCamera:
    """What a camera sends: its content type, what comes before the first picture, before and after each one."""

    content_type: str = "multipart/x-mixed-replace; boundary=frame"
    first: bytes = b""
    before: bytes = b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {length}\r\n\r\n"
    after: bytes = b"\r\n"
    wrong_by: int = 0
    """Bytes by which its lengths are wrong."""
    cut_bytes: int = 0
    """Bytes that are missing at the end of each picture."""
    chunked: bool = False
    count: int | None = None
    """Pictures after which it closes the connection, or is silent."""
    then_silent: bool = False

    def serve(self, pictures: Sequence[bytes], fps: float = 50) -> Callable[[Handler], None]:
        """An endless stream of the pictures, for `Server.live`."""

        def respond(handler: Handler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Type", self.content_type)
            if self.chunked:
                handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            self._send(handler, self.first)
            for picture in itertools.islice(itertools.cycle(pictures), self.count):
                before = self.before.replace(TEXT_LENGTH, str(len(picture) + self.wrong_by).encode())
                self._send(handler, before + picture[: len(picture) - self.cut_bytes] + self.after)
                if handler.server.stopped.wait(1 / fps):
                    return
            if self.then_silent:
                handler.server.stopped.wait()

        return respond

    def _send(self, handler: Handler, data: bytes) -> None:
        if data:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if self.chunked else data)


_HEAD = b"Content-Type: image/jpeg\r\nContent-Length: {length}\r\n\r\n"

CAMERAS = {
    "motion": MjpegCamera(
        "multipart/x-mixed-replace; boundary=BoundaryString",
        before=b"--BoundaryString\r\nContent-type: image/jpeg\r\nContent-Length:     {length}\r\n\r\n",
    ),
    "mjpg-streamer": MjpegCamera(
        "multipart/x-mixed-replace;boundary=boundarydonotcross",
        first=b"--boundarydonotcross\r\n",
        before=b"Content-Type: image/jpeg\r\nContent-Length: {length}\r\nX-Timestamp: 0.000000\r\n\r\n",
        after=b"\r\n--boundarydonotcross\r\n",
    ),
    "ESP32-CAM": MjpegCamera(
        "multipart/x-mixed-replace;boundary=123456789000000000000987654321",
        before=_HEAD,
        after=b"\r\n--123456789000000000000987654321\r\n",
        chunked=True,
    ),
    "IP Webcam": MjpegCamera(
        "multipart/x-mixed-replace;boundary=Ba4oTvQMY8ew04N8dcnM",
        before=b"--Ba4oTvQMY8ew04N8dcnM\r\nContent-type: image/jpeg\r\nContent-Length: {length}\r\n\r\n",
    ),
    "Axis": MjpegCamera(
        "multipart/x-mixed-replace;boundary=--myboundary",
        before=b"--myboundary\r\n" + _HEAD,
    ),
    "boundary in quotes": MjpegCamera('multipart/x-mixed-replace; boundary="frame"'),
    "dashes in the boundary twice": MjpegCamera(
        "multipart/x-mixed-replace; boundary=--frame", before=b"----frame\r\n" + _HEAD
    ),
    "type image/jpg": MjpegCamera(before=b"--frame\r\nContent-Type: image/jpg\r\nContent-Length: {length}\r\n\r\n"),
    "no type": MjpegCamera(before=b"--frame\r\nContent-Length: {length}\r\n\r\n"),
    "no headers": MjpegCamera(before=b"--frame\r\n\r\n"),
    "no length": MjpegCamera(before=b"--frame\r\nContent-Type: image/jpeg\r\n\r\n"),
    "line feeds alone": MjpegCamera(
        before=b"--frame\nContent-Type: image/jpeg\nContent-Length: {length}\n\n", after=b"\n"
    ),
    "no empty line": MjpegCamera(before=b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {length}\r\n"),
    "no boundary": MjpegCamera(before=b"", after=b""),
    "no boundary in the header": MjpegCamera("multipart/x-mixed-replace"),
    "too short a length": MjpegCamera(wrong_by=-100),
    "too long a length": MjpegCamera(wrong_by=100),
    "length of two pictures": MjpegCamera(wrong_by=10_000),
    "cut pictures": MjpegCamera(cut_bytes=40),
    "no end of image": MjpegCamera(cut_bytes=2),
}
