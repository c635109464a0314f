"""Traces sent by OTLP: server, client and worker send to a real collector, and it passes on one trace of all three.

server ─┐
client ─┼─ OTLP/HTTP ─▶ Rotel ─ OTLP/HTTP ─▶ receiver: decodes the messages, prints a line for each span
worker ─┘
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.deploy.parts import IN_CI, ROOT
from tests.patience import PATIENCE_S
from tests.serving import ServerProcess, free_port

# What `make` installs: the extra `tracing` as a user has it, and the collector.
VENV = ROOT / ".venv" / "tracing"
PYTHON = VENV / "bin" / "python"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not IN_CI and not list(VENV.glob("lib/*/site-packages/rotel")),
        reason="the collector is not installed (make test installs it)",
    ),
]

RECEIVER = """
import gzip, json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        message = ExportTraceServiceRequest.FromString(body)
        for resource in message.resource_spans:
            service = {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"]
            for span in [span for scope in resource.scope_spans for span in scope.spans]:
                print(json.dumps({
                    "service": service, "name": span.name, "kind": span.kind, "trace": span.trace_id.hex(),
                    "id": span.span_id.hex(), "parent": span.parent_span_id.hex(), "path": self.path,
                    "status": [each.value.int_value for each in span.attributes if each.key.endswith("status_code")],
                    "took_ns": span.end_time_unix_nano - span.start_time_unix_nano,
                }), flush=True)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class TracedServer(ServerProcess):
    command = (VENV / "bin" / "topics",)


class Collector(NamedTuple):
    port: int
    received: subprocess.Popen[str]


def listens(port: int, process: subprocess.Popen[Any]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < give_up_s
            time.sleep(0.02)
        else:
            return


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    http, grpc, behind = free_port(), free_port(), free_port()
    agent = next(VENV.glob("lib/*/site-packages/rotel/rotel-agent"))
    options = {
        "otlp-http-endpoint": f"127.0.0.1:{http}",
        "otlp-grpc-endpoint": f"127.0.0.1:{grpc}",
        "otlp-exporter-endpoint": f"http://127.0.0.1:{behind}",
        "otlp-exporter-protocol": "http",
        "pid-file": tmp_path / "pid",
        "log-file": tmp_path / "log",
    }
    command = [agent, "start", *(str(part) for name, value in options.items() for part in (f"--{name}", value))]
    receiver = subprocess.Popen([PYTHON, "-c", RECEIVER, str(behind)], stdout=subprocess.PIPE, text=True)
    rotel = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        listens(behind, receiver)
        listens(http, rotel)
        yield Collector(http, receiver)
    finally:
        for process in (rotel, receiver):
            process.kill()
            process.wait(PATIENCE_S)
        assert receiver.stdout is not None
        receiver.stdout.close()


def program_of_the_page() -> str:
    """The program in docs/LOGS.md."""
    found = re.search(r"^```python\n(.*?)^```", (ROOT / "docs" / "LOGS.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_a_collector_receives_one_trace_from_the_append_to_the_finished_job(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.port}")
    server = TracedServer(tmp_path / "data", tracing=1)
    try:
        environ = {**os.environ, "TOPICS_URL": f"http://127.0.0.1:{server.ready().port}", "OTEL_SERVICE_NAME": "mailer"}
        done = subprocess.run(
            [PYTHON, "-c", program_of_the_page()], env=environ, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert (done.returncode, done.stdout) == (0, "a mail to ada\n"), done.stderr
    finally:
        # The end sends what is left.
        server.process.terminate()
        assert server.exit_code() == 0
    assert "opentelemetry" not in server.log
    assert collector.received.stdout is not None
    spans: dict[str, dict[str, Any]] = {}
    trace_id = None
    wanted = {"append mails", "topics POST", "POST /v0/topics/{topic}", "process mails", "smtp"}
    for line in collector.received.stdout:
        span = json.loads(line)
        if span["name"] == "append mails":
            trace_id = span["trace"]
        spans[f"{span['trace']} {span['name']}"] = span
        if trace_id is not None and {f"{trace_id} {name}" for name in wanted} <= spans.keys():
            break
    found = {name: spans[f"{trace_id} {name}"] for name in wanted}
    parents = {
        name: next((other for other in wanted if found[other]["id"] == span["parent"]), None)
        for name, span in found.items()
    }
    assert parents == {
        "append mails": None,
        "topics POST": "append mails",
        "POST /v0/topics/{topic}": "topics POST",
        "process mails": "append mails",
        "smtp": "process mails",
    }
    # producer, client, server, consumer, internal, as OTLP numbers them
    kinds = [found[name]["kind"] for name in parents]
    assert dict(zip(parents, kinds, strict=True)) == {
        "append mails": 4,
        "topics POST": 3,
        "POST /v0/topics/{topic}": 2,
        "process mails": 5,
        "smtp": 1,
    }
    served = found["POST /v0/topics/{topic}"]
    assert (served["service"], served["path"]) == ("topics", "/v1/traces")
    assert served["status"] in ([200], [201])
    assert {span["service"] for name, span in found.items() if name != served["name"]} == {"mailer"}
    assert all(span["took_ns"] > 0 for span in found.values())


def test_a_collector_that_is_down_delays_neither_requests_nor_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port accepts connections, and never answers: what is sent to it waits for its time limit, 10 s."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
        server = TracedServer(tmp_path / "data", tracing=1)
        try:
            client = server.ready().client()
            assert [client.append("t", number).status for number in range(3)] == [201, 200, 200]
        finally:
            server.process.terminate()
            # Waiting for its time limit would take an hour.
            assert server.exit_code() == 0
    assert "the last spans were not sent" in server.log
