"""From the chunks of a snapshot to the state they describe, in whatever order they come."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from tests.engine.folding import Folding
from topics.engine.core.checkpoints.image import encode_topic
from topics.engine.core.ops import Dropped, Timed, encode_carried
from topics.engine.opening.restore import restore
from topics.engine.schedules.feature import ScheduleTable
from topics.engine.schedules.ops import SchedulePut
from topics.model.clock import Moment
from topics.model.schedules.schedule_config import ScheduleConfig
from topics.storage.pack import Extent
from topics.storage.steps import at_once


class Chunks:
    def __init__(self, chunks: Sequence[bytes]) -> None:
        self._chunks = chunks

    def chunks(self) -> Sequence[bytes]:
        return self._chunks


@pytest.fixture
def log(tmp_path: Path) -> Folding:
    folding = Folding(tmp_path / "packs")
    folding.create(1, "t")
    folding.append(1, 1, 2)
    folding.create(20, "gone")
    folding.fold(Dropped(20), Timed(Moment(5, 9)))
    config = ScheduleConfig("t", cron="0 3 * * *", data=Raw(b"1"))
    folding.fold(SchedulePut(7, 5, 9, "nightly", config))
    return folding


def chunks_of(log: Folding) -> list[bytes]:
    state = log.state
    state.checkpoint = 1
    topic = state.by_id[1]
    return [
        *(chunk for feature in state.features for chunk in feature.capture()),
        Timed(Moment(5, 9)).encode(),
        encode_carried(30, b"first"),
        state.dropped.encode(),
        state.encode_next_id(),
        encode_carried(40, b"second"),
        encode_topic(topic, {topic.blocks[0]: Extent(1, 64, 9)}, state.features),
    ]


def restored(tmp_path: Path, chunks: Sequence[bytes] | None) -> tuple[Folding, list[tuple[int, bytes]]]:
    other = Folding(tmp_path / "other")
    snapshot: Any = None if chunks is None else Chunks(chunks)
    return other, at_once(restore(other.state, snapshot))


def test_every_chunk_finds_its_place(log: Folding, tmp_path: Path) -> None:
    other, carried = restored(tmp_path, chunks_of(log))
    state = other.state
    assert carried == [(30, b"first"), (40, b"second")]
    assert (state.names, state.count, state.bytes) == (["t"], log.state.count, log.state.bytes)
    assert ("gone" in state.dropped, "t" in state.dropped) == (True, False)
    assert (state.next_id, state.noted) == (log.state.next_id, Moment(5, 9))
    assert [*state.feature(ScheduleTable).by_name] == ["nightly"]
    assert state.behind_mark is False


def test_without_a_snapshot_the_state_stays_empty(tmp_path: Path) -> None:
    other, carried = restored(tmp_path, None)
    assert (other.state.names, carried) == ([], [])
