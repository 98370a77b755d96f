"""Section `[csv]` of the configuration."""

from typing import Annotated, ClassVar

from pydantic import Field

from stream.config import ExtensionSection
from stream.options.option import Option


class CsvSection(ExtensionSection):
    """Files of answers as CSV."""

    section: ClassVar[str] = "csv"

    delimiter: Annotated[
        str, Option("--csv-delimiter CHARACTER", "Character between the fields of a .csv. [{default}]", without="demo")
    ] = Field(default=",", min_length=1, max_length=1)
    """Character between the fields."""
    hide: Annotated[
        tuple[str, ...],
        Option("--hide-word WORD", "A word that answers show as stars; repeatable.", without="demo"),
    ] = Field(default=(), strict=False)
    """Words that answers show as stars."""
