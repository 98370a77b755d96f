"""Section `[history]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from stream.config import ExtensionSection
from stream.options.option import Option
from stream.untrusted import HISTORY_MAX


class HistorySection(ExtensionSection):
    """Earlier answers before the question (docs/cli.md#earlier-answers)."""

    section: ClassVar[str] = "history"
    changes_answers: ClassVar[bool] = True

    answers: Annotated[
        int,
        Option(
            "--history N",
            "Earlier answers that stand before the question. [{default}]",
            without="demo",
            group="Question",
        ),
    ] = Field(default=0, ge=0, le=HISTORY_MAX)
    """Number of earlier answers that stand as text before the question, each under the media time of its frame. If they
    do not fit the model's context, the oldest are left out."""
    spans_cuts: bool = False
    """Let answers from before a cut, another size or an outage be among the earlier ones."""
