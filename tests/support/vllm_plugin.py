"""Server with an OpenAI-compatible API that takes tokens as vLLM with the plugin does, by the plugin's own reader."""

from __future__ import annotations

import base64
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np

from tests.support import api_server as fake
from tests.support.api_server import ApiHandler, FakeApiServer

READER = Path(__file__).parents[2] / "plugins" / "vllm" / "arr_coc_vllm" / "packet.py"

CACHED_TOKENS = 64


def plugin_reader() -> ModuleType:
    """The plugin's reader of packets, which needs no vLLM."""
    spec = importlib.util.spec_from_file_location("arr_coc_vllm_packet", READER)
    assert spec is not None
    assert spec.loader is not None
    if spec.name not in sys.modules:
        sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[spec.name]


def speak_with_cache(handler: ApiHandler, body: dict[str, Any]) -> None:
    """Answer, and report how many tokens of the prompt were cached, as vLLM can."""
    handler.begin()
    for text in fake.TEXT:
        handler.send(fake.event(text))
    handler.send(fake.event(finish_reason="stop"))
    usage = {"prompt_tokens": 90, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS}}
    handler.send({**fake.event(), "choices": [], "usage": usage})
    handler.send("[DONE]")


class TokenServer:
    """Makes a server take tokens: `requests` are the packets of each request but probes, as the plugin reads them."""

    def __init__(
        self, server: FakeApiServer, then: Callable[[ApiHandler, dict[str, Any]], None] = fake.speak, version: int = 1
    ) -> None:
        self.requests: list[list[Any]] = []
        self.bodies: list[dict[str, Any]] = []
        self.probes = 0
        self.then = then
        self._reader, self._version = plugin_reader(), version
        server.owner, server.behaviour = "vllm", self.behave

    def behave(self, handler: ApiHandler, body: dict[str, Any]) -> None:
        """Answer about the packets of a request, or refuse them as the plugin does."""
        try:
            packets = [self._packet(handler, part) for part in body["messages"][-1]["content"] if "image_url" in part]
        except self._reader.PacketError as error:
            self.probes += 1
            message = str(error).replace("of version 1", f"of version {self._version}")
            handler.reply(400, {"error": {"message": message, "type": "BadRequestError", "code": 400}})
            return
        self.requests.append(packets)
        self.bodies.append(body)
        self.then(handler, body)

    def _packet(self, handler: ApiHandler, part: dict[str, Any]) -> Any:
        picture = part["image_url"] or handler.fake.cache[part["uuid"]]
        png = base64.b64decode(picture["url"].removeprefix("data:image/png;base64,"), validate=True)
        places = self._reader.find_places(png)
        assert places is not None
        pixels = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
        packet = self._reader.read_packet(places, pixels)
        assert part.get("uuid") == packet.content_id
        return packet
