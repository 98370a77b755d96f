"""Tables of a fleet file beside those of its cameras: strict sections, with one line for each mistake."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from stream.config import Section
from stream.errors import ConfigError

Table = TypeVar("Table", bound=Section)


def read_table(kind: type[Table], table: object, origin: str, example: str) -> Table:
    """Return a table as a section.

    Args:
        kind: Model of the section.
        table: Value that the file has for it.
        origin: Name of the table in messages.
        example: A valid table, for messages.

    Raises:
        ConfigError: The value is no table, or has an unknown key or a wrong value; one line.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{origin} should be a table, such as {example}, got {table!r}")
    refuse_unknown("key", table, kind.model_fields, origin)
    try:
        return kind.model_validate(dict(table))
    except ValidationError as error:
        item = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in item["loc"])
        expected = item["msg"].partition(" should ")[2] or item["msg"]
        raise ConfigError(f"{origin}: {key} should {expected}, got {item['input']!r}") from error


def refuse_unknown(kind: str, names: Mapping[str, Any], choices: Mapping[str, Any], origin: str) -> None:
    """Check names against the known ones.

    Args:
        kind: Noun for a name in messages, such as "key".
        names: Table whose keys are checked.
        choices: Table whose keys are the known names.
        origin: Name of the table in messages.

    Raises:
        ConfigError: A name is not among the choices; with the nearest of them.
    """
    for name in names:
        if name not in choices:
            matches = difflib.get_close_matches(name, choices, n=1)
            if matches:
                hint = f"did you mean {matches[0]}?"
            else:
                hint = f"there are {', '.join(choices)}"
            raise ConfigError(f"{origin}: unknown {kind} {name}; {hint}")
