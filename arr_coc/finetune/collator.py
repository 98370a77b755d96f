"""`AnswerCollator`: pictures, questions and answers → batches that `TrainableQwen.forward` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from arr_coc.errors import OptionError
from arr_coc.finetune.forward import IGNORED
from arr_coc.finetune.pictures import model_picture, pack
from arr_coc.qwen.preprocess import to_frames
from arr_coc.qwen.processor_inputs import ModelPicture
from arr_coc.qwen.prompt import prompt_ids
from arr_coc.qwen.qwenvl import QwenVL


class AnswerCollator:
    """Data collator for `transformers.Trainer` or a DataLoader, in the model's own chat template.

    An example is a mapping of `image` (or `images`, several) to inputs of `arr_coc.texture.pictures.to_rgb`, and of
    `question` and `answer` to text. Only the answer and the end of its turn have labels. A batch holds only tensors
    (`input_ids`, `attention_mask`, `labels`, `question_mask`, `pixel_values` and `image_grid_thw`), so that worker
    processes can build it. `system`: system prompt; None for the chat template's own.
    """

    def __init__(self, qwen: QwenVL, system: str | None = None) -> None:
        """Raise ModelError if the tokenizer has no chat template that shows images."""
        self.tokenizer = qwen.tokenizer
        self._ids = prompt_ids(qwen, system)
        self._plain = qwen.plain_token_ids
        self._preprocessing = qwen.preprocessing
        self._image_id = int(qwen.model.config.image_token_id)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return one batch. Raises OptionError for an example without one of its keys, and errors of `to_rgb`."""
        rows = []
        labels = []
        questions = []
        pictures = []
        for index, example in enumerate(examples):
            model_pictures, question, answer = self._parts(index, example)
            before = [*self._ids.head]
            for picture in model_pictures:
                before += [*self._ids.frame_open, *[self._image_id] * picture.grid.tiles, *self._ids.frame_close]
            before += self._ids.before_query
            query = self._plain(self._ids.shown(question))
            after = self._ids.after_query
            reply = [*self._plain(answer), int(self.tokenizer.eos_token_id)]
            pictures += model_pictures
            rows.append(torch.tensor([*before, *query, *after, *reply]))
            labels.append(torch.tensor([IGNORED] * (len(rows[-1]) - len(reply)) + reply))
            questions.append(torch.tensor([0] * len(before) + [1] * len(query) + [0] * (len(after) + len(reply))))
        padding = self.tokenizer.pad_token_id
        pixel_values, image_grid_thw = pack(pictures, self._preprocessing)
        return {
            "input_ids": pad_sequence(rows, batch_first=True, padding_value=0 if padding is None else padding),
            "attention_mask": pad_sequence([torch.ones_like(row) for row in rows], batch_first=True),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
            "question_mask": pad_sequence(questions, batch_first=True),
            "pixel_values": pixel_values,
            "image_grid_thw": image_grid_thw,
        }

    def _parts(self, index: int, example: Mapping[str, Any]) -> tuple[list[ModelPicture], str, str]:
        pictures = example.get("images", example.get("image"))
        for name, value in (
            ("image", pictures),
            ("question", example.get("question")),
            ("answer", example.get("answer")),
        ):
            if name == "image":
                wrong = value is None
            else:
                wrong = not isinstance(value, str) or not value.strip()
            if wrong:
                raise OptionError(
                    f"example {index} has no {name}; an example has image (or images), question and answer, got "
                    f"the keys {', '.join(map(str, example))}; with a Trainer set remove_unused_columns=False"
                )
        model_pictures = [model_picture(picture, self._preprocessing) for picture in to_frames(pictures)]
        return model_pictures, example["question"], example["answer"]
