"""The bundled model's tokenizer: byte-level BPE, small, with Qwen's special tokens and chat template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from training.demo_worlds import KINDS, ask, random_facts

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

VOCABULARY = 640
"""The special tokens, the 256 bytes (so that any text can be said), and merges up to every word of the drawn world."""

_CORPUS_WORLDS = 1500
_CORPUS_SEED = 20_000

_PIECES = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Qwen splits text before merging: words with their space, single digits, punctuation."""

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


def train_tokenizer() -> PreTrainedTokenizerFast:
    """The same tokenizer on every call."""
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
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        additional_special_tokens=list(SPECIAL_TOKENS[3:]),
        clean_up_tokenization_spaces=False,
    )


def special_ids() -> dict[str, Any]:
    """The ids that the model's configuration must name."""
    return {
        "image_token_id": SPECIAL_TOKENS.index("<|image_pad|>"),
        "video_token_id": SPECIAL_TOKENS.index("<|video_pad|>"),
        "vision_start_token_id": SPECIAL_TOKENS.index("<|vision_start|>"),
        "vision_end_token_id": SPECIAL_TOKENS.index("<|vision_end|>"),
    }


def _corpus() -> Iterator[str]:
    rng = np.random.default_rng(_CORPUS_SEED)
    yield from ["system user assistant\n", "<3.2 seconds>", "You are a helpful assistant."] * 20
    for _ in range(_CORPUS_WORLDS):
        facts = random_facts(rng, (640, 384))
        for kind in KINDS:
            question = ask(rng, facts, kind)
            yield question.text
            yield question.answer
