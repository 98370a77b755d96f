"""Journal of a captioning run: a run that was killed is continued with the answers that it had."""

from stream.extension import Extension

EXTENSION = Extension(name="journal", continuation="stream.extensions.journal.journal:journal_for")
