"""Consumer groups over HTTP: eight consumers of one group that consume and ack, and the latency of a waiting one."""

from __future__ import annotations

import selectors
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.load.wire import Wire
from bench.load.wrk import cpu_s
from tests.groups.consumers import SECRET, token
from tests.serving import serving

CONSUMERS = 8
BATCH = 100
MESSAGES = 300_000
WAKINGS = 500
PAYLOAD = {"id": 12345, "kind": "resize", "url": "s3://bucket/a.png", "w": 256}


class Consumed(msgspec.Struct):
    """The fields that a consumer needs to ack; the messages themselves are not decoded."""

    next_offset: int


_consumed = msgspec.json.Decoder(Consumed)


class Loop:
    """A consumer: consume, ack, and again, until there is nothing more."""

    def __init__(self, wire: Wire, topic: str) -> None:
        self.wire = wire
        self.topic = topic
        self.messages = 0
        self._acking = False
        self.consume()

    def consume(self) -> None:
        request = {"topic_id": self.topic, "group_id": "bench", "start": "Earliest", "limit": BATCH}
        self.wire.send("/v1/api/topics/consume", request)

    def turn(self) -> bool:
        """Whether to continue."""
        body = self.wire.take()
        if body is None:
            return True
        if self._acking:
            self._acking = False
            self.consume()
            return True
        if body.startswith(b'{"messages":[]'):
            return False
        self.messages += BATCH
        upto = _consumed.decode(body).next_offset - 1
        self._acking = True
        # Every batch is full, so this is its first offset.
        covered = {"from_offset": upto - BATCH + 1, "upto_offset": upto}
        self.wire.send("/v1/api/topics/ack", {"topic_id": self.topic, "group_id": "bench", **covered})
        return True


def drain(port: int, topic: str) -> float:
    """Messages per second that the consumers read and ack together."""
    selector = selectors.DefaultSelector()
    started_s = time.perf_counter()
    loops = [Loop(Wire(port, token()), topic) for _ in range(CONSUMERS)]
    for loop in loops:
        selector.register(loop.wire.socket, selectors.EVENT_READ, loop)
    working = CONSUMERS
    while working:
        for key, _ in selector.select():
            if not key.data.turn():
                selector.unregister(key.data.wire.socket)
                working -= 1
    took_s = time.perf_counter() - started_s
    total = sum(loop.messages for loop in loops)
    assert total == MESSAGES, total
    return total / took_s


def wakings(port: int, topic: str) -> list[float]:
    """Milliseconds from sending an append until the waiting consumer has its message."""
    consumer, writer = Wire(port, token()), Wire(port)
    writer.send(f"/v0/topics/{topic}", {"records": [{"data": PAYLOAD}]})
    writer.answer()
    took_ms: list[float] = []
    start: Any = {"Offset": 1}
    for _ in range(WAKINGS):
        request = {"topic_id": topic, "group_id": "bench", "start": start, "limit": BATCH, "timeout_seconds": 10}
        consumer.send("/v1/api/topics/consume", request)
        time.sleep(0.003)
        sent_s = time.perf_counter()
        writer.send(f"/v0/topics/{topic}", {"records": [{"data": PAYLOAD}]})
        body = consumer.answer()
        took_ms.append((time.perf_counter() - sent_s) * 1000)
        writer.answer()
        upto = _consumed.decode(body).next_offset - 1
        consumer.send("/v1/api/topics/ack", {"topic_id": topic, "group_id": "bench", "upto_offset": upto})
        consumer.answer()
        start = {"Offset": upto + 1}
    return took_ms


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory), jwt_secret=SECRET) as server:
        client = server.client()
        for _ in range(MESSAGES // 1000):
            client.append("drained", *[PAYLOAD] * 1000)
        before_s = cpu_s(server.process.pid)
        rate = drain(server.port, "drained")
        per_cpu_s = MESSAGES / (cpu_s(server.process.pid) - before_s)
        took_ms = sorted(wakings(server.port, "woken"))
    print("| consumer groups over HTTP, class disk | figure | wanted |")
    print("| --- | --- | --- |")
    what = f"consume and ack of {BATCH} messages, {CONSUMERS} consumers of one group"
    print(f"| {what} | {rate:,.0f} messages/s | 100,000 |")
    print(f"| the same, by the server's processor time | {per_cpu_s:,.0f} messages/s | |")
    p50, p99 = statistics.median(took_ms), took_ms[int(len(took_ms) * 0.99)]
    print(f"| append to waiting consumer | p50 {p50:.2f} ms, p99 {p99:.2f} ms | p50 under 2 ms |")


if __name__ == "__main__":
    main()
