"""Scores of public benchmarks: cases calculated by hand."""

from __future__ import annotations

import pytest

from evaluation.public.rules import (
    anls,
    edit_distance,
    ovo_choice,
    ovo_count,
    ovo_yes_no,
    poll,
    streaming_bench_choice,
    video_mme_choice,
    video_mme_letter,
)
from evaluation.public.vqa_text import text_vqa_accuracy, text_vqa_words, vqa_accuracy, vqa_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Two dogs.", "2 dogs"),
        ("none", "0"),
        ("a cat and the dog", "cat and dog"),
        ("dont", "don't"),
        ("couldnt've", "couldn't've"),
        ("yalld've", "yalld've"),
        ("y'alld've", "y'all'd've"),
        ("100,978", "100978"),
        ("100,978 men/women", "100978 menwomen"),
        ("red, white", "red white"),
        ("red/white", "red white"),
        ("red / white", "red white"),
        ("girl's", "girl's"),
        ("2:50 pm", "2:50 pm"),
        ("3.5", "3.5"),
        ("U.S.A.", "usa"),
        ("yes\n", "yes"),
        ("T-shirt!", "t shirt"),
    ],
)
def test_words_of_vqa(text: str, words: str) -> None:
    assert vqa_words(text) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("100,978", "100978"),
        ("Joe's Bar?", "joe 's bar"),
        ("the end", "end"),
        ("seven", "7"),
        ("red, white", "red white"),
    ],
)
def test_words_of_text_vqa(text: str, words: str) -> None:
    assert text_vqa_words(text) == words


@pytest.mark.parametrize(("votes", "accuracy"), [(0, 0.0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (10, 1.0)])
def test_every_nine_of_the_ten_votes(votes: int, accuracy: float) -> None:
    answers = ["a cat"] * votes + ["dog"] * (10 - votes)
    assert vqa_accuracy(answers, "Cat.") == pytest.approx(accuracy)
    assert text_vqa_accuracy(answers, "Cat.") == pytest.approx(accuracy)


@pytest.mark.parametrize(("first", "second", "distance"), [("", "abc", 3), ("kitten", "sitting", 3), ("abc", "abc", 0)])
def test_edit_distance(first: str, second: str, distance: int) -> None:
    assert edit_distance(first, second) == edit_distance(second, first) == distance


@pytest.mark.parametrize(
    ("answers", "text", "score"),
    [
        (["1/8/93"], " 1/8/93", 1.0),
        (["Denver Broncos"], "denver   broncos", 1.0),
        (["1/8/93"], "1/8/98", 5 / 6),
        (["abcd"], "ab", 0.5),
        (["abcd"], "a", 0.0),
        (["xyz", "abcd"], "abce", 0.75),
        (["abc"], "", 0.0),
    ],
)
def test_similarity_below_the_threshold_scores_nothing(answers: list[str], text: str, score: float) -> None:
    assert anls(answers, text) == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "letter"),
    [("B", "B"), ("B. Blue.", "B"), ("The best answer is: C", "C"), ("(D)", "D"), ("Because of A", "B"), ("none", "")],
)
def test_letters_of_video_mme(text: str, letter: str) -> None:
    assert video_mme_letter(text) == letter
    assert video_mme_choice(("B",), text) == float(letter == "B")


@pytest.mark.parametrize(("text", "right"), [("B", True), (" B. Dog", True), ("The answer is B", False), ("", False)])
def test_streaming_bench_takes_the_first_character(text: str, right: bool) -> None:
    assert streaming_bench_choice(("B",), text) == float(right)


def test_ovo_bench_takes_the_letter_anywhere() -> None:
    assert ovo_choice(("C",), "It is C.") == 1.0
    assert ovo_choice(("C",), "a") == 0.0


@pytest.mark.parametrize(
    ("text", "right"), [("2", True), ("2 times", True), ("1 or 2", False), ("two", False), ("", False)]
)
def test_ovo_bench_takes_all_digits(text: str, right: bool) -> None:
    assert ovo_count(("2",), text) == float(right)


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [("Yes", "Yes.", True), ("Yes", "Y", True), ("Yes", "yes", False), ("No", "N", True), ("No", "Yes", False)],
)
def test_ovo_bench_takes_yes_and_no_as_written(answer: str, text: str, right: bool) -> None:
    assert ovo_yes_no((answer,), text) == float(right)


def test_polls() -> None:
    assert [poll(("yes",), text) for text in ("Yes!", "no")] == [1.0, 0.0]
    assert [poll(("no",), text) for text in ("Yes!", "no", "")] == [0.0, 1.0, 1.0]
