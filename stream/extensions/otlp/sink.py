"""Sink that sends a trace of each answer to an OpenTelemetry collector. The run never waits for the collector."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, set_span_in_context

from arr_coc.errors import counted, of_counted
from stream import logs
from stream.config import Config
from stream.events import AnswerPoint, Event, FrameReady, Started
from stream.extension import SinkOpening
from stream.extension.registry import model_type_of
from stream.extensions.otlp.endpoint import traces_url
from stream.extensions.otlp.section import OtlpSection
from stream.extensions.otlp.spans import FrameTimes
from stream.sinks.base import Sink, program_version
from stream.sources.address import redacted
from stream.untrusted import printable

QUEUE_SPANS = 512
"""Length of the queue to the collector, 64 answers; the oldest spans are dropped if the collector is slower."""

NAME = "arr-coc-stream"

log = logging.getLogger(__name__)


class OtlpSink(Sink):
    """Sink that builds a trace of each answer from its timestamps, and queues it for a thread that sends batches.

    Without a collector, traces are dropped, which is reported once and at the end. Traces contain text only with
    `otlp.text`. Raises ConfigError as `traces_url`.
    """

    # longest time that a span waits for others of its batch
    def __init__(self, config: Config, every_ms: float = 1000) -> None:
        self._section = OtlpSection.of(config)
        url = traces_url(self._section.url or "")
        self._config = config
        self._model = config.answer.model or ""
        self._times = FrameTimes()
        self._answers = 0
        if not log.isEnabledFor(logging.DEBUG):
            logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it logs each lost batch
        # time limit of a request and its retries
        self._exporter = CountingExporter(OTLPSpanExporter(url, timeout=2.0), redacted(url))
        resource = Resource.create(
            {"service.name": NAME, "service.version": program_version(), "arr_coc.source": redacted(config.source)}
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=QUEUE_SPANS,
                max_export_batch_size=64,
                schedule_delay_millis=every_ms,
            )
        )
        self._tracer = self._provider.get_tracer(NAME, program_version())
        self._open = True

    @classmethod
    def open(cls, opening: SinkOpening) -> OtlpSink:
        """Open the sink of a run."""
        return cls(opening.config)

    def write(self, event: Event) -> None:
        if isinstance(event, FrameReady):
            self._times.add(event)
        elif isinstance(event, Started):
            self._model = event.model
        elif isinstance(event, AnswerPoint):
            trace = self._times.trace(event, time.monotonic_ns())
            if trace is not None:
                self._answers += 1
                unix_ns = time.time_ns() - time.monotonic_ns()
                root = self._tracer.start_span(
                    f"chat {self._model}",
                    kind=SpanKind.CLIENT,
                    attributes=self._attributes(event),
                    start_time=trace.total.start_ns + unix_ns,
                )
                context = set_span_in_context(root)
                for part in trace.parts:
                    span = self._tracer.start_span(part.name, context, start_time=part.start_ns + unix_ns)
                    span.end(part.end_ns + unix_ns)
                root.add_event("first text", timestamp=trace.first_text_ns + unix_ns)
                root.end(trace.total.end_ns + unix_ns)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._exporter.ending = True
        thread = threading.Thread(target=self._provider.shutdown, name="otlp end", daemon=True)
        thread.start()
        # time limit of the last traces
        thread.join(2.0)  # a thread that still waits for the collector ends with the program
        if self._exporter.answers < self._answers:
            share = of_counted(self._exporter.answers, self._answers, "trace")
            logs.say(f"note: {share} reached the collector at {self._exporter.url}", "warning", event="otlp")

    def _attributes(self, answer: AnswerPoint) -> dict[str, str | int | float | bool]:
        """Return the attributes of an answer: the semantic conventions for generative AI, and this program's own."""
        settings = self._config.answer
        model_type = model_type_of(self._config)
        timing = answer.timing
        assert timing is not None
        attributes: dict[str, str | int | float | bool] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "arr_coc" if model_type is None else model_type.provider,
            "gen_ai.request.model": self._model,
            "gen_ai.request.max_tokens": settings.max_tokens,
            "gen_ai.request.temperature": settings.temperature,
            "gen_ai.request.stream": True,
            "gen_ai.output.type": "text",
            "gen_ai.usage.input_tokens": answer.tokens_used,
            "gen_ai.usage.output_tokens": answer.text_tokens,
            "gen_ai.response.time_to_first_chunk": (timing.ttft_ms - timing.sent_ms) / 1000,
            "arr_coc.answer": answer.answer,
            "arr_coc.trigger": answer.trigger,
            "arr_coc.frame_index": answer.frame_index,
            "arr_coc.pts_s": answer.pts_s,
            "arr_coc.frames": answer.frames,
            "arr_coc.tiles": answer.tokens_total,
            "arr_coc.glances": answer.glances,
            "arr_coc.glance_ms": timing.glance_ms,
            "arr_coc.turn_ms": timing.turn_ms,
        }
        if self._section.text:
            attributes["gen_ai.input.messages"] = _message("user", answer.query)
            attributes["gen_ai.output.messages"] = _message("assistant", answer.text)
        return attributes


class CountingExporter(SpanExporter):
    """Exporter that counts the `answers` whose traces arrived, and reports a loss once until traces arrive again."""

    def __init__(self, exporter: SpanExporter, url: str) -> None:
        self._exporter = exporter
        self._reported_lost = False
        self.url = url
        self.answers = 0
        self.ending = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception:
            log.debug("traces could not be sent", exc_info=True)
            result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self.answers += sum(span.parent is None for span in spans)
            if self._reported_lost:
                logs.say(f"the collector at {self.url} is there", event="otlp", address=self.url)
            self._reported_lost = False
        elif not self._reported_lost and not self.ending:
            self._reported_lost = True
            text = f"note: the collector at {self.url} takes no traces; the run goes on, and newer ones are tried"
            logs.say(text, "warning", event="otlp", address=self.url, spans=counted(len(spans), "span"))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _message(role: str, text: str) -> str:
    """Return a message in JSON, in the form of the semantic conventions."""
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": printable(text)}]}], ensure_ascii=False)
