"""Answers, matches and outages posted to an address over HTTP."""

from stream.extension import Extension, SinkType

EXTENSION = Extension(
    name="webhook",
    section="stream.extensions.webhook.section:WebhookSection",
    sinks=(
        SinkType(
            key="webhook.url",
            option="--webhook",
            check="stream.extensions.webhook.sink:check",
            open="stream.extensions.webhook.sink:WebhookSink.open",
        ),
    ),
)
