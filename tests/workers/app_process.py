"""A worker process for the tests of signals: `python -m tests.workers.app_process URL QUEUE KIND GRACE_S`.

It says when it works and when a job begins and ends, one line each; its log is on standard error. A job ends as soon as
the file that it names exists; with the kind `coroutine` handlers are coroutines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading

from topics.workers import App, Job


def say(word: str, job: Job | None = None) -> None:
    os.write(1, f"{word} {'' if job is None else job.seq}\n".encode())


def is_there(path: str) -> bool:
    return os.path.exists(path)


def main() -> None:
    url, queue, kind, grace_s = sys.argv[1:]
    app = App(url, node=f"process-{os.getpid()}", grace_s=float(grace_s))

    def function(job: Job) -> None:
        say("begin", job)
        pause = threading.Event()
        while not is_there(job.data):
            pause.wait(0.01)
        say("end", job)

    async def coroutine(job: Job) -> None:
        say("begin", job)
        pause = asyncio.Event()
        while not is_there(job.data):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pause.wait(), 0.01)
        say("end", job)

    app.worker(queue, concurrency=4)(coroutine if kind == "coroutine" else function)
    logging.basicConfig(level=logging.INFO)
    say("working")
    app.run()
    say("left")


if __name__ == "__main__":
    main()
