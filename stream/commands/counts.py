"""Numbers of things as people write them on the command line."""

from __future__ import annotations

from stream.errors import ConfigError


def count_of(option: str, text: str, most: int | None = None) -> int:
    """The whole number, from 1 to `most`. Raises ConfigError, which names the option."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1 or (most is not None and count > most):
        wanted = "of at least 1" if most is None else f"from 1 to {most}"
        raise ConfigError(f"{option} needs a whole number {wanted}; got {text!r}")
    return count
