"""History: earlier answers of a run stand before the next question."""

from stream.extension import Extension

EXTENSION = Extension(
    name="history",
    section="stream.extensions.history.section:HistorySection",
    answer_filter="stream.extensions.history.filter:AnswerHistory.of",
)
