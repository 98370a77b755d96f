"""Section `[api]` of the configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from stream.config import Config, ExtensionSection
from stream.options.option import Option
from stream.untrusted import QUERY_LIMIT_CHARS

REQUEST_FIELDS = frozenset({"model", "messages", "stream"})
"""Fields of a request that are neither added nor left out."""


def _request_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields for a request. Raises ValueError for those that the program sets, and for what is no JSON."""
    for name in sorted(REQUEST_FIELDS.intersection(fields)):
        raise ValueError(f"should not have {name}, which the program sets")
    if "max_tokens" in fields:
        raise ValueError("should not have max_tokens, which is answer.max_tokens")
    try:
        json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError("should hold text, numbers, true, false, lists and tables, as they become JSON") from None
    return fields


def _omitted_fields(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of fields. Raises ValueError for one that no request can do without."""
    for name in sorted(REQUEST_FIELDS.intersection(names)):
        raise ValueError(f"should not have {name}, which every request needs")
    return names


class ApiSection(ExtensionSection):
    """Answers from a server with an OpenAI-compatible API (docs/servers.md)."""

    section: ClassVar[str] = "api"
    switch: ClassVar[str] = "url"
    changes_answers: ClassVar[bool] = True
    without_effect: ClassVar[frozenset[str]] = frozenset({"url", "key_env", "connect_s", "first_s", "next_s"})

    url: Annotated[
        str | None,
        Option(
            "--api URL",
            "OpenAI-compatible server that answers: http://HOST:PORT/v1. [a process here]",
            also="serve-answers recap",
        ),
    ] = Field(default=None, min_length=1, examples=['"http://127.0.0.1:8000/v1"'])
    """Base address of a server with an OpenAI-compatible API that answers (docs/servers.md); no such server when
    absent. `answer.model` is the name that it knows the model by."""
    key_env: str = Field(default="ARR_COC_API_KEY", pattern=r"^[A-Za-z_]\w*$", examples=['"ARR_COC_API_KEY"'])
    """Environment variable with the server's key, if it needs one. The key is written nowhere."""
    picture: Annotated[
        Literal["scaled", "composite", "parts", "tokens"],
        Option(
            "--picture NAME",
            "With --api: scaled, composite or parts pictures, or tokens for vLLM with arr-coc-vllm. [{default}]",
            also="serve-answers",
        ),
    ] = "scaled"
    """Picture of a frame, in as many tiles as the budget has tokens: the whole view (`scaled`), the whole view with
    what matters enlarged beside it (`composite`), or both as several pictures (`parts`). `tokens`: the chosen tokens
    themselves, at their true positions, for a vLLM with the plugin `arr-coc-vllm`; another server is refused
    (docs/servers.md#what-the-model-sees)."""
    quality: int = Field(default=90, ge=1, le=100)
    """Quality of the JPEG pictures."""
    coordinates: Literal["auto", "thousandths", "pixels"] = "auto"
    """Coordinates of boxes and points in answers; `auto`: pixels for a Qwen2.5-VL by its name, else thousandths of the
    sides (docs/boxes.md)."""
    yes_no: str = Field(default="Answer yes or no.", max_length=QUERY_LIMIT_CHARS)
    """Sentence after the question of a watch; "" for none."""
    uuids: Literal["auto"] | bool = "auto"
    """Name pictures by a `uuid`, and send each once; `auto`: if the server is vLLM. Other servers refuse the field. See
    docs/servers.md#what-the-model-sees."""
    extra: Annotated[dict[str, Any], AfterValidator(_request_fields)] = Field(
        default={}, examples=['{reasoning_effort = "low"}']
    )
    """Further fields of each request, as the server takes them; they stand in recordings, so no key
    (docs/servers.md#fields-of-the-request)."""
    omit: Annotated[tuple[str, ...], AfterValidator(_omitted_fields)] = Field(
        default=(), strict=False, examples=['["temperature"]']
    )
    """Fields that are left out of each request, such as `["temperature"]` (docs/servers.md#fields-of-the-request)."""
    connect_s: float = Field(default=2.0, gt=0)
    """Time limit of a connection to the server, in seconds."""
    first_s: float = Field(default=30.0, gt=0)
    """Longest wait for the first text of an answer, in seconds; a server may load its model meanwhile."""
    next_s: float = Field(default=10.0, gt=0)
    """Longest silence within an answer, in seconds; the whole answer may take `pipeline.timeout_s`."""

    @property
    def encoding(self) -> Literal["sparse", "picture"]:
        """The value of `answer.encode` for what the server is sent: tokens or pictures."""
        if self.picture == "tokens":
            return "sparse"
        return "picture"

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        """Yield keys whose values are right alone and not together, and the remedy."""
        answer = config.answer
        sends_tokens = self.picture == "tokens"
        if self.url is None:
            if sends_tokens:
                yield "api.picture", "--picture tokens is for a vLLM server; give its address with --api URL"
            return
        if config.keeps_groups and not sends_tokens:
            yield (
                "answer.memory.enabled",
                "a server with an API keeps no visual memory; leave --memory out, or name a model of this machine with "
                "-m",
            )
        elif config.keeps_groups and answer.memory.frames == 1:
            yield (
                "answer.memory.enabled",
                "a server's cache holds whole frames, and no picture that is kept up to date; give --memory-frames N "
                "in place of --memory",
            )
        if answer.encode != self.encoding:
            takes = f"takes {'tokens' if sends_tokens else 'pictures'}, not answer.encode = {answer.encode}"
            yield "answer.encode", f"a server with an API {takes}; leave it out"
        if answer.thinking != "off":
            yield (
                "answer.thinking",
                f"answer.thinking = {answer.thinking} has no effect with --api: thoughts are hidden, and its server "
                "switches them off; leave it out",
            )
        about_weights = {"allocator": answer.allocator, "device": answer.device, "dtype": answer.dtype}
        for key, value in about_weights.items():
            if value not in (None, "auto") and not (sends_tokens and key == "allocator"):
                yield (
                    f"answer.{key}",
                    f"answer.{key} = {value} has no effect with --api: the model runs at its server; leave it out",
                )


def encoding_of(config: Config) -> str:
    """Return the default of `answer.encode` with a server."""
    return ApiSection.of(config).encoding
