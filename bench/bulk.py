"""Bulk reads of 1,000,000 records of about 200 bytes: over HTTP in one stream, and from files without the server."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.serving import Client, ServerProcess, serving
from tests.spark.batches import record_batch
from topics.engine.log.run_columns import block_columns
from topics.engine.opening.scan import Chunk, Scan, read_part
from topics_spark.payloads.columns import line_columns

RECORDS = 1_000_000
BATCH = 10_000
PAYLOAD = {"id": 12345, "kind": "resize", "url": "s3://bucket/a.png", "text": "x" * 105}
RUNS = 3
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"

READER = """
import socket, sys, time
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as server:
    server.sendall(f"GET {sys.argv[2]} HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nAccept: {sys.argv[3]}\\r\\n\\r\\n".encode())
    started_s = time.perf_counter()
    buffer = bytearray(1 << 20)
    last = b""
    while not last.endswith(b"0\\r\\n\\r\\n"):
        size = server.recv_into(buffer)
        assert size, last
        last = (last + buffer[max(0, size - 4000):size])[-4000:]
    assert b'"records":1000000}' in last, last
    print(time.perf_counter() - started_s)
"""


def fill(client: Client, topic: str, **fields: Any) -> None:
    body = json.dumps({"records": [{"data": PAYLOAD, **fields}] * BATCH, "disable_backpressure": True}).encode()
    for _ in range(RECORDS // BATCH):
        reply = client.post(
            f"/v0/topics/{topic}?return_seqs=false", body=body, headers={"Content-Type": "application/json"}
        )
        assert reply.status in (200, 201), reply


def export(server: ServerProcess, path: str, accept: str) -> tuple[float, float, float]:
    """Records per second of the best run, the server's CPU time of it, and the longest wait of another client in ms."""
    client = server.client()
    took_s: list[float] = []
    cpu_s: list[float] = []
    waited_ms = 0.0
    for _ in range(RUNS):
        command = [sys.executable, "-c", READER, str(server.port), path, accept]
        used_s = cpu_of(server.process.pid)
        reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        while reader.poll() is None:
            started_s = time.perf_counter()
            client.get("/v0/health")
            waited_ms = max(waited_ms, (time.perf_counter() - started_s) * 1000)
            time.sleep(0.001)
        assert reader.stdout is not None
        took_s.append(float(reader.stdout.read()))
        cpu_s.append(cpu_of(server.process.pid) - used_s)
        reader.stdout.close()
    return RECORDS / min(took_s), min(cpu_s), waited_ms


def cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def best(work: Callable[[], int]) -> float:
    """Records that one core handles per second, whatever the load of the others."""
    took_s: list[float] = []
    for _ in range(RUNS):
        started_s = time.process_time()
        assert work() == RECORDS
        took_s.append(time.process_time() - started_s)
    return RECORDS / min(took_s)


def scan(path: Path, topic: str) -> int:
    """From opening the directory to Arrow batches."""
    scan = Scan.open(str(path))
    count = 0
    for part in scan.plan(topic, parts=4):
        for piece in read_part(part):
            assert isinstance(piece, Chunk)
            for columns, rows in block_columns(piece.block, piece.start, piece.stop):
                count += record_batch(topic, columns, rows).num_rows
    scan.close()
    return count


def decode(chunk: bytes, times: int) -> int:
    count = 0
    for _ in range(times):
        found = line_columns(chunk)
        count += record_batch("t", found.columns, found.records).num_rows
    return count


def main() -> None:
    print("| work | measured |\n| --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        with serving(Path(folder) / "data") as server:
            client = server.client()
            fill(client, "plain")
            fill(client, "tagged", tag="customer-17", node="eu-1")
            for what, path, accept in (
                ("export", "/v0/topics/plain/export", NDJSON),
                ("export with tags", "/v0/topics/tagged/export?include_tags=1", NDJSON),
                ("export as Arrow", "/v0/topics/plain/export", ARROW),
                ("export as Arrow with tags", "/v0/topics/tagged/export?include_tags=1", ARROW),
            ):
                rate, cpu_s, waited_ms = export(server, path, accept)
                print(
                    f"| {what} | {rate:,.0f} records/s, {cpu_s:.2f} CPU s, another client waits at most "
                    f"{waited_ms:.1f} ms |",
                    flush=True,
                )
            for topic, query in (("plain", ""), ("tagged", "&include_tags=1")):
                chunk = client.get(f"/v0/topics/{topic}/export?from_seq=100000&to_seq=110000{query}").body
                rate = best(partial(decode, chunk[: chunk.rindex(b'{"end":')], RECORDS // 10_000))
                print(f"| lines to columns, {topic} | {rate:,.0f} records/s |", flush=True)
            assert server.terminate() == 0
        for topic in ("plain", "tagged"):
            rate = best(partial(scan, Path(folder) / "data", topic))
            print(f"| files to columns, {topic} | {rate:,.0f} records/s |", flush=True)


if __name__ == "__main__":
    main()
