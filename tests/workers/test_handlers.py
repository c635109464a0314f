"""The arguments of handlers, how many run at once, and what happens to a job when its handler ends."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import Any

import pytest

from tests.workers.rig import WAIT_S_MAX, counters, empty, eventually, running, wait
from topics.client import Client, Outgoing
from topics.client.errors import NotAQueue, Unauthorized
from topics.workers import App, Job, Reject, Retry


def test_a_job_is_gone_when_its_function_returns(url: str, client: Client, queue: str) -> None:
    app, seen = App(url), list[Any]()
    app.worker(queue)(lambda job: seen.append(job.data))
    client.append_many(queue, [{"n": n} for n in range(20)])
    with running(app):
        empty(client, queue)
    assert seen == [{"n": n} for n in range(20)]


def test_a_job_is_gone_when_its_coroutine_returns(url: str, client: Client, queue: str) -> None:
    app, seen = App(url), list[Any]()

    @app.worker(queue, concurrency=4)
    async def handle(job: Job) -> None:
        await asyncio.sleep(0)
        seen.append(job.data)

    client.append_many(queue, list(range(20)))
    with running(app):
        empty(client, queue)
    assert sorted(seen) == list(range(20))


def test_a_handler_is_told_everything_about_its_job(url: str, client: Client, queue: str) -> None:
    app, seen = App(url), list[Job]()
    app.worker(queue)(seen.append)
    done = client.append_many(queue, [Outgoing({"a": 1}, tag="t", meta={"trace": "z"})], node="maker")
    client.append(queue, "bare")
    with running(app):
        empty(client, queue)
    full, bare = seen
    assert (full.topic, full.seq, full.data, full.raw) == (queue, done.first_seq, {"a": 1}, b'{"a":1}')
    assert (full.tag, full.meta, full.node, full.deliveries, full.lost) == ("t", {"trace": "z"}, "maker", 1, False)
    assert full.lease_id.startswith("lease_")
    assert full.ts > 1_700_000_000_000
    assert (bare.data, bare.tag, bare.meta, bare.node) == ("bare", None, {}, None)
    assert repr(full) == f"Job({queue}/{full.seq}, delivery 1)"


def test_as_many_functions_run_as_allowed_and_no_job_more_is_claimed(url: str, client: Client, queue: str) -> None:
    app, together = App(url), threading.Barrier(3 + 1)
    free = threading.Event()

    @app.worker(queue, concurrency=3)
    def handle(job: Job) -> None:
        if not free.is_set():
            together.wait(WAIT_S_MAX)
            wait(free)

    client.append_many(queue, list(range(10)))
    with running(app):
        together.wait(WAIT_S_MAX)
        assert (counters(client, queue).in_flight, counters(client, queue).ready) == (3, 7)
        free.set()
        empty(client, queue)


def test_as_many_coroutines_run_as_allowed_and_no_job_more_is_claimed(url: str, client: Client, queue: str) -> None:
    app, inside, most = App(url), 0, 0
    free = threading.Event()

    @app.worker(queue, concurrency=3)
    async def handle(job: Job) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.to_thread(wait, free)
        inside -= 1

    client.append_many(queue, list(range(10)))
    with running(app):
        eventually(lambda: inside == 3)
        assert (counters(client, queue).in_flight, counters(client, queue).ready) == (3, 7)
        free.set()
        empty(client, queue)
    assert most == 3


def test_one_app_works_on_several_queues(url: str, client: Client, queue: str) -> None:
    other = f"{queue}-other"
    client.create(other, type="queue")
    app, seen = App(url), list[tuple[str, int]]()
    app.worker(queue)(lambda job: seen.append((job.topic, job.data)))

    @app.worker(other)
    async def handle(job: Job) -> None:
        seen.append((job.topic, job.data))

    client.append(queue, 1)
    client.append(other, 2)
    with running(app):
        empty(client, queue)
        empty(client, other)
    assert sorted(seen) == [(queue, 1), (other, 2)]


# --- handlers that fail ---


def test_an_exception_gives_the_job_back_with_its_text_and_the_queue_s_own_backoff(
    url: str, client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    backoff = {"initial_ms": 600_000, "factor": 1, "max_ms": 600_000, "jitter": 0}
    client.edit(queue, retry_backoff=backoff)
    app = App(url)

    @app.worker(queue)
    def handle(job: Job) -> None:
        raise ValueError("no such user")

    client.append(queue, 1)
    with running(app):
        eventually(lambda: counters(client, queue).delayed == 1)
    assert "no such user" in caplog.text, "the trace is in the log"


def test_a_job_that_fails_too_often_is_a_dead_letter_that_says_why(url: str, client: Client, queue: str) -> None:
    dead = f"{queue}-dead"
    client.edit(queue, max_deliveries=3, dead_letter=dead, retry_backoff={"initial_ms": 0})
    app, deliveries = App(url), list[int]()

    @app.worker(queue)
    async def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        raise ValueError("no such user")

    client.append(queue, {"user": 7}, tag="t")
    with running(app):
        empty(client, queue)
    assert deliveries == [1, 2, 3]
    letter = client.diff(dead).records[0]
    assert (letter.data, letter.tag) == ({"user": 7}, "t")
    assert letter.meta is not None
    assert letter.meta["$dead_letter_error"] == "ValueError: no such user"


def test_retry_gives_the_job_back_for_as_long_as_it_says(url: str, client: Client, queue: str) -> None:
    app = App(url)

    @app.worker(queue)
    def handle(job: Job) -> None:
        raise Retry("not yet", delay=600)

    client.append(queue, 1)
    with running(app):
        eventually(lambda: counters(client, queue).delayed == 1)
    assert client.claim(queue) == []


def test_a_retried_job_comes_again(url: str, client: Client, queue: str) -> None:
    app, deliveries = App(url), list[int]()

    @app.worker(queue)
    def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        if job.deliveries < 3:
            raise Retry(delay=0)

    client.append(queue, 1)
    with running(app):
        empty(client, queue)
    assert deliveries == [1, 2, 3]


def test_reject_makes_a_dead_letter_at_once_with_the_reason(url: str, client: Client, queue: str) -> None:
    dead = f"{queue}-dead"
    client.edit(queue, dead_letter=dead)
    app = App(url)

    @app.worker(queue)
    def handle(job: Job) -> None:
        raise Reject("not a picture")

    client.append(queue, 1)
    with running(app):
        empty(client, queue)
    letter = client.diff(dead).records[0]
    assert letter.meta is not None
    assert (letter.meta["$dead_letter_error"], letter.meta["$dead_letter_deliveries"]) == ("not a picture", 1)


def test_a_rejected_job_is_kept_if_its_queue_has_no_place_for_dead_letters(
    url: str, client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(url)

    @app.worker(queue)
    def handle(job: Job) -> None:
        raise Reject("not a picture")

    client.append(queue, 1)
    with running(app):
        eventually(lambda: counters(client, queue).delayed == 1)
    assert "Configure dead_letter" in caplog.text
    assert client.state(queue).count == 1


def test_a_function_that_exits_fails_its_job_and_not_the_worker(url: str, client: Client, queue: str) -> None:
    client.edit(queue, retry_backoff={"initial_ms": 0})
    app, deliveries = App(url), list[int]()

    @app.worker(queue)
    def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        if job.deliveries == 1:
            raise SystemExit(3)

    client.append(queue, 1)
    with running(app):
        empty(client, queue)
    assert deliveries == [1, 2]


def test_a_coroutine_that_exits_fails_its_job_and_not_the_worker(url: str, client: Client, queue: str) -> None:
    client.edit(queue, retry_backoff={"initial_ms": 0})
    app, deliveries = App(url), list[int]()

    @app.worker(queue)
    async def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        if job.deliveries == 1:
            raise SystemExit(3)

    client.append(queue, 1)
    with running(app):
        empty(client, queue)
    assert deliveries == [1, 2]


def test_an_error_that_is_not_unicode_is_reported_all_the_same(url: str, client: Client, queue: str) -> None:
    dead = f"{queue}-dead"
    client.edit(queue, dead_letter=dead)
    app = App(url)

    @app.worker(queue)
    def handle(job: Job) -> None:
        raise Reject("caf\udce9.txt")

    client.append(queue, 1)
    with running(app):
        empty(client, queue)
    letter = client.diff(dead).records[0]
    assert letter.meta is not None
    assert (letter.meta["$dead_letter_error"], letter.meta["$dead_letter_deliveries"]) == ("caf\\udce9.txt", 1)


def test_a_very_long_error_is_cut_to_what_the_server_keeps(url: str, client: Client, queue: str) -> None:
    dead = f"{queue}-dead"
    client.edit(queue, max_deliveries=1, dead_letter=dead)
    app = App(url)

    @app.worker(queue)
    def handle(job: Job) -> None:
        raise ValueError("x" * 5_000)

    client.append(queue, 1)
    with running(app):
        empty(client, queue)
    meta = client.diff(dead).records[0].meta
    assert meta is not None
    assert len(meta["$dead_letter_error"]) == 1_024


# --- apps that cannot work ---


def test_a_queue_that_is_not_there_yet_is_waited_for(
    url: str, client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    late = f"{queue}-late"
    app, seen = App(url), list[Any]()
    app.worker(late)(lambda job: seen.append(job.data))
    with running(app):
        eventually(lambda: "does not exist yet" in caplog.text)
        client.create(late, type="queue")
        client.append(late, 1)
        empty(client, late)
    assert seen == [1]


def test_a_log_is_not_worked_on(url: str, client: Client, queue: str) -> None:
    log = f"{queue}-log"
    client.append(log, 1)
    app = App(url)
    app.worker(log)(lambda job: None)
    with pytest.raises(NotAQueue):
        asyncio.run(app.serve())


def test_a_wrong_key_ends_the_app(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests.serving import serving

    with serving(tmp_path_factory.mktemp("keys"), api_keys="right") as server:
        app = App(f"http://127.0.0.1:{server.port}", "wrong")
        app.worker("q")(lambda job: None)
        with pytest.raises(Unauthorized):
            asyncio.run(app.serve())


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"concurrency": 1_001}, {"lease_ms": 99}, {"wait_ms": 30_001}])
def test_limits_are_named(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        App("http://127.0.0.1:1").worker("q", **wrong)


def test_an_app_has_one_handler_for_a_queue_and_at_least_one_in_all() -> None:
    app = App("http://127.0.0.1:1")
    with pytest.raises(ValueError, match="no workers"):
        asyncio.run(app.serve())
    app.worker("q")(lambda job: None)
    with pytest.raises(ValueError, match='"q" has a handler'):
        app.worker("q")
    with pytest.raises(ValueError, match="delay"):
        Retry(delay=-1)


def test_nothing_is_logged_above_info_while_all_is_well(
    url: str, client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(url)
    app.worker(queue, lease_ms=200)(lambda job: time.sleep(0.3))
    client.append(queue, 1)
    with caplog.at_level(logging.WARNING), running(app):
        empty(client, queue)
    assert caplog.text == ""
