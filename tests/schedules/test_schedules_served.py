"""Schedules of a real server: kills lose and repeat no due time; keys and prefixes; the page and the command."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, serving


def due_times(client: Client, topic: str) -> list[int]:
    times: list[int] = []
    cursor = 0
    while True:
        page = client.diff(topic, from_seq=cursor, limit=1_000)
        times += [record["meta"]["due_ts"] for record in page["records"]]
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return times


def wait_for(client: Client, topic: str, count: int) -> list[int]:
    give_up_s = time.monotonic() + PATIENCE_S
    while len(times := due_times(client, topic)) < count:
        assert time.monotonic() < give_up_s
        client.diff(topic, from_seq=client.state(topic)["head_seq"], wait_ms=200)
    return times


def test_kills_neither_lose_nor_repeat_a_due_time(tmp_path: Path) -> None:
    """Whatever was decided when the process died: `all` leaves no gap, and no time is there twice."""
    topics: dict[str, Any] = {"disk": {}, "fsync": {"durability": "fsync"}, "jobs": {"type": "queue"}}
    seen = 0
    for round_number in range(4):
        with serving(tmp_path) as server:
            client = server.client()
            if not round_number:
                for topic, config in topics.items():
                    assert client.put(f"/v0/topics/{topic}", config).status == 201
                    body = {"topic": topic, "every_ms": 100, "missed": "all", "data": topic}
                    for number in range(3):
                        assert client.put(f"/v0/schedules/{topic}{number}", body).status == 201
            # Killed when the next ones have come, wherever it is with those after them.
            seen = len(wait_for(client, "fsync", seen + 6))
    with serving(tmp_path) as server:
        client = server.client()
        for topic in ("disk", "fsync"):
            page = client.diff(topic, limit=1_000)["records"]
            for number in range(3):
                times = [each["meta"]["due_ts"] for each in page if each["meta"]["schedule"] == f"{topic}{number}"]
                gaps = {later - earlier for earlier, later in pairwise(times)}
                assert gaps == {100}, (topic, number)
        jobs = client.post("/v0/topics/jobs/claim", {"node": "n", "max": 1_000}).json["claimed"]
        keys = [(job["meta"]["schedule"], job["meta"]["due_ts"]) for job in jobs]
        assert len(keys) == len(set(keys)) > 0
        assert server.terminate() == 0


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    keys = "full,reader:read,writer:w,tenant::t42:,deleter:delete"
    with serving(tmp_path_factory.mktemp("data"), api_keys=keys) as server:
        server.key = "full"
        for name in ("plain", "t42:a"):
            server.client().append(name, 1)
        yield server


def test_scopes_and_prefixes_hold(keyed: ServerProcess) -> None:
    body = {"topic": "plain", "every_ms": 3_600_000}
    full, writer, tenant = keyed.client(), keyed.client("writer"), keyed.client("tenant")
    assert keyed.client("reader").put("/v0/schedules/s", body).status == 403
    assert writer.put("/v0/schedules/s", body).status == 201, "whoever may append may have it appended"
    assert writer.delete("/v0/schedules/s").status == 403
    assert keyed.client("deleter").post("/v0/schedules/s/run").status == 403
    assert writer.post("/v0/schedules/s/run").json["seq"] == 2
    # Both the name and the topic must begin with a prefix of the key.
    assert tenant.put("/v0/schedules/s2", {**body, "topic": "t42:a"}).status == 403
    assert tenant.put("/v0/schedules/t42:s", body).status == 403
    assert tenant.put("/v0/schedules/t42:s", {**body, "topic": "t42:a"}).status == 201
    assert full.put("/v0/schedules/t42:elsewhere", body).status == 201
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/run")):
        assert tenant.request(method, f"/v0/schedules/t42:elsewhere{path}").status == 403, method
    assert tenant.put("/v0/schedules/t42:elsewhere", {**body, "topic": "t42:a"}).status == 403
    assert [item["schedule"] for item in tenant.get("/v0/schedules").json["schedules"]] == ["t42:s"]


def test_unknown_fields_are_refused_with_the_nearest_name(keyed: ServerProcess) -> None:
    reply = keyed.client().put("/v0/schedules/s", {"topic": "plain", "every": 1_000})
    assert reply.status == 400
    assert "every_ms" in reply.json["error"]["message"]
    assert keyed.client().post("/v0/schedules/s/run", {"now": True}).status == 400


def test_a_page_of_schedules_ends_after_a_mebibyte_of_data(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(7)]
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/topics/t", {})
        for name in names:
            body = {"topic": "t", "every_ms": 60_000, "data": "x" * 400_000}
            assert client.put(f"/v0/schedules/{name}", body).status == 201
        pages: list[list[str]] = []
        cursor: str | None = ""
        while cursor is not None:
            reply = client.get(f"/v0/schedules?page_size=100{cursor and f'&cursor={cursor}'}").json
            pages.append([item["schedule"] for item in reply["schedules"]])
            cursor = reply.get("next_cursor")
    assert pages == [names[:3], names[3:6], names[6:]]
