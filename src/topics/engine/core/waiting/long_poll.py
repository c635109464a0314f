"""A diff that waits: it looks again when its topic changes, and ends with the first records or when its time is up."""

from __future__ import annotations

from topics.engine.core.engine import Engine
from topics.engine.core.waiting.runner import Runner, Steps, attempt
from topics.engine.log.reading import Diff
from topics.model.requests.records import DiffRequest

WAIT_MS_MAX = 30_000


def long_poll(engine: Engine, runner: Runner, name: str, request: DiffRequest, diff: Diff) -> Steps[Diff]:
    """Continue from a diff that has found nothing; `scanned` of the result counts all looks."""
    scanned = diff.scanned
    news = runner.news([engine.state.by_name[name]], min(request.wait_ms, WAIT_MS_MAX))
    try:
        while True:
            # Nothing for this reader so far: the next look starts where this one ended.
            request.from_seq = diff.next_from_seq
            yield news if diff.caught_up else None
            diff = yield from attempt(lambda: engine.diff(name, request))
            diff.scanned = scanned = scanned + diff.scanned
            if diff.count or diff.tombstone is not None or news.expired:
                return diff
    finally:
        news.close()
