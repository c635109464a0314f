"""The queue endpoints over HTTP: bodies, answers, errors, scopes, claims that wait, and those that share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Client, Reply, ServerProcess, serving


def post(client: Client, queue: str, verb: str, **body: Any) -> Reply:
    return client.post(f"/v0/topics/{queue}/{verb}", body)


def claim(client: Client, queue: str, **body: Any) -> Any:
    reply = post(client, queue, "claim", **{"node": "w", **body})
    assert reply.status == 200, reply
    return reply.json


class Later:
    """A claim on a connection of its own that has come to wait at the server."""

    def __init__(self, server: ServerProcess, queue: str, **body: Any) -> None:
        self._client = server.waiting("POST", f"/v0/topics/{queue}/claim", {"node": "w", **body})

    def join(self) -> Any:
        reply = self._client.end()
        assert reply.status == 200, reply
        return reply.json


# --- answers ---


def test_a_job_goes_from_append_to_ack(client: Client, queue: str) -> None:
    client.post(f"/v0/topics/{queue}", {"records": [{"data": {"n": 1}, "tag": "t", "meta": {"a": 1}}, {"data": 2}]})
    answer = claim(client, queue, max=1, lease_ms=5_000)
    (job,) = answer["claimed"]
    assert (answer["topic"], answer["count"], answer["ready"]) == (queue, 1, 1)
    assert list(job) == ["$seq", "lease_id", "deadline", "$ts", "$tag", "deliveries", "data", "meta"]
    assert job["deadline"] - job["$ts"] >= 5_000
    assert set(answer["performance"]) >= {"server_total_ms", "throttle_wait_ms"}
    acked = post(client, queue, "ack", node="w", seqs=[1, 7], lease_ids=[job["lease_id"], "lease_0"]).json
    assert (acked["topic"], acked["acked"], acked["skipped"]) == (queue, 1, [7])
    assert (acked["ready"], acked["in_flight"], acked["performance"]["fsync_ms"]) == (1, 0, 0.0)


def test_an_ack_on_a_durable_queue_waits_for_the_sync(client: Client, queue: str) -> None:
    client.put(f"/v0/topics/{queue}", {"durable": True, "leases_durable": True})
    client.append(queue, 1)
    claim(client, queue)
    acked = post(client, queue, "ack", node="w", seqs=[1]).json
    assert acked["acked"] == 1
    assert acked["performance"]["fsync_ms"] > 0


def test_nack_and_extend_tell_what_they_did(client: Client, queue: str) -> None:
    client.append(queue, 1, 2)
    claim(client, queue, max=2)
    nacked = post(client, queue, "nack", node="w", seqs=[1, 9]).json
    assert (nacked["nacked"], nacked["skipped"], nacked["ready"], nacked["in_flight"]) == (1, [9], 1, 1)
    extended = post(client, queue, "extend", node="w", seqs=[2, 1], lease_ms=1_000).json
    assert (extended["extended"], extended["skipped"], list(extended["deadlines"])) == (1, [1], ["2"])
    delayed = post(client, queue, "nack", node="w", seqs=[2], delay_ms=60_000).json
    assert (delayed["ready"], delayed["in_flight"]) == (1, 0)


def test_the_state_of_a_queue_counts_its_jobs(client: Client, queue: str) -> None:
    client.append(queue, 1, 2, 3)
    claim(client, queue)
    state = client.state(queue)
    assert state["type"] == "queue"
    assert state["queue"].pop("last_claim_ts") >= client.diff(queue)["records"][2]["$ts"]
    assert state["queue"] == {
        "ready": 2,
        "in_flight": 1,
        "dead_lettered": 0,
        "delayed": 0,
        "paused": False,
        "dead": 0,
        "dead_letter_error": None,
        "claimers": 0,
        "held_back": 0,
        "limited_by": None,
    }
    client.append("plain", 1)
    assert "queue" not in client.state("plain")


def test_metrics_count_jobs(client: Client, queue: str) -> None:
    client.append(queue, 1, 2, 3)
    claim(client, queue, max=2)
    metrics = client.get("/v0/metrics", headers={"Accept": "application/json"}).json
    assert metrics["topics_topic_queue_ready"][queue] == 1
    assert metrics["topics_topic_queue_in_flight"][queue] == 2
    assert metrics["topics_queue_leases_in_flight"] >= 2
    assert metrics["topics_queue_topics"] >= 1


def test_unique_keys_are_answered_with_the_seq_that_is_there(client: Client, queue: str) -> None:
    body = {"records": [{"data": 1, "unique_key": "k"}]}
    first, again = (client.post(f"/v0/topics/{queue}", body).json for _ in range(2))
    assert (first["deduped"], again["deduped"], again["seqs"], again["last_seq"]) == (False, True, [1], 1)
    mixed = client.post(f"/v0/topics/{queue}", {"records": [*body["records"], {"data": 2}]}).json
    assert (mixed["deduped"], mixed["seqs"], mixed["count"]) == (False, [1, 2], 1)


def test_a_repeated_write_with_pending_jobs_is_answered_as_the_first_one(client: Client, queue: str) -> None:
    client.post(f"/v0/topics/{queue}", {"records": [{"data": 0, "unique_key": "k"}]})
    body = {"idempotency_key": "i", "records": [{"data": 1}, {"data": 2, "unique_key": "k"}, {"data": 3}]}
    first, again = (client.post(f"/v0/topics/{queue}", body).json for _ in range(2))
    assert (first["deduped"], again["deduped"]) == (False, True)
    for field, value in {"first_seq": 2, "last_seq": 3, "count": 2, "seqs": [2, 1, 3]}.items():
        assert first[field] == again[field] == value, field


# --- errors ---


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("claim", {"node": "w"}),
        ("ack", {"node": "w", "seqs": [1]}),
        ("nack", {"node": "w", "seqs": [1]}),
        ("extend", {"node": "w", "seqs": [1], "lease_ms": 1000}),
        ("pause", {}),
        ("resume", {}),
    ],
)
def test_every_verb_needs_a_queue(client: Client, verb: str, body: dict[str, Any]) -> None:
    client.append("a-log", 1)
    refused = post(client, "a-log", verb, **body)
    assert (refused.status, refused.code) == (409, "not_a_queue")
    absent = post(client, "nowhere", verb, **body)
    assert (absent.status, absent.code) == (404, "topic_not_found")
    assert client.get("/v0/topics/nowhere").status == 404


@pytest.mark.parametrize("path", ["leases", "work?node=w"])
def test_reading_leases_and_work_needs_a_queue(client: Client, path: str) -> None:
    client.append("a-log", 1)
    assert client.get(f"/v0/topics/a-log/{path}").code == "not_a_queue"
    assert client.get(f"/v0/topics/nowhere/{path}").code == "topic_not_found"


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("claim", {}, "node"),
        ("claim", {"node": 1}, "node"),
        ("claim", {"node": "w", "max": "1"}, "max"),
        ("claim", {"node": "w", "max": -1}, "max"),
        ("claim", {"node": "w", "lease_ms": None}, "lease_ms"),
        ("ack", {"node": "w"}, "seqs"),
        ("ack", {"seqs": [1]}, "node"),
        ("ack", {"node": "w", "seqs": ["1"]}, "seqs[0]"),
        ("ack", {"node": "w", "seqs": []}, "seqs"),
        ("ack", {"node": "w", "seqs": [1], "lease_ids": []}, "lease_ids"),
        ("nack", {"node": "w", "seqs": [1], "delay_ms": -1}, "delay_ms"),
        ("extend", {"node": "w", "seqs": [1]}, "lease_ms"),
    ],
)
def test_a_bad_body_is_refused_with_its_field(
    client: Client, queue: str, verb: str, body: dict[str, Any], field: str
) -> None:
    refused = post(client, queue, verb, **body)
    assert (refused.status, refused.code, refused.detail["field"]) == (400, "invalid_request", field)


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_too_many_seqs_are_a_batch_too_large(client: Client, queue: str, verb: str) -> None:
    more = {"lease_ms": 1000} if verb == "extend" else {}
    refused = post(client, queue, verb, node="w", seqs=list(range(1001)), **more)
    assert (refused.status, refused.code, refused.detail["max"]) == (400, "batch_too_large", 1000)


def test_scopes_and_prefixes_hold_for_queues(tmp_path: Path) -> None:
    keys = "root,reader:read,writer:write,both:rw,mine:rw+admin:mine."
    with serving(tmp_path, api_keys=keys) as server:
        root = server.client("root")
        root.put("/v0/topics/q", {"type": "queue"})
        root.append("q", 1, 2)
        body = {"node": "w"}
        for name, status in (("reader", 403), ("writer", 403), ("both", 200)):
            assert server.client(name).post("/v0/topics/q/claim", body).status == status
            assert (server.client(name).get("/v0/topics/q/work").status == 403) == (status == 403)
        assert server.client("writer").post("/v0/topics/q/ack", {**body, "seqs": [1]}).status == 200
        assert server.client("reader").post("/v0/topics/q/ack", {**body, "seqs": [1]}).status == 403
        mine = server.client("mine")
        assert mine.post("/v0/topics/q/claim", body).code == "forbidden"
        request = {"type": "queue", "dead_letter": "others"}
        refused = mine.put("/v0/topics/mine.q", request)
        assert (refused.code, refused.detail["field"]) == ("forbidden", "dead_letter")
        refused = mine.post("/v0/topics/mine.q", {"records": [{"data": 1}], "config": request})
        assert (refused.code, refused.detail["field"]) == ("forbidden", "dead_letter")


def test_a_redrive_needs_its_scopes_and_skips_homes_that_the_key_may_not_touch(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="root,mover:write+delete:mine.,writer:rw:mine.") as server:
        root = server.client("root")
        for name in ("mine.q", "other"):
            root.put(f"/v0/topics/{name}", {"type": "queue"})
        homes = [{"data": name, "meta": {"$dead_letter_from": name}} for name in ("mine.q", "other")]
        root.post("/v0/topics/mine.dead", {"records": homes})
        assert server.client("writer").post("/v0/topics/mine.dead/redrive", {}).code == "forbidden"
        driven = server.client("mover").post("/v0/topics/mine.dead/redrive", {}).json
        assert (driven["to"], driven["skipped"]) == ({"mine.q": 1}, 1)
        assert root.payloads("mine.dead") == ["other"]
        assert root.post("/v0/topics/mine.dead/redrive", {}).json["to"] == {"other": 1}


# --- waiting ---


def test_a_claim_may_wait_for_a_job(server: ServerProcess, client: Client, queue: str) -> None:
    waiting = Later(server, queue, wait_ms=30_000)
    client.append(queue, "work")
    assert [job["data"] for job in waiting.join()["claimed"]] == ["work"]


def test_a_claim_that_waited_in_vain_gets_nothing(client: Client, queue: str) -> None:
    started_s = time.monotonic()
    assert claim(client, queue, wait_ms=200)["count"] == 0
    assert time.monotonic() - started_s > 0.15


def test_a_waiting_claim_wakes_when_a_job_is_given_back_runs_out_or_falls_due(
    server: ServerProcess, client: Client, queue: str
) -> None:
    client.append(queue, 1)
    claim(client, queue, lease_ms=60_000)
    waiting = Later(server, queue, node="v", wait_ms=30_000, lease_ms=200)
    post(client, queue, "nack", node="w", seqs=[1])
    assert waiting.join()["count"] == 1
    assert claim(client, queue, node="u", wait_ms=30_000)["claimed"][0]["deliveries"] == 3
    client.post(f"/v0/topics/{queue}", {"records": [{"data": 2, "delay_ms": 200}]})
    assert claim(client, queue, wait_ms=30_000)["claimed"][0]["data"] == 2


def test_waiting_claims_share_what_comes(server: ServerProcess, client: Client, queue: str) -> None:
    waiting = [Later(server, queue, node=f"w{n}", max=10, wait_ms=30_000) for n in range(5)]
    client.append(queue, *range(10))
    assert [one.join()["count"] for one in waiting] == [2] * 5


def test_a_claim_that_waits_on_a_dropped_topic_gets_an_error(server: ServerProcess, client: Client, queue: str) -> None:
    waiting = server.waiting("POST", f"/v0/topics/{queue}/claim", {"node": "w", "wait_ms": 30_000})
    client.delete(f"/v0/topics/{queue}")
    assert waiting.end().code == "topic_not_found"


def test_a_client_that_goes_while_it_waits_takes_no_job(server: ServerProcess, client: Client, queue: str) -> None:
    import socket

    body = b'{"node":"gone","wait_ms":20000}'
    gone = socket.create_connection(("127.0.0.1", server.port))
    gone.sendall(
        b"POST /v0/topics/%b/claim HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (queue.encode(), len(body), body)
    )
    server.settle()
    gone.close()
    server.settle()
    client.append(queue, 1)
    assert client.state(queue)["queue"]["ready"] == 1


def test_ten_claimers_share_fifty_jobs_evenly(server: ServerProcess, client: Client, queue: str) -> None:
    client.put(f"/v0/topics/{queue}", {"claim_jitter_ms": 3_000})
    client.append(queue, *range(50))
    started_s = time.monotonic()
    claimers = [server.client() for _ in range(10)]
    for number, one in enumerate(claimers):
        one.begin("POST", f"/v0/topics/{queue}/claim", {"node": f"w{number}", "max": 10})
    assert [one.end().json["count"] for one in claimers] == [5] * 10
    assert time.monotonic() - started_s > 2
    assert client.state(queue)["queue"]["in_flight"] == 50


def test_a_claim_that_comes_alone_waits_no_longer_than_the_window(client: Client, queue: str) -> None:
    client.put(f"/v0/topics/{queue}", {"claim_jitter_ms": 200})
    client.append(queue, 1)
    started_s = time.monotonic()
    assert claim(client, queue)["count"] == 1
    assert claim(client, queue)["count"] == 0, "nothing is not an error, nor a reason to wait on"
    assert time.monotonic() - started_s > 0.3


# --- the rest ---


def test_leases_are_listed_page_by_page_soonest_to_run_out_first(client: Client, queue: str) -> None:
    client.append(queue, *range(5))
    for lease_ms in (50_000, 10_000, 90_000):
        claim(client, queue, node=f"w{lease_ms}", lease_ms=lease_ms)
    first = client.get(f"/v0/topics/{queue}/leases?page_size=2").json
    assert [(lease["$seq"], lease["node"]) for lease in first["leases"]] == [(2, "w10000"), (1, "w50000")]
    assert first["in_flight"] == 3
    rest = client.get(f"/v0/topics/{queue}/leases?page_size=2&cursor={first['next_cursor']}").json
    assert [lease["$seq"] for lease in rest["leases"]] == [3]
    assert "next_cursor" not in rest
    lease = rest["leases"][0]
    assert (lease["deliveries"], lease["pushed"], lease["deadline"] - lease["claimed_ts"]) == (1, False, 90_000)
    assert client.get(f"/v0/topics/{queue}/leases?cursor=nonsense").code == "invalid_request"


def test_pause_and_resume(server: ServerProcess, client: Client, queue: str) -> None:
    client.append(queue, 1)
    assert post(client, queue, "pause").json["paused"] is True
    assert claim(client, queue)["count"] == 0
    waiting = Later(server, queue, wait_ms=30_000)
    assert post(client, queue, "resume").json["paused"] is False
    assert waiting.join()["count"] == 1


def test_dead_letters_are_sent_home_over_http(client: Client, queue: str) -> None:
    client.put(f"/v0/topics/{queue}", {"max_deliveries": 1, "dead_letter": f"{queue}.dead"})
    client.append(queue, 1, 2)
    claim(client, queue, max=2)
    post(client, queue, "nack", node="w", seqs=[1], dead_letter=True, error="broken")
    dry = post(client, f"{queue}.dead", "redrive", dry_run=True).json
    assert (dry["moved"], dry["to"], dry["dry_run"]) == (1, {queue: 1}, True)
    driven = post(client, f"{queue}.dead", "redrive").json
    assert (driven["moved"], driven["skipped"], driven["more"]) == (1, 0, False)
    assert claim(client, queue)["claimed"][0]["data"] == 1
    assert post(client, "nowhere", "redrive").code == "topic_not_found"


# --- large jobs ---


def test_a_claim_below_max_means_that_the_queue_is_empty(client: Client, queue: str) -> None:
    for _ in range(4):
        client.append(queue, *["x" * 900_000] * 5)
    reply = claim(client, queue, max=30)
    assert (reply["count"], reply["ready"], "more" in reply) == (20, 0, False)


def test_a_claim_that_bytes_cut_says_that_there_is_more(client: Client, queue: str) -> None:
    for _ in range(8):
        client.append(queue, *["x" * 1_000_000] * 10)
    first = claim(client, queue, max=100)
    assert (first["more"], first["count"]) == (True, 68)
    assert first["ready"] == 80 - first["count"]
    rest = claim(client, queue, max=100)
    assert (rest["count"], rest["ready"], "more" in rest) == (12, 0, False)


# --- numbers beyond all bounds ---


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("ack", {"seqs": [1, 2**64]}, "seqs"),
        ("nack", {"seqs": [2**64]}, "seqs"),
        ("nack", {"seqs": [1], "delay_ms": 2**64}, "delay_ms"),
        ("extend", {"seqs": [2**64], "lease_ms": 1}, "seqs"),
    ],
)
def test_a_number_that_no_u64_holds_is_refused(
    client: Client, queue: str, verb: str, body: dict[str, Any], field: str
) -> None:
    reply = post(client, queue, verb, node="w", **body)
    assert (reply.status, reply.code, reply.detail["field"]) == (400, "invalid_request", field)


def test_a_delay_that_no_u64_holds_is_refused(client: Client, queue: str) -> None:
    reply = client.post(f"/v0/topics/{queue}", {"records": [{"data": 1}, {"data": 1, "delay_ms": 2**64}]})
    assert (reply.status, reply.detail["field"]) == (400, "records[1].delay_ms")


def test_the_number_of_dead_letters_is_no_counter_because_it_goes_with_its_queue(client: Client, queue: str) -> None:
    assert "# TYPE topics_queue_dead_lettered_total gauge" in client.get("/v0/metrics").body.decode().splitlines()
    client.put(f"/v0/topics/{queue}", {"type": "queue", "dead_letter": f"{queue}.dead"})
    client.append(queue, 1)
    claim(client, queue)
    post(client, queue, "nack", node="w", seqs=[1], dead_letter=True)

    def told() -> int:
        metrics = client.get("/v0/metrics", headers={"Accept": "application/json"}).json
        return metrics["topics_queue_dead_lettered_total"]

    before = told()
    client.delete(f"/v0/topics/{queue}")
    assert told() == before - 1


def test_a_lease_from_before_a_restart_does_not_tell_a_time_that_nobody_knows(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/topics/q", {"type": "queue", "leases_durable": True, "lease_ms": 600_000})
        client.append("q", 1, 2)
        claim(client, "q")
    with serving(tmp_path) as server:
        client = server.client()
        claim(client, "q")
        leases = client.get("/v0/topics/q/leases").json["leases"]
    assert {lease["$seq"]: "claimed_ts" in lease for lease in leases} == {1: False, 2: True}


def test_a_large_redrive_goes_in_pieces_and_is_answered_once(client: Client, queue: str) -> None:
    client.put(f"/v0/topics/{queue}", {"type": "queue", "dead_letter": f"{queue}.dead"})
    client.post(f"/v0/topics/{queue}", {"records": [{"data": n} for n in range(1_200)]})
    seqs: list[int] = []
    while len(seqs) < 1_200:
        seqs += [job["$seq"] for job in post(client, queue, "claim", node="w", max=1_000).json["claimed"]]
    for first in range(0, 1_200, 1_000):
        post(client, queue, "nack", node="w", seqs=seqs[first : first + 1_000], dead_letter=True)
    assert client.get(f"/v0/topics/{queue}").json["queue"]["dead"] == 1_200
    some = post(client, f"{queue}.dead", "redrive", limit=700).json
    assert (some["moved"], some["to"], some["more"]) == (700, {queue: 700}, True)
    dry = post(client, f"{queue}.dead", "redrive", limit=10_000, dry_run=True).json
    assert (dry["moved"], dry["more"]) == (500, False)
    rest = post(client, f"{queue}.dead", "redrive", limit=10_000, rate_per_s=100).json
    assert (rest["moved"], rest["to"], rest["more"]) == (500, {queue: 500}, False)
    state = client.get(f"/v0/topics/{queue}").json["queue"]
    assert state["dead"] == 0
    assert state["ready"] + state["delayed"] == 1_200
    assert state["delayed"] >= 250, "the pieces of a paced redrive follow one another"
