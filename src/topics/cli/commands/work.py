"""`topics queue work`: runs a command for each job; its exit code decides what happens to the job.

job ─▶ sh -c CMD     standard input: the payload      environment: TOPICS_JOB_SEQ, …_TAG, …_DELIVERIES, …_QUEUE, …_META
         │ 0     ack: the job is done
         │ 65    reject: it can never succeed, to the dead letters at once
         └ else  nack: again later, after --retry-delay, the queue's retry_backoff, or 1 s doubling to 5 min
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topics.cli.commands.completion import queue_names
from topics.cli.connection import RETRIES_QUICK, Access, takes_access
from topics.cli.failure import CommandFailed
from topics.cli.output import say
from topics.cli.spans import span_ms

if TYPE_CHECKING:
    from topics.client import Client
    from topics.workers import App, Job

EXIT_REJECT = 65
# The shell cannot run the command at all: this is not the fault of the job.
EXITS_NOT_RUN = (126, 127)
ERROR_CHARS_MAX = 500
EMPTY_EVERY_S = 0.2
KILL_AFTER_S = 5.0


@takes_access
def work(
    access: Access,
    queue: Annotated[
        str, typer.Argument(help="The queue.", metavar="QUEUE", autocompletion=queue_names, show_default=False)
    ],
    command: Annotated[
        str, typer.Option("--exec", help="The shell command to run for each job.", metavar="CMD", show_default=False)
    ],
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", help="Jobs at a time.", min=1, max=256)] = 1,
    lease: Annotated[str, typer.Option(help="How long a job is held at a time; extended while it runs.")] = "30s",
    retry_delay: Annotated[
        str | None,
        typer.Option(
            help="Delay of a failed job; by default the queue's retry_backoff, or 1s doubling to 5m.",
            metavar="SPAN",
        ),
    ] = None,
    grace: Annotated[str, typer.Option(help="Time for running commands after Ctrl-C or SIGTERM.")] = "25s",
    until_empty: Annotated[bool, typer.Option("--until-empty", help="Stop when no job is ready or delayed.")] = False,
    node: Annotated[str | None, typer.Option(help="The worker's name; generated if not given.")] = None,
) -> None:
    """Run a command for each job: the payload is its standard input, its exit code decides.

    Exit code 0 means done, 65 that the job can never succeed and goes to the dead letters at once, anything else that
    it is tried again; after the last of the queue's max_deliveries it goes to the dead letters as well. The last line
    of the command's standard error is stored as the reason of a failure. The environment has TOPICS_JOB_SEQ,
    TOPICS_JOB_TAG, TOPICS_JOB_DELIVERIES, TOPICS_JOB_META and TOPICS_JOB_QUEUE. On Ctrl-C or SIGTERM running commands
    may finish; a second one ends them with their children.
    """
    from topics.workers import App

    logging.basicConfig(level=logging.INFO, format="topics: %(message)s", stream=sys.stderr)
    with access.open(retries_max=RETRIES_QUICK) as client:
        # Reported at once instead of retried for ever: no server, no such queue, no access.
        next(iter(client.leases(queue, page_size=1)), None)
        app = App(client.url, access.key, node=node, grace_s=span_ms(grace, "--grace") / 1000)
        runner = WorkRunner(app, command, None if retry_delay is None else span_ms(retry_delay, "--retry-delay") / 1000)
        app.worker(queue, concurrency=concurrency, lease_ms=span_ms(lease, "--lease"))(runner.run)
        if until_empty:
            threading.Thread(target=_stop_when_empty, args=(client, queue, app), daemon=True).start()
        app.run(on_second_signal=runner.kill)
    counts = app.counts
    say(f"{counts.done} done, {counts.retried} retried, {counts.dead} dead, {counts.rejected} rejected")
    if runner.broken is not None:
        raise CommandFailed(runner.broken)


class WorkRunner:
    """Runs the command; its exit code becomes the outcome of the job."""

    def __init__(self, app: App, command: str, retry_delay_s: float | None) -> None:
        self._app = app
        self._command = command
        self._retry_delay_s = retry_delay_s
        # the process groups of running commands
        self._groups: set[int] = set()
        self.broken: str | None = None

    async def run(self, job: Job) -> None:
        """As a handler of `topics.workers`: returns if the job is done, otherwise raises its outcome."""
        from topics.workers import Reject, Retry
        from topics.workers.job import Release

        code, last_line = await self._execute(job)
        reason = f"exit code {code}" + (f": {last_line}" if last_line else "")
        if code == 0:
            return
        if code == EXIT_REJECT:
            raise Reject(reason)
        if code in EXITS_NOT_RUN:
            self.broken = f"cannot run {self._command!r} ({reason}); the job went back to the queue"
            self._app.stop()
            raise Release(reason)
        raise Retry(reason, delay=self._retry_delay_s)

    def kill(self) -> None:
        """End every running command with its children, including one that has only just been started."""
        for group in self._groups | _children():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    async def _execute(self, job: Job) -> tuple[int, str]:
        # In a session of its own: Ctrl-C is for the worker, which lets the command finish.
        process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", self._command),
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(job),
            start_new_session=True,
        )
        self._groups.add(process.pid)
        try:
            _, last_line = await asyncio.gather(_feed(process, job.raw + b"\n"), _pass_on(process))
            code = await process.wait()
        except asyncio.CancelledError:
            await _end(process)
            raise
        finally:
            self._groups.discard(process.pid)
        return (code if code >= 0 else 128 - code), last_line


def _children() -> set[int]:
    """The processes that this thread has started, each of which leads a group; none if the system does not tell."""
    try:
        return {int(pid) for pid in Path("/proc/thread-self/children").read_text().split()}
    except OSError:
        return set()


def _environment(job: Job) -> dict[str, str]:
    import json

    shown = {
        "TOPICS_JOB_QUEUE": job.topic,
        "TOPICS_JOB_SEQ": str(job.seq),
        "TOPICS_JOB_TAG": job.tag or "",
        "TOPICS_JOB_DELIVERIES": str(job.deliveries),
        "TOPICS_JOB_META": json.dumps(job.meta, ensure_ascii=False),
    }
    return {**os.environ, **shown}


async def _feed(process: asyncio.subprocess.Process, payload: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(payload)
        await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # a command need not read its job
    finally:
        process.stdin.close()


async def _pass_on(process: asyncio.subprocess.Process) -> str:
    """Pass the command's standard error on; its last line is kept."""
    assert process.stderr is not None
    last = b""
    while piece := await process.stderr.read(65_536):
        sys.stderr.buffer.write(piece)
        sys.stderr.buffer.flush()
        last = (last + piece)[-4 * ERROR_CHARS_MAX :]
    lines = [line for line in last.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip()[:ERROR_CHARS_MAX] if lines else ""


async def _end(process: asyncio.subprocess.Process) -> None:
    """The grace period is over: terminate the command and its children, then kill them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            await asyncio.wait_for(process.wait(), KILL_AFTER_S)
        except (ProcessLookupError, TimeoutError):
            continue
        return


def _stop_when_empty(client: Client, queue: str, app: App) -> None:
    import time

    from topics.client import TopicsError

    while True:
        time.sleep(EMPTY_EVERY_S)
        try:
            counters = client.state(queue, touch=False).queue
        except TopicsError:
            continue
        if counters is not None and counters.ready + counters.in_flight + counters.delayed == 0:
            app.stop()
