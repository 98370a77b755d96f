"""Answers of VQAv2 and TextVQA as their evaluations compare them.

VQAv2 (visualqa.org/evaluation; Goyal et al. 2017, arXiv:1612.00837): the answer is lower-cased, periods go unless a
digit follows, other punctuation but the apostrophe and the colon becomes a blank, or goes if a blank is beside it or
the text has a comma between digits; number words become digits, articles go, contractions get their apostrophe. TextVQA
(Singh et al. 2019, arXiv:1904.08920) first removes commas and question marks and sets `'s` apart. Both sides are
treated alike.

VQAv2's published script leaves the ten answers as they are if all agree, and compares capitals then; its page says that
every answer is processed, which is done here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

VOTES_FOR_RIGHT = 3

_PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
_PERIOD = re.compile(r"\.(?!\d)")
_COMMA_BETWEEN_DIGITS = re.compile(r"\d,\d")
_ARTICLES = frozenset({"a", "an", "the"})
_NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NUMBERS = {word: str(number) for number, word in enumerate(_NUMBER_WORDS)} | {"none": "0"}

_CONTRACTED = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've
    he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've needn't not've
    o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've some·body'd've some·body'll some·body's
    some·one'd some·one'd've some·one'll some·one's something'd something'd've something'll that's there'd there'd've
    there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's
    what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've
    wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've
""".replace("·", "").split()


def _without_one_apostrophe() -> dict[str, str]:
    """Misspelt → contracted: each contraction without one of its apostrophes."""
    contractions = {
        word[:place] + word[place + 1 :]: word
        for word in _CONTRACTED
        for place, character in enumerate(word)
        if character == "'"
    }
    return contractions | {"some·body'd".replace("·", ""): "some·bodyd".replace("·", "")}  # so in the published table


_CONTRACTIONS = _without_one_apostrophe()


def vqa_words(text: str) -> str:
    """An answer as VQAv2 compares it."""
    text = text.replace("\n", " ").replace("\t", " ").strip()
    joined = _COMMA_BETWEEN_DIGITS.search(text) is not None
    plain = text
    for mark in _PUNCTUATION:
        beside_blank = f"{mark} " in text or f" {mark}" in text
        plain = plain.replace(mark, "" if beside_blank or joined else " ")
    words = [_NUMBERS.get(word, word) for word in _PERIOD.sub("", plain).lower().split()]
    return " ".join(_CONTRACTIONS.get(word, word) for word in words if word not in _ARTICLES)


def text_vqa_words(text: str) -> str:
    """An answer as TextVQA compares it."""
    return vqa_words(text.lower().replace(",", "").replace("?", "").replace("'s", " 's"))


def _leave_one_out(words: Callable[[str], str], answers: Sequence[str], text: str) -> float:
    """Mean over each answer left out of min(votes among the others / 3, 1)."""
    prediction, votes = words(text), [words(answer) for answer in answers]
    same = votes.count(prediction)
    return sum(min((same - (vote == prediction)) / VOTES_FOR_RIGHT, 1.0) for vote in votes) / len(votes)


def vqa_accuracy(answers: Sequence[str], text: str) -> float:
    """VQAv2's accuracy of an answer: the mean over all subsets of nine of the ten votes."""
    return _leave_one_out(vqa_words, answers, text)


def text_vqa_accuracy(answers: Sequence[str], text: str) -> float:
    """TextVQA's accuracy of an answer: VQAv2's, with its own text processing."""
    return _leave_one_out(text_vqa_words, answers, text)
