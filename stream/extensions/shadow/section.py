"""Section `[shadow]` of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from stream.config import Config, ExtensionSection
from stream.options.option import Option


class ShadowSection(ExtensionSection):
    """Shadow checks: answers that are compared with those of all tokens (docs/cli.md#shadow-checks)."""

    section: ClassVar[str] = "shadow"
    changes_answers: ClassVar[bool] = True

    every: Annotated[
        int | None,
        Option(
            "--shadow-every N",
            "Answer one frame in N again with all of its tokens, to compare. [off]",
            group="Behaviour",
        ),
    ] = Field(default=None, ge=1)
    """Number of answers after which the last one's frame is answered again with all of its tokens, to compare."""
    compare: Annotated[
        Literal["words", "meaning"],
        Option("--shadow-compare NAME", "Comparison of shadow checks: {choices}. [{default}]", group="Behaviour"),
    ] = "words"
    """`words`: the share of equal words. `meaning`: the model's probability that both answers say the same, which it is
    asked for unless they are equal word for word."""
    agree: float = Field(default=0.8, gt=0, le=1)
    """Share of equal words, or probability, from which two answers agree."""
    act: Annotated[
        bool,
        Option(
            "--shadow-act / --no-shadow-act",
            "Raise the token budget while shadow checks differ. [no]",
            group="Behaviour",
        ),
    ] = False
    """Raise the budget by a step while checks differ too often, and lower it again once they agree; never below the
    configured one. Otherwise, report it."""
    window: int = Field(default=8, ge=1, le=1000)
    """Checks over which the share that differs is taken. Each change of the budget begins a new window."""
    raise_above: float = Field(default=0.25, ge=0, lt=1)
    """The budget rises as soon as more than this share of the window differ."""
    lower_below: float = Field(default=0.15, gt=0, le=1)
    """The budget falls if less than this share differ, and the last `agreeing` agree."""
    agreeing: int = Field(default=6, ge=1, le=1000)
    """Checks in a row that agree before the budget falls, or an alarm ends."""
    step: float = Field(default=1.5, gt=1, le=16)
    """Factor of a rise and a fall."""
    most: float = Field(default=4.0, ge=1, le=64)
    """Largest factor of the configured budget. Of a budget that is `adaptive`, or adapts to `latency.target_ms`,
    `allocate.max_tokens` itself rises, by this factor at most; else the budget stays within it
    (docs/cli.md#when-answers-differ)."""

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        """Yield keys whose values are right alone and not together, and the remedy."""
        answer = config.answer
        if self.every is None:
            if self.act:
                yield "shadow.act", "shadow.act goes by shadow checks; give --shadow-every too, such as 10"
            return
        needs = "shadow.every compares one frame's answer with that of all its tokens"
        if answer.encode == "full":
            yield "shadow.every", f"{needs}, which answer.encode = full gives already; give another --encode"
        if answer.memory.frames > 1:
            yield "shadow.every", f"{needs}; leave answer.memory.frames at 1"
        if config.watch:
            yield "shadow.every", f"{needs}; leave watches out"
        if self.act and answer.encode == "weighted":
            yield (
                "shadow.act",
                "shadow.act moves the budget, which answer.encode = weighted ignores; give --encode sparse, "
                "incremental or prune",
            )
        if self.compare == "meaning" and (answer.json_schema or answer.choices) is not None:
            yield (
                "shadow.compare",
                "answers with a schema are compared by their words; leave shadow.compare = meaning out",
            )
        if self.lower_below > self.raise_above:
            given = "lower_below" if "lower_below" in self.model_fields_set else "raise_above"
            yield (
                f"shadow.{given}",
                f"shadow.lower_below = {self.lower_below:g} is more than shadow.raise_above = {self.raise_above:g}; "
                "lower the one or raise the other",
            )
