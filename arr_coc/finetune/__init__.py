"""Fine-tuning of a model and its allocator from pictures, questions and answers."""

from arr_coc.finetune.collator import AnswerCollator
from arr_coc.finetune.module import TrainableQwen
from arr_coc.finetune.parts import LearningRates

__all__ = ["AnswerCollator", "LearningRates", "TrainableQwen"]
