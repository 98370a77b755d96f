"""Events as bytes: packed, as they travel between threads, and as a line of JSON.

The JSON form is the one that JSONL and ZeroMQ carry: `type` first, times in seconds.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stream.events import AnyEvent, Event
from stream.printable import printable_json, whole

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyEvent)


def pack_event(event: Event) -> bytes:
    """The event in the form in which it travels between threads."""
    return _encoder.encode(event)


def unpack_event(data: bytes) -> AnyEvent:
    """The event that `pack_event` packed. Raises msgspec.DecodeError where it is none."""
    try:
        return _decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def encode_event(event: Event) -> str:
    """The event as one printable line of JSON: no `timing` or `warning` where there is none, floats to six decimals."""
    data = msgspec.to_builtins(event)
    for name in ("timing", "warning"):
        if data.get(name, ...) is None:
            del data[name]
    return printable_json(msgspec.json.encode(_rounded(data)).decode())


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, str):
        return whole(value)
    return round(value, 6) if isinstance(value, float) else value
