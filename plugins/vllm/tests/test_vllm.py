"""The plugin in vLLM, on the CPU, with the bundled model: golden texts, identity, positions, refusals.

Runs where vLLM and the plugin are installed, and by name: the engine starts in a minute.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import io
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("vllm", reason="vLLM is not installed here; see plugins/vllm/README.md")

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}

import torch
from arr_coc_vllm.inputs import PacketItems
from arr_coc_vllm.models import POSITIONS_MORE, patch_places, token_rows, with_halves
from arr_coc_vllm.packet import Packet, PacketError, find_places, read_packet
from vllm import LLM, SamplingParams
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY

MODEL = Path(__file__).parents[3] / "models" / "scenes-tiny"
REQUESTS = json.loads((Path(__file__).parent / "golden" / "requests.json").read_text("utf-8"))
PROMPT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(
        str(MODEL),
        dtype="float32",
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=8,
        block_size=32,
        limit_mm_per_prompt={"image": 4, "video": 0},
        disable_log_stats=False,
    )


def texts(llm: LLM, contents: list[list[dict[str, Any]]], tokens: int = 64) -> list[str]:
    messages: Any = [[{"role": "user", "content": content}] for content in contents]
    return [
        output.outputs[0].text for output in llm.chat(messages, SamplingParams(temperature=0, max_tokens=tokens), False)
    ]


def png_of(part: dict[str, Any]) -> bytes:
    return base64.b64decode(part["image_url"]["url"].partition(",")[2])


def packet_in(png: bytes) -> Packet:
    places = find_places(png)
    assert places is not None
    return read_packet(places, np.asarray(Image.open(io.BytesIO(png))))


def picture_part() -> dict[str, Any]:
    with io.BytesIO() as file:
        Image.new("RGB", (96, 64), (255, 0, 0)).save(file, "PNG")
        url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def test_the_texts_are_golden(llm: LLM) -> None:
    """One after the other, and all at once."""
    golden = [request["text"] for request in REQUESTS]
    assert [texts(llm, [request["content"]])[0] for request in REQUESTS] == golden
    llm.reset_prefix_cache()
    assert texts(llm, [request["content"] for request in REQUESTS]) == golden


def test_a_packet_is_an_input_of_the_offline_api(llm: LLM) -> None:
    part, question = REQUESTS[0]["content"]
    prompt: Any = {
        "prompt": PROMPT.format(question["text"]),
        "multi_modal_data": {"image": [packet_in(png_of(part))]},
    }
    outputs = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=64), use_tqdm=False)
    assert outputs[0].outputs[0].text == REQUESTS[0]["text"]


def test_ordinary_pictures_are_answered_about_beside_packets(llm: LLM) -> None:
    picture = [picture_part(), REQUESTS[0]["content"][1]]
    (single_text,) = texts(llm, [picture])
    assert single_text
    llm.reset_prefix_cache()
    mixed_texts = texts(llm, [picture, REQUESTS[0]["content"], picture, REQUESTS[1]["content"]])
    assert mixed_texts == [single_text, REQUESTS[0]["text"], single_text, REQUESTS[1]["text"]]


def test_a_packet_of_all_tiles_is_an_ordinary_picture(llm: LLM) -> None:
    """To the model; the log-probabilities differ by rounding. Tiles at other places differ by much more."""
    picture = np.random.default_rng(2).integers(0, 256, (6 * 32, 8 * 32, 3), dtype=np.uint8)
    tiles = np.ascontiguousarray(picture.reshape(6, 32, 8, 32, 3).transpose(0, 2, 4, 1, 3)).reshape(48, 3, 32, 32)
    regions = np.stack([np.zeros(48, np.int64), np.arange(48) // 8, np.arange(48) % 8], axis=-1)
    sampling = SamplingParams(temperature=0, max_tokens=1, logprobs=3)
    images: list[Any] = [
        Image.fromarray(picture),
        Packet(tiles, regions, 6, 8),
        Packet(tiles, regions[::-1].copy(), 6, 8),
    ]
    logprobs = []
    for image in images:
        prompt: Any = {"prompt": PROMPT.format("what moves?"), "multi_modal_data": {"image": [image]}}
        (first,) = llm.generate(prompt, sampling, use_tqdm=False)[0].outputs[0].logprobs
        logprobs.append({token: entry.logprob for token, entry in first.items()})
    assert logprobs[1] == pytest.approx(logprobs[0], abs=1e-4)
    assert logprobs[2] != pytest.approx(logprobs[0], abs=1e-2)


def test_one_name_for_two_frames_gives_each_its_answer(llm: LLM) -> None:
    contents = copy.deepcopy([REQUESTS[0]["content"], REQUESTS[3]["content"]])
    for content in contents:
        content[0]["uuid"] = "the same"
    assert [texts(llm, [content])[0] for content in contents] == [REQUESTS[0]["text"], REQUESTS[3]["text"]]


def test_a_packet_may_be_named_alone_once_it_is_known(llm: LLM) -> None:
    content = copy.deepcopy(REQUESTS[0]["content"])
    texts(llm, [content])
    content[0]["image_url"] = None
    assert texts(llm, [content]) == [REQUESTS[0]["text"]]
    content[0]["uuid"] = "0" * 64
    with pytest.raises(ValueError, match="Cache miss"):
        texts(llm, [content])


def test_a_second_question_computes_its_own_tokens(llm: LLM) -> None:
    """Of a prompt in blocks of 32 tokens, the whole ones before the question are not computed again."""
    llm.reset_prefix_cache()
    part = REQUESTS[0]["content"][0]
    counted = []
    for question in ("what moves?", "is there a red circle?"):
        messages: Any = [{"role": "user", "content": [part, {"type": "text", "text": question}]}]
        (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
        counted.append(output.num_cached_tokens)
    assert counted == [0, 64]


def test_packets_and_pictures_are_not_mixed(llm: LLM) -> None:
    with pytest.raises(PacketError, match="not both"):
        texts(llm, [[picture_part(), *REQUESTS[0]["content"]]])
    assert texts(llm, [REQUESTS[0]["content"]]) == [REQUESTS[0]["text"]]


def test_packets_beside_other_inputs_are_refused(llm: LLM) -> None:
    processor = llm.llm_engine.renderer.mm_processor
    packet = packet_in(png_of(REQUESTS[0]["content"][0]))
    with pytest.raises(PacketError, match="send all packets again"):
        processor._apply_hf_processor_main({"image": PacketItems([packet, None], "image")}, {})
    with pytest.raises(PacketError, match="packets or videos, not both"):
        processor._apply_hf_processor_main({"image": PacketItems([packet], "image"), "video": [None]}, {})


def test_packets_changed_at_random_are_read_or_refused(llm: LLM) -> None:
    """10,000 PNG files through vLLM's own reader of pictures and the plugin's parser: nothing but ValueError."""
    parser = llm.llm_engine.renderer.mm_processor.info.data_parser
    connector: Any = MEDIA_CONNECTOR_REGISTRY.load("http")
    original, numbers = (Path(__file__).parent / "golden" / "packet.png").read_bytes(), random.Random(3)
    packet_count = error_count = 0
    for _ in range(10_000):
        changed = bytearray(original)
        for _ in range(numbers.randint(1, 4)):
            at = numbers.randrange(len(changed) if numbers.random() < 0.5 else 120)
            changed[at : at + numbers.randint(0, 3)] = numbers.randbytes(numbers.randint(0, 3))
        try:
            url = f"data:image/png;base64,{base64.b64encode(changed).decode()}"
            items = parser.parse_mm_data({"image": [asyncio.run(connector.fetch_image_async(url))]})["image"]
            packet_count += isinstance(items, PacketItems)
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
            error_count += 1
    assert packet_count
    assert error_count > 5_000


def test_positions_are_those_of_the_embedded_engine() -> None:
    """By the formulas of `arr_coc.qwen.preprocess`: patches in level-0 patches, tokens in rows of the table."""
    regions = torch.tensor([[0, 2, 3], [1, 1, 0], [2, 0, 1], [6, 3, 1]])
    places = patch_places(regions).reshape(4, 4, 2)
    assert places[0].tolist() == [[4, 6], [4, 7], [5, 6], [5, 7]]
    assert places[1].tolist() == [[4.5, 0.5], [4.5, 2.5], [6.5, 0.5], [6.5, 2.5]]
    assert places[3].tolist() == [[6, 4.5], [6, 6.5], [7, 4.5], [7, 6.5]]
    rows = token_rows(regions, 10, 1000)
    assert rows[0].tolist() == [10] * 4
    assert rows[1].tolist() == [12, 1012, 1011, 13]
    assert rows[2].tolist() == [13, 1010, 1015, 1012]
    assert int(token_rows(regions, 2000, 1000).max()) < 2000


def test_the_rotary_table_holds_halves(llm: LLM) -> None:
    from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding

    def tables(model: Any) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
        rotaries = [part for part in model.language_model.modules() if isinstance(part, MRotaryEmbedding)]
        return [
            (with_halves(rotary), rotary.cos_sin_cache, rotary._compute_inv_freq(rotary.base)) for rotary in rotaries
        ]

    ((rows, table, frequencies),) = llm.apply_model(tables)[0]
    assert len(table) == 2 * rows
    assert rows > POSITIONS_MORE
    angles = torch.tensor([[7.0], [7.5]]) * frequencies
    expected = torch.cat([angles.cos(), angles.sin()], dim=-1)
    torch.testing.assert_close(table[[7, rows + 7]], expected, atol=1e-6, rtol=0)


def test_another_rotary_table_is_refused(llm: LLM) -> None:
    from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding

    def extended(model: Any) -> str:
        rotary = next(copy.deepcopy(module) for module in model.modules() if isinstance(module, MRotaryEmbedding))
        del rotary.arr_coc_rows
        rotary.cos_sin_cache = rotary.cos_sin_cache.roll(1, dims=0)
        with pytest.raises(RuntimeError, match="rotary table") as caught:
            with_halves(rotary)
        return str(caught.value)

    assert "VLLM_PLUGINS" in llm.apply_model(extended)[0]


def test_pixels_are_normalised_once(llm: LLM) -> None:
    """By the tower, or by the plugin for a vLLM that was set so."""
    tiles = torch.arange(2 * 3 * 32 * 32, dtype=torch.int64).remainder(256).to(torch.uint8).reshape(2, 3, 32, 32)

    def rows(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
        scale = model._pixel_scale
        half = torch.full((3, 1, 1), 0.5)
        try:
            model._pixel_scale = None
            raw = model.visual.input_norm(model._patches(tiles), torch.float32)
            model._pixel_scale = (half, half)
            return raw, model._patches(tiles)
        finally:
            model._pixel_scale = scale

    raw, local = llm.apply_model(rows)[0]
    expected = tiles.float() / 127.5 - 1
    torch.testing.assert_close(local[1].reshape(3, 2, 16, 16)[:, 1], expected[0, :, :16, 16:], atol=1e-6, rtol=0)
    torch.testing.assert_close(raw, local, atol=1e-6, rtol=0)
