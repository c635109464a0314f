"""From a snapshot to the state it describes: topics first, then the references between them."""

from __future__ import annotations

from topics.engine.core.checkpoints.image import decode_topic
from topics.engine.core.ops import CARRIED, TIMED, decode_carried, decode_timed
from topics.engine.core.state import NEXT_ID_CHUNK, State
from topics.engine.log.dropped_names import DROPPED_CHUNK
from topics.storage.snapshot import Snapshot
from topics.storage.steps import Steps


def restore(state: State, snapshot: Snapshot | None) -> Steps[list[tuple[int, bytes]]]:
    """Fill an empty state. Without a snapshot it stays empty. Returns positions and ops that come before the log."""
    carried: list[tuple[int, bytes]] = []
    owners = {feature.chunk: feature for feature in state.features if feature.chunk is not None}
    for chunk in snapshot.chunks() if snapshot is not None else ():
        if (owner := owners.get(chunk[:1])) is not None:
            owner.restore(chunk)
        elif chunk[0] == TIMED:
            state.apply(decode_timed(chunk), 0)
        elif chunk[0] == CARRIED:
            carried.append(decode_carried(chunk))
        elif chunk.startswith(DROPPED_CHUNK):
            state.dropped.restore(chunk)
        elif chunk.startswith(NEXT_ID_CHUNK):
            state.restore_next_id(chunk)
        else:
            topic = yield from decode_topic(chunk, state.features)
            state.add(topic)
        yield
    for feature in state.features:
        yield from feature.restored()
    return carried
