"""BPE tokenizer and chat template.

`python -m training.model.tokenizer` makes it anew; every model trained before then has other numbers for its words.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from training.clips import demo_worlds
from training.clips.scenes import random_plan
from training.clips.truth import KINDS
from training.questions.samples import ask

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

FILE = Path(__file__).with_name("tokenizer.json")
VOCABULARY = 640
"""The special tokens, the 256 bytes (for any text at all), and merges up to every word of the drawn world."""

_CORPUS_WORLDS, _CORPUS_CLIPS = 500, 250
_CORPUS_SEED = 20_000

_PIECES = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Qwen's split of text before merging: words with their space, single digits, punctuation."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}{%- else -%}"
    "{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif part.type == 'video' -%}{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)


@functools.cache
def scenes_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer that the bundled model is trained with; it is kept in a file, so that words keep their numbers."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(FILE)),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        additional_special_tokens=list(SPECIAL_TOKENS[3:]),
        clean_up_tokenization_spaces=False,
    )


def train_tokenizer() -> Tokenizer:
    """A new one, from what training asks and answers now: for models that begin anew."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def special_ids() -> dict[str, Any]:
    """The ids that the model's configuration must name."""
    return {
        "image_token_id": SPECIAL_TOKENS.index("<|image_pad|>"),
        "video_token_id": SPECIAL_TOKENS.index("<|video_pad|>"),
        "vision_start_token_id": SPECIAL_TOKENS.index("<|vision_start|>"),
        "vision_end_token_id": SPECIAL_TOKENS.index("<|vision_end|>"),
    }


def _corpus() -> Iterator[str]:
    """Questions and answers of training; words that are read in pictures stay single letters."""
    rng = np.random.default_rng(_CORPUS_SEED)
    yield from ["system user assistant\n", "<3.2 seconds>", "You are a helpful assistant."] * 20
    for _ in range(_CORPUS_WORLDS):
        facts = demo_worlds.random_facts(rng, (640, 384))
        for kind in demo_worlds.KINDS:
            question = demo_worlds.ask(rng, facts, kind)
            yield question.text
            yield question.answer
    for number in range(_CORPUS_CLIPS):
        clip = random_plan(rng, (512, 512), 1 + number % 2).facts()
        for question_kind in KINDS:
            sample = ask(rng, clip, question_kind, "train")
            if sample is not None:
                yield _CAPITALS.sub("", sample.question)
                yield _CAPITALS.sub("", sample.answer)


_CAPITALS = re.compile("[A-Z]{2,}")


if __name__ == "__main__":
    train_tokenizer().save(str(FILE))
