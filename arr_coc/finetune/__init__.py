"""Fine-tuning of a model and its allocator from pictures, questions and answers."""

from arr_coc.finetune.collator import AnswerCollator
from arr_coc.finetune.module import TrainableQwen

__all__ = ["AnswerCollator", "TrainableQwen"]
