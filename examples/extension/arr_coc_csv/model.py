"""Model: a server that gets each question as a line of CSV, and replies with the answer."""

import csv
import io
import urllib.request
from collections.abc import Sequence

import numpy as np

from arr_coc.errors import ModelError
from arr_coc.types import QueryEmbedding, Work
from arr_coc_csv.section import CsvSection
from stream.answer.model import AnswerModel, AnswerStats, ClientQuestion
from stream.config import Config
from stream.errors import AnswerLost


class CsvModel(AnswerModel):
    """Model that is asked by lines of CSV: question, seconds, tokens. It has one slot, and answers in one piece."""

    slots = 1
    model_id = "csv"
    knows_levels = knows_wide = can_glance = attention_readable = takes_device_pixels = False
    known_world = memory = None
    allocator = b""
    notice = ""

    def __init__(self, config: Config) -> None:
        self._url = CsvSection.of(config).server or ""
        self._open: list[ClientQuestion] = []

    def embed_query(self, query: str) -> QueryEmbedding:
        return QueryEmbedding(query, np.zeros((1, 1), np.float32), self.model_id)

    def check_watch(self, query: str) -> tuple[str, ...]:
        raise ModelError("the server has no probabilities of yes and no", "leave watches out")

    def ask(self, questions: Sequence[ClientQuestion]) -> None:
        self._open += questions

    def step(self) -> Sequence[ClientQuestion]:
        questions, self._open = self._open, []
        for question in questions:
            try:
                question.piece = self._reply(question)
            except OSError as error:
                question.error = AnswerLost(f"{self._url}: {error}", wait_s=1.0)
            question.stats = AnswerStats(Work(tokens_used=len(question.packet.regions)))
            question.ended = True
        return questions

    def _reply(self, question: ClientQuestion) -> str:
        packet = question.packet
        line = io.StringIO()
        csv.writer(line).writerow([question.part.text, packet.stamp.media_ns / 1e9, len(packet.regions)])
        with urllib.request.urlopen(self._url, line.getvalue().encode(), timeout=10.0) as reply:
            return reply.read(10_000).decode("utf-8", "replace")
