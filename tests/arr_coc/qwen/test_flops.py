"""Analytic FLOPs compared with torch's count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from arr_coc.qwen import onednn
from arr_coc.qwen.cache import empty_cache
from arr_coc.qwen.decode import PromptPart, decode_one_token, prefill
from arr_coc.qwen.encoding import encode_packet
from arr_coc.qwen.families import CHUNK
from arr_coc.qwen.flops import Costs, Flops
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import Encode, FrameStamp
from evaluation.strategies.base import TiledFrame
from evaluation.strategies.session import EvalPrompt
from tests.support.evaluation import picture
from tests.support.models import tiny_qwen


def counted(work: Callable[[], object]) -> int:
    """Torch's count of products, attention's too (of all pairs: it multiplies what the mask hides)."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_vl", "qwen3_vl_moe"])
def test_every_part_is_what_torch_counts(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "gains_by_onednn", lambda: False)  # torch does not count oneDNN's products
    qwen: QwenVL = tiny_qwen(family)
    if family == "qwen3_vl_moe":
        qwen.model.set_experts_implementation("eager")  # torch does not count grouped products
    costs = Costs(qwen)
    view = TiledFrame.fit(qwen.preprocessing, picture(), FrameStamp(0, 0, 0))
    packet = view.frame_packet(np.ones(view.grid.shape, bool))
    frame = encode_packet(qwen, packet, "full")
    assert costs.encode(view.grid.tiles) == counted(lambda: encode_packet(qwen, packet, "full"))

    prompt = EvalPrompt(qwen, [view], "What is it?")
    part, _ = prompt.with_frames([frame])
    length = prompt.text_tokens + view.grid.tiles
    assert part.tokens == length
    cache = empty_cache(qwen)
    attended = qwen.language_model.layers[0].self_attn.q_proj.out_features
    hidden_pairs = costs.layers * length * (length - 1) // 2
    masked = 4 * attended * hidden_pairs
    assert costs.prefill([length] * costs.layers) + masked == counted(lambda: prefill(qwen, part, cache))
    step = counted(lambda: decode_one_token(qwen, torch.tensor(9), part.position, cache.kv))
    assert costs.decode([length] * costs.layers, 1) == step


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_a_recurrent_layer_is_what_torch_counts_and_the_systems_that_it_solves(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "gains_by_onednn", lambda: False)
    qwen, length = tiny_qwen(family), 2 * CHUNK
    if family == "qwen3_5_moe":
        qwen.model.set_experts_implementation("eager")
    costs, layer, layers = Costs(qwen), qwen.language_model.layers[0].linear_attn, qwen.layers
    part, cache = PromptPart(qwen, 0, 0), empty_cache(qwen)
    part.text([9] * length)
    attended = qwen.attentions[1].o_proj.in_features
    masked = 4 * attended * len(layers.attending) * length * (length - 1) // 2
    solved = length * CHUNK * layer.num_v_heads * (layer.head_k_dim + layer.head_v_dim)
    behind = 2 * 3 * layer.conv1d.weight.numel()  # the convolution gives three rows more, which are left out
    counted_by_torch = counted(lambda: prefill(qwen, part, cache))
    estimate = costs.prefill([length] * costs.layers)
    assert estimate + masked + len(layers.recurrent) * (behind - solved) == counted_by_torch
    assert costs.decode([length] * costs.layers, 1) < estimate / length * 1.2


def test_attention_inside_windows_costs_less() -> None:
    windowed, plain = tiny_qwen("qwen2_5_vl"), tiny_qwen("qwen2_5_vl")
    vars(plain.tower)["fullatt_block_indexes"] = list(range(4))
    assert Costs(windowed).encode(10) == Costs(plain).encode(10)
    assert Costs(windowed).encode(100) < Costs(plain).encode(100)


def test_each_further_token_sees_one_more() -> None:
    costs = Costs(tiny_qwen())
    lengths = [20, 10, 10]
    assert costs.decode(lengths, 2) == costs.decode(lengths, 1) + costs.decode([21, 11, 11], 1)
    assert costs.decode(lengths, 0) == 0


@pytest.mark.parametrize(
    ("encode", "visual_tokens", "encoded"),
    [("sparse", 10, 10), ("incremental", 10, 10), ("prune", 10, 40), ("weighted", 40, 40), ("full", 40, 40)],
)
def test_the_work_of_an_answer_is_that_of_its_parts(encode: Encode, visual_tokens: int, encoded: int) -> None:
    costs = Costs(tiny_qwen())
    work = costs.work(encode, [visual_tokens, visual_tokens], [40, 40], 9, 3)
    lengths = [9 + 2 * visual_tokens] * costs.layers
    assert work.flops == 2 * costs.encode(encoded) + costs.prefill(lengths) + costs.decode(lengths, 3)
    full = [9 + 2 * 40] * costs.layers
    assert work.full_flops == 2 * costs.encode(40) + costs.prefill(full) + costs.decode(full, 3)
    assert (work.flops < work.full_flops) == (visual_tokens < 40)


def test_the_total_is_the_sum_of_the_parts() -> None:
    assert Flops(1, 20, 300, 4000).total == 4321
