"""Outputs that several cameras share, each event with the camera's name: files of JSON lines."""

from __future__ import annotations

import threading

from stream.config import Config
from stream.extensions.fleet.cameras import NamedCamera, is_json_lines, shared_lines
from stream.sinks.base import Sink
from stream.sinks.output_file import JsonlSink, OutputFile, StdoutLines
from stream.sinks.paths import STDOUT


class SharedLines:
    """A file, or standard output, to which several threads append whole lines. `release` closes it.

    Raises OutputError as OutputFile does.
    """

    def __init__(self, path: str) -> None:
        self._lines = StdoutLines() if path == STDOUT else OutputFile(path)
        self._lock = threading.Lock()

    def append(self, text: str) -> None:
        """Append a line."""
        with self._lock:
            self._lines.append(text)

    def catch_up(self) -> None:
        """Nothing was written before."""

    def close(self) -> None:
        """One camera has ended; others may go on."""

    def release(self) -> None:
        """Close the file: all cameras have ended."""
        with self._lock:
            self._lines.close()


class CameraLines:
    """Files of JSON lines of several cameras, each claimed once, before the first run. `close` when all have ended.

    Raises OutputError, having released all files, if one cannot be written.
    """

    def __init__(self, cameras: list[NamedCamera]) -> None:
        self._files: dict[str, SharedLines] = {}
        try:
            for path in shared_lines(cameras):
                self._files[path] = SharedLines(path)
        except Exception:
            self.close()
            raise

    def sinks(self, camera: NamedCamera) -> list[Sink]:
        """Return the sinks of one camera in shared files, whose lines carry its name."""
        output = camera.config.output
        return [
            JsonlSink(path, timing=output.timing, camera=camera.name, file=self._files[path])
            for path in output.paths
            if is_json_lines(path)
        ]

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.release()


def without_shared(config: Config) -> Config:
    """Return a configuration without the files of JSON lines, which cameras share."""
    paths = tuple(path for path in config.output.paths if not is_json_lines(path))
    return config.with_values({"output.paths": paths})
