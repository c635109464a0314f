"""Reading over HTTP: cursors, filters, tombstones, long-polls."""

import time
from typing import Any

import pytest

from tests.serving import START_S_MAX, Client, ServerProcess


def test_a_diff_gives_records_after_the_cursor(client: Client, topic: str) -> None:
    client.append(topic, "a", "b", "c")
    reply = client.post(f"/v0/topics/{topic}/diff", {"from_seq": 1})
    diff = reply.json
    assert [(record["$seq"], record["data"]) for record in diff["records"]] == [(2, "b"), (3, "c")]
    assert all(record["$ts"] > 1_700_000_000_000 for record in diff["records"])
    assert {
        name: diff[name] for name in ("next_from_seq", "head_seq", "earliest_seq", "caught_up", "lag", "tombstone")
    } == {
        "next_from_seq": 3,
        "head_seq": 3,
        "earliest_seq": 1,
        "caught_up": True,
        "lag": 0,
        "tombstone": None,
    }
    assert diff["topic"] == topic
    assert diff["epoch"] == client.state(topic)["epoch"]
    assert diff["performance"]["records_scanned"] == 2


def test_paging_reads_everything_once(client: Client, topic: str) -> None:
    client.append(topic, *range(1000))
    seen: list[int] = []
    cursor = 0
    while True:
        diff = client.diff(topic, from_seq=cursor, limit=300)
        seen += [record["data"] for record in diff["records"]]
        assert diff["lag"] == diff["head_seq"] - diff["next_from_seq"]
        cursor = diff["next_from_seq"]
        if diff["caught_up"]:
            break
    assert seen == list(range(1000))


@pytest.mark.parametrize(
    ("limit", "given"), [(0, 256), (5, 5), (1000, 1000), (5000, 1000), (2**32, 1000), (2**70, 1000)]
)
def test_the_limit_is_clamped_and_0_is_the_default(client: Client, topic: str, limit: int, given: int) -> None:
    client.append(topic, *range(1200))
    assert len(client.diff(topic, limit=limit)["records"]) == given


def test_an_answer_has_a_byte_budget_but_at_least_one_record(client: Client, topic: str) -> None:
    client.append(topic, *["x" * 100_000] * 20)
    assert len(client.diff(topic)["records"]) in (10, 11)
    assert len(client.diff(topic, max_batch_bytes=1)["records"]) == 1
    assert len(client.diff(topic, max_batch_bytes=300_000)["records"]) in (2, 3)
    assert len(client.diff(topic, max_batch_bytes=2**60)["records"]) == 20


def test_own_records_are_left_out_but_advance_the_cursor(client: Client, topic: str) -> None:
    for node in ("a", "b", "a", "c"):
        client.append(topic, node, node=node)
    diff = client.diff(topic, node="a")
    assert [record["data"] for record in diff["records"]] == ["b", "c"]
    assert client.payloads(topic, node=["a", "b"]) == ["c"]
    mine = client.diff(topic, node=["a", "b", "c"])
    assert (mine["records"], mine["next_from_seq"], mine["caught_up"]) == ([], 4, True)
    assert client.payloads(topic, node="A") == ["a", "b", "a", "c"], "nodes match exactly"


@pytest.mark.parametrize("node", ["n" * 129, ["n" * 129], [f"n{number}" for number in range(65)]])
def test_nodes_to_leave_out_are_limited(client: Client, topic: str, node: str | list[str]) -> None:
    client.append(topic, 1)
    reply = client.post(f"/v0/topics/{topic}/diff", {"node": node})
    assert (reply.status, reply.code, reply.detail["field"]) == (400, "invalid_request", "node")


def test_dedupe_node_false_gives_echoes(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"dedupe_node": False})
    client.append(topic, 1, node="a")
    assert client.payloads(topic, node="a") == [1]


def test_tags_are_shown_only_when_asked_for_and_meta_unless_not(client: Client, topic: str) -> None:
    client.post(f"/v0/topics/{topic}", {"records": [{"data": 1, "tag": "t", "meta": {"k": "v"}}]})
    (usual,) = client.diff(topic)["records"]
    assert (usual.get("$tag"), usual.get("meta")) == (None, {"k": "v"})
    (other,) = client.diff(topic, include_tags=True, include_meta=False)["records"]
    assert (other.get("$tag"), other.get("meta")) == ("t", None)


def test_from_ts_starts_at_the_first_record_of_that_time(client: Client, topic: str) -> None:
    client.append(topic, 1)
    (first,) = client.diff(topic)["records"]
    while time.time() * 1000 < first["$ts"] + 1:
        time.sleep(0.001)
    client.append(topic, 2)
    (_, second) = client.diff(topic)["records"]
    assert client.payloads(topic, from_ts=second["$ts"]) == [2]
    assert client.payloads(topic, from_ts=0) == [1, 2]


def test_diff_never_creates(client: Client, topic: str) -> None:
    assert client.post(f"/v0/topics/{topic}/diff", {}).code == "topic_not_found"
    assert client.get(f"/v0/topics/{topic}").status == 404


# --- tombstones ---


def test_a_reader_that_the_cap_has_passed_learns_what_it_missed(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 3})
    client.append(topic, *range(10))
    diff = client.diff(topic, from_seq=2)
    assert diff["tombstone"] == {
        "gap_from": 3,
        "gap_to": 7,
        "reason": "cap",
        "missed_estimate": 5,
        "earliest_seq": 8,
        "head_seq": 10,
    }
    assert [record["$seq"] for record in diff["records"]] == [8, 9, 10]
    assert client.diff(topic, from_seq=7)["tombstone"] is None


def test_from_the_start_a_tombstone_tells_of_what_was_lost_before(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"cap_records": 1})
    client.append(topic, 1, 2)
    assert client.diff(topic)["tombstone"]["gap_from"] == 1


def test_expired_records_are_not_delivered_and_leave_a_tombstone(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"ttl_ms": 30})
    client.append(topic, "old")
    deadline_s = time.monotonic() + START_S_MAX
    while client.state(topic)["count"]:
        assert time.monotonic() < deadline_s
    diff = client.diff(topic)
    assert (diff["records"], diff["tombstone"]["reason"]) == ([], "ttl")
    assert client.state(topic)["earliest_seq"] == 2


def test_a_deleted_gap_is_silent(client: Client, topic: str) -> None:
    client.append(topic, *range(5))
    client.post(f"/v0/topics/{topic}/delete", {"before_seq": 4})
    diff = client.diff(topic)
    assert (diff["tombstone"], [record["$seq"] for record in diff["records"]]) == (None, [4, 5])


# --- long-poll ---


def polled(server: ServerProcess, topic: str, **request: Any) -> Client:
    """A poll that waits at the server; `end` is its answer."""
    return server.waiting("POST", f"/v0/topics/{topic}/diff", request)


def test_a_long_poll_is_answered_by_the_next_record(server: ServerProcess, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {})
    poll = polled(server, topic, wait_ms=20_000)
    client.append(topic, "news")
    reply = poll.end()
    assert [record["data"] for record in reply.json["records"]] == ["news"]
    assert reply.json["caught_up"] is True


def test_a_long_poll_does_not_wait_if_there_is_something(server: ServerProcess, client: Client, topic: str) -> None:
    client.append(topic, 1)
    poll = polled(server, topic, wait_ms=30_000)
    assert poll.is_answered
    assert [record["data"] for record in poll.end().json["records"]] == [1]


def test_a_long_poll_ends_in_time_with_nothing(client: Client, topic: str) -> None:
    client.append(topic, 1)
    started_s = time.monotonic()
    diff = client.diff(topic, from_seq=1, wait_ms=150)
    took_s = time.monotonic() - started_s
    assert (diff["records"], diff["next_from_seq"]) == ([], 1)
    assert took_s >= 0.15


def test_a_long_poll_sleeps_through_its_own_records_and_returns_the_advanced_cursor(
    server: ServerProcess, client: Client, topic: str
) -> None:
    head_seq, wait_ms, too_late = client.append(topic, 0, node="other").json["head_seq"], 250, True
    diff: Any = None
    while too_late:
        from_seq, wait_ms = head_seq, 2 * wait_ms
        poll = polled(server, topic, from_seq=from_seq, node="me", wait_ms=wait_ms)
        head_seq = client.append(topic, 1, 2, node="me").json["head_seq"]
        too_late = poll.is_answered
        diff = poll.end().json
    assert (diff["records"], diff["next_from_seq"], diff["caught_up"]) == ([], head_seq, True)
    assert diff["performance"]["server_total_ms"] >= wait_ms
    assert diff["performance"]["records_scanned"] == 2


def test_a_long_poll_past_its_own_records_gets_the_others(server: ServerProcess, client: Client, topic: str) -> None:
    client.append(topic, 0, node="other")
    poll = polled(server, topic, from_seq=1, node="me", wait_ms=20_000)
    client.append(topic, 1, node="me")
    client.append(topic, 2, node="you")
    reply = poll.end()
    assert [record["$seq"] for record in reply.json["records"]] == [3]


def test_a_long_poll_on_a_topic_that_is_deleted_is_404(server: ServerProcess, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {})
    poll = polled(server, topic, wait_ms=20_000)
    client.delete(f"/v0/topics/{topic}")
    reply = poll.end()
    assert (reply.status, reply.code) == (404, "topic_not_found")


def test_a_long_poll_sees_an_fsync_record_only_when_it_is_durable(
    server: ServerProcess, client: Client, topic: str
) -> None:
    client.put(f"/v0/topics/{topic}", {"durable": True})
    poll = polled(server, topic, wait_ms=20_000)
    client.append(topic, 1)
    reply = poll.end()
    assert len(reply.json["records"]) == 1


def test_wait_ms_over_its_maximum_is_clamped_not_refused(client: Client, topic: str) -> None:
    client.append(topic, 1)
    assert client.payloads(topic, wait_ms=2**40) == [1]


def test_many_polls_on_one_topic_are_all_answered(server: ServerProcess, client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {})
    polls = [polled(server, topic, wait_ms=20_000) for _ in range(20)]
    client.append(topic, 1)
    for poll in polls:
        reply = poll.end()
        assert [record["data"] for record in reply.json["records"]] == [1]
