"""`AttentionTeacher`: what a model looks at when it is about to answer, shown every tile of a picture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.errors import ModelError
from arr_coc.qwen.attention import unreadable_layer
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.texture.regions import paint
from arr_coc.types import FrameStamp, TokenPacket
from arr_coc.video.picture_allocator import PictureAllocator


class AttentionTeacher:
    """A model that is asked about pictures, one at a time; its tokens are not chosen, but all shown.

    What is read is a glance at all tiles: the attention of the prompt's last token in the layer that a glance looks at.
    That token finds what the question asks about; the tokens before it and the answer's own also look elsewhere
    (`training/results/teacher.json`).
    """

    def __init__(self, qwen: QwenVL) -> None:
        """Raise ModelError if the model's attention cannot be read."""
        if unreadable_layer(qwen) is not None:
            raise _unreadable(qwen)
        self._session = AnswerSession(qwen, AnswerOptions(decoding=Decoding(max_tokens=1)))
        self._all_tiles = AllocatorOptions("grid", budget="100%", explore=0.0)
        self._qwen = replace(qwen, allocator=None)
        self._packet: TokenPacket | None = None
        self._frames = 0

    def show(self, image: npt.NDArray[np.uint8]) -> None:
        """Show a picture uint8 RGB [H, W, 3], which the questions that follow are about."""
        packet = PictureAllocator(self._qwen, "", self._all_tiles).allocate(image, FrameStamp(self._frames, 0, 0))
        assert isinstance(packet, TokenPacket), "only frames whose allocation failed are shown whole"
        self._packet = replace(packet, overview=len(packet.regions))
        self._frames += 1

    def attention(self, question: str) -> torch.Tensor:
        """Return the attention on each tile divided by its largest: float32 [gh, gw] in [0, 1].

        Raises ModelError if no attention can be read, and as `AnswerSession.glance`.
        """
        assert self._packet is not None, "no picture is shown"
        feedback = self._session.glance(self._packet, question).feedback
        if not feedback.attention.any():
            raise _unreadable(self._qwen)
        return torch.from_numpy(paint(feedback.regions, feedback.attention, self._packet.grid.shape, 0.0)).float()


def _unreadable(qwen: QwenVL) -> ModelError:
    return ModelError(
        f"the attention of {qwen.model_id} cannot be read, so it cannot teach",
        "take a Qwen-VL model, or give only --boxes to learn from",
    )
