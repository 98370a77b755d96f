"""Panel of the live page: the past of its runs. Imports the rest only if something is remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stream.config import Config
from stream.extensions.past.section import PastSection

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


def routes(configs: Sequence[Config]) -> list[BaseRoute]:
    """Return the routes of the past of runs; none if nothing is remembered."""
    paths = dict.fromkeys(PastSection.of(config).file for config in configs)
    files = [path for path in paths if path is not None]
    if not files:
        return []
    from stream.extensions.past.page import PastFiles, past_routes

    return past_routes(PastFiles(files))
