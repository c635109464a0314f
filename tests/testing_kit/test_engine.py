"""The engine for tests: every verb of the client without a process, a port or a sleep, and a clock moved by hand."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from topics import testing
from topics.api.groups.users import hash_password
from topics.client import Client, Outgoing
from topics.client.errors import Forbidden, NotAQueue, Throttled, TopicNotFound, Unauthorized
from topics.client.sync.watch import Watch
from topics.model.settings import Settings
from topics.testing import Engine


def test_it_answers_as_a_server_does(topics_client: Client) -> None:
    done = topics_client.append_many("log", [Outgoing({"n": 1}, tag="t", meta={"m": 1}), {"n": 2}], node="here")
    assert (done.first_seq, done.last_seq, done.created) == (1, 2, True)
    first, second = topics_client.diff("log").records
    assert len(list(topics_client.read("log"))) == 2
    assert (first.data, first.tag, first.meta, first.node) == ({"n": 1}, "t", {"m": 1}, "here")
    assert (second.data, second.tag) == ({"n": 2}, None)
    assert topics_client.state("log").head_seq == 2
    assert [item.topic for item in topics_client.list()] == ["log"]
    assert topics_client.delete("log", before_seq=2) == 1
    assert b"".join(topics_client.export("log")).count(b"\n") == 1
    assert topics_client.ready().status == "ready"
    assert "topics_" in topics_client.metrics()
    assert topics_client.drop("log")


def test_errors_are_those_of_a_server(topics_client: Client) -> None:
    with pytest.raises(TopicNotFound) as caught:
        topics_client.diff("missing")
    assert (caught.value.status, caught.value.detail) == (404, {"topic": "missing"})
    topics_client.append("log", 1)
    with pytest.raises(NotAQueue):
        topics_client.claim("log")


def test_records_bear_the_time_of_the_clock(topics_engine: Engine, topics_client: Client) -> None:
    topics_client.append("log", 1)
    topics_engine.advance(3_600_000)
    topics_client.append("log", 2)
    first, second = topics_client.diff("log").records
    assert (first.ts, second.ts - first.ts) == (topics_engine.clock.now_ms() - 3_600_000, 3_600_000)


def test_a_lease_runs_out_when_the_clock_says_so(topics_engine: Engine, topics_client: Client) -> None:
    topics_client.create("q", type="queue")
    topics_client.append("q", 1)
    assert [job.deliveries for job in topics_client.claim("q", lease_ms=30_000)] == [1]
    topics_engine.advance(30_000)
    assert topics_client.claim("q") == []
    topics_engine.advance(1)
    assert [job.deliveries for job in topics_client.claim("q")] == [2]


def test_delays_and_expiry_follow_the_clock(topics_engine: Engine, topics_client: Client) -> None:
    topics_client.create("q", type="queue")
    topics_client.append("q", 1, delay_ms=86_400_000)
    topics_client.create("short", ttl_ms=60_000)
    topics_client.append("short", 1)
    topics_engine.advance(86_399_999)
    assert topics_client.claim("q") == []
    assert topics_client.diff("short").records == []
    topics_engine.advance(1)
    assert len(topics_client.claim("q")) == 1


def test_a_call_that_waits_moves_the_clock_and_not_the_hands_of_the_tester(
    topics_engine: Engine, topics_client: Client
) -> None:
    topics_client.create("q", type="queue")
    topics_client.append("q", "later", delay_ms=20_000)
    begun_ms, started_s = topics_engine.clock.now_ms(), time.monotonic()
    assert [job.data for job in topics_client.claim("q", wait_ms=30_000)] == ["later"]
    assert 20_000 <= topics_engine.clock.now_ms() - begun_ms < 20_100
    assert topics_client.diff("q", 1, wait_ms=5_000).records == []
    assert 25_000 <= topics_engine.clock.now_ms() - begun_ms < 25_200
    assert time.monotonic() - started_s < 20


def payloads(watch: Watch) -> list[object]:
    """Of the next event that has any."""
    return next([record.data for record in event.records] for event in watch if event.records)


def test_a_call_that_nothing_will_ever_end_says_so(topics_client: Client) -> None:
    topics_client.append("log", 1)
    with topics_client.watch(["log"]) as watch:
        assert payloads(watch) == [1]
        with pytest.raises(testing.Stuck):
            payloads(watch)


def test_a_watch_goes_on_with_what_is_appended(topics_client: Client) -> None:
    topics_client.append("a", 1)
    topics_client.append("b", 2)
    with topics_client.watch(["a", "b"]) as watch:
        assert sorted([payloads(watch), payloads(watch)]) == [[1], [2]]
        topics_client.append("b", 3)
        assert payloads(watch) == [3]


def test_durable_topics_and_routers_are_done_when_the_call_returns(topics_client: Client) -> None:
    topics_client.create("copy", durability="fsync")
    topics_client.append("log", 0)
    topics_client.route("r", "log", "copy")
    for number in range(1, 20):
        topics_client.append("log", number)
        assert topics_client.state("copy").head_seq == number


def test_a_large_export_is_read_piece_by_piece(topics_client: Client) -> None:
    topics_client.append_many("log", ["x" * 10_000] * 300)
    chunks = list(topics_client.export("log", chunk_bytes=100_000))
    assert len(chunks) > 10
    assert b"".join(chunks).count(b"\n") == 300


def test_a_restart_keeps_records_and_forgets_leases(topics_engine: Engine, topics_client: Client) -> None:
    topics_client.create("q", type="queue")
    topics_client.append_many("q", [1, 2])
    assert len(topics_client.claim("q", max=2)) == 2
    topics_engine.restart()
    assert [job.data for job in topics_client.claim("q", max=2)] == [1, 2]


def test_a_watch_survives_a_restart(topics_engine: Engine, topics_client: Client) -> None:
    topics_client.append("log", 1)
    with topics_client.watch(["log"]) as watch:
        assert payloads(watch) == [1]
        topics_engine.restart()
        topics_client.append("log", 2)
        assert payloads(watch) == [2]
        assert watch.connections == 2


def test_settings_are_those_of_a_server() -> None:
    settings = Settings(api_keys=("reader:r", "writer:rw"), max_topics=1)
    with testing.engine(settings=settings) as engine:
        engine.client("writer").append("log", 1)
        with pytest.raises(Unauthorized):
            engine.client("stranger").diff("log")
        with pytest.raises(Forbidden):
            engine.client("reader").append("log", 2)
        assert len(engine.client("reader").diff("log").records) == 1
        with pytest.raises(Throttled):
            engine.client("writer").append("second", 1)


def test_a_directory_that_is_given_stays_and_one_that_is_made_goes(tmp_path: Path) -> None:
    with testing.engine(str(tmp_path / "kept")) as engine:
        engine.client().append("log", 1)
    with testing.engine(str(tmp_path / "kept")) as engine:
        assert engine.client().state("log").count == 1
    with testing.engine() as engine:
        made = engine.path
        assert os.path.isdir(made)
    assert not os.path.exists(made)


def test_coroutines_use_it_the_same_way(topics_engine: Engine) -> None:
    async def use() -> list[object]:
        async with topics_engine.async_client() as client:
            waiting = asyncio.ensure_future(client.diff("log", wait_ms=30_000))
            begun_ms = topics_engine.clock.now_ms()
            await client.append("log", "news")
            page = await waiting
            assert topics_engine.clock.now_ms() == begun_ms, "no call had to wait"
            return [record.data for record in page.records]

    topics_engine.client().create("log")
    assert asyncio.run(use()) == ["news"]


def test_threads_wait_in_real_time_with_a_real_clock() -> None:
    with testing.engine(clock=testing.SystemClock()) as engine:
        client = engine.client()
        client.create("q", type="queue")
        got: list[object] = []
        thread = threading.Thread(target=lambda: got.extend(job.data for job in client.claim("q", wait_ms=20_000)))
        thread.start()
        client.append("q", "news")
        thread.join(PATIENCE_S)
        assert got == ["news"]
        with pytest.raises(TypeError, match="ManualClock"):
            engine.advance(1)


def test_bulk_verbs_transactions_and_streams_of_jobs_work_too(topics_client: Client) -> None:
    topics_client.create("q", type="queue")
    with topics_client.producer("q") as producer:
        tickets = [producer.append(number) for number in range(3)]
    assert [ticket.result(5) for ticket in tickets] == [1, 2, 3]
    with topics_client.work("q", max=2) as work:
        for number in range(3):
            job = next(work)
            assert job.data == number
            topics_client.ack("q", job)
    fence = topics_client.take_fence("app")
    topics_client.stage("app", 1, "stage", 0, [{"n": 1}], topic="log", fence=fence)
    assert topics_client.commit_txn("app", 1, ["stage"], fence=fence).topics["log"].records == 1
    with topics_client.backup() as pieces:
        assert len(b"".join(pieces)) > 1_000


def test_groups_log_in_by_password_and_consume() -> None:
    settings = Settings(jwt_secret="s" * 40, users=(f"ada:service:{hash_password('a pass word')}",))
    with testing.engine(settings=settings, clock=testing.SystemClock()) as engine:
        engine.client().append_many("log", [1, 2, 3])
        consumer = engine.client(user="ada", password="a pass word")
        batch = consumer.consume("log", "group", start="Earliest")
        assert [message.data for message in batch.messages] == [1, 2, 3]
