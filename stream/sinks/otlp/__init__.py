"""OpenTelemetry: a trace of each answer, sent as OTLP over HTTP. Needs the extra `otlp`."""
