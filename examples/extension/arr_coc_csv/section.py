"""Section `[csv]` of the configuration."""

from typing import Annotated, ClassVar

from pydantic import Field

from stream.config import Config, ExtensionSection
from stream.errors import ConfigError
from stream.options.option import Option


class CsvSection(ExtensionSection):
    """Files of answers as CSV, and a server that answers."""

    section: ClassVar[str] = "csv"
    changes_answers: ClassVar[bool] = True
    without_effect: ClassVar[frozenset[str]] = frozenset({"delimiter"})

    delimiter: Annotated[
        str, Option("--csv-delimiter CHARACTER", "Character between the fields of a .csv. [{default}]", without="demo")
    ] = Field(default=",", min_length=1, max_length=1)
    """Character between the fields."""
    hide: Annotated[
        tuple[str, ...],
        Option("--hide-word WORD", "A word that answers show as stars; repeatable.", without="demo"),
    ] = Field(default=(), strict=False)
    """Words that answers show as stars."""
    server: Annotated[
        str | None, Option("--csv-server URL", "Server that answers lines of CSV. [a process here]", without="demo")
    ] = None
    """Server that answers, in the place of a model of this machine."""


def model_name(config: Config) -> str:
    """Return the name of the server's model. Raises ConfigError for a wrong address."""
    url = CsvSection.of(config).server or ""
    if not url.startswith("http://"):
        raise ConfigError(f"{url!r} is no address of a server; write http://HOST:PORT")
    return f"the model at {url}"
