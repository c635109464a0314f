"""Health, readiness and metrics, also while the server recovers."""

import signal
import socket
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import topics
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, serving
from topics.model.variant import VARIANT

AGGREGATES = (
    "topics_topics",
    "topics_topics_by_class",
    "topics_routers",
    "topics_records_live",
    "topics_bytes_live",
    "topics_queue_topics",
    "topics_queue_leases_in_flight",
    "topics_sse_connections",
    "topics_connections",
    "topics_connections_max",
    "topics_connections_refused_total",
    "topics_watch_sessions",
    "topics_loop_longest_turn_seconds",
    "topics_loop_slow_turns_total",
    "topics_ready",
    "topics_recovery_progress",
    "topics_uptime_ms",
)
PER_TOPIC = ("head_seq", "earliest_seq", "records_live", "bytes_live", "queue_ready", "queue_in_flight")
LOG = (
    "frames_total",
    "batches_total",
    "fsyncs_total",
    "bytes_written_total",
    "rotations_total",
    "queue_depth",
    "queue_depth_peak",
    "submit_full_total",
    "read_only",
)


@pytest.mark.parametrize("path", ["/v0/health", "/healthz"])
def test_health_tells_version_variant_and_uptime(client: Client, path: str) -> None:
    reply = client.get(path).json
    assert (reply["status"], reply["version"], reply["variant"]) == ("ok", topics.__version__, VARIANT)
    assert reply["uptime_ms"] >= 0


@pytest.mark.parametrize("path", ["/v0/ready", "/readyz"])
def test_ready_tells_that_the_log_is_replayed(client: Client, topic: str, path: str) -> None:
    client.append(topic, 1)
    reply = client.get(path).json
    assert (reply["status"], reply["wal_replay_complete"]) == ("ready", True)
    assert reply["topics"] >= 1


def values(client: Client) -> dict[str, float]:
    """Samples without labels, by name."""
    text = client.get("/v0/metrics").body.decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }


def test_metrics_are_prometheus_text_with_the_names_of_the_contract(client: Client, topic: str) -> None:
    client.append(topic, 1, 2)
    reply = client.get("/v0/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = reply.body.decode()
    described = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")}
    expected = {*AGGREGATES, *(f"topics_topic_{name}" for name in PER_TOPIC), "topics_topic_metrics_truncated"}
    expected |= {f"topics_wal_{name}" for name in LOG} | {"topics_wal_fsync_latency_us"}
    assert expected <= described
    assert f'topics_topic_head_seq{{topic="{topic}"}} 2.0' in text
    for part in ('_bucket{le="500"}', '_bucket{le="+Inf"}', "_sum", "_count"):
        assert f"topics_wal_fsync_latency_us{part} " in text
    assert list(text_string_to_metric_families(text))


def test_metrics_follow_what_happens(client: Client, topic: str) -> None:
    before = values(client)
    client.put(f"/v0/topics/{topic}", {"durable": True, "type": "queue"})
    client.append(topic, 1, 2, 3)
    after = values(client)
    grown = {name: after[name] - before[name] for name in after}
    assert grown["topics_topics"] == 1
    assert grown["topics_queue_topics"] == 1
    assert grown["topics_records_live"] == 3
    assert grown["topics_bytes_live"] == client.state(topic)["bytes"]
    assert grown["topics_wal_frames_total"] >= 2
    assert grown["topics_wal_fsyncs_total"] >= 2
    assert grown["topics_wal_fsync_latency_us_count"] == grown["topics_wal_fsyncs_total"]
    assert after["topics_ready"] == 1
    assert after["topics_recovery_progress"] == 1
    assert after["topics_wal_read_only"] == 0


def test_metrics_as_json_hold_the_same(client: Client, topic: str) -> None:
    client.append(topic, 1)
    reply = client.get("/v0/metrics", headers={"Accept": "application/json"})
    assert reply.headers["content-type"] == "application/json"
    body = reply.json
    assert set(AGGREGATES) <= set(body)
    assert body["topics_topic_head_seq"][topic] == 1
    assert body["topics_topics_by_class"]["disk"] >= 1
    assert body["topics_wal_fsync_latency_us"]["count"] == body["topics_wal_fsyncs_total"]
    assert body["topics_topic_metrics_truncated"] == 0


def test_topics_are_listed_by_name_whenever_they_were_made(client: Client, topic: str) -> None:
    for name in ("z", "a", "m"):
        client.append(f"{topic}.{name}", 1)
    body = client.get("/v0/metrics", headers={"Accept": "application/json"}).json
    listed = list(body["topics_topic_head_seq"])
    assert {f"{topic}.a", f"{topic}.m", f"{topic}.z"} <= set(listed)
    assert listed == sorted(listed)


def test_topics_beyond_a_thousand_are_not_listed_and_metrics_say_so(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        for number in range(1001):
            assert client.append(f"many.{number}", 1, config={"durability": "ephemeral"}).status == 201
        body = client.get("/v0/metrics", headers={"Accept": "application/json"}).json
        assert body["topics_topic_metrics_truncated"] == 1
        assert len(body["topics_topic_head_seq"]) == 1000
        assert body["topics_topics"] == 1001
        by_class = {"ephemeral": 1001, "memory": 0, "disk": 0, "fsync": 0, "replicated": 0}
        assert body["topics_topics_by_class"] == by_class


@pytest.mark.slow
def test_while_the_log_is_replayed_all_but_probes_and_metrics_are_503(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="full", checkpoint_bytes="1 GiB", checkpoint_ms=86_400_000) as server:
        client = server.client("full")
        batch = {"records": [{"data": number} for number in range(10_000)]}
        for _ in range(60):
            assert client.post("/v0/topics/big?return_seqs=false", batch).status in (200, 201)
    server = ServerProcess(tmp_path, api_keys="full")
    try:
        client = server.client("full")
        reply = client.get("/v0/topics")
        seen: list[float] = []
        while reply.status == 503:
            assert reply.code == "not_ready"
            assert int(reply.headers["retry-after"]) >= 1
            seen.append(reply.detail["replay_progress"])
            assert client.get("/v0/health").status == 200
            metrics = client.get("/v0/metrics")
            assert metrics.status == 200
            assert b"topics_wal_frames_total " in metrics.body
            ready = client.get("/v0/ready")
            if ready.status == 503:
                assert ready.code == "not_ready"
            assert server.stranger().get("/v0/nothing").status in (401, 503)
            reply = client.get("/v0/topics")
        assert reply.status == 200
        assert seen
        assert seen == sorted(seen)
        assert all(0.0 <= progress <= 1.0 for progress in seen)
        assert client.state("big")["head_seq"] == 600_000
    finally:
        server.kill()


def test_a_drained_server_says_shutting_down(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.append("a", 1)
        body = b'{"records":[{"data":2}]}'
        head = b"POST /v0/topics/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
            connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:5])
            server.settle()
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_log("draining")
            connection.sendall(body[5:])
            answer = connection.recv(65536)
        assert b"HTTP/1.1 503 " in answer
        assert b'"shutting_down"' in answer
        assert b"Retry-After: " in answer
        assert server.exit_code() == 0
