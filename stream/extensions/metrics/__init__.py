"""Prometheus metrics and health, over HTTP."""

from stream.extension import Extension, SinkType

EXTENSION = Extension(
    name="metrics",
    section="stream.extensions.metrics.section:MetricsSection",
    sinks=(
        SinkType(
            key="metrics.port",
            option="--metrics-port",
            open="stream.extensions.metrics.sink:open_sink",
            shared="stream.extensions.metrics.sink:SharedMetrics",
        ),
    ),
    serving="stream.extensions.metrics.serving:open_server",
)
