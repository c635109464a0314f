"""From a snapshot to the state it was taken of: topics first, then what ties them to one another."""

from __future__ import annotations

from topics.engine.core.image import decode_topic
from topics.engine.core.ops import TIMED, decode
from topics.engine.core.state import State
from topics.engine.log.dropped_names import DROPPED_CHUNK
from topics.engine.log.topic import Topic
from topics.engine.queues.lease_log import PART_CHUNK, restore_part
from topics.engine.routers.router import RouterImage
from topics.engine.transactions.ledger import APP_CHUNK
from topics.storage.snapshot import Snapshot
from topics.storage.steps import Steps


def restore(state: State, snapshot: Snapshot | None) -> Steps[None]:
    """Fill an empty state. Without a snapshot it stays as it is."""
    routers: list[tuple[Topic, RouterImage]] = []
    apps: list[bytes] = []
    for chunk in snapshot.chunks() if snapshot is not None else ():
        if chunk.startswith(APP_CHUNK):
            apps.append(chunk)
            continue
        if chunk.startswith(PART_CHUNK):
            restore_part(chunk, state.by_id)
            yield
            continue
        if chunk[0] == TIMED:
            state.apply(decode(chunk), 0)
            continue
        if chunk.startswith(DROPPED_CHUNK):
            state.dropped.restore(chunk)
            continue
        topic, router = yield from decode_topic(chunk)
        state.add(topic)
        if router is not None:
            routers.append((topic, router))
        yield
    for topic, router in routers:
        state.routes.restore(topic, router)
        yield
    for app in apps:
        state.ledger.restore(app)
        yield
