"""A worker process that says what it does: a line when a handler begins, and one when the server has confirmed acks.

Started by test_accounting.py as `python -m tests.crash.job_worker URL`. All of them write into the same pipe, so that
the order of their lines is the order of events.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from topics.client import AsyncClient
from topics.client.jobs import Acked, Jobs, held
from topics.workers import App, Job
from topics.workers import app as workers_app

CONCURRENCY = 4
LEASE_MS = 5_000


def say(word: str, *seqs: int) -> None:
    os.write(1, f"{word} {' '.join(map(str, seqs))}\n".encode())


class TellingClient(AsyncClient):
    """Reports acks when their replies have arrived."""

    async def ack(self, name: str, jobs: Jobs, node: str | None = None, **results: Any) -> Acked:
        seqs, _ = held(jobs)
        acked = await super().ack(name, jobs, node, **results)
        say("acked", *(seq for seq in seqs if seq not in acked.skipped))
        return acked


def main() -> None:
    setattr(workers_app, "AsyncClient", TellingClient)  # noqa: B010 - the name is another module's
    app = App(sys.argv[1])

    @app.worker("jobs", concurrency=CONCURRENCY, lease_ms=LEASE_MS)
    def handle(job: Job) -> None:
        say("begin", job.seq, job.data)
        time.sleep(0.004)

    app.run()


if __name__ == "__main__":
    main()
