"""`python -m training.teacher_compare`: which attention of a model finds what a question asks about.

For each layer and each group of tokens, attention on all tiles of a frame is compared with the boxes: IoU of as many
tiles as are asked about. The middle layers' last token is also turned into masks by several thresholds. Frames are of
the test split, each shown alone with all of its tokens; all kinds of questions count alike.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import torch
import typer

from arr_coc.adaptation.losses import LEAST_SHARE, LOOKED_AT
from arr_coc.adaptation.teacher import AttentionTeacher
from arr_coc.layer_weights import fingerprint
from arr_coc.qwen.attention import attention_weights, probed_layers
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.prompt import prompt_ids
from arr_coc.qwen.qwenvl import QwenVL, rotate_native
from training.allocator_compare import FIRST_MEASURED, held_out_cases

RESULTS = Path(__file__).parent / "results" / "teacher.json"
LAST_TOKENS = 8
"""Last tokens of the prompt that are compared."""

GROUPS = {"last token": 1, "last 2 tokens": 2, "last 4 tokens": 4, "last 8 tokens": 8}
THRESHOLDS = (0.05, 0.1, 0.15, LOOKED_AT, 0.3, 0.4, 0.5)

Maps = torch.Tensor
"""Attention [layers, tokens, tiles], summed over heads."""


class PromptAttention:
    """Notes the attention of the prompt's last tokens in every layer, while it is entered."""

    def __init__(self, qwen: QwenVL) -> None:
        self._qwen = qwen
        ids = prompt_ids(qwen, None)
        self._before = len(ids.head) + len(ids.frame_open)
        self._by_layer: dict[int, torch.Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        layers = self._qwen.language_model.layers
        hooks = [layer.self_attn.register_forward_hook(self._look, with_kwargs=True) for layer in layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def maps(self, tiles: int) -> Maps:
        """Of the prompt that was read last, whose frame has `tiles` tiles."""
        visual = slice(self._before, self._before + tiles)
        return torch.stack([self._by_layer[layer][:, visual] for layer in sorted(self._by_layer)])

    @torch.inference_mode()
    def _look(self, attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        entering = kwargs["hidden_states"][0, -LAST_TOKENS:]
        cos, sin = (part.flatten(0, -2)[-LAST_TOKENS:, None] for part in kwargs["position_embeddings"])
        query = attention.q_proj(entering).view(len(entering), -1, attention.head_dim)
        if hasattr(attention, "q_norm"):
            query = attention.q_norm(query)
        keys = kwargs["past_key_values"].layers[attention.layer_idx].keys[0]
        rows = []
        for index, row in enumerate(rotate_native(query, cos, sin)):
            weights = attention_weights(row, keys[:, : keys.shape[1] - (len(entering) - 1 - index)]).sum(dim=(0, 1))
            rows.append(torch.nn.functional.pad(weights, (0, keys.shape[1] - len(weights))))
        self._by_layer[attention.layer_idx] = torch.stack(rows)


def measured(qwen: QwenVL, clips: int) -> tuple[dict[str, dict[str, float]], dict[str, float], int]:
    """IoU by layers and tokens, IoU of masks by threshold, and the number of cases."""
    teacher, watcher = AttentionTeacher(qwen), PromptAttention(qwen)
    cases = held_out_cases("test", FIRST_MEASURED, clips, with_images=True)
    current_image: Any = None
    overlaps: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    mask_overlaps: dict[float, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        target = (case.target > LEAST_SHARE).flatten()
        if case.image is not None and case.image is not current_image:
            current_image = case.image
            teacher.show(case.image)
        with watcher.watching():
            attention = teacher.attention(case.question).flatten()
        maps = watcher.maps(len(target))
        layers = {str(number): [number] for number in range(len(maps))}
        layers |= {"middle": list(probed_layers(range(len(maps)))), "all": list(range(len(maps)))}
        for name, numbers in layers.items():
            for group, count in GROUPS.items():
                relevance = maps[numbers, -count:].sum(dim=(0, 1))
                overlaps[name, group][case.kind].append(_iou(_largest(relevance, int(target.sum())), target))
        for threshold in THRESHOLDS:
            mask_overlaps[threshold][case.kind].append(_iou(attention >= threshold, target))
    by_layer: dict[str, dict[str, float]] = defaultdict(dict)
    for (name, group), kinds in overlaps.items():
        by_layer[name][group] = _mean(kinds)
    return dict(by_layer), {str(threshold): _mean(kinds) for threshold, kinds in mask_overlaps.items()}, len(cases)


def _largest(values: torch.Tensor, count: int) -> torch.Tensor:
    mask = torch.zeros(len(values), dtype=torch.bool)
    mask[values.topk(count).indices] = True
    return mask


def _iou(mask: torch.Tensor, target: torch.Tensor) -> float:
    return ((mask & target).sum() / (mask | target).sum()).item()


def _mean(kinds: dict[str, list[float]]) -> float:
    return round(float(np.mean([np.mean(values) for values in kinds.values()])), 4)


def main(
    model: Annotated[str, typer.Option(help="The model's folder.")] = "models/scenes-tiny",
    clips: Annotated[int, typer.Option(help="Drawn clips to measure on.")] = 40,
    out: Annotated[Path, typer.Option(help="Path of the figures.")] = RESULTS,
) -> None:
    """Compare layers and tokens as teachers."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    qwen = load_qwen(model, device="cpu")
    by_layer, masks, cases = measured(qwen, clips)
    result = {
        "model": qwen.model_id,
        "weights": fingerprint(qwen.model.get_input_embeddings().weight),
        "clips": clips,
        "cases": cases,
        "iou_of_as_many_tiles": by_layer,
        "iou_of_mask_by_threshold": masks,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    typer.run(main)
