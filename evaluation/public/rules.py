"""Scores of documents and of multiple choice, as the benchmarks' own evaluations give them."""

from __future__ import annotations

import re
from collections.abc import Sequence

ANLS_THRESHOLD = 0.5
"""A similarity below this scores nothing."""


def edit_distance(first: str, second: str) -> int:
    """Number of insertions, deletions and replacements between two texts (Levenshtein 1966)."""
    row = list(range(len(second) + 1))
    for number, character in enumerate(first, 1):
        diagonal, row[0] = row[0], number
        for place, other in enumerate(second, 1):
            diagonal, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, diagonal + (character != other))
    return row[-1]


def anls(answers: Sequence[str], text: str) -> float:
    """Average normalised Levenshtein similarity of one answer: of the nearest right one, 1 - distance / longer length,
    and 0 if that is below 0.5 (Biten et al. 2019, arXiv:1905.13648; DocVQA, arXiv:2007.00398). Case and runs of blanks
    play no part."""
    plain_text = _plain(text)
    return max(_similarity(_plain(answer), plain_text) for answer in answers)


def _similarity(answer: str, text: str) -> float:
    longer = max(len(answer), len(text))
    similarity = 1 - edit_distance(answer, text) / longer if longer else 1.0
    return similarity if similarity >= ANLS_THRESHOLD else 0.0


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def video_mme_letter(text: str) -> str:
    """The letter that Video-MME's evaluation takes from an answer: its first capital A to D, "" if there is none.

    The phrases that their script removes before have no such letter.
    """
    match = re.search("[ABCD]", text)
    return match[0] if match else ""


def video_mme_choice(answers: Sequence[str], text: str) -> float:
    """1 if Video-MME takes the right letter from an answer."""
    return float(video_mme_letter(text) in answers)


def streaming_bench_choice(answers: Sequence[str], text: str) -> float:
    """1 if the first character of an answer is the right letter, as StreamingBench counts."""
    return float(text.strip()[:1] in answers)


def says_yes(text: str) -> bool:
    """True if StreamingBench takes a poll of Proactive Output for a yes."""
    return "yes" in text.lower()


def poll(answers: Sequence[str], text: str) -> float:
    """1 if a poll is answered with a yes if that is right, and with none if it is not."""
    return float(says_yes(text) == ("yes" in answers))


def ovo_choice(answers: Sequence[str], text: str) -> float:
    """1 if the right letter is anywhere in an answer, as OVO-Bench counts."""
    return float(any(answer in text for answer in answers))


def ovo_count(answers: Sequence[str], text: str) -> float:
    """1 if the digits of an answer, one after the other, are the right number: OVO-Bench's REC."""
    return float("".join(re.findall(r"\d", text)) in answers)


def ovo_yes_no(answers: Sequence[str], text: str) -> float:
    """1 if "Yes" or "No", whichever is right, is in an answer, or it is its first letter: OVO-Bench's SSR and CRR."""
    return float(any(answer in text or text == answer[0] for answer in answers))
