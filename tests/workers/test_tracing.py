"""Traces of OpenTelemetry: one from an append through the server to the finished job, and nothing when off."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.launching import Launched
from tests.patience import PATIENCE_S
from tests.serving import ServerProcess, serving
from topics.client import Client
from topics.workers import App, Job


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """A process has one provider, for good."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    exporter.clear()
    return exporter


class TracedServer(ServerProcess):
    """A process of its own, whose standard output is what its exporter prints."""

    def _started(self, arguments: list[str], env: dict[str, str]) -> Any:
        env = {**env, "OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "50"}
        return Launched(arguments, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def spans(self) -> list[dict[str, Any]]:
        """What it has exported when it ends."""
        process: Any = self.process
        process.terminate()
        text = process.stdout.read().decode()
        process.wait(PATIENCE_S)
        decoder, found = json.JSONDecoder(), []
        while text := text.lstrip():
            span, end = decoder.raw_decode(text)
            found.append(span)
            text = text[end:]
        return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TracedServer]:
    server = TracedServer(tmp_path, tracing=1)
    try:
        yield server
    finally:
        server.kill()
        assert server.process.stdout is not None
        server.process.stdout.close()


def by_name(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def context_of(span: ReadableSpan) -> trace.SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def test_an_append_its_request_and_the_job_are_one_trace(server: TracedServer, spans: InMemorySpanExporter) -> None:
    url = f"http://127.0.0.1:{server.ready().port}"
    app = App(url, tracing=True)
    seen: list[str] = []

    @app.worker("mails")
    def send(job: Job) -> None:
        current = trace.get_current_span().get_span_context()
        seen.append(f"{current.trace_id:032x}")
        app.stop()

    with Client(url, tracing=True) as client:
        client.create("mails", type="queue")
        client.append("mails", {"to": "a"}, meta={"mine": 1})
        meta = client.diff("mails", include_meta=True).records[0].meta
    asyncio.run(app.serve())

    found = by_name(spans)
    append, job = found["append mails"], found["process mails"]
    trace_id = f"{context_of(append).trace_id:032x}"
    assert meta is not None
    assert (meta["mine"], meta["traceparent"].split("-")[1]) == (1, trace_id)
    # the worker's span is a child of the append, and the handler ran inside it
    assert job.parent is not None
    assert job.parent.span_id == context_of(append).span_id
    assert seen == [trace_id]
    assert job.kind == trace.SpanKind.CONSUMER
    # the server's span is a child of the client's request, which is a child of the append
    asked = next(
        span for span in spans.get_finished_spans() if span.parent and span.parent.span_id == context_of(append).span_id
    )
    served = [span for span in server.spans() if span["context"]["trace_id"] == f"0x{trace_id}"]
    appended = next(span for span in served if span["name"] == "POST /v0/topics/{topic}")
    assert appended["parent_id"] == f"0x{context_of(asked).span_id:016x}"
    assert appended["attributes"]["http.response.status_code"] in (200, 201)


def test_a_failed_job_is_a_failed_span(server: TracedServer, spans: InMemorySpanExporter) -> None:
    url = f"http://127.0.0.1:{server.ready().port}"
    app = App(url, tracing=True)

    @app.worker("mails")
    async def send(job: Job) -> None:
        app.stop()
        raise ValueError("no such address")

    with Client(url, tracing=True) as client:
        client.create("mails", type="queue", max_deliveries=1)
        client.append("mails", 1)
    asyncio.run(app.serve())
    status = by_name(spans)["process mails"].status
    assert (status.status_code, status.description) == (trace.StatusCode.ERROR, "ValueError: no such address")


def test_a_reply_names_the_servers_span(server: TracedServer) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    given = f"00-{trace_id}-b7ad6b7169203331-01"
    reply = server.ready().client().get("/v0/topics", headers={"traceparent": given})
    assert reply.headers["traceparent"].split("-")[1] == trace_id
    assert reply.headers["traceparent"] != given
    span = next(span for span in server.spans() if span["name"] == "GET /v0/topics")
    assert span["context"]["span_id"] == f"0x{reply.headers['traceparent'].split('-')[2]}"


def test_without_tracing_nothing_of_opentelemetry_is_imported_and_records_stay_as_they_are(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        program = (
            "import sys; from topics.client import Client; import topics.workers\n"
            f"with Client('http://127.0.0.1:{server.port}') as c: c.append('t', 1)\n"
            "import topics.server\n"
            "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
        )
        assert subprocess.run([sys.executable, "-c", program], timeout=PATIENCE_S).returncode == 0
        assert "meta" not in server.client().diff("t", include_meta=True)["records"][0]


def test_an_exporter_that_is_not_installed_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "pigeon")
    server = ServerProcess(tmp_path, tracing=1)
    assert server.exit_code() == 2
    assert "OTEL_TRACES_EXPORTER is 'pigeon'" in server.log
