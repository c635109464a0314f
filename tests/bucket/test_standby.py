"""A standby follows the bucket: it serves reads, sends writers to the primary, and takes over."""

from __future__ import annotations

import pytest

from tests.bucket.standbys import Servers, role, servers, until, until_primary, until_sees
from tests.bucket.test_lost_machine import everything, until_shipped

__all__ = ["servers"]

REPLICATED = {"durability": "replicated"}


def test_a_standby_has_what_the_primary_has_and_says_how_old_it_is(servers: Servers) -> None:
    client = servers.primary("a").client()
    client.append("before", 1, 2)
    until_shipped(client)
    standby = servers.standby("b")
    standby.wait_for_log("this server is a standby: it serves reads, and takes over when no primary renews its lease")
    reader = standby.client()
    assert everything(reader, "before") == [1, 2]
    for number in range(20):
        client.append("after", number)
    client.put("/v0/topics/q", {"type": "queue"})
    client.append("q", "job")
    until_sees(reader, "q", 1)
    assert everything(reader, "after") == list(range(20))
    health, ready = reader.get("/v0/health"), reader.get("/v0/ready")
    assert (health.json["role"], ready.status, ready.json["role"]) == ("standby", 200, "standby")
    assert health.json["bucket"]["state"] == "ok"
    assert int(ready.headers["topics-age-ms"]) >= 0
    assert "topics-age-ms" not in client.get("/v0/ready").headers
    assert client.get("/v0/health").json["role"] == "primary"


def test_a_long_poll_on_a_standby_gets_what_the_primary_writes(servers: Servers) -> None:
    client = servers.primary("a").client()
    client.append("t", 1)
    until_shipped(client)
    standby = servers.standby("b")
    until_sees(standby.client(), "t", 1)
    waiting = standby.waiting("POST", "/v0/topics/t/diff", {"from_seq": 1, "wait_ms": 60_000})
    client.append("t", "news")
    assert [record["data"] for record in waiting.end().json["records"]] == ["news"]


def test_caps_hold_on_a_standby_that_started_after_the_writes(servers: Servers) -> None:
    client = servers.primary("a").client()
    client.put("/v0/topics/t", {"cap_records": 2})
    for number in range(4):
        client.append("t", number)
    until_shipped(client)
    page = servers.standby("b").client().diff("t")
    assert [record["data"] for record in page["records"]] == [2, 3]
    assert page["tombstone"]["reason"] == "cap"


WRITES = [
    ("POST", "/v0/topics/t", {"records": [{"data": 1}]}),
    ("POST", "/v0/append", {"topics": {"t": {"records": [{"data": 1}]}}}),
    ("POST", "/v0/topics/t/delete", {"before_seq": 5}),
    ("PUT", "/v0/topics/new", {}),
    ("PATCH", "/v0/topics/t", {"cap_records": 5}),
    ("DELETE", "/v0/topics/t", None),
    ("POST", "/v0/topics/q/claim", {"node": "w"}),
    ("POST", "/v0/topics/q/ack", {"node": "w", "seqs": [1]}),
    ("GET", "/v0/topics/q/work?node=w", None),
    ("PUT", "/v0/routers/r", {"source": "t", "dest": "copy"}),
    ("DELETE", "/v0/routers/r", None),
    ("POST", "/v0/txns/app/fence", {}),
    ("PUT", "/v0/schedules/s", {"topic": "t", "every_ms": 1000}),
    ("PUT", "/v0/webhooks/w", {"topic": "t", "url": "https://example.org"}),
    ("PUT", "/v0/pipelines/p", {}),
    ("POST", "/v0/groups/reset", {}),
    ("POST", "/v1/api/topics/ack", {"topic_id": "t", "group_id": "g", "partition_id": 0, "upto_offset": 1}),
    ("POST", "/v1/api/topics/consume", {"topic_id": "t", "group_id": "g", "start": "earliest"}),
]


def test_a_standby_sends_writers_to_the_primary(servers: Servers) -> None:
    primary = servers.primary("a", advertise_url="http://a.example:4000")
    client = primary.client()
    client.append("t", 1)
    client.put("/v0/topics/q", {"type": "queue"})
    client.append("q", "job")
    until_shipped(client)
    reader = servers.standby("b").client()
    until_sees(reader, "q", 1)
    until(lambda: reader.put("/v0/topics/x", {}).detail["primary"], "the address of the primary")
    for method, path, body in WRITES:
        refused = reader.request(method, path, body)
        assert refused.status == 503, (method, path, refused.body)
        assert refused.headers["retry-after"] == "1"
        if not path.startswith("/v1/"):
            assert refused.code == "not_primary"
            assert refused.detail == {"primary": "http://a.example:4000", "role": "standby"}
    target = {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"}
    sent = b'{"QueueUrl": "http://127.0.0.1/000000000000/q", "MessageBody": "m"}'
    assert reader.post("/", body=sent, headers=target).status == 503
    assert everything(reader, "t") == [1]
    assert reader.get("/v0/topics/t").status == 200
    consumed = reader.post("/v1/api/topics/consume", {"topic_id": "t", "start": "earliest"})
    assert consumed.status == 200, consumed.body
    for path in ("/v0/routers", "/v0/groups", "/v0/schedules", "/v0/metrics", "/v0/topics/t/export", "/v0/overview"):
        read = reader.get(path)
        assert (read.status, "topics-age-ms" in read.headers) == (200, True), path
    before = client.get("/v0/health").json["bucket"]
    assert before["state"] == "ok"


def test_a_standby_is_promoted_when_its_primary_has_stopped(servers: Servers) -> None:
    primary = servers.primary("a")
    client = primary.client()
    client.append("t", 1)
    until_shipped(client)
    reader = servers.standby("b", bucket_takeover="manual").client()
    refused = reader.post("/v0/promote", {})
    assert (refused.status, refused.code) == (409, "primary_alive")
    assert "force" in refused.json["error"]["message"]
    assert primary.terminate() == 0
    promoted = until(
        lambda: (reply := reader.post("/v0/promote", {})).status == 200 and reply.json, "the standby is promoted"
    )
    assert (promoted["role"], promoted["term"]) == ("primary", 2)
    assert role(reader) == "primary"
    # It stopped in order, so nothing is skipped.
    assert reader.append("t", 2).json["last_seq"] == 2
    assert reader.post("/v0/promote", {}).json["role"] == "primary"
    assert everything(reader, "t") == [1, 2]
    assert "topics-age-ms" not in reader.get("/v0/topics/t").headers


def test_a_standby_takes_over_by_itself_when_its_primary_is_killed(servers: Servers) -> None:
    primary = servers.primary("a")
    client = primary.client()
    client.put("/v0/topics/r", REPLICATED)
    client.append("r", *range(10))
    client.append("d", *range(10))
    until_shipped(client)
    standby = servers.standby("b")
    primary.kill()
    after = until_primary(standby)
    assert everything(after, "r") == list(range(10))
    assert after.append("r", "after").json["last_seq"] == 11
    assert everything(after, "d", lost=True) == list(range(10))
    assert after.append("d", "after").status == 200
    # And the next one: what it skipped is in the bucket.
    third = servers.standby("c")
    assert everything(third.client(), "r") == [*range(10), "after"]
    standby.kill()
    last = until_primary(third)
    assert everything(last, "r") == [*range(10), "after"]


@pytest.mark.parametrize("environ", [{"standby": True}, {"standby": True, "bucket": "x", "bucket_takeover": "off"}])
def test_a_standby_without_what_it_needs_is_refused_with_one_line(servers: Servers, environ: dict[str, object]) -> None:
    from tests.serving import ServerProcess

    refused = ServerProcess(servers.path / "a", **environ)
    assert refused.exit_code() == 2
    assert len(refused.lines) == 1
    assert "TOPICS_STANDBY is set" in refused.lines[0]
