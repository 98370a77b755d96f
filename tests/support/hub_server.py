"""A hub of models on loopback, as far as reading a model's metadata asks for it."""

from __future__ import annotations

import hashlib
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.support.http_server import LoopbackServer, QuietHandler


class HubServer(LoopbackServer):
    """Serves folders as repositories: `models["owner/name"]` is one; a text in its place is the hub's error code.

    `requests` are the requests so far, and `sent_bytes` the number of sent bytes of files.
    """

    def __init__(self, models: dict[str, Path | str]) -> None:
        self.models = models
        self.requests: list[str] = []
        self.sent_bytes = 0
        super().__init__(_handler(self))
        self.url = self.address


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Make this process ask the hub at `url`, as HF_ENDPOINT does for a new one."""
    from huggingface_hub import constants, hf_api

    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(hf_api.api, "endpoint", url)


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(QuietHandler, BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            hub.requests.append(f"{self.command} {self.path}")
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
            if (byte_range := self.headers.get("range", "")).startswith("bytes="):
                first, last = byte_range.removeprefix("bytes=").split("-")
                status, part = 206, data[int(first) : int(last) + 1]
            etag = f'"{hashlib.sha1(data).hexdigest()}"'
            self.send_whole(status, part, ("X-Repo-Commit", "0" * 40), ("ETag", etag))
            if self.command == "GET":
                hub.sent_bytes += len(part)

        def _refuse(self, status: int, code: str) -> None:
            self.send_whole(status, b"", ("X-Error-Code", code))

    return Handler
