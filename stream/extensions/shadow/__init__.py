"""Shadow checks: answers that are compared with those of all tokens, and may move the budget."""

from stream.extension import Extension

EXTENSION = Extension(
    name="shadow",
    section="stream.extensions.shadow.section:ShadowSection",
    answer_filter="stream.extensions.shadow.checks:ShadowChecks.of",
    budget="stream.extensions.shadow.budget:QualityController.of",
)
