"""PATCH changes the fields given and no others; PUT with replace=false creates or confirms."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Client, ServerProcess, serving

FULL = {
    "ttl_ms": 86_400_000,
    "cap_records": 1_000,
    "discard": "reject",
    "durability": "memory",
    "priority": 5,
    "dead_letter": "dead",
    "retry_backoff": {"initial_ms": 5},
    "max_in_flight_per_tag": 1,
    "rate_per_s": 2.5,
}


def patch(client: Client, topic: str, body: Any, query: str = "") -> Any:
    return client.request("PATCH", f"/v0/topics/{topic}{query}", body)


def config_of(client: Client, topic: str) -> dict[str, Any]:
    return client.state(topic)["config"]


@pytest.fixture
def full(client: Client, topic: str) -> str:
    assert client.put(f"/v0/topics/{topic}", FULL).status == 201
    return topic


def test_only_the_fields_given_change(client: Client, full: str) -> None:
    before = config_of(client, full)
    reply = patch(client, full, {"cap_records": 2_000, "discard": "old"})
    assert reply.status == 200
    assert reply.json["changes"] == {
        "cap_records": {"from": 1_000, "to": 2_000},
        "discard": {"from": "reject", "to": "old"},
    }
    assert reply.json["config"] == config_of(client, full) == {**before, "cap_records": 2_000, "discard": "old"}
    assert (reply.json["topic"], reply.json["evicts"], reply.json["dry_run"]) == (full, 0, False)


@pytest.mark.parametrize("body", [{}, {"cap_records": 1_000, "durability": "memory"}, {"durable": False}])
def test_nothing_new_is_a_no_op(client: Client, full: str, body: Any) -> None:
    before = config_of(client, full)
    reply = patch(client, full, body)
    assert (reply.status, reply.json["changes"], reply.json["config"]) == (200, {}, before)


def test_an_absent_body_is_a_no_op_too(client: Client, full: str) -> None:
    assert client.request("PATCH", f"/v0/topics/{full}").json["changes"] == {}


def test_null_resets_what_may_be_null(client: Client, full: str) -> None:
    optional = ("priority", "dead_letter", "retry_backoff", "max_in_flight_per_tag", "rate_per_s")
    reply = patch(client, full, dict.fromkeys(optional))
    config = reply.json["config"]
    assert (config["priority"], config["dead_letter"]) == (None, None)
    assert not set(optional[2:]) & set(config)
    assert reply.json["changes"]["retry_backoff"]["to"] is None


@pytest.mark.parametrize(
    "field",
    ["type", "ttl_ms", "cap_records", "discard", "durable", "durability", "auto_priority", "lease_ms", "dedupe_node"],
)
def test_null_is_refused_for_the_others(client: Client, full: str, field: str) -> None:
    reply = patch(client, full, {field: None})
    assert (reply.status, reply.detail["field"]) == (400, field)
    assert "null" in reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("given", "durability"),
    [
        ({"durable": True}, "fsync"),
        ({"durable": True, "durability": "disk"}, "disk"),
        ({"durable": False, "durability": "fsync"}, "fsync"),
        ({"durability": "ephemeral"}, "ephemeral"),
    ],
)
def test_durable_counts_only_without_durability(client: Client, full: str, given: Any, durability: str) -> None:
    config = patch(client, full, given).json["config"]
    assert (config["durability"], config["durable"]) == (durability, durability == "fsync")


def test_not_durable_any_more_is_on_disk(client: Client, full: str) -> None:
    patch(client, full, {"durable": True})
    assert patch(client, full, {"durable": False}).json["config"]["durability"] == "disk"


def test_what_is_wrong_is_refused(client: Client, full: str) -> None:
    before = config_of(client, full)
    for body, status, code in (
        ({"type": "queue", "cap_records": 1}, 409, "topic_exists_incompatible"),
        ({"cap_record": 1}, 400, "invalid_request"),
        ({"retry_backoff": {"fator": 2}}, 400, "invalid_request"),
        ({"cap_records": -1}, 400, "invalid_request"),
        ({"cap_records": 2**64}, 400, "invalid_request"),
        ({"dead_letter": full}, 400, "invalid_request"),
        ([], 400, "invalid_request"),
    ):
        for query in ("", "?dry_run=true"):
            reply = patch(client, full, body, query)
            assert (reply.status, reply.code) == (status, code), (body, query)
    assert patch(client, full, {"type": "log"}).status == 200
    assert patch(client, f"{full}-absent", {}).code == "topic_not_found"
    assert patch(client, f"{full}-absent", {}, "?dry_run=true").status == 404
    other = {"Content-Type": "application/merge-patch+json"}
    assert client.request("PATCH", f"/v0/topics/{full}", body=b"{}", headers=other).status == 415
    assert patch(client, full, {}, "?dry_run=perhaps").status == 400
    assert config_of(client, full) == before


def test_a_dry_run_tells_what_a_lowered_cap_would_evict_and_does_nothing(client: Client, topic: str) -> None:
    client.append(topic, *range(100))
    size = client.state(topic)["bytes"]
    dry = patch(client, topic, {"cap_records": 5}, "?dry_run=true").json
    assert (dry["changes"], dry["evicts"], dry["dry_run"]) == ({"cap_records": {"from": 0, "to": 5}}, 95, True)
    assert dry["config"]["cap_records"] == 5
    by_bytes = patch(client, topic, {"cap_bytes": size // 2}, "?dry_run=true").json["evicts"]
    assert 45 <= by_bytes <= 55
    assert client.state(topic)["count"] == 100
    assert config_of(client, topic)["cap_records"] == 0
    done = patch(client, topic, {"cap_bytes": size // 2}).json
    assert (done["evicts"], done["dry_run"], client.state(topic)["count"]) == (by_bytes, False, 100 - by_bytes)
    assert patch(client, topic, {"cap_records": 5}).json["evicts"] == 95 - by_bytes
    assert client.payloads(topic, from_seq=95) == [95, 96, 97, 98, 99]


def test_warnings_come_with_a_change(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    assert "max_deliveries" in patch(client, topic, {"max_deliveries": 3}).json["warnings"][0]
    assert "warnings" not in patch(client, topic, {"dead_letter": "dead"}).json


# --- create or confirm ---


def test_replace_false_creates_then_confirms_then_refuses_with_the_difference(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}?replace=false"
    made = client.put(path, {"cap_records": 500})
    assert (made.status, made.json["created"]) == (201, True)
    client.append(topic, *range(100))
    again = client.put(path, {"cap_records": 500})
    assert (again.status, again.json["created"]) == (200, False)
    other = client.put(path, {"cap_records": 5, "durability": "fsync"})
    assert (other.status, other.code) == (409, "topic_exists_incompatible")
    assert other.detail == {
        "topic": topic,
        "changes": {"cap_records": {"from": 500, "to": 5}, "durability": {"from": "disk", "to": "fsync"}},
    }
    assert "cap_records is 500, not 5" in other.json["error"]["message"]
    assert client.put(path, {"type": "queue", "cap_records": 500}).detail["field"] == "type"
    assert (client.state(topic)["count"], config_of(client, topic)["cap_records"]) == (100, 500)
    assert client.put(f"/v0/topics/{topic}?replace=true", {"cap_records": 50}).status == 200


# --- who may ---


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = "full,boss:a,rest:r+w+d,tenant:a:mine."
    with serving(tmp_path_factory.mktemp("data"), api_keys=keys) as server:
        for name in ("mine.a", "other.a"):
            server.client("full").put(f"/v0/topics/{name}", {})
        yield server


def test_it_takes_the_scope_admin_and_names_within_the_prefixes(guarded: ServerProcess) -> None:
    tenant = guarded.client("tenant")
    assert patch(guarded.stranger(), "mine.a", {}).status == 401
    assert patch(guarded.client("rest"), "mine.a", {"ttl_ms": 5}).detail == {"scope": "admin"}
    assert patch(guarded.client("boss"), "other.a", {"ttl_ms": 50_000}).status == 200
    assert patch(tenant, "mine.a", {"ttl_ms": 50_000}).status == 200
    assert patch(tenant, "other.a", {}).status == 403
    assert patch(tenant, "mine.a", {"dead_letter": "other.a"}).detail["field"] == "dead_letter"
    assert patch(tenant, "mine.a", {"dead_letter": "mine.dead"}).status == 200


def test_a_change_survives_a_kill(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/topics/a", FULL)
        changed = patch(client, "a", {"cap_records": 7, "priority": None}).json["config"]
    with serving(tmp_path) as server:
        assert config_of(server.client(), "a") == changed
