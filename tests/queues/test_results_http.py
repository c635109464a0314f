"""Results and job groups over HTTP: fields, errors, scopes and prefixes, waiting; and a server that is killed."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.queues.test_http import claim, post
from tests.queues.test_kill import Fleet
from tests.serving import Client, ServerProcess, serving


@pytest.fixture
def keeping(client: Client, queue: str) -> str:
    config = {"type": "queue", "keep_results_ms": 60_000, "dead_letter": f"{queue}.dead"}
    assert client.put(f"/v0/topics/{queue}", config).json["config"]["keep_results_ms"] == 60_000
    return queue


def job(client: Client, queue: str, seq: object, query: str = "") -> Any:
    return client.get(f"/v0/topics/{queue}/jobs/{seq}{query}")


def in_group(size: int, notify: str, name: str = "g") -> dict[str, Any]:
    return {"data": 0, "group": {"name": name, "size": size, "notify": notify}}


def test_a_job_and_its_result(client: Client, keeping: str) -> None:
    client.append(keeping, "a", "b")
    shown = job(client, keeping, 1).json
    assert {name: shown[name] for name in ("topic", "$seq", "state", "deliveries")} == {
        "topic": keeping,
        "$seq": 1,
        "state": "ready",
        "deliveries": 0,
    }
    assert not {"worker", "deadline", "due", "ended_ts", "error", "progress", "result"} & shown.keys()
    (claimed,) = claim(client, keeping)["claimed"]
    assert post(client, keeping, "extend", node="w", seqs=[1], lease_ms=60_000, progress=[1, 2]).status == 200
    shown = job(client, keeping, 1).json
    assert (shown["state"], shown["worker"], shown["progress"]) == ("leased", "w", [1, 2])
    assert shown["$ts"] == claimed["$ts"]
    body = b'{"node":"w","seqs":[1],"result": {"n" : 1.50, "big":12345678901234567890} }'
    headers = {"Content-Type": "application/json"}
    acked = client.request("POST", f"/v0/topics/{keeping}/ack", body=body, headers=headers)
    assert (acked.status, acked.json["acked"]) == (200, 1)
    assert "warnings" not in acked.json
    reply = job(client, keeping, 1)
    assert b'"result":{"n" : 1.50, "big":12345678901234567890}' in reply.body, "byte for byte"
    assert reply.json["state"] == "done"
    assert reply.json["forgotten_ts"] == reply.json["ended_ts"] + 60_000


def test_a_result_for_a_queue_that_keeps_none_is_a_warning(client: Client, queue: str) -> None:
    client.append(queue, 1)
    claim(client, queue)
    acked = post(client, queue, "ack", node="w", seqs=[1], result=1)
    assert (acked.status, acked.json["acked"]) == (200, 1)
    assert "keep_results_ms" in acked.json["warnings"][0]
    assert (job(client, queue, 1).status, job(client, queue, 1).code) == (404, "job_not_found")


@pytest.mark.parametrize("seq", ["x", "-1", "1.5", "%C2%B2", str(2**64), "9" * 5_000, "0" * 5_000, "%2e"])
def test_a_seq_that_is_none(client: Client, queue: str, seq: str) -> None:
    reply = job(client, queue, seq)
    assert reply.status in (400, 414), reply
    if reply.status == 400:
        assert reply.detail["field"] == "seq"


def test_errors_of_the_routes(client: Client, queue: str) -> None:
    assert (job(client, "absent", 1).status, job(client, "absent", 1).code) == (404, "topic_not_found")
    client.put(f"/v0/topics/{queue}.log", {})
    assert (job(client, f"{queue}.log", 1).status, job(client, f"{queue}.log", 1).code) == (409, "not_a_queue")
    assert job(client, queue, 1, "?wait=5").status == 400
    assert job(client, queue, 1, "?wait_ms=x").detail["field"] == "wait_ms"
    missing = client.get(f"/v0/topics/{queue}/job-groups/none")
    assert (missing.status, missing.code) == (404, "job_group_not_found")
    assert client.get(f"/v0/topics/{queue}.log/job-groups/none").code == "not_a_queue"


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({"result": "x" * 262_143}, 400, "record_too_large", "result"),
        ({"results": [1, 2]}, 400, "invalid_request", "results"),
        ({"results": 1}, 400, "invalid_request", "results"),
        ({"result": 1, "results": [1]}, 400, "invalid_request", "result"),
        ({"resluts": [1]}, 400, "invalid_request", "resluts"),
    ],
)
def test_acks_that_are_refused(client: Client, keeping: str, body: Any, status: int, code: str, field: str) -> None:
    client.append(keeping, 1)
    claim(client, keeping)
    reply = post(client, keeping, "ack", node="w", seqs=[1], **body)
    assert (reply.status, reply.code, reply.detail["field"]) == (status, code, field)
    assert job(client, keeping, 1).json["state"] == "leased"


def test_a_caller_waits_for_the_end(server: ServerProcess, client: Client, keeping: str) -> None:
    client.append(keeping, 1)
    found: list[Any] = []
    waiting = threading.Thread(
        target=lambda: found.append(job(server.client(), keeping, 1, "?wait_ms=30000").json), daemon=True
    )
    waiting.start()
    claim(client, keeping)
    assert post(client, keeping, "ack", node="w", seqs=[1], result="end").status == 200
    waiting.join(PATIENCE_S)
    assert [(each["state"], each["result"]) for each in found] == [("done", "end")]
    assert job(client, keeping, 1, "?wait_ms=30000").json["state"] == "done", "it does not wait for what has ended"


def test_a_group_and_its_record(client: Client, queue: str) -> None:
    group = in_group(3, f"{queue}.ends")
    assert client.post(f"/v0/topics/{queue}", {"records": [group, group]}).status == 200
    conflict = client.post(f"/v0/topics/{queue}", {"records": [group, group]})
    assert (conflict.status, conflict.code, conflict.detail["group"]) == (409, "job_group_conflict", "g")
    several = {"topics": {queue: {"records": [group]}, f"{queue}.other": {"records": [{"data": 1}]}}}
    assert client.post("/v0/append", several).status == 201
    claim(client, queue, max=3)
    assert post(client, queue, "ack", node="w", seqs=[1, 2, 3]).json["acked"] == 3
    client.put(f"/v0/topics/{queue}.ends", {})
    page = client.post(f"/v0/topics/{queue}.ends/diff", {"wait_ms": 30_000}).json
    assert [record["data"]["done"] for record in page["records"]] == [3]
    shown = client.get(f"/v0/topics/{queue}/job-groups/g").json
    assert (shown["complete"], shown["added"], shown["done"], shown["notified_seq"]) == (True, 3, 3, 1)


def test_a_group_is_for_jobs(client: Client, queue: str) -> None:
    reply = client.post(f"/v0/topics/{queue}.log", {"records": [in_group(1, "t")]})
    assert (reply.status, reply.detail["field"]) == (400, "records[0].group")
    stage = {"stage": "s", "part": 0, "topic": queue, "records": [in_group(1, "t")]}
    assert client.post(f"/v0/txns/{queue}/1/stage", stage).status == 400


@pytest.mark.slow
def test_scopes_and_prefixes_hold(tmp_path: Path) -> None:
    keys = "root,reader:read:team.,worker:rw:team.,writer:write"
    with serving(tmp_path, api_keys=keys) as server:
        clients = [server.client(key) for key in ("root", "reader", "worker", "writer")]
        root, reader, worker, writer = clients
        assert root.put("/v0/topics/team.q", {"type": "queue"}).status == 201
        foreign = worker.post("/v0/topics/team.q", {"records": [{"data": 1}, in_group(1, "other.ends")]})
        assert (foreign.status, foreign.code, foreign.detail["field"]) == (403, "forbidden", "records[1].group.notify")
        several = {"topics": {"team.q": {"records": [in_group(1, "other.ends")]}}}
        refused = worker.post("/v0/append", several)
        assert (refused.status, refused.detail["field"]) == (403, "topics.team.q.records[0].group.notify")
        wrong = worker.post("/v0/topics/team.q", {"records": [in_group(0, "other.ends")]})
        assert wrong.status == 400, "what is wrong comes before what is not allowed"
        assert worker.post("/v0/topics/team.q", {"records": [in_group(1, "team.ends")]}).status == 200
        for path in ("jobs/1", "job-groups/g"):
            assert writer.get(f"/v0/topics/team.q/{path}").status == 403, "reading needs read"
            assert reader.get(f"/v0/topics/other.q/{path}").status == 403
            assert reader.get(f"/v0/topics/team.q/{path}").status == 200
        for client in clients:
            client.close()


# --- kills ---


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_result_is_as_safe_as_its_ack(tmp_path: Path, durability: str) -> None:
    """Killed right after each reply: what was acknowledged is there, and nothing else."""
    for round_number in range(3):
        server = ServerProcess(tmp_path).ready()
        client = server.client()
        config = {"type": "queue", "keep_results_ms": 600_000, "durability": durability, "dead_letter": "dead"}
        client.put("/v0/topics/q", config)
        for before in range(round_number):
            first = 3 * before + 1
            states = [job(client, "q", seq).json for seq in range(first, first + 3)]
            assert [state["state"] for state in states] == ["done", "dead", "cancelled"]
            assert (states[0]["result"], states[1]["error"]) == ({"round": before}, "broken")
        first = 3 * round_number + 1
        client.append("q", 1, 2, 3)
        claim(client, "q", max=3)
        assert post(client, "q", "ack", node="w", seqs=[first], result={"round": round_number}).status == 200
        assert post(client, "q", "nack", node="w", seqs=[first + 1], dead_letter=True, error="broken").status == 200
        assert post(client, "q", "cancel", seqs=[first + 2]).status == 200
        server.kill()


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_thousand_jobs_and_kills_give_one_record(tmp_path: Path, durability: str) -> None:
    """Workers that know only broken connections; the server is killed between acks and after the last one."""
    size, batch = 1_000, 50
    fleet = Fleet()
    server = ServerProcess(tmp_path).ready()
    fleet.port = server.port
    config = {"type": "queue", "durability": durability, "keep_results_ms": 600_000}
    assert server.client().put("/v0/topics/q", config).status == 201
    for first in range(0, size, batch):
        records = [{**in_group(size, "ends"), "data": number} for number in range(first, first + batch)]
        assert server.client().post("/v0/topics/q", {"records": records}).status == 200
    threads = [threading.Thread(target=fleet.work, args=(f"w{number}",), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        kills = 0
        while server.client().state("q")["count"]:
            # By what has been done, not by time: each kill comes after another share of the jobs.
            left = size - (kills + 1) * 150
            while server.client().state("q")["count"] > max(0, left):
                pass
            server.kill()
            kills += 1
            server = ServerProcess(tmp_path).ready()
            fleet.port = server.port
        server.kill()
        server = ServerProcess(tmp_path).ready()
        client = server.client()
        client.put("/v0/topics/ends", {"durability": durability})
        page = client.post("/v0/topics/ends/diff", {"wait_ms": 30_000}).json
        assert [record["data"]["done"] for record in page["records"]] == [size]
        server.kill()
        server = ServerProcess(tmp_path).ready()
        assert server.client().state("ends")["count"] == 1
        states = Counter(job(server.client(), "q", seq).json["state"] for seq in range(1, size + 1, 37))
        assert states == {"done": len(range(1, size + 1, 37))}
        assert kills >= 5
    finally:
        fleet.over.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        server.kill()


def test_a_reply_is_json_whatever_a_worker_said(client: Client, keeping: str) -> None:
    client.append(keeping, 1)
    claim(client, keeping)
    error = 'quote " and \\ and \u2028 and ' + "é" * 900
    assert post(client, keeping, "nack", node="w", seqs=[1], dead_letter=True, error=error).status == 200
    assert json.loads(job(client, keeping, 1).body)["error"] == error
