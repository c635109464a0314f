"""Cancel: ready, delayed and running jobs go, the worker of a running one is told, and a kill brings none back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.queues.test_http import claim, post
from tests.serving import Client, Reply, serving
from topics.engine.queues.places import CANCELLED_KEPT_MAX, JobPlaces
from topics.model.requests.jobs import LIMIT_MAX


def cancel(client: Client, queue: str, *seqs: int) -> Any:
    reply = post(client, queue, "cancel", seqs=list(seqs))
    assert reply.status == 200, reply
    return reply.json


def extend(client: Client, queue: str, *seqs: int, **body: Any) -> Any:
    reply = post(client, queue, "extend", **{"node": "w", "seqs": list(seqs), "lease_ms": 60_000, **body})
    assert reply.status == 200, reply
    return reply.json


def counts(client: Client, queue: str) -> tuple[int, int, int]:
    state = client.state(queue)["queue"]
    return state["ready"], state["in_flight"], state["delayed"]


def test_ready_and_delayed_jobs_go(client: Client, queue: str) -> None:
    client.append(queue, *"abcd")
    delayed = {"records": [{"data": "e", "delay_ms": 60_000}, {"data": "f", "job_priority": 5}]}
    assert client.post(f"/v0/topics/{queue}", delayed).status == 200
    done = cancel(client, queue, 5, 2, 6, 2, 99)
    assert (done["topic"], done["cancelled"], done["skipped"]) == (queue, 3, [99])
    assert (done["ready"], done["in_flight"]) == (3, 0)
    assert counts(client, queue) == (3, 0, 0)
    assert [job["data"] for job in claim(client, queue, max=10)["claimed"]] == ["a", "c", "d"]
    assert cancel(client, queue, 2)["skipped"] == [2]


def test_the_worker_of_a_running_job_is_told_by_extend(client: Client, queue: str) -> None:
    client.append(queue, *"abc")
    leases = [job["lease_id"] for job in claim(client, queue, max=3, lease_ms=60_000)["claimed"]]
    assert "cancelled" not in extend(client, queue, 1, 2, 3)
    assert cancel(client, queue, 2)["in_flight"] == 2
    answer = extend(client, queue, 1, 2, 3, 9, lease_ids=[*leases, "lease_0"])
    assert (answer["extended"], answer["skipped"], answer["cancelled"]) == (2, [2, 9], [2])
    assert set(answer["deadlines"]) == {"1", "3"}
    assert extend(client, queue, 2)["cancelled"] == [2], "it is told again: an answer may be lost"
    acked = post(client, queue, "ack", node="w", seqs=[1, 2, 3], lease_ids=leases).json
    assert (acked["acked"], acked["skipped"]) == (2, [2])
    assert post(client, queue, "nack", node="w", seqs=[2]).json["skipped"] == [2]
    assert "cancelled" not in extend(client, queue, 1), "it was acked"
    assert client.state(queue)["count"] == 0


def test_a_running_job_that_an_operator_deletes_is_cancelled(client: Client, queue: str) -> None:
    client.append(queue, "a", "b")
    claim(client, queue)
    deleted = client.post(f"/v0/topics/{queue}/jobs", {"action": "delete", "state": "leased", "all": True})
    assert deleted.json["changed"] == 1
    assert extend(client, queue, 1)["cancelled"] == [1]
    assert counts(client, queue) == (1, 0, 0)


def test_the_key_of_a_cancelled_job_is_free(client: Client, queue: str) -> None:
    keyed = {"records": [{"data": 1, "unique_key": "k"}]}
    client.post(f"/v0/topics/{queue}", keyed)
    cancel(client, queue, 1)
    assert client.post(f"/v0/topics/{queue}", keyed).json["seqs"] == [2]


def test_a_job_is_cancelled_once_and_never_comes_back_after_its_lease(client: Client, queue: str) -> None:
    client.put(f"/v0/topics/{queue}", {"type": "queue", "max_deliveries": 1, "dead_letter": f"{queue}.dead"})
    client.append(queue, 1)
    claim(client, queue, lease_ms=1)
    assert cancel(client, queue, 1)["cancelled"] == 1
    assert claim(client, queue, wait_ms=1)["claimed"] == []
    assert client.get(f"/v0/topics/{queue}.dead").status == 404


def test_many_jobs_are_cancelled_in_pieces(client: Client, queue: str) -> None:
    client.append(queue, *range(2_000))
    claim(client, queue, max=600, lease_ms=60_000)
    done = cancel(client, queue, *range(2, 1_502))
    assert (done["cancelled"], done["skipped"], done["ready"], done["in_flight"]) == (1_500, [], 499, 1)
    assert extend(client, queue, *range(1, 601))["cancelled"] == list(range(2, 601))


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "invalid_request", "seqs"),
        ({"seqs": []}, "invalid_request", "seqs"),
        ({"seqs": [-1]}, "invalid_request", "seqs[0]"),
        ({"seqs": [1], "node": "w"}, "invalid_request", "node"),
        ({"seqs": list(range(LIMIT_MAX + 1))}, "batch_too_large", "seqs"),
    ],
)
def test_a_wrong_request_is_refused(client: Client, queue: str, body: dict[str, Any], code: str, field: str) -> None:
    reply = post(client, queue, "cancel", **body)
    assert (reply.status, reply.code, reply.detail["field"]) == (400, code, field)


def test_a_log_and_an_absent_topic_are_refused(client: Client, queue: str) -> None:
    client.append(f"{queue}.log", 1)
    log, absent = post(client, f"{queue}.log", "cancel", seqs=[1]), post(client, f"{queue}.no", "cancel", seqs=[1])
    assert (log.status, log.code) == (409, "not_a_queue")
    assert (absent.status, absent.code) == (404, "topic_not_found")


def test_scopes_and_prefixes_hold(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="all,writer:write,both:write+delete,some:write+delete:a.") as server:
        for topic in ("a.q", "b.q"):
            server.client("all").put(f"/v0/topics/{topic}", {"type": "queue"})
            server.client("all").append(topic, 1, 2)

        def tried(key: str, topic: str) -> Reply:
            return post(server.client(key), topic, "cancel", seqs=[1])

        assert tried("writer", "a.q").code == "forbidden"
        assert tried("some", "b.q").code == "forbidden"
        assert (tried("both", "b.q").json["cancelled"], tried("some", "a.q").json["cancelled"]) == (1, 1)


@pytest.mark.parametrize("leases_durable", [False, True])
def test_a_kill_brings_no_cancelled_job_back(tmp_path: Path, leases_durable: bool) -> None:
    config = {"type": "queue", "durability": "fsync", "leases_durable": leases_durable}
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/topics/q", config)
        client.append("q", *"abcd")
        client.post("/v0/topics/q", {"records": [{"data": "e", "delay_ms": 3_600_000}]})
        claim(client, "q", max=2, lease_ms=3_600_000)
        assert cancel(client, "q", 1, 3, 5)["cancelled"] == 3
        server.kill()
    with serving(tmp_path) as server:
        client = server.client()
        assert counts(client, "q") == ((1, 1, 0) if leases_durable else (2, 0, 0))
        assert extend(client, "q", 1)["skipped"] == [1]
        left = [job["data"] for job in claim(client, "q", max=9)["claimed"]]
        assert left == (["d"] if leases_durable else ["b", "d"])


def test_what_is_remembered_is_bounded() -> None:
    places = JobPlaces()
    places.note_cancelled(range(CANCELLED_KEPT_MAX + 5))
    assert len(places.cancelled) == CANCELLED_KEPT_MAX
    assert 4 not in places.cancelled
    assert CANCELLED_KEPT_MAX + 4 in places.cancelled
