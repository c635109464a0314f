"""SQS beside /v0: send, receive, delete by boto3, and append, claim, ack by our own client, on as many connections.

Rounds alternate. What a client spends on itself is in the rates; the processor time of the server is the server's.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.load.wrk import cpu_s
from tests.serving import ServerProcess, serving
from tests.sqs.clients import boto3_client
from topics.api.auth import key_id_of, sqs_secret_of
from topics.client import Client

KEY = "the-key-of-the-bench"
CONNECTIONS = 4
CYCLES = 100
ROUNDS = 5
BODY = "x" * 200
CALLS_PER_CYCLE = 3

Cycle = Callable[[], None]


class Measured(NamedTuple):
    cycles_per_s: float
    server_us_per_call: float


def by_boto3(server: ServerProcess, name: str) -> Cycle:
    sqs: Any = boto3_client(server.port, key_id_of(KEY), sqs_secret_of(KEY))
    url = sqs.create_queue(QueueName=name)["QueueUrl"]

    def cycle() -> None:
        sqs.send_message(QueueUrl=url, MessageBody=BODY)
        (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)["Messages"]
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    return cycle


def by_client(server: ServerProcess, name: str) -> Cycle:
    client = Client(f"http://127.0.0.1:{server.port}", KEY, node=name)
    # as CreateQueue configures it
    client.create(name, type="queue", leases_durable=True, ttl_ms=345_600_000)

    def cycle() -> None:
        client.append(name, BODY)
        jobs = client.claim(name, wait_ms=1_000)
        client.ack(name, jobs)

    return cycle


def measure(server: ServerProcess, make: Callable[[ServerProcess, str], Cycle], round_: int) -> Measured:
    """A queue and a connection for each thread."""
    cycles = [make(server, f"{make.__name__}-{round_}-{number}") for number in range(CONNECTIONS)]
    for cycle in cycles:
        cycle()

    def run(cycle: Cycle) -> None:
        for _ in range(CYCLES):
            cycle()

    threads = [threading.Thread(target=run, args=(cycle,)) for cycle in cycles]
    cpu_before, started = cpu_s(server.process.pid), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, spent = time.perf_counter() - started, cpu_s(server.process.pid) - cpu_before
    count = CONNECTIONS * CYCLES
    return Measured(count / took, spent / count / CALLS_PER_CYCLE * 1e6)


def main() -> None:
    with tempfile.TemporaryDirectory() as root, serving(Path(root) / "data", api_keys=KEY) as server:
        rounds = [(measure(server, by_boto3, n), measure(server, by_client, n)) for n in range(ROUNDS)]
    print(f"{CONNECTIONS} connections, {CALLS_PER_CYCLE} calls a cycle; medians of {ROUNDS} rounds (least to most)\n")
    print("| | boto3 | /v0 | ratio |\n| --- | --- | --- | --- |")
    for field, shown in (("cycles_per_s", "cycles per second"), ("server_us_per_call", "server, µs of CPU per call")):
        sqs, own = ([getattr(pair[side], field) for pair in rounds] for side in (0, 1))
        ratio = statistics.median(sqs) / statistics.median(own)
        print(f"| {shown} | {_spread(sqs)} | {_spread(own)} | {max(ratio, 1 / ratio):.2f} |")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"
