"""The definitions of all pipelines, folded from the records of a hidden topic: the newest of each name is valid."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from topics.engine.core.feature import Feature
from topics.engine.log.part import TopicPart
from topics.engine.log.reading import View, read
from topics.model.requests.pipelines import PipelineRequest, PipelineStatus

if TYPE_CHECKING:
    from topics.engine.core.state import State
    from topics.engine.log.topic import Topic
    from topics.model.requests.batch import Batch

HOME = "!pipelines"
READ_RECORDS, READ_BYTES = 1_000, 8 * 1024 * 1024


class Entry(msgspec.Struct, omit_defaults=True):
    """A record of the hidden topic. Without a definition the pipeline is removed."""

    pipeline: str
    definition: PipelineRequest | None = None
    generation: int = 0


class Line(msgspec.Struct):
    """A record as it is decoded."""

    data: Entry
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")


_decoder = msgspec.json.Decoder(list[Line])


class PipelineState(NamedTuple):
    """A pipeline: its definition, and the last report of its runner."""

    name: str
    definition: PipelineRequest
    # Increases with every change.
    revision: int
    # The revision since which a checkpoint fits: sources, transformation, sink and output mode are unchanged.
    generation: int
    updated_ts: int
    status: PipelineStatus | None = None


class PipelineTable(Feature):
    """Read from the topic once, on demand; from then on each folded batch changes it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.by_name: dict[str, PipelineState] = {}
        self.names: list[str] = []
        self._loaded = False

    def created(self, topic: Topic) -> None:
        if topic.name == HOME:
            topic.content = _Home(self)

    def load(self) -> None:
        self._loaded = True
        home, at = self._state.hidden.get(HOME), 0
        while home is not None and at < home.head_seq:
            found = read(home, at, View(), READ_RECORDS, READ_BYTES, self._state.cold.load_now)
            self._fold(b"[%b]" % found.records())
            at = found.next_from_seq

    def appended(self, batch: Batch) -> None:
        if self._loaded:
            self._fold(b"[%b]" % batch.blob.rstrip(b","))

    def _fold(self, records: bytes) -> None:
        for line in _decoder.decode(records):
            entry = line.data
            known = self.by_name.pop(entry.pipeline, None)
            if entry.definition is not None:
                generation, status = entry.generation or line.seq, known.status if known is not None else None
                self.by_name[entry.pipeline] = PipelineState(
                    entry.pipeline, entry.definition, line.seq, generation, line.ts, status
                )
                if known is None:
                    self.names.insert(bisect_left(self.names, entry.pipeline), entry.pipeline)
            elif known is not None:
                del self.names[bisect_left(self.names, entry.pipeline)]


class _Home(TopicPart):
    __slots__ = ("_table",)

    def __init__(self, table: PipelineTable) -> None:
        self._table = table

    def appended(self, topic: Topic, batch: Batch) -> None:
        self._table.appended(batch)
