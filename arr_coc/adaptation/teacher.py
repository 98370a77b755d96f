"""`AttentionTeacher`: what a model looks at when it is about to answer, shown every tile of a picture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.errors import ModelError
from arr_coc.ops.regions import paint
from arr_coc.qwen.encoding import Packet
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import FrameStamp
from arr_coc.video.picture_allocator import PictureAllocator


class AttentionTeacher:
    """A model that is asked about pictures, one at a time; its tiles and its tokens are not chosen, but all shown.

    What is read is the attention of the prompt's last token in the middle layers, as `AttentionProbe` takes it. That
    token finds what the question asks about: the answer's own tokens look at it less, and at what comes next as well
    (`training/results/teacher.json`).
    """

    def __init__(self, qwen: QwenVL) -> None:
        self._session = AnswerSession(qwen, AnswerOptions(decoding=Decoding(max_tokens=1)))
        self._everything = AllocatorOptions("grid", budget="100%", explore=0.0)
        self._qwen = replace(qwen, allocator=None)
        self._packet: Packet | None = None
        self._frames = 0

    def show(self, image: npt.NDArray[np.uint8]) -> None:
        """Shows a picture uint8 RGB [H, W, 3], which the questions that follow are about."""
        allocator = PictureAllocator(self._qwen, "", self._everything)
        self._packet = allocator.allocate(image, FrameStamp(self._frames, self._frames, 0))
        self._frames += 1

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the picture's tiles, as the model sees them."""
        assert self._packet is not None, "no picture is shown"
        return self._packet.grid.shape

    def attention(self, question: str) -> torch.Tensor:
        """The attention on each tile divided by its largest: float32 [gh, gw] in [0, 1].

        Raises ModelError where none can be read, and as `AnswerSession.answer`.
        """
        assert self._packet is not None, "no picture is shown"
        try:
            for _ in self._session.answer(self._packet, question):
                pass
        except AttributeError as error:
            raise _unreadable(self._qwen) from error
        feedback = self._session.last.feedback
        if feedback is None or not np.isfinite(feedback.attention).all() or not feedback.attention.any():
            raise _unreadable(self._qwen)
        return torch.from_numpy(paint(feedback.regions, feedback.attention, self.grid, 0.0)).float()


def _unreadable(qwen: QwenVL) -> ModelError:
    return ModelError(
        f"the attention of {qwen.model_id} cannot be read, so it cannot teach",
        "take a Qwen-VL model, or give boxes to learn from",
    )
