"""Pictures that a server has received: named by their `uuid`, and not sent again.

An extension of vLLM's to chat completions (https://docs.vllm.ai/en/latest/features/multimodal_inputs): a part of a
message may carry a `uuid` beside its picture, and later that `uuid` alone. Other servers refuse such a field.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

KEPT_BY = frozenset({"vllm"})
"""Servers, by their name in the list of models, that know pictures by their `uuid`."""

NAMED_MAX = 1024
"""Number of newest pictures assumed to be still cached; a server keeps gigabytes of them."""

DIGEST_BYTES = 16


def uuid_of(jpeg: bytes) -> str:
    """Return a picture's uuid, a hash of its bytes, so that no client gets an answer about another client's picture."""
    return hashlib.blake2b(jpeg, digest_size=DIGEST_BYTES).hexdigest()


class SentPictures:
    """Uuids of the pictures that one server has received. If not `enabled`, all pictures are sent, without uuids."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._received: OrderedDict[str, None] = OrderedDict()

    def lean(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request as it is to be sent: with the uuids, and the pictures that the server has not received."""
        content = []
        for part in body["messages"][-1]["content"]:
            if "uuid" in part and not self.enabled:
                part = {key: value for key, value in part.items() if key != "uuid"}
            elif part.get("uuid") in self._received:
                part = {**part, "image_url": None}
            content.append(part)
        *before, question = body["messages"]
        return {**body, "messages": [*before, {**question, "content": content}]}

    def note(self, body: Mapping[str, Any]) -> None:
        """Note that the server has answered a request."""
        if not self.enabled:
            return
        for uuid in _uuids_in(body):
            self._received[uuid] = None
            self._received.move_to_end(uuid)
        while len(self._received) > NAMED_MAX:
            self._received.popitem(last=False)

    def note_failure(self, body: Mapping[str, Any], error: str) -> bool:
        """Note that a request, as `lean` made it, was refused or lost; return whether another try sends it otherwise.

        The server may have dropped pictures, or may accept no uuids.
        """
        parts = body["messages"][-1]["content"]
        if any("uuid" in part and part["image_url"] is None for part in parts):
            self._received.clear()
            return True
        if self.enabled and "uuid" in error and any("uuid" in part for part in parts):
            self.enabled = False
            return True
        return False


def _uuids_in(body: Mapping[str, Any]) -> Iterable[str]:
    return (part["uuid"] for part in body["messages"][-1]["content"] if "uuid" in part)
