"""`warnings`: a reply reports what was done although it was probably not meant."""

from typing import Any

import pytest

from tests.serving import Client

LIMITED = {"type": "queue", "max_deliveries": 5}


def test_a_bare_string_that_looks_like_a_pattern_is_an_exact_tag_with_a_warning(client: Client, topic: str) -> None:
    ends = {"source": topic, "dest": f"{topic}-copy"}
    made = client.put(f"/v0/routers/{topic}", {**ends, "filter": "public:*"}).json
    assert made["filter"] == "public:*"
    [warning] = made["warnings"]
    assert all(part in warning for part in ("filter", '"public:*"', '["tag", "Glob", "public:*"]'))
    for fine in ("public:", ["tag", "Glob", "public:*"], ["tag", "Eq", "public:*"], None):
        assert "warnings" not in client.put(f"/v0/routers/{topic}", {**ends, "filter": fine}).json, fine


def test_a_match_is_warned_of_like_a_filter(client: Client, topic: str) -> None:
    client.append(topic, 1)
    assert "match" in client.post(f"/v0/topics/{topic}/delete", {"match": "a*"}).json["warnings"][0]
    assert "warnings" not in client.post(f"/v0/topics/{topic}/delete", {"match": "a"}).json
    assert "match" in client.post(f"/v0/topics/{topic}/redrive", {"match": "a*"}).json["warnings"][0]
    assert "warnings" not in client.post(f"/v0/topics/{topic}/redrive", {}).json


def test_a_limit_of_deliveries_without_a_dead_letter_topic_is_warned_of(client: Client, topic: str) -> None:
    [warning] = client.put(f"/v0/topics/{topic}", LIMITED).json["warnings"]
    assert "max_deliveries is 5" in warning
    assert "dead_letter" in warning
    # Again when nothing changes: every caller gets the warning.
    assert client.put(f"/v0/topics/{topic}", LIMITED).json["warnings"] == [warning]


@pytest.mark.parametrize(("asked", "set_to"), [(5, 100), (10**12, 86_400_000)])
def test_a_lease_that_is_out_of_bounds_is_warned_of(client: Client, topic: str, asked: int, set_to: int) -> None:
    for reply in (
        client.put(f"/v0/topics/{topic}", {"type": "queue", "lease_ms": asked}),
        client.request("PATCH", f"/v0/topics/{topic}", {"lease_ms": asked}),
        client.append(f"{topic}.b", 1, config={"type": "queue", "lease_ms": asked}),
    ):
        assert reply.json["warnings"] == [f"lease_ms is {set_to}, not {asked}: a lease lasts 100 to 86400000 ms"]
    # Another field of the same queue has nothing to do with it.
    assert "warnings" not in client.request("PATCH", f"/v0/topics/{topic}", {"cap_records": 9}).json


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"type": "queue"},
        {**LIMITED, "dead_letter": "dead"},
        {**LIMITED, "type": "log"},
        {"type": "log", "lease_ms": 5},
    ],
)
def test_nothing_to_warn_of_is_no_field_at_all(client: Client, topic: str, config: dict[str, Any]) -> None:
    assert "warnings" not in client.put(f"/v0/topics/{topic}", config).json


def test_an_append_that_makes_the_topic_warns_of_its_configuration(client: Client, topic: str) -> None:
    made = client.append(topic, 1, config=LIMITED)
    assert (made.status, len(made.json["warnings"])) == (201, 1)
    # The second one makes nothing: its configuration is ignored.
    assert "warnings" not in client.append(topic, 1, config=LIMITED).json


def test_an_append_to_several_topics_warns_of_those_it_makes(client: Client, topic: str) -> None:
    topics = {f"{topic}:a": {"records": [{"data": 1}], "config": LIMITED}, f"{topic}:b": {"records": [{"data": 1}]}}
    [warning] = client.post("/v0/append", {"topics": topics}).json["warnings"]
    assert warning.startswith(f'topic "{topic}:a": max_deliveries is 5')
    assert "warnings" not in client.post("/v0/append", {"topics": topics}).json
