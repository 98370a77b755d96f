"""Pictures that a server has had: named by their `uuid`, and not sent again.

An extension of vLLM's to chat completions (https://docs.vllm.ai/en/latest/features/multimodal_inputs): a part of a
message may carry a `uuid` beside its picture, and later that `uuid` alone. Other servers refuse such a field.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

KEPT_BY = frozenset({"vllm"})
"""Servers, as they call themselves in their list of models, that know pictures by their `uuid`."""

NAMED_MAX = 1024
"""Newest pictures that are taken to be still there; a server keeps gigabytes of them."""

DIGEST_BYTES = 16


def uuid_of(jpeg: bytes) -> str:
    """Return a picture's name, the same for the same bytes and for no others: nobody can be answered about another's
    picture."""
    return hashlib.blake2b(jpeg, digest_size=DIGEST_BYTES).hexdigest()


class SentPictures:
    """Names of the pictures that one server has had. Where they are not `wanted`, all pictures are sent without any."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self._had: OrderedDict[str, None] = OrderedDict()

    def lean(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request as it is to be sent: the names, and the pictures that the server has not had."""
        content = []
        for part in body["messages"][-1]["content"]:
            if "uuid" in part and not self.wanted:
                part = {key: value for key, value in part.items() if key != "uuid"}
            elif part.get("uuid") in self._had:
                part = {**part, "image_url": None}
            content.append(part)
        *before, question = body["messages"]
        return {**body, "messages": [*before, {**question, "content": content}]}

    def note(self, body: Mapping[str, Any]) -> None:
        """Note that the server has answered a request."""
        if not self.wanted:
            return
        for uuid in _names_in(body):
            self._had[uuid] = None
            self._had.move_to_end(uuid)
        while len(self._had) > NAMED_MAX:
            self._had.popitem(last=False)

    def failed(self, sent: Mapping[str, Any], error: str) -> bool:
        """Note that a request, as `lean` made it, was refused or lost; return whether another try sends it otherwise.

        The server may have forgotten pictures, or may know no names.
        """
        parts = sent["messages"][-1]["content"]
        if any("uuid" in part and part["image_url"] is None for part in parts):
            self._had.clear()
            return True
        if self.wanted and "uuid" in error and any("uuid" in part for part in parts):
            self.wanted = False
            return True
        return False


def _names_in(body: Mapping[str, Any]) -> Iterable[str]:
    return (part["uuid"] for part in body["messages"][-1]["content"] if "uuid" in part)
