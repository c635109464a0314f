"""Scenarios of the stalls bench: each route with the largest request that it accepts, one at a time."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.attacks import JSON, UPGRADE
from bench.stalls import IN_THE_LOG, batch, scenario
from tests.serving import Client, Reply, ServerProcess

Record = dict[str, object]
Send = Callable[[Client], object]

BATCH, CLAIM, TOPICS, WATCHED = 10_000, 1_000, 1_000, 256
TIMES = 3
LARGE = 5_700


def sent(root: Path, prepare: Send, *requests: Send, **settings: object) -> Iterator[ServerProcess]:
    """A server that is prepared, and then gets these requests one after the other."""
    server = ServerProcess(root, **settings)
    server.ready()
    client = Client(server.port, timeout_s=120)
    prepare(client)
    yield server
    for request in requests:
        request(client)


def well(reply: Reply) -> Reply:
    assert reply.status < 300, (reply.status, reply.body[:300])
    return reply


def post(path: str, body: Any) -> Send:
    """Encoded beforehand, so that only the server works while waits are measured."""
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda client: well(client.request("POST", path, body=encoded, headers=JSON))


def put(path: str, **config: object) -> Send:
    return lambda client: well(client.put(path, config))


def several(*requests: Send) -> Send:
    def send(client: Client) -> None:
        for request in requests:
            request(client)

    return send


# --- append ---


def appended(
    root: Path, make: Callable[[int, int], Record], query: str = "", **config: object
) -> Iterator[ServerProcess]:
    bodies = [batch([make(time, n) for n in range(BATCH)]) for time in range(TIMES)]
    return sent(root, put("/v0/topics/t", **config), *(post(f"/v0/topics/t{query}", body) for body in bodies))


@scenario("an append of 10,000 jobs with delay_ms and unique_key")
def append_delayed_unique(root: Path) -> Iterator[ServerProcess]:
    return appended(
        root, lambda time, n: {"data": n, "delay_ms": 60_000 + n, "unique_key": f"key-{time}-{n}"}, type="queue"
    )


@scenario("an append of 10,000 jobs with delay_ms")
def append_delayed(root: Path) -> Iterator[ServerProcess]:
    return appended(root, lambda _, n: {"data": n, "delay_ms": 60_000 + n}, type="queue")


@scenario("an append of 10,000 jobs, each of them twice")
def append_twice(root: Path) -> Iterator[ServerProcess]:
    return appended(root, lambda time, n: {"data": n, "unique_key": f"key-{time}-{n // 2}"}, type="queue")


@scenario("an append of 10,000 distinct tags")
def append_tags(root: Path) -> Iterator[ServerProcess]:
    return appended(root, lambda time, n: {"data": n, "tag": f"{'t' * 200}-{time}-{n}"})


@scenario("an append of 10,000 metas of 65 pairs")
def append_metas(root: Path) -> Iterator[ServerProcess]:
    meta = {f"key-{n}": {"n": n} for n in range(33)}
    return appended(root, lambda _, n: {"data": n, "meta": meta})


@scenario("an append of 3,500 metas of 16 KiB")
def append_large_metas(root: Path) -> Iterator[ServerProcess]:
    meta = {"all": [{"a": 1}] * 1_600}
    body = batch([{"data": 1, "meta": meta}] * 3_500)
    return sent(root, put("/v0/topics/t"), *[post("/v0/topics/t", body)] * TIMES)


@scenario("an append of 10,000 jobs with all fields")
def append_everything(root: Path) -> Iterator[ServerProcess]:
    def record(time: int, n: int) -> Record:
        fields: Record = {"delay_ms": 60_000 + n, "unique_key": f"key-{time}-{n}", "tag": f"tag-{time}-{n}"}
        return {"data": {"n": n, "text": "x" * 200}, "node": f"node-{n}", "meta": {"n": n}, **fields}

    return appended(root, record, type="queue")


@scenario("an append of 57 MB to an ephemeral topic")
def append_ephemeral(root: Path) -> Iterator[ServerProcess]:
    body = batch([{"data": "z" * LARGE}] * BATCH)
    prepare = put("/v0/topics/t", durability="ephemeral")
    return sent(root, prepare, *[post("/v0/topics/t?return_seqs=false", body)] * TIMES)


@scenario("an append of 60 records of 900 KB to an ephemeral topic")
def append_ephemeral_few(root: Path) -> Iterator[ServerProcess]:
    body = batch([{"data": "z" * 900_000}] * 60)
    prepare = put("/v0/topics/t", durability="ephemeral")
    return sent(root, prepare, *[post("/v0/topics/t?return_seqs=false", body)] * TIMES)


@scenario("an append of 10,000 lines (NDJSON)")
def append_lines(root: Path) -> Iterator[ServerProcess]:
    body = b"\n".join(b'{"n":%d,"text":"%b"}' % (n, b"x" * 200) for n in range(BATCH))
    lines = {"Content-Type": "application/x-ndjson"}

    def send(client: Client) -> Reply:
        return well(client.request("POST", "/v0/topics/t?tag=a&delay_ms=60000", body=body, headers=lines))

    return sent(root, put("/v0/topics/t", type="queue"), *[send] * TIMES)


@scenario("an append of 57 MB of lines (NDJSON)")
def append_large_lines(root: Path) -> Iterator[ServerProcess]:
    body = (b'"' + b"z" * LARGE + b'"\n') * BATCH
    lines = {"Content-Type": "application/x-ndjson"}

    def send(client: Client) -> Reply:
        return well(client.request("POST", "/v0/topics/t", body=body, headers=lines))

    return sent(root, put("/v0/topics/t"), *[send] * TIMES)


@scenario("an append of 10,000 records, repeated with its idempotency key")
def append_repeated(root: Path) -> Iterator[ServerProcess]:
    records = [{"data": n} for n in range(BATCH)]
    body = json.dumps({"records": records, "idempotency_key": "once"}).encode()
    return sent(root, put("/v0/topics/t"), *[post("/v0/topics/t", body)] * TIMES)


# --- several topics, transactions, WebSocket ---


@scenario("POST /v0/append: 10,000 records to 1,000 new topics, and again")
def append_topics(root: Path) -> Iterator[ServerProcess]:
    records = [{"data": n, "tag": f"tag-{n}"} for n in range(BATCH // TOPICS)]
    body = {"topics": {f"t{number}": {"records": records} for number in range(TOPICS)}, "idempotency_key": "a"}
    bodies = [{**body, "idempotency_key": f"key-{time}"} for time in range(TIMES)]
    return sent(root, put("/v0/topics/t"), *(post("/v0/append", each) for each in bodies))


@scenario("POST /v0/append: 10,000 jobs with all fields in two queues")
def append_two(root: Path) -> Iterator[ServerProcess]:
    def topics(time: int) -> object:
        records = [
            {"data": n, "delay_ms": 60_000 + n, "unique_key": f"key-{time}-{n}", "tag": f"tag-{n}", "node": f"node-{n}"}
            for n in range(BATCH // 2)
        ]
        return {"topics": {"a": {"records": records}, "b": {"records": records}}}

    prepare = several(put("/v0/topics/a", type="queue"), put("/v0/topics/b", type="queue"))
    return sent(root, prepare, *(post("/v0/append", topics(time)) for time in range(TIMES)))


@scenario("POST /v0/append: 57 MB to ten ephemeral topics")
def append_ten_ephemeral(root: Path) -> Iterator[ServerProcess]:
    records = [{"data": "z" * LARGE}] * (BATCH // 10)
    body = {"topics": {f"t{n}": {"records": records, "config": {"durability": "ephemeral"}} for n in range(10)}}
    return sent(root, put("/v0/topics/t"), *[post("/v0/append", json.dumps(body).encode())] * TIMES)


@scenario("a stage of 10,000 records with all fields for 1,000 topics")
def stage(root: Path) -> Iterator[ServerProcess]:
    records = [
        {"data": n, "tag": f"tag-{n}", "node": f"node-{n}", "meta": {"n": n}, "topic": f"t{n % TOPICS}"}
        for n in range(BATCH)
    ]
    stages = [{"stage": f"s{time}", "part": 0, "records": records} for time in range(TIMES)]
    return sent(root, put("/v0/topics/t"), *(post("/v0/txns/app/1/stage", body) for body in stages))


@scenario("a stage of 57 MB")
def large_stage(root: Path) -> Iterator[ServerProcess]:
    body: Record = {"topic": "t", "records": [{"data": "z" * LARGE}] * BATCH}
    stages = [{**body, "stage": f"s{time}", "part": 0} for time in range(TIMES)]
    return sent(root, put("/v0/topics/t"), *(post("/v0/txns/app/1/stage", stage) for stage in stages))


@scenario("a commit of 1,000 stages for 1,000 topics")
def commit_stages(root: Path) -> Iterator[ServerProcess]:
    def prepare(client: Client) -> None:
        for number in range(1_000):
            records = [{"data": number, "topic": f"t{(number + n) % TOPICS}"} for n in range(10)]
            post("/v0/txns/app/1/stage", {"stage": f"s{number}", "part": 0, "records": records})(client)

    return sent(root, prepare, post("/v0/txns/app/1/commit", {"stages": [f"s{n}" for n in range(1_000)]}))


@scenario("WebSocket: a publish of 10,000 jobs with delay_ms and unique_key")
def publish(root: Path) -> Iterator[ServerProcess]:
    def frame(time: int) -> bytes:
        records = [{"data": n, "delay_ms": 60_000 + n, "unique_key": f"key-{time}-{n}"} for n in range(BATCH)]
        text = json.dumps({"op": "publish", "topic": "t", "return_seqs": False, "records": records}).encode()
        return b"\x81\xff" + len(text).to_bytes(8, "big") + bytes(4) + text

    frames = [frame(time) for time in range(TIMES)]

    def send(client: Client) -> None:
        with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
            connection.sendall(UPGRADE)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 101")
            for each in frames:
                connection.sendall(each)
                while b'"last_seq"' not in (answer := connection.recv(65_536)):
                    assert b'"error"' not in answer, answer

    return sent(root, put("/v0/topics/t", type="queue"), send)


# --- queues ---


def jobs(count: int, **fields: object) -> list[Record]:
    return [{"data": {"n": n, "text": "x" * 200}, **fields} for n in range(count)]


@scenario("claim, extend, nack, claim and ack of 1,000 jobs, with unique keys")
def queue_verbs(root: Path) -> Iterator[ServerProcess]:
    records = [{**job, "unique_key": f"key-{n}", "tag": f"tag-{n}"} for n, job in enumerate(jobs(BATCH))]
    prepare = several(put("/v0/topics/q", type="queue", leases_durable=True), post("/v0/topics/q", batch(records)))

    def work(client: Client) -> None:
        claim = post("/v0/topics/q/claim", {"node": "w", "max": CLAIM})
        for verb, more in (("extend", {"lease_ms": 60_000}), ("nack", {"delay_ms": 0}), ("ack", {})):
            reply = claim(client)
            assert isinstance(reply, Reply)
            seqs = [job["$seq"] for job in reply.json["claimed"]]
            assert len(seqs) == CLAIM
            post(f"/v0/topics/q/{verb}", {"node": "w", "seqs": seqs, **more})(client)

    return sent(root, prepare, *[work] * TIMES)


@scenario("nack of 1,000 jobs into the dead-letter topic")
def bury(root: Path) -> Iterator[ServerProcess]:
    config = put("/v0/topics/q", type="queue", max_deliveries=1, dead_letter="q.dead")

    def work(client: Client) -> None:
        claimed = client.post("/v0/topics/q/claim", {"node": "w", "max": CLAIM}).json["claimed"]
        seqs = [job["$seq"] for job in claimed]
        post("/v0/topics/q/nack", {"node": "w", "seqs": seqs, "dead_letter": True})(client)

    return sent(root, several(config, post("/v0/topics/q", batch(jobs(BATCH)))), *[work] * TIMES)


@scenario("10,000 leases that expire and are claimed once too often")
def doomed(root: Path) -> Iterator[ServerProcess]:
    config = put("/v0/topics/q", type="queue", max_deliveries=1, dead_letter="q.dead", lease_ms=100)

    def prepare(client: Client) -> None:
        several(config, post("/v0/topics/q", batch(jobs(BATCH))))(client)
        for _ in range(BATCH // CLAIM):
            post("/v0/topics/q/claim", {"node": "w", "max": CLAIM})(client)

    def work(client: Client) -> None:
        while client.get("/v0/topics/q").json["queue"]["dead_lettered"] < BATCH:
            post("/v0/topics/q/claim", {"node": "w", "max": CLAIM, "wait_ms": 50})(client)

    return sent(root, prepare, work)


@scenario("a list of 1,000 leases among 100,000")
def list_leases(root: Path) -> Iterator[ServerProcess]:
    def prepare(client: Client) -> None:
        put("/v0/topics/q", type="queue", lease_ms=3_600_000)(client)
        body = batch(jobs(BATCH))
        for _ in range(10):
            post("/v0/topics/q", body)(client)
        for _ in range(100):
            post("/v0/topics/q/claim", {"node": "w", "max": CLAIM})(client)

    def work(client: Client) -> None:
        well(client.get("/v0/topics/q/leases?page_size=1000"))

    return sent(root, prepare, *[work] * TIMES)


# --- reading ---


def filled(client: Client, topic: str = "t") -> None:
    body = batch(
        [{"data": n, "tag": f"{'ab'[n % 2]}:{n}", "node": f"node-{n % 50}", "meta": {"n": n}} for n in range(BATCH)]
    )
    put(f"/v0/topics/{topic}")(client)
    for _ in range(100):
        post(f"/v0/topics/{topic}?return_seqs=false", body)(client)


@scenario("a diff of 1,000 records that leaves out 49 of 50 nodes, with tags, without meta")
def filtered_diff(root: Path) -> Iterator[ServerProcess]:
    body = {"limit": 1_000, "node": [f"node-{n}" for n in range(49)], "include_tags": True, "include_meta": False}
    requests = [post("/v0/topics/t/diff", {**body, "from_seq": n * 10_000}) for n in range(TIMES)]
    return sent(root, filled, *requests)


@scenario("a diff whose nodes are all left out, over 1,000,000 records")
def empty_diff(root: Path) -> Iterator[ServerProcess]:
    body = {"limit": 1_000, "node": [f"node-{n}" for n in range(50)], "include_meta": False}
    return sent(root, filled, *[post("/v0/topics/t/diff", body)] * TIMES)


@scenario("a delete of 1,000,000 records by seq, and of the topic")
def delete_all(root: Path) -> Iterator[ServerProcess]:
    drop: Send = lambda client: well(client.delete("/v0/topics/u"))  # noqa: E731
    prepare = several(filled, lambda client: filled(client, "u"))
    return sent(root, prepare, post("/v0/topics/t/delete", {"before_seq": 999_999}), drop)


@scenario("a cap of one record on a topic of 1,000,000")
def cap(root: Path) -> Iterator[ServerProcess]:
    return sent(root, filled, put("/v0/topics/t", cap_records=1))


@scenario("a delete by tag pattern in a queue of 200,000 jobs with delays and unique keys")
def delete_jobs(root: Path) -> Iterator[ServerProcess]:
    def prepare(client: Client) -> None:
        put("/v0/topics/q", type="queue")(client)
        for time in range(20):
            body = batch(
                [
                    {"data": n, "tag": f"{'ab'[n % 2]}:{n}", "delay_ms": 3_600_000, "unique_key": f"key-{time}-{n}"}
                    for n in range(BATCH)
                ]
            )
            post("/v0/topics/q?return_seqs=false", body)(client)

    return sent(root, prepare, post("/v0/topics/q/delete", {"match": ["tag", "Glob", "a:*"]}))


@scenario("a delete by seq, and of the topic, in a queue of 200,000 delayed jobs")
def delete_delayed(root: Path) -> Iterator[ServerProcess]:
    def prepare(client: Client) -> None:
        put("/v0/topics/q", type="queue")(client)
        body = batch([{"data": n, "delay_ms": 3_600_000} for n in range(BATCH)])
        for _ in range(20):
            post("/v0/topics/q?return_seqs=false", body)(client)

    drop: Send = lambda client: well(client.delete("/v0/topics/q"))  # noqa: E731
    return sent(root, prepare, post("/v0/topics/q/delete", {"before_seq": 150_000}), drop)


@scenario("a consume of 1,000 messages by a group, and 1,000 acks of single offsets")
def consume(root: Path) -> Iterator[ServerProcess]:
    def work(client: Client) -> None:
        body = {"topic_id": "t", "group_id": "g", "start": "Earliest", "limit": 1_000}
        post("/v1/api/topics/consume", body)(client)

    def ack(client: Client) -> None:
        for offset in range(1, 2_000, 2):
            body = {"topic_id": "t", "group_id": "g", "from_offset": offset, "upto_offset": offset}
            post("/v1/api/topics/ack", body)(client)

    return sent(root, filled, *[work] * TIMES, ack)


@scenario("a watch of 256 topics, with its first frames")
def watch_topics(root: Path) -> Iterator[ServerProcess]:
    def prepare(client: Client) -> None:
        records = jobs(40)
        for number in range(WATCHED):
            post(f"/v0/topics/t{number}", batch(records))(client)

    def work(client: Client) -> None:
        body = {"topics": {f"t{number}": {"from_seq": 0} for number in range(WATCHED)}}
        reply = post("/v0/watch", body)(client)
        assert isinstance(reply, Reply)
        wid = reply.json["watch_id"] if "watch_id" in reply.json else reply.json["wid"]
        head = f"GET /v0/watch/{wid} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        with socket.create_connection(("127.0.0.1", client.port), timeout=60) as connection:
            connection.sendall(head.encode())
            received = 0
            connection.settimeout(1)
            with contextlib.suppress(TimeoutError):
                while part := connection.recv(1 << 20):
                    received += len(part)
            assert received > WATCHED * 40 * 200, received

    return sent(root, prepare, *[work] * TIMES)


@scenario("lists of 1,000 among 20,000 topics")
def lists(root: Path) -> Iterator[ServerProcess]:
    def prepare(client: Client) -> None:
        for first in range(0, 20_000, TOPICS):
            topics = {f"t{number}": {"records": [{"data": 1}]} for number in range(first, first + TOPICS)}
            post("/v0/append", {"topics": topics})(client)

    def work(client: Client) -> None:
        for path in ("/v0/topics?page_size=1000", "/v0/topics?page_size=1000&prefix=t1"):
            well(client.get(path))

    return sent(root, prepare, *[work] * TIMES)


@scenario("a router over 1,000,000 records, from the first one on")
def route(root: Path) -> Iterator[ServerProcess]:
    def work(client: Client) -> None:
        router = {"source": "t", "dest": "copy", "backfill": True}
        well(client.put("/v0/routers/r", router))
        for _ in range(200):
            if client.get("/v0/topics/copy").status == 200 and client.get("/v0/topics/copy").json["count"] >= 1_000_000:
                break

    return sent(root, filled, work, **IN_THE_LOG)
