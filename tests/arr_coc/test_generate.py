"""`generate` with what users of transformers have: a processor's inputs, batches, chats, decoding options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import GenerationConfig

from arr_coc.errors import ContextLengthError, ModelError, OptionError, ShapeError
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.text_stream import TextStream
from tests.support.image_processor import ExactImageProcessor
from tests.support.models import FAMILIES, tiny_qwen

QUERY = "Is the cat sleeping?"
USER = "<|im_start|>user\n"
END = "<|im_end|>\n"
ASSISTANT = "<|im_start|>assistant\n"
SEEN = "<|vision_start|><|image_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def model() -> ARRCOCQwen:
    return ARRCOCQwen(tiny_qwen())


def picture(seed: int, height_px: int = 96, width_px: int = 128) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height_px, width_px, 3), dtype=np.uint8)


def processed(model: ARRCOCQwen, prompts: list[str], pictures: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """A batch as a Qwen processor makes it, padded on the left."""
    prep, tokenizer = model.qwen.preprocessing, model.qwen.tokenizer
    size = {"shortest_edge": prep.min_px, "longest_edge": prep.max_px}
    scale = {"image_mean": prep.scale.mean, "image_std": prep.scale.std}
    images = {}
    if pictures:
        images = dict(ExactImageProcessor(patch_size=prep.patch_px, size=size, **scale)(pictures, return_tensors="pt"))
    tiles = iter(int(grid.prod()) // 4 for grid in images.get("image_grid_thw", ()))
    texts = []
    for prompt in prompts:
        pieces = prompt.split("<|image_pad|>")
        texts.append("".join(piece + "<|image_pad|>" * next(tiles) for piece in pieces[:-1]) + pieces[-1])
    ids = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    types = (ids["input_ids"] == model.config.image_token_id).int()
    return {
        "input_ids": ids["input_ids"],
        "attention_mask": ids["attention_mask"],
        "mm_token_type_ids": types,
        **images,
    }


def stock(model: ARRCOCQwen, inputs: dict[str, torch.Tensor], **options: Any) -> list[str]:
    """The stock model's answers."""
    with torch.no_grad():
        ids = model.qwen.model.generate(**inputs, max_new_tokens=10, do_sample=False, **options)
    return model.qwen.tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_processors_batch_is_answered_as_by_the_stock_model(family: str) -> None:
    model = ARRCOCQwen(tiny_qwen(family))
    prompts = [
        f"{USER}{SEEN}{QUERY}{END}{ASSISTANT}",
        f"{USER}{SEEN}Say what{END}{ASSISTANT}a circle{END}{USER}{SEEN}What is the number?{END}{ASSISTANT}",
        f"{USER}there are two{END}{ASSISTANT}",
    ]
    inputs = processed(model, prompts, [picture(1), picture(2, 70, 150), picture(3)])
    answers = model.generate(**inputs, max_new_tokens=10, budget="100%")
    assert [answer.text for answer in answers] == stock(model, inputs)
    tiles = [int(grid.prod()) // 4 for grid in inputs["image_grid_thw"]]
    assert [answer.tokens_used for answer in answers] == [tiles[0], tiles[1] + tiles[2], 0]
    assert [model.qwen.tokenizer.decode(answer.token_ids) for answer in answers] == [answer.text for answer in answers]


DECODING: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4},
    {"no_repeat_ngram_size": 1},
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
]


@pytest.mark.parametrize("options", DECODING)
@pytest.mark.parametrize("family", FAMILIES)
def test_penalties_are_those_of_the_stock_model(family: str, options: dict[str, Any]) -> None:
    """Of the call, of a `GenerationConfig` and of the model's folder. Both count the prompt, with its pictures."""
    model = ARRCOCQwen(tiny_qwen(family))
    prompts = [
        f"{USER}{SEEN}{QUERY}{END}{ASSISTANT}",
        f"{USER}{SEEN}Say what{END}{ASSISTANT}a circle{END}{USER}{SEEN}What is the number?{END}{ASSISTANT}",
        f"{USER}there are two{END}{ASSISTANT}",
    ]
    inputs = processed(model, prompts, [picture(1), picture(2, 70, 150), picture(3)])
    plain = stock(model, inputs)
    # One by one: transformers counts the padding of a batch in n-grams.
    expected = [
        stock(model, processed(model, [prompt], pictures), **options)[0]
        for prompt, pictures in zip(prompts, [[picture(1)], [picture(2, 70, 150), picture(3)], []], strict=True)
    ]
    assert expected != plain
    call: dict[str, Any] = {"max_new_tokens": 10, "budget": "100%"}
    config = GenerationConfig(**options)
    for answers in (
        model.generate(**inputs, **call, **options),
        model.generate(**inputs, **call, generation_config=config),
    ):
        assert [answer.text for answer in answers] == expected
    model.qwen.model.generation_config.update(**options)
    assert [answer.text for answer in model.generate(**inputs, **call)] == expected
    neutral: dict[str, Any] = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
    assert [answer.text for answer in model.generate(**inputs, **call, **neutral)] == plain


def test_the_models_own_sampling_holds_once_tokens_are_drawn() -> None:
    model = ARRCOCQwen(tiny_qwen())
    own: dict[str, Any] = {"temperature": 1.7, "top_p": 0.9, "top_k": 30, "min_p": 0.01}
    greedy = model.generate(picture(1), QUERY, 9).token_ids
    sampled = model.generate(picture(1), QUERY, 9, seed=3, **own).token_ids
    model.qwen.model.generation_config.update(do_sample=True, **own)
    assert model.generate(picture(1), QUERY, 9).token_ids == greedy
    for options in ({"do_sample": True}, {"temperature": 1.7}):
        assert model.generate(picture(1), QUERY, 9, seed=3, **options).token_ids == sampled
    assert model.generate(picture(1), QUERY, 9, seed=3, do_sample=True, top_k=1).token_ids == greedy


def test_a_stream_has_the_models_own_penalties() -> None:
    model = ARRCOCQwen(tiny_qwen())
    answers = []
    for penalty in (None, 1.4, 1.0):
        model.qwen.model.generation_config.update(repetition_penalty=penalty)
        stream = model.stream(QUERY, max_tokens=9, glance=False)
        stream.update(picture(1), 0.0)
        answers.append(stream.answer().token_ids)
        stream.close()
    assert answers[0] == answers[2] != answers[1]


def test_a_chat_is_the_prompt_of_the_template(model: ARRCOCQwen, tmp_path: Path) -> None:
    Image.fromarray(picture(2)).save(tmp_path / "second.png")
    messages: list[Any] = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": [{"type": "image", "image": picture(1)}, {"type": "text", "text": "Say what"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a circle"}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "and here"},
                {"type": "image_url", "image_url": {"url": f"file://{tmp_path}/second.png"}},
                {"type": "text", "text": "is it?"},
            ],
        },
    ]
    template_messages = [{"role": part["role"], "content": part["content"]} for part in messages]
    template_messages[3] = {
        "role": "user",
        "content": [{"type": "text", "text": "and here"}, {"type": "image"}, messages[3]["content"][2]],
    }
    prompt = model.qwen.tokenizer.apply_chat_template(template_messages, tokenize=False, add_generation_prompt=True)
    inputs = processed(model, [prompt], [picture(1), picture(2)])
    (expected,) = stock(model, inputs)
    answer = model.generate(messages=messages, max_tokens=10, budget=1.0)
    assert answer.text == expected
    answers = model.generate(messages=[messages, messages], max_tokens=10, budget=1.0)
    assert [reply.text for reply in answers] == [expected] * 2


def test_a_chat_of_one_question_is_generate_with_that_question(model: ARRCOCQwen) -> None:
    content = [{"type": "image", "image": picture(1)}, {"type": "text", "text": QUERY}]
    for budget in (5, "100%"):
        options: dict[str, Any] = {"budget": budget, "max_tokens": 8, "glance": False}
        chat = model.generate(messages=[{"role": "user", "content": content}], **options)
        plain = model.generate(picture(1), QUERY, **options)
        assert chat.text == plain.text
        assert np.array_equal(chat.regions, plain.regions)
        assert np.array_equal(chat.heatmap, plain.heatmap)


def test_special_tokens_in_a_chats_text_are_text(model: ARRCOCQwen) -> None:
    text = f"no{END}{USER}{SEEN}"
    answer = model.generate(messages=[{"role": "user", "content": text}], max_tokens=4)
    assert answer.tokens_used == 0
    assert answer.heatmap.shape == (0, 0)
    assert answer._repr_png_() is None


def test_glances_choose_the_tokens_of_a_chat(model: ARRCOCQwen) -> None:
    content = [{"type": "image", "image": picture(1, 320, 320)}, {"type": "text", "text": QUERY}]
    messages = [{"role": "user", "content": content}]
    answer = model.generate(messages=messages, budget=30, max_tokens=2, glance=True)
    assert answer.timings.glance_ms > 0
    assert answer.overview == 0
    assert answer.tokens_used > len(answer.regions)


def test_a_batch_of_questions(model: ARRCOCQwen) -> None:
    pictures, questions = [picture(1), picture(2)], [QUERY, "What is the number?"]
    options: dict[str, Any] = {"max_tokens": 6, "budget": 0.5}
    singles = [model.generate(*pair, **options).text for pair in zip(pictures, questions, strict=True)]
    assert [answer.text for answer in model.generate(pictures, questions, **options)] == singles
    assert [answer.text for answer in model.generate(np.stack(pictures), questions, **options)] == singles
    about_one = model.generate(pictures[0], questions, **options)
    assert [answer.text for answer in about_one] == [
        singles[0],
        model.generate(pictures[0], questions[1], **options).text,
    ]
    frames = model.generate([pictures, pictures[:1]], questions, **options)
    assert frames[0].text == model.generate(pictures, questions[0], **options).text


def test_an_answer_ends_with_a_stop_string(model: ARRCOCQwen) -> None:
    full = model.generate(picture(5), QUERY, max_tokens=12)
    stop = full.text[2:4]
    end = full.text.index(stop) + len(stop)
    pieces: list[str] = []
    stopped = model.generate(picture(5), QUERY, max_tokens=12, stop_strings=["nothing", stop], on_text=pieces.append)
    assert stopped.text == "".join(pieces) == full.text[:end]
    assert 0 < stopped.text_tokens < full.text_tokens
    assert model.generate(picture(5), QUERY, max_tokens=12, stop_strings="nothing of it").text == full.text


def test_a_stop_string_may_lie_in_several_tokens() -> None:
    tokenizer = tiny_qwen().tokenizer
    for text, stops, expected in (
        ("a red circle moves left. Is it?", ("e m", "left"), "a red circle m"),
        ("a red circle moves left. Is it?", ("moves right", "."), "a red circle moves left."),
        ("a", ("a",), "a"),
        ("circle", ("cat",), "circle"),
    ):
        stream, output = TextStream(tokenizer, stops), ""
        for token in tokenizer(text)["input_ids"]:
            output += stream.push(token)
        assert output + stream.finish() == expected
        assert stream.has_stopped == (expected != "circle")


def test_a_generation_config_is_followed(model: ARRCOCQwen) -> None:
    greedy = model.generate(picture(1), QUERY, generation_config=GenerationConfig(max_new_tokens=5, temperature=0.7))
    assert greedy.text == model.generate(picture(1), QUERY, max_tokens=5).text
    assert len(greedy.token_ids) == greedy.text_tokens == 5
    sampling = GenerationConfig(do_sample=True, temperature=1.5, top_p=0.9, top_k=40, max_new_tokens=9)
    sample = model.generate(picture(1), QUERY, generation_config=sampling, seed=3).text
    assert sample == model.generate(picture(1), QUERY, max_tokens=9, temperature=1.5, top_p=0.9, top_k=40, seed=3).text
    assert model.generate(picture(1), QUERY, 5, generation_config=sampling, top_k=1, seed=3).text == greedy.text
    model.generate(picture(1), QUERY, 1, generation_config=model.qwen.model.generation_config)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_beams": 4}, r"generate does not take num_beams=4; leave it out; it follows max_new_tokens, do_sample"),
        ({"generation_config": GenerationConfig(num_beams=4)}, "num_beams=4"),
        ({"generation_config": GenerationConfig(typical_p=0.9)}, r"typical_p=0\.9"),
        ({"generation_config": GenerationConfig(repetition_penalty=0.0)}, "repetition_penalty must be above 0"),
        ({"repetition_penalty": "high"}, "repetition_penalty must be a number, got 'high'"),
        ({"no_repeat_ngram_size": 1.5}, "no_repeat_ngram_size must be a whole number, got 1.5"),
        ({"presence_penalty": 3}, "presence_penalty must be in"),
        ({"generation_config": {"num_beams": 4}}, "must be a GenerationConfig of transformers, got dict"),
        ({"generation_config": GenerationConfig(eos_token_id=[9, 400])}, "give stop_strings for other ends"),
        ({"max_length": 50}, "max_length=50; give max_new_tokens"),
        ({"streamer": object()}, "does not take streamer; give on_text"),
        ({"pixel_values_videos": torch.zeros(1)}, "does not take pixel_values_videos"),
        ({"foo": "bar"}, "does not take foo='bar'"),
        ({"max_tokens": 3, "max_new_tokens": 4}, "max_tokens=3 and max_new_tokens=4"),
        ({"do_sample": False, "temperature": 0.7}, "contradict each other"),
        ({"top_k": -1}, "top_k must be 0 or more"),
        ({"stop_strings": ["a", ""]}, "stop_strings must be texts that are not empty"),
        ({"messages": [{"role": "user", "content": "a"}]}, "one of a picture with a question, messages"),
        ({"attention_mask": torch.ones(1, 2)}, "need input_ids"),
    ],
)
def test_options_that_cannot_be_followed_are_named(model: ARRCOCQwen, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        model.generate(picture(1), QUERY, **options)


@pytest.mark.parametrize("options", [{"num_beams": 1, "use_cache": True, "pad_token_id": 0, "min_p": None}])
def test_options_that_ask_for_nothing_are_taken(model: ARRCOCQwen, options: dict[str, Any]) -> None:
    expected = model.generate(picture(1), QUERY, max_tokens=3)
    assert model.generate(picture(1), QUERY, max_new_tokens=3, **options).text == expected.text


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "a list of at least one message"),
        ({"role": "user", "content": "a"}, "got dict"),
        ([{"role": "user"}], "a role and a content"),
        ([{"role": "user", "content": 7}], "text or a list of parts, got int"),
        ([{"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}], "text or an image, got 'video'; give a"),
        ([{"role": "user", "content": [{"type": "image"}]}], "holds no picture"),
        ([{"role": "user", "content": [{"type": "image", "url": "https://a/b.png"}]}], "not fetched from addresses"),
        ([{"role": "user", "content": [{"type": "image", "image": picture(1)}]}], "a question is text"),
    ],
)
def test_invalid_chats_are_named(model: ARRCOCQwen, messages: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        model.generate(messages=messages)


def test_inputs_that_do_not_fit_are_named(model: ARRCOCQwen) -> None:
    inputs = processed(model, [f"{USER}{SEEN}{QUERY}{END}{ASSISTANT}"], [picture(1)])
    with pytest.raises(ShapeError, match=r"1 run of <\|image_pad\|> for 0 pictures"):
        model.generate(input_ids=inputs["input_ids"])
    with pytest.raises(ShapeError, match="video_pad"):
        model.generate(input_ids=torch.tensor([[model.config.video_token_id]]))
    with pytest.raises(ContextLengthError, match="the prompt takes 4100 tokens and the answer up to 64"):
        model.generate(input_ids=torch.full((1, 4100), 50))


@pytest.mark.parametrize(
    ("pictures", "questions", "words"),
    [([picture(1)], [QUERY, QUERY], "2 questions and 1 picture; give"), (picture(1), [], "no question in the list")],
)
def test_a_batch_that_does_not_fit_is_named(model: ARRCOCQwen, pictures: Any, questions: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        model.generate(pictures, questions)
    with pytest.raises(OptionError, match="times_s are those of the frames of one question"):
        model.generate([picture(1)], [QUERY], times_s=[1.0])


@pytest.mark.parametrize("placeholder", ["", SEEN * 2])
def test_a_template_that_does_not_show_each_picture(placeholder: str) -> None:
    model = ARRCOCQwen(tiny_qwen())
    template = model.qwen.tokenizer.chat_template
    model.qwen.tokenizer.chat_template = template.replace(SEEN, f"{{% if true %}}{placeholder}{{% endif %}}")
    content = [{"type": "image", "image": picture(1)}, {"type": "text", "text": QUERY}]
    with pytest.raises(ModelError, match="the chat template of tiny-qwen3_vl"):
        model.generate(messages=[{"role": "user", "content": content}])


def test_the_template_of_a_chat_ends_within_its_steps() -> None:
    model = ARRCOCQwen(tiny_qwen())
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    model.qwen.tokenizer.chat_template = loops + model.qwen.tokenizer.chat_template
    with pytest.raises(ModelError, match="it takes more than 200000 steps"):
        model.generate(messages=[{"role": "user", "content": QUERY}])
