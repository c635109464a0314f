"""Deleting records over HTTP: by seq, by tag, by both."""

from typing import Any

import pytest

from tests.serving import Client


@pytest.fixture
def tagged(client: Client, topic: str) -> str:
    tags = ["a:1", "a:2", "b:1", None, "a:1", ""]
    records = [{"data": number, "tag": tag} for number, tag in enumerate(tags, 1)]
    assert client.post(f"/v0/topics/{topic}", {"records": records}).status == 201
    return topic


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ({"before_seq": 3}, [3, 4, 5, 6]),
        ({"before_seq": 0}, [1, 2, 3, 4, 5, 6]),
        ({"before_seq": 10**15}, []),
        ({"match": "a:1"}, [2, 3, 4, 6]),
        ({"match": ["tag", "Eq", "a:1"]}, [2, 3, 4, 6]),
        ({"match": ["tag", "Glob", "a:*"]}, [3, 4, 6]),
        ({"match": ["tag", "Glob", "*"]}, [4]),
        ({"match": ""}, [1, 2, 3, 4, 5]),
        ({"match": "a:*"}, [1, 2, 3, 4, 5, 6]),
        ({"match": "a:1", "before_seq": 5}, [2, 3, 4, 5, 6]),
        ({"match": ["tag", "Glob", "a:*"], "before_seq": 2}, [2, 3, 4, 5, 6]),
    ],
)
def test_what_is_deleted(client: Client, tagged: str, body: Any, left: list[int]) -> None:
    reply = client.post(f"/v0/topics/{tagged}/delete", body)
    assert reply.status == 200
    assert client.payloads(tagged) == left
    answer = reply.json
    assert answer["topic"] == tagged
    assert answer["deleted"] == 6 - len(left)
    assert answer["count"] == len(left)
    assert answer["head_seq"] == 6
    assert answer["earliest_seq"] == (left[0] if left else 7)
    state = client.state(tagged)
    assert (state["count"], state["bytes"], state["earliest_seq"]) == (
        answer["count"],
        answer["bytes"],
        answer["earliest_seq"],
    )
    assert (answer["bytes"] == 0) == (not left)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"match": None},
        {"match": []},
        {"match": ["tag", "Eq"]},
        {"match": ["node", "Eq", "x"]},
        {"match": ["tag", "Regex", "x"]},
        {"match": ["tag", "Glob", "x"]},
        {"match": ["tag", "Glob", "x*y*"]},
        {"match": ["tag", "Eq", 5]},
        {"match": 5},
    ],
)
def test_a_bad_predicate_is_400(client: Client, tagged: str, body: Any) -> None:
    reply = client.post(f"/v0/topics/{tagged}/delete", body)
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert client.state(tagged)["count"] == 6


def test_a_delete_on_an_absent_topic_is_404(client: Client, topic: str) -> None:
    assert client.post(f"/v0/topics/{topic}/delete", {"before_seq": 1}).code == "topic_not_found"


def test_a_delete_is_no_standing_filter(client: Client, tagged: str) -> None:
    client.post(f"/v0/topics/{tagged}/delete", {"match": "a:1"})
    client.post(f"/v0/topics/{tagged}", {"records": [{"data": 7, "tag": "a:1"}]})
    assert client.payloads(tagged) == [2, 3, 4, 6, 7]


def test_deleting_twice_deletes_nothing_more(client: Client, tagged: str) -> None:
    client.post(f"/v0/topics/{tagged}/delete", {"match": "a:1"})
    assert client.post(f"/v0/topics/{tagged}/delete", {"match": "a:1"}).json["deleted"] == 0


def test_a_deleted_record_is_silent_for_every_reader(client: Client, tagged: str) -> None:
    client.post(f"/v0/topics/{tagged}/delete", {"before_seq": 7})
    diff = client.diff(tagged)
    assert (diff["records"], diff["tombstone"], diff["next_from_seq"], diff["caught_up"]) == ([], None, 6, True)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_every_class_deletes(client: Client, topic: str, durability: str) -> None:
    client.append(topic, 1, 2, config={"durability": durability})
    assert client.post(f"/v0/topics/{topic}/delete", {"before_seq": 2}).json["deleted"] == 1
    assert client.payloads(topic) == [2]
