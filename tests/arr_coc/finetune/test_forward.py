"""The forward of a batch: the stock model's logits with all tokens, and gradients to model and allocator."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
import torch

from arr_coc.errors import BudgetError, ContextLengthError, OptionError, ShapeError
from arr_coc.finetune.collator import AnswerCollator
from arr_coc.finetune.module import TrainableQwen
from arr_coc.finetune.sequences import question_ids
from arr_coc.qwen.processor_inputs import picture_places
from arr_coc.qwen.qwenvl import QwenVL
from tests.support.image_processor import ExactImageProcessor
from tests.support.models import FAMILIES, tiny_qwen

QUESTIONS = ("Is the cat sleeping?", "What is the number in the upper left? there are two green squares below")
ANSWERS = (" a red circle", " two")


def pictures() -> list[np.ndarray]:
    """Two pictures of different sizes."""
    rng = np.random.default_rng(3)
    first = rng.integers(90, 110, (150, 230, 3), dtype=np.uint8)
    first[70:100, 150:180] = (250, 20, 20)
    return [first, rng.integers(0, 256, (100, 90, 3), dtype=np.uint8)]


def processed(qwen: QwenVL, images: list[np.ndarray]) -> dict[str, torch.Tensor]:
    """The stock processor's `pixel_values` and `image_grid_thw`."""
    prep = qwen.preprocessing
    processor = ExactImageProcessor(
        patch_size=prep.patch_px,
        size={"shortest_edge": prep.min_px, "longest_edge": prep.max_px},
        image_mean=prep.scale.mean,
        image_std=prep.scale.std,
    )
    return dict(processor(images, return_tensors="pt"))


def stock_batch(qwen: QwenVL, side: str = "right") -> dict[str, torch.Tensor]:
    """A batch of two as transformers makes it, padded, with labels on the answers."""
    inputs = processed(qwen, pictures())
    tokens = (inputs["image_grid_thw"].prod(dim=1) // 4).tolist()
    rows, labels = [], []
    for question, answer, count in zip(QUESTIONS, ANSWERS, tokens, strict=True):
        message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}
        text = qwen.tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        prompt = qwen.token_ids(text.replace("<|image_pad|>", "<|image_pad|>" * count))
        reply = qwen.token_ids(answer + "<|im_end|>")
        rows.append(torch.tensor(prompt + reply))
        labels.append(torch.tensor([-100] * len(prompt) + reply))

    def padded(parts: list[torch.Tensor], value: int) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=value, padding_side=side)

    ids = padded(rows, qwen.tokenizer.pad_token_id)
    return {
        "input_ids": ids,
        "attention_mask": padded([torch.ones_like(row) for row in rows], 0),
        "labels": padded(labels, -100),
        **inputs,
    }


def stock_forward(qwen: QwenVL, batch: dict[str, torch.Tensor]) -> Any:
    kinds = (batch["input_ids"] == qwen.model.config.image_token_id).int()
    return qwen.model(**batch, mm_token_type_ids=kinds)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("encode", ["sparse", "prune", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_all_tokens_it_is_the_stock_model(family: str, encode: Any, side: str) -> None:
    qwen = tiny_qwen(family)
    batch = stock_batch(qwen, side)
    stock = stock_forward(qwen, batch)
    model = TrainableQwen(qwen, encode)
    model.allocator.configure(budget="100%")
    for train in (False, True):
        output = model.train(train)(**batch)
        assert output.logits.shape == stock.logits.shape
        mask = batch["attention_mask"].bool()
        torch.testing.assert_close(output.logits[mask], stock.logits[mask], atol=1e-4, rtol=0)
        torch.testing.assert_close(output.loss, stock.loss, atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def model() -> TrainableQwen:
    return TrainableQwen(tiny_qwen())


def examples() -> list[dict[str, Any]]:
    parts = zip(pictures(), QUESTIONS, ANSWERS, strict=True)
    return [{"image": image, "question": question, "answer": answer} for image, question, answer in parts]


def fresh(budget: Any = 6, encode: Any = "sparse", family: str = "qwen3_vl", **options: Any) -> TrainableQwen:
    """A tiny model with a new allocator."""
    model = TrainableQwen(tiny_qwen(family), encode)
    model.new_allocator(seed=1, budget=budget, **options)
    return model


@torch.no_grad()
def test_images_and_pixel_values_are_the_same(model: TrainableQwen) -> None:
    batch = stock_batch(model.qwen)
    pixels = {name: batch.pop(name) for name in ("pixel_values", "image_grid_thw")}
    model.allocator.configure(budget=6, strategy="mixed")
    expected = model(**batch, **pixels)
    for images in (pictures(), [[picture] for picture in pictures()]):
        torch.testing.assert_close(model(**batch, images=images).logits, expected.logits, atol=1e-5, rtol=0)


@torch.no_grad()
def test_one_placeholder_stands_for_a_picture_too(model: TrainableQwen) -> None:
    image, question = pictures()[0], QUESTIONS[0]
    ids = model.qwen.token_ids(
        f"<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{question}<|im_end|>\n<|im_start|>assistant\n"
    )
    many = [token for token in ids for _ in range(35 if token == model.config.image_token_id else 1)]
    short, long = (model(torch.tensor([row]), images=image) for row in (ids, many))
    assert torch.equal(short.logits, long.logits)
    assert short.loss is None


@torch.no_grad()
@pytest.mark.parametrize("encode", ["sparse", "prune", "weighted", "full"])
def test_a_sequence_is_the_same_alone_and_in_a_batch(encode: Any) -> None:
    model = fresh(budget=9, encode=encode)
    collate = AnswerCollator(model.qwen)
    batch_output = model(**collate(examples()))
    for index, example in enumerate(examples()):
        output = model(**collate([example]))
        length = output.logits.shape[1]
        torch.testing.assert_close(batch_output.logits[index, :length], output.logits[0], atol=1e-5, rtol=0)
        info, expected = batch_output.arr_coc_info, output.arr_coc_info
        assert torch.equal(info.regions[index, info.mask[index]], expected.regions[0])
        assert torch.equal(info.columns[index, :length], expected.columns[0])
        assert (info.columns[index, length:] == -1).all()


@torch.no_grad()
def test_the_choice_is_returned(model: TrainableQwen) -> None:
    model.allocator.configure(budget=6, strategy="topk")
    batch = AnswerCollator(model.qwen)(examples())
    out = model(**batch)
    info = out.arr_coc_info
    assert [tuple(part.shape) for part in info.relevance] == [(5, 7), (3, 3)]
    assert [tuple(part.shape) for part in info.scores] == [(3, 5, 7), (3, 3, 3)]
    assert info.weights.shape == (2, 3)
    assert info.regions.shape == (2, 6, 3)
    assert torch.equal(info.positions, info.regions[..., 1:].float())
    assert (info.budgets == 1024).all()
    assert info.mask.all()
    assert info.sequences.tolist() == [0, 1]
    for row, columns in enumerate(info.columns):
        text = columns[columns >= 0]
        expected = (batch["attention_mask"][row] == 1) & (batch["input_ids"][row] != model.config.image_token_id)
        assert torch.equal(text, expected.nonzero()[:, 0])
    assert out.logits.shape[:2] == info.columns.shape
    best = info.relevance[0].flatten().topk(6).indices.sort().values
    assert torch.equal(info.regions[0, :, 1] * 7 + info.regions[0, :, 2], best)


@torch.no_grad()
def test_the_loss_is_that_of_the_labelled_tokens(model: TrainableQwen) -> None:
    batch = AnswerCollator(model.qwen)(examples())
    out = model(**batch)
    likelihood = out.logits.float().log_softmax(dim=-1)
    losses = []
    for row, columns in enumerate(out.arr_coc_info.columns.tolist()):
        for at, column in enumerate(columns):
            label = int(batch["labels"][row, column]) if column >= 0 else -100
            if label != -100:
                losses.append(-float(likelihood[row, at - 1, label]))
    assert len(losses) == int((batch["labels"] != -100).sum())
    assert float(out.loss) == pytest.approx(np.mean(losses), abs=1e-5)


@pytest.mark.parametrize("strategy", ["auto", "topk", "foveated", "grid"])
@torch.no_grad()
def test_the_choice_is_that_of_generate(strategy: str) -> None:
    model = fresh(budget=9, strategy=strategy)
    image, question = pictures()[0], QUESTIONS[0]
    answer = model.generate(image, question, max_tokens=2, budget=9, strategy=strategy)
    info = model(**AnswerCollator(model.qwen)([{**examples()[0], "question": question}])).arr_coc_info
    np.testing.assert_allclose(info.relevance[0].numpy(), answer.heatmap, atol=1e-5)
    assert info.regions[0].tolist() == answer.regions.tolist()


@torch.no_grad()
def test_an_older_family_s_relevance_is_nearly_that_of_generate() -> None:
    """For the allocator, its tiles of 28 pixels are enlarged; `generate` resizes the picture itself."""
    model = fresh(budget=9, family="qwen2_vl", strategy="foveated")
    answer = model.generate(pictures()[0], QUESTIONS[0], max_tokens=2, budget=9, strategy="foveated")
    info = model(**AnswerCollator(model.qwen)(examples()[:1])).arr_coc_info
    np.testing.assert_allclose(info.relevance[0].numpy(), answer.heatmap, atol=0.01)


@torch.no_grad()
def test_the_answer_is_generate_s(model: TrainableQwen) -> None:
    """The likeliest token after a prompt of coarse and fine tokens is the first token of `generate`."""
    model.allocator.configure(budget=9, strategy="foveated")
    image, question = pictures()[0], QUESTIONS[1]
    text = model.generate(image, question, max_tokens=1, budget=9, strategy="foveated").text
    ids = model.qwen.token_ids(
        f"<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>{question}<|im_end|>\n<|im_start|>assistant\n"
    )
    out = model(torch.tensor([ids]), images=image)
    assert model.qwen.tokenizer.decode([int(out.logits[0, -1].argmax())], skip_special_tokens=True) == text


@torch.no_grad()
def test_a_sequence_may_show_several_pictures_or_none(model: TrainableQwen) -> None:
    model.allocator.configure(budget="100%")
    collate, images = AnswerCollator(model.qwen), pictures()
    several = {"images": images, "question": QUESTIONS[0], "answer": ANSWERS[0]}
    batch = collate([several, examples()[1]])
    out = model(**batch)
    stock = stock_forward(model.qwen, {name: rows for name, rows in batch.items() if name != "question_mask"})
    mask = batch["attention_mask"].bool()
    torch.testing.assert_close(out.logits[mask], stock.logits[mask], atol=1e-4, rtol=0)
    assert out.arr_coc_info.sequences.tolist() == [0, 0, 1]
    ids = torch.tensor([model.qwen.token_ids("Say what happens.")])
    plain = model(ids, labels=ids)
    torch.testing.assert_close(plain.logits, model.model(ids).logits, atol=1e-4, rtol=0)
    assert plain.arr_coc_info.mask.shape == (0, 0)


def test_the_question_is_the_text_of_the_picture_s_turn(model: TrainableQwen) -> None:
    qwen, picture = model.qwen, "<|vision_start|><|image_pad|><|vision_end|>"
    query, other = "Is the cat sleeping?", "You are a helpful assistant."
    for turn in (f"{picture}{query}", f"{query}{picture}", f"<3.2 seconds>{picture}<3.2 seconds>{picture}{query}"):
        text = (
            f"<|im_start|>system\n{other}<|im_end|>\n<|im_start|>user\n{turn}<|im_end|>\n"
            f"<|im_start|>assistant\n a red circle<|im_end|>\n<|im_start|>user\n{other}<|im_end|>\n"
        )
        ids = torch.tensor([qwen.token_ids(text)])
        token_mask = torch.ones_like(ids, dtype=torch.bool)
        places = picture_places(ids, token_mask, qwen.model.config)
        for question in question_ids(qwen, ids, token_mask, places):
            assert question.tolist() == qwen.plain_token_ids(query)


def test_labelled_tokens_are_not_part_of_the_question() -> None:
    """Otherwise the allocator would read the answer."""
    model = fresh()
    batch = AnswerCollator(model.qwen)(examples())
    mask = batch.pop("question_mask")
    other = batch["labels"].clone()
    expected = model(**batch, question_mask=mask).arr_coc_info.relevance
    masked = model(**batch).arr_coc_info.relevance
    for expected_map, masked_map in zip(expected, masked, strict=True):
        torch.testing.assert_close(expected_map, masked_map)
    mask[0, (batch["attention_mask"][0] == 1) & (other[0] != -100)] = 1
    assert not torch.equal(model(**batch, question_mask=mask).arr_coc_info.relevance[0], expected[0])


@pytest.mark.parametrize(
    ("encode", "options"),
    [
        ("sparse", {}),
        ("sparse", {"gradient": "gumbel"}),
        ("prune", {}),
        ("weighted", {}),
        ("sparse", {"scorer": "cross"}),
    ],
)
def test_gradients_reach_every_part_of_the_allocator(encode: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = fresh(budget=6, encode=encode, strategy="topk", **options).train()
    for parameter in model.allocator.realiser.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model(**AnswerCollator(model.qwen)(examples())).loss.backward()
    silent = [
        name
        for name, parameter in model.allocator.realiser.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]
    assert silent == ["participation.recall"]  # weight of feedback from answers, which a batch does not have
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
    tower, head = model.model.model.visual.patch_embed.proj.weight, model.model.lm_head.weight
    assert tower.grad.any()
    assert head.grad.any()


def test_an_allocator_of_forty_channels_learns_too() -> None:
    model = fresh(budget=6, channels="full40").train()
    out = model(**AnswerCollator(model.qwen)(examples()))
    out.loss.backward()
    assert model.allocator.realiser.information.gate.weight.grad.shape[1] == 40
    assert model.allocator.realiser.information.gate.weight.grad.any()


def test_all_tokens_leave_nothing_to_choose() -> None:
    model = fresh(encode="full")
    model(**AnswerCollator(model.qwen)(examples())).loss.backward()
    assert not any(p.grad is not None and p.grad.any() for p in model.allocator.parameters())


def test_chance_chooses_in_training_only() -> None:
    model = fresh(budget=6, strategy="topk", gradient="gumbel", temperature=2.0)
    batch = AnswerCollator(model.qwen)(examples()[:1])

    def regions(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        return model(**batch).arr_coc_info.regions.tolist()

    with torch.no_grad():
        assert regions(0) == regions(1)
        model.train()
        assert regions(0) == regions(0)
        assert len({str(regions(seed)) for seed in range(6)}) > 1


def learned(model: TrainableQwen, steps: int) -> tuple[float, float]:
    """The loss before and after the allocator alone has learned the colour of one place, which it has to find."""
    model.model.requires_grad_(False)
    rng = np.random.default_rng(5)
    batch = AnswerCollator(model.qwen)([coloured(rng) for _ in range(4)])

    def loss() -> float:
        with torch.no_grad():
            return float(model.eval()(**batch).loss)

    before = loss()
    optimiser = torch.optim.AdamW(model.allocator.parameters(), lr=2e-3)
    torch.manual_seed(0)
    for _ in range(steps):
        optimiser.zero_grad()
        model.train()(**batch).loss.backward()
        optimiser.step()
    return before, loss()


@pytest.mark.parametrize("options", [{}, {"gradient": "gumbel", "temperature": 0.1}], ids=["straight", "gumbel"])
def test_the_loss_falls_while_the_allocator_alone_learns_to_choose(options: dict[str, Any]) -> None:
    model = TrainableQwen.from_pretrained()
    model.new_allocator(seed=1, budget=4, strategy="topk", **options)
    before, after = learned(model, 30)
    assert after < before / 3


def test_the_loss_falls_while_the_allocator_alone_learns_to_weigh() -> None:
    """Relevance is almost 0 at the start, so that almost no token has weight."""
    model = TrainableQwen.from_pretrained(encode="weighted")
    model.new_allocator(seed=1)
    with torch.no_grad():
        model.allocator.realiser.participation.asked.out.bias.fill_(-5.0)
    before, after = learned(model, 20)
    assert after < before / 3


def coloured(rng: np.random.Generator) -> dict[str, Any]:
    """A square of some colour in one place, among circles of others: 160x160 pixels."""
    colours = {"red": (220, 40, 40), "blue": (40, 60, 220), "green": (40, 180, 60), "yellow": (235, 215, 50)}
    names = [str(name) for name in rng.permutation(list(colours))]
    image = np.full((160, 160, 3), 128, np.uint8)
    image[104:152, 104:152] = colours[names[0]]
    for name, place in zip(names[1:], ((40, 40), (40, 120), (120, 40)), strict=True):
        cv2.circle(image, place[::-1], 20, colours[name], -1)
    return {"image": image, "question": "What colour is the square?", "answer": f"{names[0]}."}


def batch_of(model: TrainableQwen, **changes: Any) -> dict[str, Any]:
    return {**AnswerCollator(model.qwen)(examples()), **changes}


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"input_ids": None}, ShapeError, r"input_ids must be integers \[B, S\], .* got NoneType"),
    ({"input_ids": torch.zeros(3)}, ShapeError, r"got torch.float32 \[3\]"),
    ({"input_ids": torch.full((2, 3), 9999)}, ShapeError, "attention_mask must be as input_ids"),
    ({"labels": torch.zeros(2, 3)}, ShapeError, r"labels must be as input_ids, .* got \[2, 3\]"),
    ({"labels": "none"}, OptionError, "labels must be token ids, or -100 for tokens .* got only -100"),
    ({"labels": "large"}, OptionError, "got 9999 to 9999"),
    ({"ids": 9999}, OptionError, "input_ids must lie in 0 to 511, got"),
    ({"ids": "video"}, ShapeError, "give a video's frames as single pictures"),
    ({"ids": "text"}, ShapeError, "0 runs of <|image_pad|> for 2 pictures"),
    ({"images": pictures()}, OptionError, "pixel_values or images, not both"),
    ({"attention_mask": "empty"}, ShapeError, "leaves a sequence without any token"),
    (
        {"images": [pictures()[0]] * 2, "pixel_values": None},
        ShapeError,
        "picture 1 has 35 tiles, but its run .* 9 long",
    ),
    ({"images": ["no.png"] * 2, "pixel_values": None}, FileNotFoundError, "no.png"),
]


@pytest.mark.parametrize(("changes", "error", "match"), BAD, ids=lambda value: str(value)[:30])
def test_bad_input_gets_one_line(
    model: TrainableQwen, changes: dict[str, Any], error: type[Exception], match: str
) -> None:
    batch = batch_of(model)
    ids, config = batch["input_ids"], model.config
    tensors = {
        "none": torch.full_like(ids, -100),
        "large": torch.full_like(ids, 9999),
        "empty": torch.zeros_like(ids),
        "video": torch.full_like(ids, config.video_token_id),
        "text": torch.ones_like(ids),
    }
    if "ids" in changes:
        value = changes["ids"]
        changes = {"input_ids": tensors[value] if isinstance(value, str) else torch.full_like(ids, value)}
    batch |= {name: tensors.get(value, value) if isinstance(value, str) else value for name, value in changes.items()}
    with pytest.raises(error, match=match.replace("|", r"\|")) as caught:
        model(**batch)
    assert "\n" not in str(caught.value)


def test_a_sequence_that_is_too_long_is_refused_with_numbers() -> None:
    model = fresh(budget=6)
    model.config.get_text_config().max_position_embeddings = 30
    with pytest.raises(ContextLengthError, match=r"a sequence has \d+ tokens, the model's context 30; shorten"):
        model(**batch_of(model))


def test_invalid_options_are_refused(model: TrainableQwen) -> None:
    with pytest.raises(OptionError, match="keeps state from frame to frame"):
        TrainableQwen(model.qwen, "incremental")(**batch_of(model))
    with pytest.raises(OptionError, match="gradient must be straight-through or gumbel, got 'reinforce'"):
        model.allocator.configure(gradient="reinforce")
    with pytest.raises(OptionError, match="temperature must be a number above 0, got 0"):
        model.allocator.configure(temperature=0)
    with pytest.raises(OptionError, match="a layer has no option budgets to change; there are strategy, budget"):
        model.allocator.configure(budgets=3)
    with pytest.raises(BudgetError):
        model.allocator.configure(budget=0)
