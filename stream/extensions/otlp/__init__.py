"""OpenTelemetry: a trace of each answer, sent as OTLP over HTTP. Needs the extra `otlp`."""

from stream.extension import Extension, SinkType
from stream.options.extra import Extra

OTLP = Extra(
    name="otlp",
    part="traces",
    needed_for="--otlp",
    libraries=("opentelemetry-exporter-otlp-proto-http",),
    modules=("opentelemetry.exporter.otlp.proto.http", "opentelemetry.sdk.trace"),
)

EXTENSION = Extension(
    name="otlp",
    section="stream.extensions.otlp.section:OtlpSection",
    sinks=(
        SinkType(
            key="otlp.url",
            option="--otlp",
            extra=OTLP,
            check="stream.extensions.otlp.endpoint:check",
            open="stream.extensions.otlp.sink:OtlpSink.open",
        ),
    ),
)
