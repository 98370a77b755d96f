"""The prompt of one question, as the project's own session writes it."""

from __future__ import annotations

from collections.abc import Sequence

from arr_coc.qwen.decode import PromptPart
from arr_coc.qwen.encoding import EncodedFrame
from arr_coc.qwen.prompt import prompt_ids, time_text
from arr_coc.qwen.qwenvl import QwenVL
from evaluation.views import View


class Prompt:
    """[system] [frames…] [query] [assistant]: one frame as an image, each of several under its time.

    `text_tokens` counts everything but the frames' own tokens.
    """

    def __init__(self, qwen: QwenVL, views: Sequence[View], query: str) -> None:
        self._qwen = qwen
        ids = prompt_ids(qwen, None)
        self._head, self._close = ids.head, ids.frame_close
        headings = [qwen.token_ids(time_text(view.stamp.media_ns)) if len(views) > 1 else [] for view in views]
        self._openings = [[*heading, *ids.frame_open] for heading in headings]
        self._rest = [*ids.before_query, *qwen.plain_token_ids(query), *ids.after_query]
        around_frames = sum(len(opening) + len(self._close) for opening in self._openings)
        self.text_tokens = len(self._head) + around_frames + len(self._rest)

    def with_frames(self, frames: Sequence[EncodedFrame]) -> tuple[PromptPart, list[slice]]:
        """All of it to be prefilled at once, and where the frames' tokens stand in it."""
        part = PromptPart(self._qwen, 0, 0)
        part.text(self._head)
        places = []
        for opening, frame in zip(self._openings, frames, strict=True):
            part.text(opening)
            places.append(part.frame(frame))
            part.text(self._close)
        part.text(self._rest)
        return part, places
