"""Work streams: jobs pushed up to a depth, refilled on ack, given back at once when the connection ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_throttle import lagging
from tests.live.rig import EventSource
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, serving

Work = Callable[..., EventSource]


@pytest.fixture
def work(server: ServerProcess, queue: str) -> Iterator[Work]:
    """Opens work streams of the test's queue."""
    opened: list[EventSource] = []

    def open_one(query: str = "node=w", **headers: str) -> EventSource:
        opened.append(EventSource(server.port, f"/v0/topics/{queue}/work?{query}", headers))
        return opened[-1]

    yield open_one
    for stream in opened:
        stream.close()


def counters(client: Client, queue: str) -> tuple[int, int]:
    state = client.state(queue)["queue"]
    return state["ready"], state["in_flight"]


def eventually(what: Callable[[], Any], wanted: Any) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while (found := what()) != wanted:
        assert time.monotonic() < give_up_s, found
        time.sleep(0.01)


def seqs(stream: EventSource, count: int) -> list[int]:
    return [stream.event().data["$seq"] for _ in range(count)]


def status_of(port: int, path: str) -> int:
    stream = EventSource(port, path)
    stream.close()
    return stream.status


def test_a_stream_opens_with_retry_and_a_heartbeat(work: Work) -> None:
    stream = work()
    assert stream.status == 200
    assert stream.headers["content-type"].startswith("text/event-stream")
    assert stream.headers["cache-control"] == "no-store"
    assert stream.headers["x-accel-buffering"] == "no"
    assert stream.next() == ("retry", 2000, None)
    beat = stream.next()
    assert beat.event == ":"
    assert beat.data.startswith("hb ")
    assert abs(int(beat.data[3:]) - time.time() * 1000) < 60_000


def test_a_pushed_job_is_what_a_claim_would_have_given(client: Client, queue: str, work: Work) -> None:
    client.post(
        f"/v0/topics/{queue}",
        body=b'{"records":[{"data":{"a":\n1},"tag":"t"}]}',
        headers={"Content-Type": "application/json"},
    )
    event = work("node=w&lease_ms=5000").event()
    assert (event.event, event.id) == ("job", "1")
    job = dict(event.data)
    assert list(job) == ["topic", "$seq", "lease_id", "deadline", "$ts", "$tag", "deliveries", "data"]
    assert (job["topic"], job["$seq"], job["$tag"], job["deliveries"], job["data"]) == (queue, 1, "t", 1, {"a": 1})
    acked = client.post(f"/v0/topics/{queue}/ack", {"node": "w", "seqs": [1], "lease_ids": [job["lease_id"]]})
    assert acked.json["acked"] == 1


def test_no_more_than_max_jobs_are_in_flight_and_an_ack_brings_the_next(client: Client, queue: str, work: Work) -> None:
    client.append(queue, *range(6))
    stream = work("node=w&max=3")
    assert seqs(stream, 3) == [1, 2, 3]
    assert stream.is_quiet()
    assert counters(client, queue) == (3, 3)
    client.post(f"/v0/topics/{queue}/ack", {"node": "w", "seqs": [2]})
    assert seqs(stream, 1) == [4]
    client.post(f"/v0/topics/{queue}/nack", {"node": "w", "seqs": [1], "delay_ms": 60_000})
    assert seqs(stream, 1) == [5]
    assert stream.is_quiet()


def test_jobs_that_come_later_are_pushed_when_they_come(client: Client, queue: str, work: Work) -> None:
    stream = work("node=w&max=10")
    client.append(queue, "a")
    assert stream.event().data["data"] == "a"
    client.append(queue, "b", "c")
    assert [stream.event().data["data"] for _ in range(2)] == ["b", "c"]


def test_the_state_tells_who_waits_for_jobs_and_when_they_were_last_asked_for(
    server: ServerProcess, client: Client, queue: str, work: Work
) -> None:
    def waiting() -> int:
        return client.state(queue)["queue"]["claimers"]

    assert (waiting(), client.state(queue)["queue"]["last_claim_ts"]) == (0, None)
    stream = work()
    eventually(waiting, 1)
    with ThreadPoolExecutor(1) as pool:
        claim = pool.submit(server.client().post, f"/v0/topics/{queue}/claim", {"node": "v", "wait_ms": 30_000})
        eventually(waiting, 2)
        client.append(queue, 1, 2)
        assert claim.result().json["count"] == 1
    # The claim has its job; the stream stays, whether or not it holds one.
    assert waiting() == 1
    assert client.state(queue)["queue"]["last_claim_ts"] >= client.diff(queue)["records"][0]["$ts"]
    stream.close()
    eventually(waiting, 0)


def test_a_lease_that_runs_out_makes_room_and_the_job_comes_again(client: Client, queue: str, work: Work) -> None:
    client.append(queue, 1)
    stream = work("node=w&lease_ms=200")
    deliveries = [stream.event().data["deliveries"] for _ in range(3)]
    assert deliveries == [1, 2, 3]


@pytest.mark.parametrize("how", ["close", "reset"])
def test_the_jobs_of_a_connection_that_ends_are_claimable_at_once(
    client: Client, queue: str, work: Work, how: str
) -> None:
    client.append(queue, *range(4))
    polled = client.post(f"/v0/topics/{queue}/claim", {"node": "w"}).json["claimed"][0]["$seq"]
    stream = work("node=w&max=2&lease_ms=60000")
    assert seqs(stream, 2) == [2, 3]
    assert counters(client, queue) == (1, 3)
    getattr(stream, how)()
    eventually(lambda: counters(client, queue), (3, 1))
    leases = client.get(f"/v0/topics/{queue}/leases").json["leases"]
    assert [(lease["$seq"], lease["pushed"]) for lease in leases] == [(polled, False)], "what was polled is kept"
    again = client.post(f"/v0/topics/{queue}/claim", {"node": "v", "max": 9}).json["claimed"]
    assert [(job["$seq"], job["deliveries"]) for job in again] == [(2, 2), (3, 2), (4, 1)]


def test_streams_and_waiting_claims_share_evenly(client: Client, queue: str, work: Work) -> None:
    streams = [work(f"node=w{number}&max=10") for number in range(4)]
    for stream in streams:
        assert [stream.next().event for _ in range(2)] == ["retry", ":"]
    client.append(queue, *range(8))
    found = [sorted(seqs(stream, 2)) for stream in streams]
    assert sorted(seq for share in found for seq in share) == list(range(1, 9))
    assert all(stream.is_quiet(0.1) for stream in streams)


def test_a_window_gathers_streams_and_claims(server: ServerProcess, client: Client, queue: str, work: Work) -> None:
    client.put(f"/v0/topics/{queue}", {"claim_jitter_ms": 400})
    stream = work("node=s&max=10")
    assert [stream.next().event for _ in range(2)] == ["retry", ":"]
    client.append(queue, *range(6))
    answer = server.client().post(f"/v0/topics/{queue}/claim", {"node": "c", "max": 10}).json
    assert answer["count"] == 3
    assert len(seqs(stream, 3)) == 3


def test_durable_leases_are_pushed_after_they_are_written(client: Client, queue: str, work: Work) -> None:
    client.put(f"/v0/topics/{queue}", {"durable": True, "leases_durable": True})
    client.append(queue, 1, 2)
    stream = work("node=w&max=2")
    assert seqs(stream, 2) == [1, 2]
    stream.close()
    eventually(lambda: counters(client, queue), (2, 0))


def test_a_topic_that_is_no_longer_the_queue_ends_the_stream(client: Client, queue: str, work: Work) -> None:
    stream = work()
    client.delete(f"/v0/topics/{queue}")
    client.append(queue, "a log now")
    error = stream.event()
    assert (error.event, error.data["code"], error.id) == ("error", 409, None)
    assert error.data["error"].startswith(f'queue "{queue}" was deleted')
    with pytest.raises(EOFError):
        stream.next()


def test_a_queue_that_was_deleted_and_created_again_ends_the_stream_with_the_reason(
    client: Client, queue: str, work: Work
) -> None:
    client.append(queue, 1, 2)
    full, idle = work("node=full&max=2"), work("node=idle&max=2")
    assert seqs(full, 2) == [1, 2]
    client.delete(f"/v0/topics/{queue}")
    client.put(f"/v0/topics/{queue}", {"type": "queue"})
    client.append(queue, "of the new one")
    for stream in (full, idle):
        error = stream.event()
        assert (error.event, error.data["code"]) == ("error", 409)
        assert error.data["error"].startswith(f'queue "{queue}" was deleted')
        with pytest.raises(EOFError):
            stream.next()
    assert counters(client, queue) == (1, 0)


@pytest.mark.parametrize(
    ("query", "field"), [("", "node"), ("node=", "node"), ("node=w&max=x", "max"), ("node=w&lease_ms=-1", "lease_ms")]
)
def test_a_bad_query_is_refused(client: Client, queue: str, query: str, field: str) -> None:
    refused = client.get(f"/v0/topics/{queue}/work?{query}")
    assert (refused.status, refused.detail["field"]) == (400, field)


def test_only_an_event_stream_is_offered(client: Client, queue: str) -> None:
    refused = client.get(f"/v0/topics/{queue}/work?node=w", headers={"Accept": "application/json"})
    assert (refused.status, refused.code) == (406, "not_acceptable")


def test_streams_are_capped_and_a_key_may_stand_in_the_query(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="root", max_sse_connections=1) as server:
        root = server.client("root")
        root.put("/v0/topics/q", {"type": "queue"})
        path = "/v0/topics/q/work?node=w"

        def open_streams() -> int:
            return root.get("/v0/metrics", headers={"Accept": "application/json"}).json["topics_sse_connections"]

        assert status_of(server.port, path) == 401
        first = EventSource(server.port, f"{path}&token=root")
        assert first.status == 200
        assert status_of(server.port, f"{path}&token=root") == 429
        first.close()
        eventually(open_streams, 0)
        assert status_of(server.port, f"{path}&token=root") == 200


def test_a_server_that_goes_down_gives_the_jobs_back(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/topics/q", {"type": "queue", "leases_durable": True})
        client.append("q", 1)
        stream = EventSource(server.port, "/v0/topics/q/work?node=w")
        assert seqs(stream, 1) == [1]
        server.process.terminate()
        assert stream.event().data["code"] == 503
        stream.close()
        assert server.exit_code() == 0
    with serving(tmp_path) as server:
        assert counters(server.client(), "q") == (1, 0)


@pytest.mark.slow
def test_under_pressure_claims_are_refused_and_streams_are_paced(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/topics/low", {"type": "queue", "priority": -1000})
        client.append("low", 1)
        client.post("/v0/topics/low/claim", {"node": "holder"})
        stream = EventSource(server.port, "/v0/topics/low/work?node=w")
        with lagging(server):
            give_up_s = time.monotonic() + PATIENCE_S
            while (refused := client.post("/v0/topics/low/claim", {"node": "w"})).status == 200:
                assert time.monotonic() < give_up_s, "nothing was shed"
            assert (refused.status, refused.code) == (429, "throttled")
            client.post("/v0/topics/low/nack", {"node": "holder", "seqs": [1]})
            advice = stream.event()
            assert (advice.event, advice.data["code"]) == ("error", 429)
            assert advice.data["retry_after_ms"] > 0
        while (found := stream.event()).event == "error":
            assert found.data["code"] == 429
        assert (found.event, found.data["$seq"]) == ("job", 1), "the stream stayed open and got its job in the end"
        stream.close()
