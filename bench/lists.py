"""Scenarios of the stalls bench: what an operator looks at, over as many jobs, topics and groups as there may be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from bench.attacks import append_to_each
from bench.maxima import BATCH, CLAIM, TIMES, Record, Send, filled, jobs, post, put, sent, several, well
from bench.stalls import batch, scenario
from tests.serving import Client, ServerProcess

ROUNDS = 20
GROUPS = 10_000
SCHEDULES, CONNECTIONS = 100_000, 50


def get(*paths: str) -> Send:
    return several(*((lambda client, path=path: well(client.get(path))) for path in paths))


def fill_queue(client: Client) -> None:
    """200,000 jobs, each delayed until a millisecond of its own, and 100,000 that are ready."""
    put("/v0/topics/q", type="queue", lease_ms=3_600_000)(client)
    for time in range(ROUNDS):
        delayed = [
            {"data": n, "tag": f"{'ab'[n % 2]}:{n}", "delay_ms": 3_600_000 + 10 * (time * BATCH + n)}
            for n in range(BATCH)
        ]
        post("/v0/topics/q?return_seqs=false", batch(delayed))(client)
    ready = batch([{**job, "tag": f"{'ab'[n % 2]}:{n}"} for n, job in enumerate(jobs(BATCH))])
    for _ in range(ROUNDS // 2):
        post("/v0/topics/q?return_seqs=false", ready)(client)


@scenario("pages of 1,000 ready jobs by tag and delayed jobs, of 300,000")
def job_pages(root: Path) -> Iterator[ServerProcess]:
    paths = ("state=ready&tag=b:*", "state=ready&tag=none", "state=delayed", "state=delayed&tag=none")
    look = get(*(f"/v0/topics/q/jobs?page_size=1000&{path}" for path in paths))
    return sent(root, fill_queue, *[look] * TIMES)


@scenario("jobs by match, of 300,000: dry runs, then retry, bury and delete 10,000")
def job_actions(root: Path) -> Iterator[ServerProcess]:
    def act(action: str, state: str, **more: object) -> Send:
        body = {"action": action, "state": state, "match": ["tag", "Glob", "a:*"], "limit": BATCH, **more}
        return post("/v0/topics/q/jobs", body)

    given = (("retry", "delayed"), ("bury", "ready"), ("delete", "delayed"))
    prepare = several(fill_queue, put("/v0/topics/q", type="queue", dead_letter="q.dead"))
    return sent(root, prepare, *(act(*each, dry_run=True) for each in given), *(act(*each) for each in given))


@scenario("a list of 1,000 leases among 20,000 that end at different times")
def scattered_leases(root: Path) -> Iterator[ServerProcess]:
    def prepare(client: Client) -> None:
        put("/v0/topics/q", type="queue", lease_ms=3_600_000)(client)
        for _ in range(2):
            post("/v0/topics/q", batch(jobs(BATCH)))(client)
        for number in range(2 * BATCH):
            post("/v0/topics/q/claim", {"node": "w", "max": 1, "lease_ms": 3_600_000 + 10 * number})(client)

    look = get("/v0/topics/q/leases?page_size=1000", "/v0/topics/q/jobs?state=leased&page_size=1000")
    return sent(root, prepare, *[look] * TIMES)


@scenario("dry runs over 1,000,000 records: a delete by pattern, by seq, and of the topic")
def dry_runs(root: Path) -> Iterator[ServerProcess]:
    delete = "/v0/topics/t/delete"
    drop: Send = lambda client: well(client.delete("/v0/topics/t?dry_run=true"))  # noqa: E731
    runs = (
        post(delete, {"match": ["tag", "Glob", "a:*"], "dry_run": True}),
        post(delete, {"before_seq": 999_999, "dry_run": True}),
        drop,
    )
    return sent(root, filled, *runs * TIMES)


@scenario("overview, history and lists, sorted and searched, of 100,000 topics")
def many_topics(root: Path) -> Iterator[ServerProcess]:
    lists = ("sort=-records", "contains=99", "sort=bytes&type=queue")
    look = get("/v0/overview", "/v0/history", "/v0/server", *(f"/v0/topics?page_size=1000&{query}" for query in lists))
    return sent(root, lambda client: append_to_each(client.port, 100_000), *[look] * TIMES)


@scenario("10,000 groups of one topic: readers, lists, overview, reset")
def many_groups(root: Path) -> Iterator[ServerProcess]:
    def prepare(client: Client) -> None:
        filled(client)
        for number in range(GROUPS):
            body = {"topic_id": "t", "group_id": f"g{number}", "start": "Earliest", "limit": 1}
            post("/v1/api/topics/consume", body)(client)

    look = get("/v0/topics/t/readers", "/v0/groups?page_size=1000", "/v1/api/topics/groups", "/v0/overview")
    reset = post("/v0/groups/reset", {"topic": "t", "group": "g1", "start": "Latest", "dry_run": True})
    return sent(root, prepare, *[look] * TIMES, reset)


@scenario("100,000 schedules that are due in the same second, every minute")
def many_schedules(root: Path) -> Iterator[ServerProcess]:
    def put_some(port: int, first: int) -> None:
        """Of many connections at once: each waits for its sync."""
        with contextlib.closing(Client(port, timeout_s=120)) as client:
            for number in range(first, SCHEDULES, CONNECTIONS):
                put(f"/v0/schedules/s{number}", topic="t", cron="* * * * *", missed="all", data={"n": number})(client)

    def prepare(client: Client) -> None:
        put("/v0/topics/t")(client)
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(partial(put_some, client.port), range(CONNECTIONS)))

    def wait_for_all(client: Client) -> None:
        head = client.state("t")["head_seq"]
        wanted = head + SCHEDULES
        while head < wanted:
            client.diff("t", from_seq=head, limit=1, wait_ms=1_000)
            head = client.state("t")["head_seq"]

    return sent(root, prepare, wait_for_all)


@scenario("claims of 1,000 jobs that skip 100,000 delayed ones")
def claims_after_delays(root: Path) -> Iterator[ServerProcess]:
    def prepare(client: Client) -> None:
        put("/v0/topics/q", type="queue")(client)
        mixed: list[Record] = [{"data": n, "delay_ms": 0 if n % 100 == 0 else 3_600_000} for n in range(BATCH)]
        for _ in range(10):
            post("/v0/topics/q?return_seqs=false", batch(mixed))(client)

    return sent(root, prepare, *[post("/v0/topics/q/claim", {"node": "w", "max": CLAIM})] * TIMES)
