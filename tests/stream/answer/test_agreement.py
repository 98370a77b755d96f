"""Agreement of two answers' texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.answer.agreement import TextAgreement, text_agreement, words_of


@pytest.mark.parametrize(
    ("text", "other", "same", "words"),
    [
        ("A red circle.", "  a RED circle ", True, 1),
        ("a red circle", "a blue circle", False, 2 / 3),
        ("yes", "no", False, 0),
        ("", "...", True, 1),
        ("", "a", False, 0),
        ("a b c d", "a b", False, 2 * 2 / 6),
        ("b a", "a b", False, 0.5),
        ("ein Größenmaß", "Ein GRÖSSENMASS", True, 1),
        ("赤い 丸", "赤い 四角", False, 0.5),
    ],
)
def test_case_punctuation_and_spaces_do_not_count(text: str, other: str, same: bool, words: float) -> None:
    assert text_agreement(text, other) == TextAgreement(same, pytest.approx(words))


def test_words_of_a_text() -> None:
    assert words_of("It's 3.5 m, isn’t it?") == ["it's", "3.5", "m", "isn’t", "it"]


@given(st.text(), st.text())
def test_a_text_agrees_with_itself_and_shares_lie_between_0_and_1(text: str, other: str) -> None:
    assert text_agreement(text, text) == TextAgreement(True, 1.0)
    agreement = text_agreement(text, other)
    assert 0 <= agreement.words <= 1
    assert agreement.same == (agreement.words == 1)
