"""Contract of a model family: every row of the table answers, remembers, glances, learns and is sized correctly.

A family that is added to `arr_coc.qwen.families` and to the tiny models of `tests.support.models` is tested here, and
wherever else tests take `FAMILIES`.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from arr_coc.errors import ModelError
from arr_coc.qwen import families, loading
from arr_coc.qwen.batching.slots import check_slots
from arr_coc.qwen.cache import PrefixCache, empty_cache
from arr_coc.qwen.encoding import encode_packet
from arr_coc.qwen.grounding import NAMING_TOKENS
from arr_coc.qwen.loading import FALLBACK_LOGGER, load_qwen
from arr_coc.qwen.memory_estimate import MemoryEstimate, ModelSpec, Workload
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.session import AnswerSession, SlotQuestion
from arr_coc.types import Encode, TileGrid
from stream.config import Config
from stream.extensions.doctor import model_fit
from tests.arr_coc.finetune.test_forward import fresh, stock_batch
from tests.arr_coc.qwen.test_memory import GROUP, NOTHING_NEW, frame, next_logits, reference_logits
from tests.arr_coc.qwen.test_parity import QUERY, Stock, own_logits, whole_packet
from tests.support.models import FAMILIES, tiny_folder, tiny_qwen

OTHER_QUERY = "Say what happens."


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def session(family: str, slots: int = 1, *, plainly: bool = True) -> AnswerSession:
    qwen = tiny_qwen(family)
    if not plainly:
        vars(qwen)["decodes_plainly"] = False  # as for a model that is spread over devices
    return AnswerSession(qwen, AnswerOptions(decoding=Decoding(max_tokens=5)), slots)


def answer_ids(speaking: AnswerSession, packets: list[object], query: str = QUERY) -> tuple[int, ...]:
    list(speaking.answer(packets, query))  # type: ignore[arg-type]
    return speaking.last.token_ids


def test_all_of_the_table_are_tested() -> None:
    assert {*FAMILIES} == {*families.FAMILIES}


@pytest.mark.parametrize("encode", ["full", "prune", "sparse"])
@torch.no_grad()
def test_parity(family: str, encode: Encode) -> None:
    qwen = tiny_qwen(family)
    stock = Stock(qwen)
    packet = whole_packet(qwen, stock, encode)
    logits = own_logits(qwen, encode_packet(qwen, packet, encode))
    torch.testing.assert_close(logits, stock.logits(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("plainly", [True, False])
@torch.inference_mode()
def test_memory(family: str, plainly: bool) -> None:
    """After an answer in between and a rewound question, the memory equals one fresh prefill."""
    speaking = session(family, plainly=plainly)
    for count, query in ((1, QUERY), (2, QUERY), (2, OTHER_QUERY), (4, QUERY)):
        packets = [*GROUP, NOTHING_NEW][:count]
        answer_ids(speaking, packets, query)
        logits = next_logits(speaking, packets, query)
        torch.testing.assert_close(logits, reference_logits(speaking, packets, query), atol=1e-5, rtol=0)
    assert answer_ids(speaking, [*GROUP, NOTHING_NEW]) == answer_ids(session(family), [*GROUP, NOTHING_NEW])


@pytest.mark.parametrize("plainly", [True, False])
def test_states_do_not_grow_with_the_number_of_frames(family: str, plainly: bool) -> None:
    """Frames are read at once, one by one, and after a frame without a copy of the states."""
    frames = [replace(frame(number, [number, number + 1]), place=None) for number in range(6)]
    at_once, by_frame = session(family, plainly=plainly), session(family, plainly=plainly)
    ids = answer_ids(at_once, frames)  # type: ignore[arg-type]
    for count in range(2, len(frames) + 1):
        answer_ids(by_frame, frames[:count])  # type: ignore[arg-type]
        assert by_frame.last.work.appended_tokens == (2 if count > 2 else 4)
    for speaking in (at_once, by_frame):
        cache = speaking.prompts.cache
        assert len(cache.marks) == 7
        assert sum(bool(mark.states) for mark in cache.marks) == (families.STATES - 1 if cache.recurrent_layers else 0)
        assert answer_ids(speaking, frames) == ids  # type: ignore[arg-type]
        assert speaking.last.work.appended_tokens == 0
        for other in ([*frames[:2], *frames[3:]], [*frames[:5], frames[0]]):
            assert answer_ids(speaking, other) == answer_ids(session(family), other)  # type: ignore[arg-type]


def test_slots(family: str) -> None:
    several = session(family, slots=3)
    for count in (1, 2, 3):
        questions = [
            SlotQuestion(2, GROUP[:count], QUERY, vision=several.slots[2].vision),
            SlotQuestion(0, [frame(80 + count, [0, 3])], OTHER_QUERY, vision=several.slots[0].vision),
        ]
        answers = several.ask(questions)
        while several.open_answers:
            several.step()
        for answer, question in zip(answers, questions, strict=True):
            assert answer.result is not None, answer.error
            assert answer.result.token_ids == answer_ids(session(family), question.packets, question.query)  # type: ignore[arg-type]


def test_slots_that_do_not_fit_are_counted(family: str) -> None:
    qwen = tiny_qwen(family)
    cache = AnswerSession(qwen).prompts.cache
    assert isinstance(cache, PrefixCache)
    check_slots(qwen, 2, 256, free=2 * slot_bytes(family))
    with pytest.raises(ValueError, match="2 slots of 256 tokens need"):
        check_slots(qwen, 2, 256, free=2 * slot_bytes(family) - 1)


def slot_bytes(family: str) -> int:
    """Return the bytes of keys and values of 256 tokens, and of a prompt's states."""
    qwen = tiny_qwen(family)
    speaking = AnswerSession(qwen, AnswerOptions(decoding=Decoding(max_tokens=1)))
    answer_ids(speaking, [GROUP[0]])
    cache = speaking.prompts.cache
    keys = sum(layer.room_keys.nbytes + layer.room_values.nbytes for layer in cache.attention_layers)
    states = sum(part.nbytes for layer in cache.recurrent_layers if layer.state for part in layer.state)
    return keys + families.STATES * states


@pytest.mark.parametrize("plainly", [True, False])
def test_glance(family: str, plainly: bool) -> None:
    speaking = session(family, plainly=plainly)
    answer_ids(speaking, GROUP[:2])  # type: ignore[arg-type]
    feedback = speaking.glance([*GROUP[:2], frame(2, [])], OTHER_QUERY).feedback
    assert feedback.attention.max() == 1
    assert len(feedback.attention) == len(feedback.regions) == 5
    assert answer_ids(speaking, GROUP) == answer_ids(session(family), GROUP)  # type: ignore[arg-type]


def test_attention_does_not_depend_on_the_passes_of_a_prefill(family: str) -> None:
    """A glance at an overview, a glance at a group of pictures, and an answer's feedback."""
    overview = replace(frame(0, [0, 1, 2, 3]), place=None, overview=4)
    attentions: list[list[torch.Tensor]] = []
    for plainly in (True, False):
        speaking = session(family, plainly=plainly)
        glances = [speaking.glance(overview, QUERY).feedback, speaking.glance(GROUP[:2], QUERY).feedback]
        answer_ids(speaking, [frame(80, [0, 3, 7])])
        attentions.append([torch.from_numpy(feedback.attention) for feedback in (*glances, speaking.last.feedback)])
    for plain, stock in zip(*attentions, strict=True):
        torch.testing.assert_close(plain, stock, atol=1e-5, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_fine_tuning(family: str, side: str) -> None:
    """The loss has a gradient to the allocator, and padding on either side does not change it."""
    model = fresh(family=family).train()
    batch = stock_batch(model.qwen, side)
    loss = model(**batch).loss
    loss.backward()
    gradients = [parameter.grad for parameter in model.allocator.parameters() if parameter.grad is not None]
    assert sum(float(gradient.abs().sum()) for gradient in gradients) > 0
    other = stock_batch(model.qwen, "right" if side == "left" else "left")
    torch.testing.assert_close(model(**other).loss, loss, atol=1e-5, rtol=0)


def test_doctor(family: str, tmp_path: Path) -> None:
    """Sizes read from a folder equal those of the loaded model and of its cache."""
    folder = tiny_folder(tmp_path / "tiny", family)
    spec, qwen = ModelSpec.read(folder, "tiny"), load_qwen(folder, dtype="float32")
    assert spec.family.model_type == family
    assert spec.parameters == sum(parameter.numel() for parameter in qwen.model.parameters())
    assert spec.decoder == qwen.layers
    cache = MemoryEstimate.of(spec, "float32", Workload(visual_tokens=250, other_tokens=6)).cache
    assert cache == slot_bytes(family)
    assert len(empty_cache(qwen).kv.layers) == len(qwen.language_model.layers)


def test_weights_that_answering_does_not_read_are_not_counted(tmp_path: Path) -> None:
    """Published Qwen3.5 folders have layers that predict several tokens at once."""
    folder = tiny_folder(tmp_path / "tiny", "qwen3_5")
    before, weights = ModelSpec.read(folder, "tiny"), load_file(folder / "model.safetensors")
    weights |= {"mtp.layers.0.mlp.up_proj.weight": torch.zeros(96, 64), "mtp.norm.weight": torch.zeros(64)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert ModelSpec.read(folder, "tiny") == before
    assert answer_ids(AnswerSession(load_qwen(folder, dtype="float32")), [GROUP[0]])


def test_the_fallback_to_torch_is_not_printed(tmp_path: Path) -> None:
    load_qwen(tiny_folder(tmp_path / "tiny", "qwen3_5"))
    logger = logging.getLogger(FALLBACK_LOGGER)
    for text, is_logged in (
        ("`f` is falling back to its reference PyTorch implementation because", False),
        ("else", True),
    ):
        assert bool(logger.filter(logger.makeRecord(logger.name, logging.WARNING, "", 0, text, (), None))) == is_logged


@pytest.mark.parametrize(
    ("installed", "works"), [("5.20.3", False), ("4.57.1", False), ("5.21.0", True), ("6.0", True)]
)
def test_an_older_transformers_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str, works: bool
) -> None:
    monkeypatch.setattr(families, "version", lambda _: installed)
    folder = tiny_folder(tmp_path / "recurrent", "qwen3_5")
    answer = {"model": str(folder), "device": "cpu"}
    check = model_fit.model(Config.model_validate({"source": "x.mp4", "answer": answer}))
    assert (check.state == "works") == works
    if not works:
        line = rf"^recurrent is a Qwen3.5 model, .* 5\.21 or newer, and {installed} is"
        assert re.match(line, check.found)
        with pytest.raises(ModelError, match=line):
            load_qwen(folder)
    assert answer_ids(AnswerSession(load_qwen(tiny_folder(tmp_path / "attending"))), [GROUP[0]])


def test_an_older_transformers_is_named_before_weights_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[tuple[object, ...]] = []

    def download(name: str, token: str | None, *files: object) -> Path:
        fetched.append(files)
        return tmp_path

    (tmp_path / "config.json").write_text('{"model_type": "qwen3_5"}')
    monkeypatch.setattr(families, "version", lambda _: "5.20.0")
    monkeypatch.setattr(loading, "download", download)
    with pytest.raises(ModelError, match=r"needs transformers 5\.21 or newer"):
        load_qwen("owner/model")
    assert fetched == [(("config.json",),)]


OTHERS: dict[str, dict[str, object]] = {
    "Gemma 3": {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "mm_tokens_per_image": 256},
    "Gemma 3n": {"model_type": "gemma3n", "vision_config": {"model_type": "gemma3n_vision"}},
    "InternVL": {
        "model_type": "internvl_chat",
        "llm_config": {"model_type": "qwen3"},
        "auto_map": {"AutoModel": "m.M"},
    },
    "InternVL of transformers": {"model_type": "internvl", "vision_config": {"model_type": "internvl_vision"}},
    "SmolVLM": {"model_type": "smolvlm", "scale_factor": 4, "text_config": {"model_type": "llama"}},
    "LFM2-VL": {"model_type": "lfm2_vl", "text_config": {"model_type": "lfm2"}, "downsample_factor": 2},
    "Phi-3.5 vision": {"model_type": "phi3_v", "img_processor": {"name": "clip_vision_model"}, "hidden_size": 3072},
    "Phi-4 multimodal": {"model_type": "phi4mm", "embd_layer": {"image_embd_layer": {}}, "hidden_size": 3072},
    "Llama 3.2 vision": {"model_type": "mllama", "text_config": {"model_type": "mllama_text_model"}},
    "Llama 4": {"model_type": "llama4", "text_config": {"model_type": "llama4_text", "num_local_experts": 16}},
}
"""Models of other kinds → their `config.json`, in part."""


@pytest.mark.parametrize("title", OTHERS)
def test_other_vision_models_are_refused_in_one_line(
    tmp_path: Path, title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OTHERS[title]))
    monkeypatch.setattr(loading, "download", lambda *_: tmp_path)
    line = (
        rf"is a model of type '{OTHERS[title]['model_type']}', which is not supported; give a model of one of these "
        r"types: Qwen3.5 \(qwen3_5\), .*; or have vLLM, llama.cpp or Ollama serve it \(--api\)$"
    )
    for name in (str(tmp_path), "owner/model"):
        with pytest.raises(ModelError, match=line):
            load_qwen(name)
    answer = {"model": str(tmp_path), "device": "cpu"}
    check = model_fit.model(Config.model_validate({"source": "x.mp4", "answer": answer}))
    assert check.state == "broken"
    assert re.search(line, f"{check.found}; {check.remedy}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"layer_types": ["linear_attention"] * 4}, "layer_types without full_attention"), ({}, "linear_num_key_heads")],
)
def test_a_configuration_without_its_layers_is_named(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    folder = tiny_folder(tmp_path / "tiny", "qwen3_5")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] |= changes
    if not changes:
        del config["text_config"]["linear_num_key_heads"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=rf"lacks a number \(.*{message}"):
        ModelSpec.read(folder, "tiny")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tower_of_an_unknown_type_is_the_familys(family: str, tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny", family)
    expected = answer_ids(AnswerSession(load_qwen(folder, dtype="float32")), [GROUP[0]])
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"]["model_type"] = "fine_tuned_vision"
    (folder / "config.json").write_text(json.dumps(config))
    assert answer_ids(AnswerSession(load_qwen(folder, dtype="float32")), [GROUP[0]]) == expected


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2_5_vl"),
        ("qwen2.5vl:7b", "qwen2_5_vl"),
        ("unsloth/qwen2_5_vl_3b", "qwen2_5_vl"),
        ("Qwen/Qwen2-VL-2B", "qwen2_vl"),
        ("Qwen/Qwen3-VL-2B-Instruct", "qwen3_vl"),
        ("my-model", "qwen3_vl"),
    ],
)
def test_a_name_speaks_of_a_family(name: str, model_type: str) -> None:
    assert families.family_by_name(name).model_type == model_type


def test_places_are_pixels_of_the_picture_for_qwen2_5_and_thousandths_for_the_others() -> None:
    assert {name for name, entry in families.FAMILIES.items() if entry.coordinates == "pixels"} == {"qwen2_5_vl"}


def test_the_extent_of_a_frame_leaves_out_its_padding(family: str) -> None:
    grid = TileGrid.of(96, 48)
    padded_size = (2 * tiny_qwen(family).preprocessing.tile_px, 3 * tiny_qwen(family).preprocessing.tile_px)
    expected = padded_size if family == "qwen2_5_vl" else (1000, 1000)
    assert tiny_qwen(family).extent(grid) == (expected[0] * 0.75, expected[1])


def test_tokens_around_names_and_boxes_are_known_if_the_tokenizer_has_them(family: str) -> None:
    qwen = tiny_qwen(family)
    assert qwen.naming_tokens == {}
    vars(qwen).pop("naming_tokens")
    qwen.tokenizer.add_special_tokens({"additional_special_tokens": list(NAMING_TOKENS)}, False)
    assert tuple(qwen.naming_tokens.values()) == NAMING_TOKENS
