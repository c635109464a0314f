"""Spans of requests, and the exporter that the server sets up for them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib.metadata import entry_points
from threading import Thread
from typing import TYPE_CHECKING, Any

from topics.http.request import Request, RequestIds
from topics.model.extras import install_command
from topics.model.setting_types import WrongSetting
from topics.model.tracing import Tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from topics.api.call import Call

log = logging.getLogger("topics.server")

EXPORTERS = "opentelemetry_traces_exporter"
# A collector that does not answer must not hold up the next start.
LAST_SPANS_S_MAX = 2.0


class RequestSpans:
    """A span for each request that has a route, a child of the client's if it names one."""

    def __init__(self) -> None:
        self._tracer = Tracer("server")

    def begin(self, request: Request, call: Call) -> Span:
        parent = request.ids.traceparent.decode() if request.ids is not None else None
        route = call.bound.route.path
        attributes: dict[str, str | int] = {"http.request.method": request.method, "http.route": route}
        if call.name:
            attributes["topics.name"] = call.name
        span = self._tracer.begin(f"{request.method} {route}", "SERVER", parent or None, attributes)
        traceparent = self._tracer.traceparent(span)
        if traceparent is not None:
            # The client learns which span was its request.
            request_id = request.ids.request_id if request.ids is not None else b""
            request.ids = RequestIds(request_id, traceparent.encode())
        return span

    def end(self, span: Span, status: int) -> None:
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._tracer.failed(span, str(status))
        span.end()


def start_exporting() -> Callable[[], None]:
    """Set up the SDK, with the exporter that OTEL_TRACES_EXPORTER names; returns what sends the last spans."""
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError:
        message = f"TOPICS_TRACING needs the SDK of OpenTelemetry: {install_command('tracing')}"
        raise WrongSetting(message, setting="tracing") from None
    own = Resource({"service.name": "topics"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=Resource.create(dict(own.attributes)), shutdown_on_exit=False)
    for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
        if name.strip() != "none":
            provider.add_span_processor(BatchSpanProcessor(_exporter(name.strip())))
    trace.set_tracer_provider(provider)

    def send_the_last() -> None:
        sending = Thread(target=provider.shutdown, name="topics-last-spans", daemon=True)
        sending.start()
        sending.join(LAST_SPANS_S_MAX)
        if sending.is_alive():
            log.warning("the last spans were not sent: the collector did not take them within %g s", LAST_SPANS_S_MAX)

    return send_the_last


def _exporter(name: str) -> Any:
    """`otlp` is OTLP over HTTP, the form that needs no further library than the extra has."""
    found = list(entry_points(group=EXPORTERS, name="otlp_proto_http" if name == "otlp" else name))
    if not found:
        message = f"OTEL_TRACES_EXPORTER is {name!r}, but no installed package has such an exporter"
        raise WrongSetting(message, setting="tracing")
    return found[0].load()()
