"""Topics over HTTP: PUT, GET, list, DELETE."""

import threading
from typing import Any

import pytest

from tests.serving import Client, ServerProcess

DEFAULTS: dict[str, Any] = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120000,
    "dedupe_node": True,
    "lease_ms": 30000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
}


# --- PUT ---


def test_put_creates_with_defaults_and_echoes_the_whole_config(client: Client, topic: str) -> None:
    reply = client.put(f"/v0/topics/{topic}", {})
    assert reply.status == 201
    assert reply.json["topic"] == topic
    assert reply.json["created"] is True
    assert reply.json["config"] == DEFAULTS


def test_an_identical_put_is_a_200_that_changes_nothing(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 5})
    again = client.put(f"/v0/topics/{topic}", {"cap_records": 5})
    assert (again.status, again.json["created"]) == (200, False)
    assert again.json["config"] == {**DEFAULTS, "cap_records": 5}


def test_put_replaces_the_config_and_what_is_omitted_takes_its_default(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 5, "ttl_ms": 60000})
    changed = client.put(f"/v0/topics/{topic}", {"priority": 10})
    assert (changed.status, changed.json["created"]) == (200, False)
    assert changed.json["config"] == {**DEFAULTS, "priority": 10}
    assert client.state(topic)["config"] == changed.json["config"]


@pytest.mark.parametrize(
    ("body", "resolved"),
    [
        ({"durable": True}, {"durable": True, "durability": "fsync"}),
        ({"durable": False}, {"durable": False, "durability": "disk"}),
        ({"durability": "memory", "durable": True}, {"durable": False, "durability": "memory"}),
        ({"durability": "ephemeral"}, {"durable": False, "durability": "ephemeral"}),
        ({"durability": "fsync"}, {"durable": True, "durability": "fsync"}),
        ({"priority": 99999}, {"priority": 1000}),
        ({"priority": -99999}, {"priority": -1000}),
        ({"lease_ms": 1}, {"lease_ms": 100}),
        ({"lease_ms": 10**12}, {"lease_ms": 86400000}),
        ({"claim_jitter_ms": 99999}, {"claim_jitter_ms": 5000}),
        ({"dead_letter": "other", "leases_durable": True}, {"dead_letter": "other", "leases_durable": True}),
    ],
)
def test_the_config_is_resolved_and_clamped(client: Client, topic: str, body: Any, resolved: Any) -> None:
    assert client.put(f"/v0/topics/{topic}", body).json["config"] == {**DEFAULTS, **resolved}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "stack"),
        ("discard", "new"),
        ("durability", "eternal"),
        ("durable", "yes"),
        ("priority", 1.5),
        ("auto_priority", 1),
        ("dead_letter", "not a name"),
        ("dead_letter", 5),
    ],
)
def test_a_bad_value_is_400_and_names_its_field(client: Client, topic: str, field: str, value: Any) -> None:
    reply = client.put(f"/v0/topics/{topic}", {field: value})
    assert (reply.status, reply.code, reply.detail["field"]) == (400, "invalid_request", field)


def test_a_dead_letter_must_be_another_topic(client: Client, topic: str) -> None:
    reply = client.put(f"/v0/topics/{topic}", {"type": "queue", "dead_letter": topic})
    assert (reply.status, reply.detail["field"]) == (400, "dead_letter")


@pytest.mark.parametrize(("was", "becomes"), [("log", "queue"), ("queue", "log")])
def test_the_type_cannot_change(client: Client, topic: str, was: str, becomes: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": was})
    reply = client.put(f"/v0/topics/{topic}", {"type": becomes})
    assert (reply.status, reply.code) == (409, "topic_exists_incompatible")
    kept = client.put(f"/v0/topics/{topic}", {"cap_records": 1})
    assert kept.json["config"]["type"] == was, "an update may leave the type out"


def test_a_tightened_cap_evicts_what_is_there(client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    client.put(f"/v0/topics/{topic}", {"cap_records": 3})
    assert client.payloads(topic) == [7, 8, 9]
    assert client.state(topic)["earliest_seq"] == 8


def test_many_puts_of_one_name_at_once_create_it_once(server: ServerProcess, topic: str) -> None:
    replies: list[Any] = []
    clients = [server.client() for _ in range(8)]
    threads = [
        threading.Thread(target=lambda one=one: replies.append(one.put(f"/v0/topics/{topic}", {}))) for one in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(reply.status for reply in replies) == [200] * 7 + [201]


# --- GET ---


def test_the_state_of_a_fresh_topic(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {})
    state = client.state(topic)
    assert {
        name: state[name] for name in ("topic", "type", "head_seq", "earliest_seq", "next_seq", "count", "bytes")
    } == {
        "topic": topic,
        "type": "log",
        "head_seq": 0,
        "earliest_seq": 1,
        "next_seq": 1,
        "count": 0,
        "bytes": 0,
    }
    assert state["last_write_ts"] is None
    assert state["last_read_ts"] is None
    assert state["config"] == DEFAULTS
    assert state["epoch"] > 0


def test_the_state_follows_appends_and_reads(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    state = client.state(topic)
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"], state["count"]) == (3, 1, 4, 3)
    assert state["bytes"] > 0
    assert state["last_write_ts"] > 1_700_000_000_000
    assert state["last_read_ts"] is None
    client.diff(topic)
    assert client.state(topic)["last_read_ts"] >= state["last_write_ts"]


def test_looking_counts_as_reading_unless_touch_is_false(client: Client, topic: str) -> None:
    client.append(topic, 1)
    assert client.get(f"/v0/topics/{topic}?touch=false").json["effective_priority"] == 0
    assert client.get(f"/v0/topics/{topic}?touch=false").json["last_read_ts"] is None
    client.get(f"/v0/topics/{topic}")
    touched = client.get(f"/v0/topics/{topic}?touch=true").json
    assert touched["last_read_ts"] is not None
    assert touched["effective_priority"] > 0


def test_a_manual_priority_overrides_recency(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"priority": -7})
    client.get(f"/v0/topics/{topic}")
    assert client.state(topic)["effective_priority"] == -7


def test_without_auto_priority_reading_changes_nothing(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"auto_priority": False})
    client.get(f"/v0/topics/{topic}")
    assert client.state(topic)["effective_priority"] == 0


def test_a_look_never_creates(client: Client, topic: str) -> None:
    assert client.get(f"/v0/topics/{topic}").code == "topic_not_found"
    assert client.get(f"/v0/topics/{topic}").code == "topic_not_found"


@pytest.mark.parametrize("value", ["maybe", "", "TRUE", "2"])
def test_a_flag_in_the_query_is_true_or_false(client: Client, topic: str, value: str) -> None:
    client.append(topic, 1)
    reply = client.get(f"/v0/topics/{topic}?touch={value}")
    assert (reply.status, reply.detail["field"]) == (400, "touch")


# --- list ---


def make_many(client: Client, prefix: str, count: int) -> list[str]:
    names = [f"{prefix}.{number:02}" for number in range(count)]
    for name in names:
        client.append(name, 1)
    return names


def test_list_items_have_their_fields(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"durable": True, "priority": 3})
    client.append(topic, 1, 2)
    (item,) = client.get(f"/v0/topics?prefix={topic}").json["topics"]
    assert item == {
        "topic": topic,
        "type": "log",
        "head_seq": 2,
        "earliest_seq": 1,
        "count": 2,
        "bytes": item["bytes"],
        "durable": True,
        "effective_priority": 3,
        "durability": "fsync",
        "last_write_ts": client.state(topic)["last_write_ts"],
        "epoch": client.state(topic)["epoch"],
    }


def test_pages_follow_one_another_and_the_last_has_no_cursor(client: Client, topic: str) -> None:
    names = make_many(client, topic, 5)
    first = client.get(f"/v0/topics?prefix={topic}.&page_size=2").json
    second = client.get(f"/v0/topics?prefix={topic}.&page_size=2&cursor={first['next_cursor']}").json
    third = client.get(f"/v0/topics?prefix={topic}.&page_size=2&cursor={second['next_cursor']}").json
    pages = [[item["topic"] for item in page["topics"]] for page in (first, second, third)]
    assert pages == [names[:2], names[2:4], names[4:]]
    assert "next_cursor" not in third


def test_a_page_that_ends_exactly_with_the_list_is_the_last(client: Client, topic: str) -> None:
    make_many(client, topic, 4)
    assert "next_cursor" not in client.get(f"/v0/topics?prefix={topic}.&page_size=4").json


@pytest.mark.parametrize(
    ("page_size", "shown"),
    [("0", 1), ("-3", 1), ("1000000", 3), ("9" * 30, 3), ("-" + "9" * 5000, 1), ("0" * 30 + "2", 2)],
)
def test_the_page_size_is_clamped(client: Client, topic: str, page_size: str, shown: int) -> None:
    make_many(client, topic, 3)
    assert len(client.get(f"/v0/topics?prefix={topic}.&page_size={page_size}").json["topics"]) == shown


@pytest.mark.parametrize("page_size", ["x", "", "1.5", "-", "--1", "9" * 30 + "x"])
def test_a_page_size_that_is_no_number_is_400(client: Client, page_size: str) -> None:
    assert client.get(f"/v0/topics?page_size={page_size}").detail["field"] == "page_size"


@pytest.mark.parametrize("cursor", ["x", "!!!!", "e30=", "eyJhZnRlciI6", "bnVsbA=="])
def test_a_corrupt_cursor_is_400(client: Client, cursor: str) -> None:
    reply = client.get(f"/v0/topics?cursor={cursor}")
    assert (reply.status, reply.code, reply.detail["field"]) == (400, "invalid_request", "cursor")


def test_listing_does_not_count_as_reading_unless_asked(client: Client, topic: str) -> None:
    client.append(topic, 1)
    client.get(f"/v0/topics?prefix={topic}")
    assert client.state(topic)["last_read_ts"] is None
    client.get(f"/v0/topics?prefix={topic}&touch=true")
    assert client.state(topic)["last_read_ts"] is not None


# --- DELETE ---


def test_delete_removes_the_topic_and_its_records(client: Client, topic: str) -> None:
    client.append(topic, 1, 2)
    reply = client.delete(f"/v0/topics/{topic}")
    assert reply.status == 200
    assert {**reply.json, "performance": 0} == {
        "topic": topic,
        "deleted": True,
        "routers_removed": [],
        "performance": 0,
    }
    assert client.get(f"/v0/topics/{topic}").status == 404
    assert client.get(f"/v0/topics?prefix={topic}").json["topics"] == []


def test_deleting_an_absent_topic_is_200_and_says_so(client: Client, topic: str) -> None:
    reply = client.delete(f"/v0/topics/{topic}")
    assert (reply.status, reply.json["deleted"], reply.json["routers_removed"]) == (200, False, [])


def test_if_empty_refuses_a_topic_with_records(client: Client, topic: str) -> None:
    client.append(topic, 1)
    reply = client.delete(f"/v0/topics/{topic}?if_empty=true")
    assert (reply.status, reply.code) == (409, "topic_not_empty")
    client.post(f"/v0/topics/{topic}/delete", {"before_seq": 2})
    assert client.delete(f"/v0/topics/{topic}?if_empty=true").json["deleted"] is True


def test_a_recreated_topic_starts_again_and_stale_readers_get_a_tombstone(client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    epoch = client.state(topic)["epoch"]
    client.delete(f"/v0/topics/{topic}")
    assert client.append(topic, "new").json["first_seq"] == 1
    assert client.state(topic)["epoch"] != epoch
    diff = client.diff(topic, from_seq=10)
    assert diff["tombstone"]["reason"] == "recreated"
    assert [record["data"] for record in diff["records"]] == ["new"]


def test_delete_forgets_dedupe_state(client: Client, topic: str) -> None:
    client.append(topic, 1, idempotency_key="k")
    client.delete(f"/v0/topics/{topic}")
    assert client.append(topic, 1, idempotency_key="k").json["deduped"] is False
