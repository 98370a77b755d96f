"""Fields of requests that not every server takes: what the configuration adds and omits, and what refusals show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stream.extensions.api.section import ApiSection

SUCCESSORS = {"max_tokens": "max_completion_tokens"}
"""Old fields, and those that newer models take in their place."""

PENALTIES = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
"""Penalties, and their values without effect. OpenAI's API has the first two, vLLM and SGLang all."""

OPTIONAL = ("temperature", "top_p", "top_k", "min_p", *PENALTIES, "seed", "stream_options")
"""Fields without which a server still answers, by its own defaults."""

_REFUSAL = re.compile(
    r"support|unknown|unrecogni[sz]ed|unexpected|invalid|permitted|allowed|deprecated|forbid|extra|instead|not valid"
    r"|cannot (both )?be (specified|set|used)|not (known|available|implemented)",
    re.IGNORECASE,
)
"""Words of an error about a field as such; one about its value, such as "max_tokens is too large", has none of them."""


class RequestFields:
    """Fields of the requests to one server, for any thread.

    A field that the server has refused is left out of later requests, or sent under its new name.
    """

    def __init__(self, api: ApiSection | None = None) -> None:
        self.extra: dict[str, Any] = {} if api is None else dict(api.extra)
        self._omitted = frozenset(() if api is None else api.omit)
        self._refused: frozenset[str] = frozenset()

    @property
    def left_out(self) -> list[str]:
        """Names of the fields that the server refuses, and that have no successor."""
        return [name for name in OPTIONAL if name in self._refused]

    def applied(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request as this server takes it."""
        request: dict[str, Any] = {}
        for name, value in body.items():
            if name in self._omitted:
                continue
            successor = SUCCESSORS.get(name)
            if successor is not None and (name in self._refused or successor in self.extra):
                request[successor] = value
            elif name not in self._refused:
                request[name] = value
        return {**request, **self.extra}

    def learn(self, request: Mapping[str, Any], error: str) -> bool:
        """Note an error about a request as it was sent; return whether the next try sends it otherwise."""
        name = refused_field(request, error)
        if name is None or name in self.extra or not (name in SUCCESSORS or name in OPTIONAL):
            return False
        self._refused |= {name}
        return True


def refused_field(request: Mapping[str, Any], error: str) -> str | None:
    """Return the name of the field that a server's error refuses; None if it is about something else."""
    if _REFUSAL.search(error) is None:
        return None
    places = {name: match.start() for name in request if (match := re.search(rf"\b{re.escape(name)}\b", error))}
    for name in ("model", "messages", "stream"):  # words of any sentence
        places.pop(name, None)
    return min(places, key=places.__getitem__, default=None)
