"""A worker process for the tests of signals: `python -m tests.workers.app_process URL QUEUE KIND GRACE_S`.

It says when it works and when a job begins and ends, one line each. A job of `{"s": n}` takes n seconds; with the
kind `coroutine` handlers are coroutines.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from topics.workers import App, Job


def say(word: str, job: Job | None = None) -> None:
    os.write(1, f"{word} {'' if job is None else job.seq}\n".encode())


def main() -> None:
    url, queue, kind, grace_s = sys.argv[1:]
    app = App(url, node=f"process-{os.getpid()}", grace_s=float(grace_s))

    def function(job: Job) -> None:
        say("begin", job)
        time.sleep(job.data["s"])
        say("end", job)

    async def coroutine(job: Job) -> None:
        say("begin", job)
        await asyncio.sleep(job.data["s"])
        say("end", job)

    app.worker(queue, concurrency=4)(coroutine if kind == "coroutine" else function)
    say("working")
    app.run()
    say("left")


if __name__ == "__main__":
    main()
