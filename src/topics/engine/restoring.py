"""From a snapshot to the state it was taken of: topics first, then what ties them to one another."""

from __future__ import annotations

from collections.abc import Iterator

from topics.engine.image import decode_topic
from topics.engine.ledger import APP_CHUNK
from topics.engine.router import RouterImage
from topics.engine.state import State
from topics.engine.topic import Topic
from topics.model.ops import TIMED, decode
from topics.storage.snapshot import Snapshot

TOPICS_PER_STEP = 200


def restore(state: State, snapshot: Snapshot | None) -> Iterator[None]:
    """Fill an empty state; yields now and then. Without a snapshot it stays as it is."""
    routers: list[tuple[Topic, RouterImage]] = []
    apps: list[bytes] = []
    for number, chunk in enumerate(snapshot.chunks() if snapshot is not None else ()):
        if chunk.startswith(APP_CHUNK):
            apps.append(chunk)
            continue
        if chunk[0] == TIMED:
            state.apply(decode(chunk), 0)
            continue
        topic, router = decode_topic(chunk)
        state.add(topic)
        if router is not None:
            routers.append((topic, router))
        if number % TOPICS_PER_STEP == 0:
            yield
    state.routes.restore(routers)
    state.ledger.restore(apps)
