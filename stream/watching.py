"""Watching for something: a standing question beside what is asked anyway, or instead of it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from msgspec.structs import replace

from stream.events import Event, Looked, Notice, Turned
from stream.looks import LookRules, LookTriggers, StandingAnswer, VerdictRules

QUESTION_CHARS = 60
"""Of a question, so much is repeated in a notice."""

NO_YES_OR_NO = "no-yes-or-no"
"""The code of the notice that the model answers a standing question with something else."""


@dataclass(frozen=True, slots=True)
class WatchPolicy:
    """`alone`: nothing else is asked. `stop`: the run is over once the answer has turned to yes.

    `holds`: the answer that held before, where this run goes on for another one. `force`: watch also with a model whose
    yes means nothing here.
    """

    question: str
    looks: LookRules
    verdicts: VerdictRules
    alone: bool
    stop: bool
    holds: bool | None = None
    force: bool = False


class Watch:
    """Takes looks, and makes of them what is told. `warning` stands beside all of it, where there is one."""

    def __init__(self, policy: WatchPolicy) -> None:
        self.policy = policy
        self.triggers = LookTriggers(policy.looks)
        self._standing = StandingAnswer(policy.verdicts)
        self._standing.answer = policy.holds
        self._warned = False
        self.warning: str | None = None

    def take(self, look: Looked) -> list[Event]:
        """The look with what holds after it, and what follows from it."""
        turned = self._standing.look(look.yes, look.certain)
        if self._standing.unsure:
            self.triggers.again()
        answer = self._standing.answer
        holds = None if answer is None else _word(answer)
        told: list[Event] = [replace(look, holds=holds, warning=self.warning)]
        if turned and holds is not None:
            told.append(
                Turned(
                    frame_index=look.frame_index,
                    pts_s=look.pts_s,
                    question=look.question,
                    to=holds,
                    yes=look.yes,
                    certain=look.certain,
                    warning=self.warning,
                )
            )
        if self._standing.off_topic(look.certain) and not self._warned:
            self._warned = True
            told.append(Notice(code=NO_YES_OR_NO, message=_off_topic_text(look)))
        return told

    def over(self, event: Event) -> bool:
        """Whether the run is over with this event."""
        return self.policy.stop and isinstance(event, Turned) and event.to == _word(True)


def _word(answer: bool) -> str:
    return "yes" if answer else "no"


def _off_topic_text(look: Looked) -> str:
    question = textwrap.shorten(look.question, QUESTION_CHARS, placeholder="…")
    return (
        f"the model answers {question!r} with neither yes nor no (both together have {100 * look.certain:.1f} % of the "
        "probability); such looks turn nothing: ask something that yes or no answers"
    )
