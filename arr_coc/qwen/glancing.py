"""Glances in a session: their options, and `Glancer`, which glances at pictures while their tokens are chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from arr_coc.allocation.glance import KEEP_OVERVIEW, GlanceOptions
from arr_coc.errors import OptionError
from arr_coc.qwen.attention import check_readable
from arr_coc.qwen.encoding import Packet
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.slot import GlanceResult
from arr_coc.types import NEEDS_TOKENS_ONLY, Feedback, TokenPacket

GlanceChoice: TypeAlias = Literal["auto"] | bool | GlanceOptions
OverviewChoice = Literal["auto", "keep", "drop"]


def resolve_glance(session: AnswerSession, glance: GlanceChoice, overview: OverviewChoice) -> GlanceOptions | None:
    """Return the options of a session's glances; None for no glances.

    `auto`: glance if the model knows the overview's coarse tokens and has no trained allocator, its attention can be
    read, and only chosen tokens are encoded. The attention of a model that has never seen coarse tokens misleads.
    Raises OptionError for an invalid value, or if glances are enabled with an `encode` that makes them useless;
    ModelError if the model cannot glance.
    """
    if overview not in get_args(OverviewChoice):
        raise OptionError(f"overview must be one of {', '.join(get_args(OverviewChoice))}, got {overview!r}")
    takes_tokens_only = session.options.encode in NEEDS_TOKENS_ONLY
    qwen = session.qwen
    suits = qwen.knows_levels and qwen.realiser is None and session.can_glance and takes_tokens_only
    if glance == "auto" and not suits:
        return None
    if glance is False:
        return None
    if glance not in ("auto", True) and not isinstance(glance, GlanceOptions):
        raise OptionError(f'glance must be "auto", True, False or GlanceOptions, got {glance!r}')
    check_readable(session.qwen)
    if not takes_tokens_only:
        raise OptionError(
            f"encode={session.options.encode!r} encodes the whole frame, so a glance would be of no use",
            'leave glance at "auto", or take encode="sparse"',
        )
    if isinstance(glance, GlanceOptions):
        options = glance
    else:
        options = GlanceOptions(keep=KEEP_OVERVIEW)
    if overview == "auto":
        return options
    return replace(options, keep=overview == "keep")


class Glancer:
    """Glances at pictures in order for one question; `glances` holds their results.

    `timed`: pictures are introduced by their times, as several are.
    """

    def __init__(self, session: AnswerSession, query: str, *, timed: bool) -> None:
        self.glances: list[GlanceResult] = []
        self._session = session
        self._query = query
        self._timed = timed

    def after(self, packets: Sequence[Packet]) -> Callable[[TokenPacket], Feedback]:
        """Return a function that glances at the next picture, after `packets`, as the answer's prompt reads it."""
        before = list(packets)

        def glance(overview: TokenPacket) -> Feedback:
            result = self._session.glance([*before, overview], self._query, timed=self._timed)
            self.glances.append(result)
            return result.feedback

        return glance


def unshown_tokens(glances: Sequence[GlanceResult], packets: Sequence[Packet]) -> int:
    """Return the number of tokens of overviews that were glanced at, but are not in the packets of their frames."""
    stamps = {packet.stamp for packet in packets if isinstance(packet, TokenPacket) and packet.overview}
    return sum(glance.work.tokens_used for glance in glances if glance.feedback.stamp not in stamps)
