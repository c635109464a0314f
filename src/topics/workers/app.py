"""The application: which functions handle which queues, from the first claim to the last ack."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from topics.client import AsyncClient
from topics.client.request import Urls
from topics.model.clock import SystemClock
from topics.workers.crons import Cron, put_crons
from topics.workers.health import AppHealth, HealthServer, address_of
from topics.workers.job import Counts
from topics.workers.worker import CONCURRENCY_MAX, Duty, Handler, Worker

log = logging.getLogger("topics.workers")
HTTP_LOG = logging.getLogger("httpx2")

LEASE_MS_MIN, LEASE_MS_MAX = 100, 86_400_000
WAIT_MS_MAX = 30_000
NODE_CHARS_MAX = 100

H = TypeVar("H", bound=Handler)


class App:
    """Queues and their handlers. `url` and `key` default to the environment, as for `Client`.

    `node` is this process's name among the workers; it must be unique, and one is made if none is given. `grace_s` is
    how long handlers may continue after a signal to stop. `health` is a port, or host:port, for probes and metrics.
    `tracing` (TOPICS_TRACING) makes a span of OpenTelemetry for each job, in the trace of its append.
    """

    def __init__(
        self,
        url: Urls | None = None,
        key: str | None = None,
        *,
        node: str | None = None,
        grace_s: float = 25.0,
        timeout_s: float = 10.0,
        tracing: bool | None = None,
        health: str | int | None = None,
    ) -> None:
        self._url = url
        self._key = key
        self._timeout_s = timeout_s
        self._tracing = tracing
        self._grace_s = grace_s
        self.health: str | None = None
        self.node = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"[-NODE_CHARS_MAX:]
        self.configure(node=node, health=None if health is None else str(health))
        self.duties: list[Duty] = []
        self.crons: list[Cron] = []
        self.counts = Counts()
        # while serving
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._workers: list[Worker] = []

    def configure(self, *, node: str | None = None, grace_s: float | None = None, health: str | None = None) -> None:
        """Change what is given, before it runs: as a command line does."""
        self.node = node or self.node
        if grace_s is not None:
            self._grace_s = grace_s
        if health is not None:
            address_of(health)
            self.health = health

    def worker(
        self, topic: str, *, concurrency: int = 1, lease_ms: int = 30_000, wait_ms: int = 20_000
    ) -> Callable[[H], H]:
        """Make the decorated function or coroutine handle the jobs of a queue, `concurrency` of them at a time.

        A job belongs to this process for `lease_ms`, which is renewed while its handler runs. If the process dies,
        other workers get its jobs after that time.
        """
        _check("concurrency", concurrency, 1, CONCURRENCY_MAX)
        _check("lease_ms", lease_ms, LEASE_MS_MIN, LEASE_MS_MAX)
        _check("wait_ms", wait_ms, 0, WAIT_MS_MAX)
        if any(duty.topic == topic for duty in self.duties):
            raise ValueError(f'queue "{topic}" has a handler already')

        def register(handler: H) -> H:
            self.duties.append(Duty(topic, handler, concurrency, lease_ms, wait_ms))
            return handler

        return register

    def cron(
        self,
        expression: str,
        *,
        name: str | None = None,
        queue: str | None = None,
        timezone: str | None = None,
        data: Any = None,
        missed: Literal["skip", "once", "all"] | None = None,
        jitter_ms: int | None = None,
        concurrency: int = 1,
        lease_ms: int = 30_000,
        wait_ms: int = 20_000,
    ) -> Callable[[H], H]:
        """Call the decorated function at the due times of a cron expression, in one of the processes of this app.

        The server keeps the schedule `name` (default: the function's name, with hyphens) and appends a job to `queue`
        (default: the schedule's name), which is created if it does not exist. Each due time is one job, however many
        processes run this app; a job that fails is retried like any other.
        """

        def register(handler: H) -> H:
            own = name or getattr(handler, "__name__", type(handler).__name__).strip("_").replace("_", "-")
            if any(cron.name == own for cron in self.crons):
                raise ValueError(f'schedule "{own}" has a handler already: give another name')
            self.worker(queue or own, concurrency=concurrency, lease_ms=lease_ms, wait_ms=wait_ms)(handler)
            self.crons.append(Cron(own, queue or own, expression, timezone, data, missed, jitter_ms))
            return handler

        return register

    # --- running ---

    def run(self, *, on_second_signal: Callable[[], None] | None = None) -> None:
        """Work until SIGTERM or SIGINT, then finish running jobs; a second signal ends the process at once.

        `on_second_signal` is called before that, to end processes that this process has started.
        """
        with asyncio.Runner() as runner:
            runner.run(self._serve_with_signals(on_second_signal))

    async def _serve_with_signals(self, on_second_signal: Callable[[], None] | None) -> None:
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

        def end(number: int, _: object) -> None:
            assert on_second_signal is not None
            signal.signal(number, signal.SIG_DFL)
            on_second_signal()
            os.kill(os.getpid(), number)

        def stop() -> None:
            for number in before:
                loop.remove_signal_handler(number)
                # Handlers may ignore the signal: from here on the system handles it.
                signal.signal(number, signal.SIG_DFL if on_second_signal is None else end)
            log.info("stopping: claiming no more jobs")
            self.stop()

        for number in before:
            loop.add_signal_handler(number, stop)
        try:
            await self.serve()
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    async def serve(self) -> None:
        """Work until `stop`, then finish running jobs. For programs with a loop of their own, which handle signals."""
        if not self.duties:
            raise ValueError("this app has no workers: decorate a function with @app.worker(queue)")
        if self._stopping is not None:
            raise RuntimeError("this app is running already")
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if HTTP_LOG.level == logging.NOTSET:
            # It logs every request at INFO: one line for each claim and each ack.
            HTTP_LOG.setLevel(logging.WARNING)
        client = AsyncClient(
            self._url, self._key, node=self.node, timeout_s=self._timeout_s, retries_max=0, tracing=self._tracing
        )
        self._workers = workers = [Worker(duty, client, self.node, self.counts, SystemClock()) for duty in self.duties]
        probes = HealthServer(self._look)
        try:
            if self.health is not None:
                port = await probes.start(*address_of(self.health))
                log.info("health at port %d", port)
            await self._serve(workers, self._stopping, client)
        finally:
            probes.close()
            self._loop = self._stopping = None
            for worker in workers:
                await worker.close()
            await client.close()

    async def _serve(self, workers: list[Worker], stopping: asyncio.Event, client: AsyncClient) -> None:
        for worker in workers:
            worker.start()
        log.info("working on %s as %s", ", ".join(duty.topic for duty in self.duties), self.node)
        claiming = [asyncio.create_task(worker.claim_forever()) for worker in workers]
        if self.crons:
            claiming.append(asyncio.create_task(put_crons(client, self.crons)))
        stopped = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait([stopped, *claiming], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopped, *claiming):
                task.cancel()
        ends = await asyncio.gather(*claiming, return_exceptions=True)
        await asyncio.gather(*(worker.finish(self._grace_s) for worker in workers))
        for end in ends:
            if isinstance(end, Exception):
                raise end

    def _look(self) -> AppHealth:
        stopping = self._stopping is None or self._stopping.is_set()
        return AppHealth(stopping, self.counts, [worker.health for worker in self._workers])

    def stop(self) -> None:
        """Claim no more jobs, finish running ones, return from `run` or `serve`. May be called from any thread."""
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None:
            loop.call_soon_threadsafe(stopping.set)


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least} to {most}, not {value}")
