"""Schedules of an app: each has a queue of its own, whose handler is the decorated function."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Literal

from topics.client import AsyncClient
from topics.client.errors import (
    Forbidden,
    InvalidRequest,
    NotAQueue,
    ScheduleNotFound,
    TopicNotFound,
    TopicsError,
    Unauthorized,
)
from topics.workers.pauses import Pauses

log = logging.getLogger("topics.workers")


@dataclass(frozen=True, slots=True)
class Cron:
    """The arguments of `App.cron`."""

    name: str
    queue: str
    expression: str
    timezone: str | None
    data: Any
    missed: Literal["skip", "once", "all"] | None
    jitter_ms: int | None


async def put_crons(client: AsyncClient, crons: list[Cron]) -> None:
    """Create or change the schedules, and queues that do not exist; then wait to be cancelled.

    An app may be started before its server: what may pass is tried again, anything else ends the app.
    """
    for cron in crons:
        pauses = Pauses()
        while True:
            try:
                await put_cron(client, cron)
                break
            except (Unauthorized, Forbidden, InvalidRequest, NotAQueue):
                raise
            except TopicsError as error:
                log.log(
                    logging.WARNING if pauses.fresh else logging.DEBUG,
                    "schedule %s: not created yet, trying again: %s",
                    cron.name,
                    error,
                )
                await asyncio.sleep(pauses.after(error))
    await asyncio.Event().wait()


async def put_cron(client: AsyncClient, cron: Cron) -> None:
    """Create or change one schedule, and its queue if that does not exist."""
    try:
        state = await client.state(cron.queue, touch=False)
        if state.queue is None:
            raise NotAQueue(cron.queue)
    except TopicNotFound:
        await client.create(cron.queue, type="queue")
    try:
        paused = (await client.schedule(cron.name)).paused
    except ScheduleNotFound:
        paused = None
    made = await client.put_schedule(
        cron.name,
        cron.queue,
        cron=cron.expression,
        timezone=cron.timezone,
        data=cron.data,
        missed=cron.missed,
        jitter_ms=cron.jitter_ms,
        # A paused schedule stays paused when a worker starts again.
        paused=paused,
    )
    log.info("schedule %s: %s on %s", cron.name, "created" if made.created else "present", cron.queue)
