"""Errors of an evaluation; the message of each is one line with the remedy.

EvaluationError
├── SuiteError (ValueError)      a suite that does not exist
├── QuestionsError (ValueError)  a question file with a missing field, or that names a file that cannot be read
├── PicturesError (OSError)      pictures that cannot be fetched or read
├── ChoiceError (ValueError)     a strategy, budget or encoding that does not exist, or does not fit the others
└── ResultsError (OSError)       results that cannot be written or read
"""

from __future__ import annotations


class EvaluationError(Exception):
    """Base of every error that `evaluation` raises on purpose; its message is fit to show to a user."""


class SuiteError(EvaluationError, ValueError):
    """A suite that does not exist."""


class QuestionsError(EvaluationError, ValueError):
    """A question file with a missing field, or that names a file that cannot be read."""


class ChoiceError(EvaluationError, ValueError):
    """A strategy, budget or encoding that does not exist, or does not fit the others."""


class PicturesError(EvaluationError, OSError):
    """Pictures that cannot be fetched or read."""


class ResultsError(EvaluationError, OSError):
    """Results that cannot be written or read."""
