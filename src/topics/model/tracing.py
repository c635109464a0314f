"""Traces, by the API of OpenTelemetry: one from an append through the server to the finished job.

    client: append ─ PRODUCER ─┬─ request ─ CLIENT ─ traceparent ─▶ server: route ─ SERVER
                               └─ meta.traceparent of the record ─▶ worker: job ─ CONSUMER

Nothing here is imported, and no span exists, unless tracing is asked for. Which spans are kept, and where they go, is
up to the SDK that the program has set up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING

from topics.model.errors import TopicsError
from topics.model.extras import install_command

if TYPE_CHECKING:
    from opentelemetry.trace import Span

# The member of a record's meta, and the name of the header.
TRACEPARENT = "traceparent"


class TracingUnavailable(TopicsError):
    """The API of OpenTelemetry is not installed."""

    code = "wrong_setting"


class Tracer:
    """The spans of one part: client, server, worker."""

    def __init__(self, part: str) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ModuleNotFoundError:
            message = f"tracing needs OpenTelemetry: {install_command('tracing')}; or leave TOPICS_TRACING unset"
            raise TracingUnavailable(message) from None
        self._trace = trace
        self._tracer = trace.get_tracer(f"topics.{part}")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, kind: str, parent: str | None, attributes: dict[str, str | int]) -> Span:
        """A span that its owner ends; without a `parent`, a child of the current one if there is any."""
        context = self._propagator.extract({TRACEPARENT: parent}) if parent else None
        return self._tracer.start_span(name, context=context, kind=self._trace.SpanKind[kind], attributes=attributes)

    @contextlib.contextmanager
    def span(self, name: str, kind: str, parent: str | None = None, **attributes: str | int) -> Generator[Span]:
        """The current span while the block runs. An exception that leaves the block is recorded."""
        with self._trace.use_span(self.begin(name, kind, parent, attributes), end_on_exit=True) as span:
            yield span

    @contextlib.contextmanager
    def producing(self, name: str) -> Generator[str | None]:
        """A span for records that others will handle; its value is what names it to them."""
        with self.span(name, "PRODUCER"):
            yield self.traceparent()

    def traceparent(self, span: Span | None = None) -> str | None:
        """How this span, or the current one, is named to others; None if there is none."""
        carrier: dict[str, str] = {}
        context = None if span is None else self._trace.set_span_in_context(span)
        self._propagator.inject(carrier, context)
        return carrier.get(TRACEPARENT)

    def failed(self, span: Span, reason: str) -> None:
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, reason))
