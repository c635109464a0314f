"""Data directories written by released versions: how one is made, what is asked of it, and how answers are compared.

    tests/storage/versions/v0_1_clean.tar.xz       after a clean stop
    tests/storage/versions/v0_1_killed.tar.xz      after kill -9, with a tail of the log after two checkpoints
    tests/storage/versions/v0_1_clean.json.xz      what the version that wrote it answers after opening it again
    tests/storage/versions/v0_1_killed.json.xz     the same, on the boot that it was killed on
    tests/storage/versions/v0_1_power.json.xz      the killed one on another boot, which counts as a power failure
    tests/storage/versions/before_17_….xz          the same of commit c847115, before issue 17 moved the code around
    tests/storage/versions/before_17_images.json.xz   digests of what it writes into a snapshot of what it read
    tests/storage/versions/format_2_….xz           the same of the first commit whose meta.json has format 2
    tests/storage/versions/format_3_….xz           the same of the last one whose meta.json has format 3
    tests/storage/versions/format_4_….xz           the same of the last one whose meta.json has format 4
    tests/storage/versions/format_5_….xz           the same of the last one whose meta.json has format 5

A release adds its own: check out its tag, teach `write` and `QUESTIONS` what is new in it, and run

    python -m tests.storage.old_directories v0_2

Never make the files of an older version again. Time is a `ManualClock`, so leases and delays are as they were.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx2

from tests.groups.consumers import SECRET, token
from topics.model.settings import Settings
from topics.storage.disk import Disk
from topics.testing import Engine, ManualClock
from topics.testing.engine import URL
from topics.testing.transport import InlineTransport

VERSIONS = Path(__file__).parent / "versions"
WRITTEN_MS = 1_790_000_000_000
# Long enough that nothing runs out between writing and asking, short enough that the questions can let it run out.
LEASE_MS = 3_600_000
BOOT, OTHER_BOOT = "the boot it was written on", "another boot"
# Small segments, so that a little data makes several blocks.
SETTINGS = Settings(segment_max_events=20, jwt_secret=SECRET, visibility_timeout_secs=LEASE_MS // 1000)


class Asker:
    """Sends plain requests to an engine; answers come without `performance`, which differs each time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._http = httpx2.Client(base_url=URL, transport=InlineTransport(engine))

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        headers = {"authorization": f"Bearer {token('dba')}"}
        sent = None if body is None else json.dumps(body)
        if sent is not None:
            headers["content-type"] = "application/json"
        answer = self._http.request(method, path, content=sent, headers=headers)
        return answer.status_code, re.sub(r',?"performance":\{[^}]*\}', "", answer.text)

    def do(self, method: str, path: str, body: Any = None) -> Any:
        status, text = self.ask(method, path, body)
        assert status < 300, (method, path, body, status, text)
        return json.loads(text)

    def close(self) -> None:
        self._http.close()


@contextlib.contextmanager
def opened(path: Path, boot: str, clock: ManualClock) -> Iterator[Asker]:
    """A server on the directory, as if on that boot."""
    with mock.patch.object(Disk, "boot_id", return_value=boot):
        engine = Engine(str(path), settings=SETTINGS, clock=clock)
        asker = Asker(engine)
        try:
            yield asker
        finally:
            asker.close()
            engine.close()


# --- writing ---


def write(asker: Asker, clock: ManualClock) -> None:
    """A bit of everything, with two checkpoints in between: packs, snapshots, and a log after them."""
    create_topics(asker)
    for round_number in range(3):
        write_logs(asker, clock, round_number)
        write_jobs(asker, round_number)
        clock.advance(1_000)
        if round_number < 2:
            asker.engine.advance(1)
            assert asker.engine._server.store.checkpoint()
    write_groups(asker)
    write_transactions(asker)
    write_since_v0_1(asker)
    write_since_format_2(asker)
    asker.engine.advance(1)


def create_topics(asker: Asker) -> None:
    for durability in ("fsync", "disk", "memory", "ephemeral"):
        asker.do("PUT", f"/v0/topics/log.{durability}", {"durability": durability})
    asker.do("PUT", "/v0/topics/capped", {"cap_records": 5})
    asker.do("PUT", "/v0/topics/full", {"cap_records": 3, "discard": "reject"})
    asker.do("PUT", "/v0/topics/expiring", {"ttl_ms": 1_500})
    asker.do("PUT", "/v0/topics/events", {"durability": "fsync"})
    asker.do("PUT", "/v0/topics/failed", {})
    jobs = {"type": "queue", "leases_durable": True, "lease_ms": LEASE_MS, "max_deliveries": 1, "dead_letter": "failed"}
    asker.do("PUT", "/v0/topics/jobs", jobs)
    asker.do("PUT", "/v0/topics/paused", {"type": "queue", "retry_backoff": {"initial_ms": 10}})
    asker.do("PUT", "/v0/routers/all", {"source": "log.disk", "dest": "copies"})
    router = {"source": "log.fsync", "dest": "stamped", "guarantee": "exactly_once", "filter": ["tag", "Glob", "a*"]}
    asker.do("PUT", "/v0/routers/some", router)
    asker.do(
        "PUT",
        "/v0/pipelines/errors",
        {
            "sources": {"logs": {"topic": "log.disk", "schema": "level STRING"}},
            "sql": "SELECT * FROM logs WHERE level = 'error'",
            "sink": {"topic": "errors"},
        },
    )


def write_logs(asker: Asker, clock: ManualClock, round_number: int) -> None:
    for durability in ("fsync", "disk", "memory", "ephemeral"):
        records = [
            {
                "data": {"n": round_number * 15 + n, "text": "Grüße\u2028" * (n % 3), "big": 12345678901234567890},
                "tag": f"{'ab'[n % 2]}-{n}",
                "meta": {"trace": f"t{n}"},
            }
            for n in range(15)
        ]
        batch = {"records": records, "node": f"node-{round_number}", "idempotency_key": f"key-{round_number}"}
        asker.do("POST", f"/v0/topics/log.{durability}", batch)
    asker.do("POST", "/v0/topics/log.disk/delete", {"match": "b-3"})
    asker.do("POST", "/v0/topics/log.fsync/delete", {"before_seq": 4, "match": ["tag", "Glob", "a*"]})
    three = {"records": [{"data": n} for n in range(3)]}
    for topic in ("capped", "expiring", "gone", "events", "events:p1"):
        asker.do("POST", f"/v0/topics/{topic}", three)
    if round_number == 0:
        asker.do("POST", "/v0/topics/full", three)
    if round_number == 1:
        asker.do("DELETE", "/v0/topics/gone")
        asker.do("PUT", "/v0/topics/log.memory", {"durability": "memory", "cap_records": 20})
    clock.advance(100)


def write_jobs(asker: Asker, round_number: int) -> None:
    records = [
        {"data": {"job": round_number}, "unique_key": f"unique-{round_number}"},
        {"data": {"later": round_number}, "delay_ms": 2 * LEASE_MS},
        *({"data": n, "tag": f"job-{n}", "meta": {"op": "Update"}} for n in range(4)),
    ]
    for topic in ("jobs", "paused"):
        asker.do("POST", f"/v0/topics/{topic}", {"records": records, "node": "shop"})
    held = asker.do("POST", "/v0/topics/jobs/claim", {"node": f"worker-{round_number}", "max": 4})
    seqs = [job["$seq"] for job in held["claimed"]]
    node = f"worker-{round_number}"
    asker.do("POST", "/v0/topics/jobs/ack", {"node": node, "seqs": seqs[:1]})
    asker.do("POST", "/v0/topics/jobs/nack", {"node": node, "seqs": seqs[1:2], "dead_letter": True, "error": "broke"})
    asker.do("POST", "/v0/topics/jobs/extend", {"node": node, "seqs": seqs[2:3], "lease_ms": 2 * LEASE_MS})
    if round_number == 1:
        asker.do("POST", "/v0/topics/failed/redrive", {"limit": 1})
        asker.do("POST", "/v0/topics/paused/pause")


def write_groups(asker: Asker) -> None:
    """Group `a` has an open claim below what it acked, group `b` has acked all, group `c` was reset."""

    def consume(group: str, limit: int) -> None:
        body = {"topic_id": "events", "group_id": group, "start": "Earliest", "limit": limit}
        asker.do("POST", "/v1/api/topics/consume", body)

    def ack(group: str, upto: int) -> None:
        asker.do("POST", "/v1/api/topics/ack", {"topic_id": "events", "group_id": group, "upto_offset": upto})

    consume("a", 2)
    ack("a", 1)
    consume("a", 2)
    consume("a", 2)
    ack("a", 5)  # 2 and 3 are still out: 4 and 5 are kept aside
    consume("b", 100)
    ack("b", 8)
    consume("c", 100)
    ack("c", 8)
    reset = {"topic_id": "events", "group_id": "c", "start": {"Offset": 3}}
    asker.do("POST", "/v1/api/topics/groups/reset", reset)


def write_transactions(asker: Asker) -> None:
    """App `nightly` has committed a version with two stages and staged the next one; `many` has a large commit."""
    for name, topics in (("one", ["log.disk", "new"]), ("two", ["new"])):
        records = [{"topic": topic, "data": {"by": name}, "tag": name} for topic in topics]
        asker.do("POST", "/v0/txns/nightly/7/stage", {"stage": name, "part": 0, "records": records})
    asker.do("POST", "/v0/txns/nightly/7/commit", {"stages": ["one", "two"]})
    asker.do("POST", "/v0/txns/nightly/fence", {"owner": "tonight"})
    stage = {"stage": "next", "part": 0, "topic": "new", "records": [{"data": 8}], "fence": 1}
    asker.do("POST", "/v0/txns/nightly/8/stage", stage)
    large = {"stage": "bulk", "part": 0, "topic": "bulk", "records": [{"data": n} for n in range(1_200)]}
    asker.do("POST", "/v0/txns/many/1/stage", large)
    asker.do("POST", "/v0/txns/many/1/commit", {"stages": ["bulk"]})


def write_since_v0_1(asker: Asker) -> None:
    """Features after version 0.1: one write to several topics, a topic that turned ephemeral, jobs with unique keys."""

    def both(key: str, number: int) -> dict[str, Any]:
        topics = {name: {"records": [{"data": number}]} for name in ("both.a", "both.b")}
        return {"topics": topics, "idempotency_key": key}

    asker.do("POST", "/v0/append", both("first", 1))
    asker.do("POST", "/v0/topics/turned", {"records": [{"data": "lasts"}]})
    asker.do("PUT", "/v0/topics/turned", {"durability": "ephemeral"})
    asker.do("POST", "/v0/topics/turned", {"records": [{"data": "goes"}]})
    known = {"records": [{"data": "again", "unique_key": "unique-1"}], "idempotency_key": "known"}
    asker.do("POST", "/v0/topics/jobs", known)
    place = {"topic_id": "events", "group_id": "d", "start": "Latest", "limit": 1}
    asker.do("POST", "/v1/api/topics/consume", place)
    asker.engine.advance(1)
    assert asker.engine._server.store.checkpoint()
    asker.do("POST", "/v0/append", both("second", 2))
    asker.do("POST", "/v0/topics/log.disk", {"records": [{"data": "copied from the log"}]})


def write_since_format_2(asker: Asker) -> None:
    """Schedules, and jobs with priorities: on both sides of a checkpoint."""
    asker.do("PUT", "/v0/topics/urgent", {"type": "queue"})
    for hour in (3, 4):
        schedule = {"topic": "log.disk", "cron": f"0 {hour} * * *", "timezone": "Europe/Berlin", "data": {"hour": hour}}
        asker.do("PUT", f"/v0/schedules/at-{hour}", schedule)
        asker.do("POST", f"/v0/schedules/at-{hour}/run", {})
        records = [{"data": [hour, priority], "job_priority": priority} for priority in (0, 9, 4)]
        asker.do("POST", "/v0/topics/urgent", {"records": records})
        if hour == 3:
            asker.engine.advance(1)
            assert asker.engine._server.store.checkpoint()


# --- asking ---

TOPICS = (
    "log.fsync", "log.disk", "log.memory", "log.ephemeral", "capped", "full", "expiring", "gone", "events", "events:p1",
    "failed", "jobs", "paused", "copies", "stamped", "new", "bulk", "both.a", "both.b", "turned", "urgent",
)  # fmt: skip

# Reading changes only the times of reading; later writes continue where the writer stopped.
QUESTIONS: list[tuple[str, str, Any]] = [
    *(("GET", f"/v0/topics/{topic}/export?include_tags=1", None) for topic in TOPICS),
    *(("GET", f"/v0/topics/{topic}?touch=false", None) for topic in TOPICS),
    *(("POST", f"/v0/topics/{topic}/diff", {"from_seq": 0, "limit": 3}) for topic in TOPICS),
    ("POST", "/v0/topics/log.disk/diff", {"from_seq": 0, "node": "node-1", "limit": 100}),
    ("GET", "/v0/topics/jobs/leases", None),
    ("GET", "/v0/routers", None),
    ("GET", "/v0/pipelines/errors", None),
    ("GET", "/v0/txns", None),
    ("GET", "/v0/txns/nightly", None),
    ("GET", "/v0/txns/many", None),
    ("GET", "/v1/api/topics/groups?topic_id=events", None),
    # keys are remembered
    ("POST", "/v0/topics/log.fsync", {"records": [{"data": "again"}], "idempotency_key": "key-2"}),
    ("POST", "/v0/topics/log.disk", {"records": [{"data": "again"}], "idempotency_key": "key-0"}),
    ("POST", "/v0/topics/jobs", {"records": [{"data": "again", "unique_key": "unique-2"}]}),
    ("POST", "/v0/topics/full", {"records": [{"data": 1}]}),
    # numbering, caps and routers continue
    ("POST", "/v0/topics/log.disk", {"records": [{"data": "more", "tag": "a-1"}]}),
    ("POST", "/v0/topics/log.fsync", {"records": [{"data": "more", "tag": "a-1"}]}),
    ("POST", "/v0/topics/capped", {"records": [{"data": "more"}]}),
    ("POST", "/v0/topics/capped/diff", {"from_seq": 1}),
    ("GET", "/v0/topics/copies/export?include_tags=1", None),
    ("GET", "/v0/topics/stamped/export?include_tags=1", None),
    # leases hold, and jobs continue
    ("POST", "/v0/topics/jobs/ack", {"node": "worker-0", "seqs": [4]}),
    ("POST", "/v0/topics/jobs/claim", {"node": "next", "max": 100}),
    ("POST", "/v0/topics/paused/claim", {"node": "next", "max": 100}),
    ("POST", "/v0/topics/paused/resume", None),
    ("POST", "/v0/topics/paused/claim", {"node": "next", "max": 100}),
    ("POST", "/v0/topics/failed/redrive", {"dry_run": True}),
    # groups
    *(
        ("POST", "/v1/api/topics/consume", {"topic_id": "events", "group_id": group, "start": "Earliest"})
        for group in ("a", "b", "c")
    ),
    ("GET", "/v1/api/topics/groups?topic_id=events", None),
    # transactions
    ("POST", "/v0/txns/nightly/7/commit", {"stages": ["one", "two"], "fence": 1}),
    ("POST", "/v0/txns/nightly/8/commit", {"stages": ["next"], "fence": 1}),
    ("POST", "/v0/txns/nightly/9/commit", {"stages": ["next"]}),
    ("GET", "/v0/topics/new/export", None),
    # since version 0.1
    ("POST", "/v0/append", {"topics": {"both.a": {"records": [{"data": 1}]}, "both.b": {"records": [{"data": 1}]}},
                            "idempotency_key": "second"}),
    ("POST", "/v0/topics/jobs", {"records": [{"data": "again", "unique_key": "unique-1"}], "idempotency_key": "known"}),
    ("POST", "/v0/topics/turned", {"records": [{"data": "more"}]}),
    ("POST", "/v0/topics/turned/diff", {"from_seq": 0}),
    ("POST", "/v1/api/topics/consume", {"topic_id": "events", "group_id": "d", "start": "Latest"}),
    # since format 2
    ("GET", "/v0/schedules", None),
    *(("POST", "/v0/topics/urgent/claim", {"node": "next", "max": 1}) for _ in range(4)),
]  # fmt: skip


def answers(path: Path, boot: str, questions: list[tuple[str, str, Any]], asked_ms: int) -> list[dict[str, Any]]:
    """Open the directory and ask; the clock stands still meanwhile."""
    with opened(path, boot, ManualClock(asked_ms)) as asker:
        given: list[dict[str, Any]] = []
        for method, target, body in questions:
            status, text = asker.ask(method, target, body)
            given.append({"method": method, "path": target, "body": body, "status": status, "answer": text})
        return given


def differences(wanted: Any, found: Any, path: str = "") -> Iterator[str]:
    """Where `found` lacks something of `wanted`: fields may have been added since, none may be gone or changed.

    Passed over are words for people, ids that are drawn at each claim, estimates of a loss, and the lag of a router,
    which once counted seqs that its source had skipped.
    """
    if isinstance(wanted, dict) and isinstance(found, dict):
        passed_over = {"message", "lease_id"} | ({"missed_estimate"} if wanted.get("reason") == "lost" else set())
        passed_over |= {"lag"} if "forwarded_total" in wanted else set()
        for name, value in wanted.items():
            if name in passed_over:
                continue
            if name not in found:
                yield f"{path}.{name} is missing"
            else:
                yield from differences(value, found[name], f"{path}.{name}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for index, (one, other) in enumerate(zip(wanted, found, strict=True)):
            yield from differences(one, other, f"{path}[{index}]")
    elif wanted != found:
        yield f"{path} is {found!r}, was {wanted!r}"


def records_of(text: str) -> list[str]:
    """The lines of an export that are records, which must come back byte for byte."""
    return [line for line in text.splitlines() if line.startswith('{"$seq"')]


# --- files ---


def recorded(version: str, kind: str) -> dict[str, Any]:
    return json.loads(lzma.decompress((VERSIONS / f"{version}_{kind}.json.xz").read_bytes()))


def unpack(version: str, kind: str, into: Path) -> None:
    """Files are written with holes where they were empty: most of a preallocated log file is."""
    with tarfile.open(VERSIONS / f"{version}_{kind}.tar.xz") as archive:
        archive.extractall(into, filter="data")


def pack(path: Path, version: str, kind: str) -> None:
    target = VERSIONS / f"{version}_{kind}.tar.xz"
    numeric = ["--owner=0", "--group=0", "--sort=name"]
    subprocess.run(["tar", "--sparse", *numeric, "-cJf", target, "-C", path, "."], check=True)


def write_and_end(path: Path, kind: str) -> None:
    clock = ManualClock(WRITTEN_MS)
    with opened(path, BOOT, clock) as asker:
        write(asker, clock)
        if kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)


def make(version: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        for kind in ("clean", "killed"):
            path = Path(scratch) / kind
            writer = multiprocessing.Process(target=write_and_end, args=(path, kind))
            writer.start()
            writer.join()
            assert writer.exitcode == (0 if kind == "clean" else -signal.SIGKILL)
            pack(path, version, kind)
        for kind, boot in (("clean", BOOT), ("killed", BOOT), ("power", OTHER_BOOT)):
            path = Path(scratch) / f"asked-{kind}"
            unpack(version, "clean" if kind == "clean" else "killed", path)
            given = answers(path, boot, QUESTIONS, WRITTEN_MS + 60_000)
            text = json.dumps({"asked_ms": WRITTEN_MS + 60_000, "answers": given}, indent=1)
            (VERSIONS / f"{version}_{kind}.json.xz").write_bytes(lzma.compress(text.encode()))


if __name__ == "__main__":
    make(sys.argv[1])
