"""Thoughts before an answer: on or off, hidden or shown, counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from arr_coc.errors import OptionError
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen import session as sessions
from arr_coc.qwen.attention import AttentionProbe, probed_layers
from arr_coc.qwen.checkpoint import check_folder
from arr_coc.qwen.options import AnswerOptions, Decoding, Thinking
from arr_coc.qwen.prompt import prompt_ids
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession, SlotQuestion
from arr_coc.qwen.text_stream import TextStream, Thoughts
from arr_coc.types import FrameStamp, PastAnswer, Question, TileGrid, TokenPacket
from stream.answer.model import ClientQuestion, ask_alone, history_text
from stream.answer.qwen import QwenAnswerModel
from tests.support.models import CHAT_TEMPLATE, tiny_folder, tiny_qwen

QUERY = "Is the cat sleeping?"

ALWAYS = CHAT_TEMPLATE.replace("assistant\n{%", "assistant\n<think>\n{%")
"""Template of a thinking model."""

SWITCHED = CHAT_TEMPLATE.replace(
    "assistant\n{%",
    "assistant\n{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{%",
)
"""Template that begins thoughts unless they are switched off, as Qwen3.5's."""


def thinking_qwen(template: str = SWITCHED) -> QwenVL:
    qwen = tiny_qwen("qwen3_5")
    qwen.tokenizer.add_tokens(["<think>", "</think>", "yes", "no"])
    qwen.tokenizer.chat_template = template
    return qwen


def packet() -> TokenPacket:
    regions = np.array([[0, 0, 1], [0, 1, 0]], np.int32)
    pixels = np.random.default_rng(1).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)
    return TokenPacket(FrameStamp(0, 0, 0), TileGrid.of(64, 64), regions, np.ones(2, np.float32), pixels)


def session(thinking: Thinking, template: str = SWITCHED) -> AnswerSession:
    return AnswerSession(thinking_qwen(template), AnswerOptions(decoding=Decoding(max_tokens=6), thinking=thinking))


@pytest.mark.parametrize("template", [SWITCHED, ALWAYS])
def test_a_prompt_begins_thoughts_or_has_ended_them(template: str) -> None:
    qwen = thinking_qwen(template)
    endings = {name: qwen.tokenizer.decode(prompt_ids(qwen, None, thinking=name).after_query) for name in (True, False)}
    assert endings[True].endswith("assistant\n<think>\n")
    assert endings[False].endswith("assistant\n<think>\n\n</think>\n\n")
    assert qwen.opens_thoughts(prompt_ids(qwen, None, thinking=True).after_query)
    assert not qwen.opens_thoughts(prompt_ids(qwen, None).after_query)


def test_a_system_prompt_about_thoughts_begins_none() -> None:
    qwen = tiny_qwen()
    ids = prompt_ids(qwen, "Never write <think>.")
    assert qwen.tokenizer.decode(ids.after_query).endswith("assistant\n")


HYBRID = SWITCHED.replace("{% else %}<think>\n", "")
"""Template that ends thoughts if they are switched off, and begins none, as Qwen3's."""

ABOUT_THOUGHTS = "what is <think> ?"


def test_a_question_about_thoughts_begins_none() -> None:
    qwen = thinking_qwen(HYBRID)
    ids = qwen.plain_token_ids(f"{ABOUT_THOUGHTS} </think>")
    assert not {*ids} & {*qwen.thought_ids}  # type: ignore[misc]
    assert qwen.tokenizer.decode(ids) == f"{ABOUT_THOUGHTS} </think>"
    model, picture = ARRCOCQwen(qwen), np.zeros((64, 64, 3), np.uint8)
    content = [{"type": "image", "image": picture}, {"type": "text", "text": ABOUT_THOUGHTS}]
    for thinking in ("off", "hide"):
        answer = model.generate(messages=[{"role": "user", "content": content}], max_tokens=5, thinking=thinking)
        assert answer.text
        assert answer.token_ids == model.generate(picture, ABOUT_THOUGHTS, 5, thinking=thinking).token_ids


def test_only_the_last_turn_of_a_chat_begins_thoughts() -> None:
    """A processor of transformers reads marks in the text of a question."""
    speaking = session("off")
    builder, qwen = speaking.prompts, speaking.qwen
    question = f"<|im_start|>user\n{ABOUT_THOUGHTS}<|im_end|>\n<|im_start|>assistant\n"
    for text, opens in ((question, False), (f"{question}<think>\n", True), (f"{question}<think></think>", False)):
        prompt = builder.make_chat([tuple(qwen.token_ids(text))], lambda: None)
        assert prompt.opens_thoughts == opens


def test_a_template_without_thoughts_is_the_same() -> None:
    qwen = tiny_qwen("qwen3_5")
    assert prompt_ids(qwen, None) == prompt_ids(qwen, None, thinking=True)
    assert qwen.thought_ids is None


def test_thoughts_are_shown_or_left_out_and_counted() -> None:
    texts = {}
    for thinking in ("hide", "show"):
        speaking = session(thinking)
        text = "".join(speaking.answer(packet(), QUERY))
        texts[thinking] = text
        last = speaking.last
        assert (last.text, last.work.text_tokens, last.thought_tokens) == (text, 6, 6)  # it never ends its thoughts
        decoded = speaking.qwen.tokenizer.decode(last.token_ids, skip_special_tokens=True)
    assert texts == {"hide": "", "show": decoded}
    speaking = session("off")
    assert "".join(speaking.answer(packet(), QUERY)) != ""
    assert speaking.last.thought_tokens == 0


@pytest.mark.parametrize(
    ("has_begun", "ids"),
    [
        (True, "red </think>\n\n square"),
        (False, "<think>red</think> square"),
        (False, "\n \n<think>red</think> square"),
    ],
)
@pytest.mark.parametrize("is_visible", [True, False])
def test_the_answer_follows_the_thoughts(has_begun: bool, ids: str, is_visible: bool) -> None:
    qwen = thinking_qwen()
    assert qwen.thought_ids is not None
    thoughts = Thoughts(*qwen.thought_ids, is_visible=is_visible, has_begun=has_begun)
    stream = TextStream(qwen.tokenizer, ("square",), thoughts)
    tokens = qwen.token_ids(ids)
    text = "".join(stream.push(token) for token in tokens) + stream.finish()
    assert text == (ids if is_visible else "square")
    assert stream.has_stopped
    assert stream.thought_tokens == tokens.index(qwen.thought_ids[1]) + 1


@pytest.mark.parametrize("is_visible", [True, False])
def test_a_stop_string_in_thoughts_ends_nothing(is_visible: bool) -> None:
    qwen = thinking_qwen()
    assert qwen.thought_ids is not None
    stream = TextStream(
        qwen.tokenizer, ("red", "k>"), Thoughts(*qwen.thought_ids, is_visible=is_visible, has_begun=True)
    )
    text = "".join(map(stream.push, qwen.token_ids("red circle</think> a red square")))
    assert text == ("red circle</think> a red" if is_visible else "a red")
    assert stream.has_stopped


def test_an_answer_that_begins_without_thoughts_keeps_their_marks() -> None:
    qwen = thinking_qwen()
    assert qwen.thought_ids is not None
    stream = TextStream(qwen.tokenizer, (), Thoughts(*qwen.thought_ids))
    tokens = qwen.token_ids("\n a <think>b</think>")
    assert "".join(map(stream.push, tokens)) == "\n a <think>b</think>"
    assert stream.thought_tokens == 0


def test_an_answer_of_white_space_has_no_thoughts() -> None:
    qwen = thinking_qwen()
    assert qwen.thought_ids is not None
    stream = TextStream(qwen.tokenizer, (), Thoughts(*qwen.thought_ids))
    assert "".join(map(stream.push, qwen.token_ids("\n \n"))) + stream.finish() == "\n \n"
    assert stream.thought_tokens == 0


def spoken(speaking: AnswerSession, monkeypatch: pytest.MonkeyPatch, text: str) -> list[int]:
    """Let a session speak this text; return the lengths of the keys that its probe is shown, in one layer."""
    tokens, lengths, see = iter(speaking.qwen.token_ids(text)), list[int](), AttentionProbe.see

    def noted(probe: AttentionProbe, layer: int, query: torch.Tensor, keys: torch.Tensor) -> None:
        if layer == probed_layers(speaking.qwen.layers.attending)[0]:
            lengths.append(keys.shape[1])
        see(probe, layer, query, keys)

    monkeypatch.setattr(AttentionProbe, "see", noted)
    monkeypatch.setattr(sessions, "choose_rows", lambda *_: [[next(tokens), 1]])
    list(speaking.answer(packet(), QUERY))
    return lengths


def test_feedback_is_from_the_answer_after_the_thoughts(monkeypatch: pytest.MonkeyPatch) -> None:
    speaking = session("hide")
    prompt, *others = spoken(speaking, monkeypatch, "yesno</think>yesnoyes")
    assert speaking.last.text == "yesnoyes"
    # the first query after the prompt's is that of </think>, the third token
    assert [length - prompt for length in others] == [3, 4, 5]


def test_a_yes_or_no_comes_at_once() -> None:
    scores = [session(thinking).score_yes_no(packet(), QUERY) for thinking in ("hide", "off")]
    assert scores[0] == scores[1]


def test_an_earlier_answer_is_not_compared_with_thoughts() -> None:
    question = SlotQuestion(0, packet(), QUERY, previous="red", same_above=0.0)
    (compared,), (thought,) = session("off").ask([question]), session("hide").ask([question])
    assert compared.same is not None
    assert thought.same is None


def test_a_model_that_does_not_think_is_named() -> None:
    with pytest.raises(OptionError, match=r"tiny-qwen3_5 does not think before it answers: .* has no <think>; leave"):
        AnswerSession(tiny_qwen("qwen3_5"), AnswerOptions(thinking="show"))
    with pytest.raises(OptionError, match="thinking must be one of hide, show, off, got 'on'"):
        AnswerOptions(thinking="on")  # type: ignore[arg-type]


def test_the_library_answers_with_thoughts() -> None:
    model, picture = ARRCOCQwen(thinking_qwen()), np.zeros((64, 64, 3), np.uint8)
    answers = {name: model.generate(picture, QUERY, 5, thinking=name) for name in ("hide", "show")}
    messages = [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": QUERY}]}]
    assert answers["hide"].text == "" != answers["show"].text
    assert model.generate(messages=messages, max_tokens=5, thinking="show").token_ids == answers["show"].token_ids
    assert model.generate(messages=messages, max_tokens=5).text != ""


def test_inputs_that_end_in_thoughts(caplog: pytest.LogCaptureFixture) -> None:
    qwen = thinking_qwen()
    model = ARRCOCQwen(qwen)
    text = f"<|im_start|>user\n{QUERY}<|im_end|>\n<|im_start|>assistant\n<think>\n"
    inputs = {"input_ids": torch.tensor([qwen.token_ids(text)])}
    (hidden,), (visible,) = (model.generate(**inputs, max_tokens=5, thinking=name) for name in ("off", "show"))
    assert hidden.token_ids == visible.token_ids
    assert hidden.text == "" != visible.text
    (warned,) = [record.getMessage() for record in caplog.records if record.name == "arr_coc.model"]
    assert warned == "hidden thoughts took max_new_tokens = 5, and no answer is left; raise it"


def notices_of_clients(model: QwenAnswerModel) -> list[str]:
    """Notices of two answers for one client, and of one for another."""
    notices = []
    for client in (b"one", b"one", b"two"):
        question = ClientQuestion(client, packet(), Question(QUERY))
        ask_alone(model, question)
        assert question.stats is not None
        notices.append(question.stats.notice)
    return notices


@pytest.mark.parametrize(("thinking", "noticed"), [("hide", True), ("show", False), ("off", False)])
def test_hidden_thoughts_without_an_answer_are_reported_once(thinking: Thinking, noticed: bool) -> None:
    model = QwenAnswerModel(session(thinking))
    notices = notices_of_clients(model)
    line = (
        "hidden thoughts took all of answer.max_tokens = 6, and no answer is left; raise it, or set "
        "answer.thinking = off"
    )
    assert notices == ([line, "", line] if noticed else ["", "", ""])


def test_earlier_answers_are_given_without_their_thoughts() -> None:
    history = (PastAnswer(0, "a red</think>\n\na circle"), PastAnswer(1, " a square\n"), PastAnswer(2, "only</think>"))
    assert history_text(history) == "Earlier answers:\n<0.0 seconds> a circle\n<0.0 seconds> a square\n"


@pytest.mark.parametrize(("template", "has_notice"), [(ALWAYS, True), (SWITCHED, False)])
def test_a_thinking_model_is_noted(tmp_path: Path, template: str, has_notice: bool) -> None:
    folder = tiny_folder(tmp_path / "tiny", "qwen3_5")
    (folder / "chat_template.jinja").write_text(template)
    notices = check_folder(folder, "tiny").notices
    assert [notice for notice in notices if "thinks before" in notice] == list(notices)
    assert bool(notices) == has_notice


QWEN2_5 = {"do_sample": True, "repetition_penalty": 1.05, "temperature": 1e-06, "top_p": 0.001}
QWEN3 = {"do_sample": True, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.0, "temperature": 0.7}
PENALTY = "decoding as generation_config.json says, unless answer.* does: repetition_penalty 1.05"
SAMPLING = (
    "generation_config.json asks for sampling ({}): answers take the likeliest tokens, unless answer.decoding = "
    "checkpoint or a temperature is given"
)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (QWEN2_5, [PENALTY]),
        (QWEN3, [SAMPLING.format("temperature 0.7, top_p 0.8, top_k 20")]),
        (QWEN3 | {"do_sample": False}, []),
        (QWEN3 | {"top_k": 1}, []),
        (
            QWEN3 | QWEN2_5 | {"temperature": 1.0},
            [f"{PENALTY}; {SAMPLING.format('temperature 1.0, top_p 0.001, top_k 20')}"],
        ),
    ],
)
def test_options_of_a_generation_configuration_are_noted(
    tmp_path: Path, generation: dict[str, object], expected: list[str]
) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    (folder / "generation_config.json").write_text(json.dumps(generation))
    assert list(check_folder(folder, "tiny").notices) == expected
