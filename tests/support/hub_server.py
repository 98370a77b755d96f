"""A hub of models on loopback, as far as reading a model's metadata asks for it."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest


class HubServer:
    """Serves folders as repositories: `models["owner/name"]` is one; a text in its place is the hub's error code.

    `asked` are the requests, and `sent_bytes` what was sent of files.
    """

    def __init__(self, models: dict[str, Path | str]) -> None:
        self.models = models
        self.asked: list[str] = []
        self.sent_bytes = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let this process ask the hub at `url`, as HF_ENDPOINT does for a new one."""
    from huggingface_hub import constants, hf_api

    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(hf_api.api, "endpoint", url)


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, with_body: bool) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            owner, name, *rest = self.path.strip("/").split("/")
            model = hub.models.get(f"{owner}/{name}", "RepoNotFound")
            if isinstance(model, str):
                self._refuse(403 if model == "GatedRepo" else 401, model)
                return
            path = model.joinpath(*rest[2:])  # behind resolve/main
            if not path.is_file():
                self._refuse(404, "EntryNotFound")
                return
            data = path.read_bytes()
            status, part = 200, data
            if (wanted := self.headers.get("range", "")).startswith("bytes="):
                first, last = wanted.removeprefix("bytes=").split("-")
                status, part = 206, data[int(first) : int(last) + 1]
            self.send_response(status)
            self.send_header("Content-Length", str(len(part)))
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
            self.end_headers()
            if with_body:
                self.wfile.write(part)
                hub.sent_bytes += len(part)

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler
