"""Escalation: a larger model answers where the run's own is unsure of its answer."""

from stream.extension import Extension

EXTENSION = Extension(
    name="escalate",
    section="stream.extensions.escalate.section:EscalateSection",
    answer_model="stream.extensions.escalate.model:escalating_model",
)
