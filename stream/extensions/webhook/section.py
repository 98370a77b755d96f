"""Section `[webhook]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import Self

from stream.config import ExtensionSection
from stream.options.option import Option
from stream.sources.address import HIDDEN


class WebhookSection(ExtensionSection):
    """Answers and matches posted over HTTP (docs/home-assistant.md#webhook)."""

    section: ClassVar[str] = "webhook"
    switch: ClassVar[str] = "url"

    def shown(self) -> Self:
        """Return the section without the address, whose path may be secret."""
        return self.model_copy(update={"url": None if self.url is None else HIDDEN})

    url: Annotated[
        str | None, Option("--webhook URL", "Post answers to this address, over HTTP. [off]", without="demo")
    ] = Field(default=None, min_length=1, examples=['"https://example.com/hook"'])
    """Address that answers, matches of watches, outages and the summary are posted to. With the environment variable
    ARR_COC_WEBHOOK_SECRET they are signed. See docs/home-assistant.md#webhook."""
