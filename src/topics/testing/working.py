"""Running an app's workers in a test: the real workers, until there is no job left for them."""

from __future__ import annotations

import asyncio

from topics.testing.engine import Engine
from topics.workers.app import App
from topics.workers.crons import put_cron
from topics.workers.worker import Worker

DELIVERIES_MAX = 10_000


def run_until_idle(app: App, engine: Engine, *, deliveries_max: int = DELIVERIES_MAX) -> int:
    """Run the app's handlers on every job that is claimable now, and on those they add; how many deliveries there were.

    Jobs that wait (a delay, a backoff, another worker's lease) are left: move the clock and run again. A failed job
    waits for a second, then twice as long each time, unless its handler or its queue says otherwise.
    """
    return asyncio.run(until_idle(app, engine, deliveries_max=deliveries_max))


async def until_idle(app: App, engine: Engine, *, deliveries_max: int = DELIVERIES_MAX) -> int:
    """The same for tests that are coroutines."""
    async with engine.async_client() as client:
        for cron in app.crons:
            await put_cron(client, cron)
        workers = [Worker(duty, client, app.node, app.counts, engine.clock) for duty in app.duties]
        for worker in workers:
            worker.start()
        try:
            while True:
                claimed = [await worker.claim(wait_ms=0) for worker in workers]
                for worker in workers:
                    await worker.idle()
                handled = sum(worker.handled for worker in workers)
                if not any(claimed):
                    return handled
                if handled > deliveries_max:
                    raise AssertionError(
                        f"still not idle after {handled} deliveries: does a job come back for ever? Give its Retry a "
                        "delay, its queue a retry_backoff or max_deliveries, or raise deliveries_max"
                    )
        finally:
            for worker in workers:
                await worker.close()
