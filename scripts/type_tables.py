"""Tables of the documents that are made from the types of sources and sinks."""

from __future__ import annotations

import re

from scripts.config_reference import linked
from stream.sinks.types import caption_types
from stream.sources.types import source_types


def with_table(text: str, name: str, rows: list[tuple[str, str]]) -> str:
    """Return a page in which the table between the marks of `name` is written anew."""
    table = "".join(f"| {form} | {meaning} |\n" for form, meaning in rows)
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    return marks.sub(lambda match: f"{match[1]}\n| {name} | meaning |\n| --- | --- |\n{table}\n{match[2]}", text)


def sources_page(text: str) -> str:
    """Return docs/sources.md with its table of addresses written anew."""
    return with_table(text, "address", [(source.forms, source.help) for source in source_types()])


def with_outputs(text: str) -> str:
    """Return docs/cli.md with its table of caption outputs written anew."""
    return with_table(
        text,
        "output",
        [
            (", ".join(f"`{suffix}`" for suffix in sink.suffixes), linked(sink.help, "cli.md"))
            for sink in caption_types()
        ],
    )
