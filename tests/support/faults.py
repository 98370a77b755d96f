"""Damage, made at random but the same on every run, as from a bad link, a bad disk or a bad neighbour."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

ODD_VALUES = (
    b"\xc0",
    b"\xc1",
    b"\x00",
    b"\xff",
    b"\x80",
    b"\x90",
    b"\xa0",
    b"\xcf" + b"\xff" * 8,
    b"\xd3" + b"\x80" + b"\x00" * 7,
    b"\xcb\x7f\xf8" + b"\x00" * 6,
    b"\xdd" + b"\xff" * 4,
    b"\xdf" + b"\xff" * 4,
    b"\xdb" + b"\xff" * 4,
    b"\xc6" + b"\xff" * 4,
    b"\xc9" + b"\xff" * 4 + b"\x01",
    b"\x91" * 3000,
    b"\xa3\xff\xfe\xfd",
)
"""Pieces of msgpack that decoders trip over: nil, reserved, huge numbers and lengths, NaN, deep nesting, no UTF-8."""


def damaged(data: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """`data` with one to four kinds of damage."""
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(7)
        at = rng.randrange(len(data) + 1)
        if kind == 0 and data:
            data = data[: min(at, len(data) - 1)]
        elif kind == 1 and data:
            at = rng.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        elif kind == 2:
            data = data[:at] + rng.choice(ODD_VALUES) + data[at + rng.randrange(10) :]
        elif kind == 3:
            data = data[:at] + rng.randbytes(rng.randrange(1, 20)) + data[at:]
        elif kind == 4 and others:
            other = rng.choice(others)
            data = data[:at] + other[rng.randrange(len(other) + 1) :]
        elif kind == 5:
            data = data[:at] + data[at + rng.randrange(1, 30) :]
        else:
            data = rng.randbytes(rng.randrange(60))
    return data


def many(seeds: Sequence[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """So many damaged pieces of data, made from good ones."""
    rng = random.Random(seed)
    for _ in range(count):
        yield damaged(rng.choice(seeds), rng, seeds)
