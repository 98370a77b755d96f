"""A real RTSP server that is not the project's own: GStreamer's, as a process."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.network import LIMIT_S

SCRIPT = Path(__file__).with_name("gst_rtsp_server.py")
PYTHON = "/usr/bin/python3"
"""The system's, for which Debian builds the bindings."""

MISSING = (
    "no GStreamer RTSP server: apt-get install --no-install-recommends gir1.2-gst-rtsp-server-1.0 python3-gi "
    "gstreamer1.0-plugins-base gstreamer1.0-plugins-good gstreamer1.0-plugins-bad gstreamer1.0-plugins-ugly"
)

PROBE = """
import gi
gi.require_version("GstRtspServer", "1.0")
from gi.repository import Gst, GstRtspServer
Gst.init(None)
assert all(Gst.ElementFactory.find(name) for name in ("videotestsrc", "x264enc", "h264parse", "rtph264pay"))
"""


def require_gstreamer() -> None:
    """Skip the test if a part of GStreamer is missing."""
    try:
        process = subprocess.run([PYTHON, "-c", PROBE], capture_output=True, timeout=LIMIT_S)
    except OSError:
        pytest.skip(MISSING)
    if process.returncode:
        pytest.skip(MISSING)


class Camera:
    """The server's process, and the port that it has."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self.port = port

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)


@contextmanager
def camera(login: str = "-", certificate: Path | None = None, port: int = 0) -> Iterator[Camera]:
    """A camera at /cam of a port of this machine; `login` is USER:PASSWORD, `certificate` holds its key too."""
    command = [PYTHON, str(SCRIPT), login, "-" if certificate is None else str(certificate), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield Camera(process, int(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)
