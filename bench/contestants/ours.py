"""This server, of one tree, in every row of the table."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import uvloop

from bench.contestants.contestant import BATCH, JOBS, PAYLOAD, RECOVERED, Sample
from bench.contestants.replies import BODY, request_to, stream_request_of
from bench.contestants.watching import delivery_ms
from bench.live import latency
from bench.load import wrk
from bench.load.trees import Tree
from bench.report.page import ROOT
from tests.serving import ServerProcess

MANY = {"records": [{"data": json.loads(PAYLOAD)}] * BATCH}
WATCHERS = 1_000
WATCHED_WRITES = 50
FILL_S_MAX = 300


class Ours:
    """`topics serve` without keys, because the others need none either."""

    promise = "`disk`: `write(2)` has returned, synced every 100 ms or so; `fsync`: synced"
    kind = "own"

    def __init__(self, tree: Tree, filled: Path) -> None:
        self.name = f"topics {tree.name}"
        self._tree = tree
        # A directory of single records as a killed server leaves it, made once for all trees.
        self._filled = filled

    def prepare(self, root: Path) -> None:  # noqa: ARG002 - shared with other trees
        if not self._filled.exists():
            code = f"from bench.engine import fill_log; fill_log({str(self._filled)!r}, 1, 16)"
            command = [sys.executable, "-c", code]
            subprocess.run(
                command, check=True, timeout=FILL_S_MAX, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )

    def measure(self, root: Path) -> Iterator[Sample]:
        with self._tree.serving(root / "data", max_sse_connections=20_000, max_watch_sessions=20_000) as server:
            yield from self._appends(server)
            yield from self._watches(server)
            yield "queue", self._jobs_per_s(server)
        yield "recovery", self._recovery_s(root)

    def _appends(self, server: ServerProcess) -> Iterator[Sample]:
        client, aim = server.client(), wrk.Aim(server.port)
        for topic in ("one-synced", "many-synced"):
            client.put(f"/v0/topics/{topic}", {"durability": "fsync"})
        wrk.static(aim, "/v0/topics/warm", BODY, seconds=1)
        yield "append 1, 16", _fine(wrk.static(aim, "/v0/topics/one", BODY)).per_s
        yield "append 100", BATCH * _fine(wrk.static(aim, "/v0/topics/many", MANY)).per_s
        yield "append 100, fsync", BATCH * _fine(wrk.static(aim, "/v0/topics/many-synced", MANY)).per_s
        yield "append 1, 1, p50", _fine(wrk.static(aim, "/v0/topics/one", BODY, 1)).p50_ms
        yield "append 1, 1, fsync, p50", _fine(wrk.static(aim, "/v0/topics/one-synced", BODY, 1)).p50_ms

    def _watches(self, server: ServerProcess) -> Iterator[Sample]:
        client = server.client()
        client.post("/v0/topics/watched", BODY)
        asked = stream_request_of(client, "watched")
        yield "watch 1", delivery_ms(server.port, asked, b"event: caught-up", request_to("watched"), b'"$seq":')
        yield "watch 1,000", uvloop.run(latency(server.port, client, WATCHERS, WATCHED_WRITES))[0]

    def _jobs_per_s(self, server: ServerProcess) -> float:
        client, aim = server.client(), wrk.Aim(server.port)
        client.put("/v0/topics/jobs", {"type": "queue"})
        took_s = wrk.completed_s(aim, "enqueue", "jobs", JOBS, MANY)
        took_s += wrk.completed_s(aim, "claim", "jobs", JOBS)
        if (left := client.state("jobs")["count"]) != 0:
            raise RuntimeError(f"{left} jobs are left")
        return JOBS / took_s

    def _recovery_s(self, root: Path) -> float:
        shutil.copytree(self._filled, root / "filled")
        with self._tree.serving(root / "filled") as server:
            found = re.search(r"ready: .*?([\d,]+) records, recovered in ([\d,]+) ms", server.log)
            if not found or int(found[1].replace(",", "")) < RECOVERED:
                raise RuntimeError(f"not all records are there: {server.log[-500:]}")
            return int(found[2].replace(",", "")) / 1000


def _fine(run: wrk.Run) -> wrk.Run:
    if run.errors:
        raise wrk.WrkFailed(f"{run.errors} requests failed")
    return run
