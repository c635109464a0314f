"""The verbs about pipelines: definitions kept in a hidden topic, the newest record of a name is the one that counts.

PUT     ─▶ record {pipeline, definition, generation}     its seq is the revision, so that no revision comes twice,
DELETE  ─▶ record {pipeline}                             not even that of a pipeline dropped and made again
             └─ once it is published, the records it replaces are deleted
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Raw

from topics.engine.core.appended import Appended
from topics.engine.core.listing import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, page_of
from topics.engine.core.ops import Deleted
from topics.engine.core.pending import Busy, PendingChange, settled
from topics.engine.log import deletion
from topics.engine.log.cold import ColdMiss
from topics.engine.log.reading import View, read
from topics.model.errors import PipelineNotFound, Throttled
from topics.model.names import check_topic_name
from topics.model.requests.batch import render
from topics.model.requests.config import TopicConfig
from topics.model.requests.pipelines import PipelineRequest, PipelineStatus, check_pipeline
from topics.model.requests.records import AppendRequest, RecordRequest, TagMatch

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.log.topic import Topic
    from topics.model.clock import Clock

HOME = "!pipelines"
PIPELINES_MAX = 10_000
READ_BYTES = 8 * 1024 * 1024
# A runner says something every 20 s; one that was not heard of for so long is dead or cut off.
SILENT_MS_MAX = 60_000


class Entry(msgspec.Struct, omit_defaults=True):
    """A record of the hidden topic. Without a definition the pipeline is gone."""

    pipeline: str
    definition: PipelineRequest | None = None
    generation: int = 0


class Line(msgspec.Struct):
    """A record as it is read back."""

    data: Entry
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")


class PipelineState(NamedTuple):
    """What a look at a pipeline tells: what was asked for, and what its runner said last."""

    name: str
    definition: PipelineRequest
    # Grows with every change.
    revision: int
    # The revision since which a checkpoint fits: sources, transformation, sink and output mode are the same.
    generation: int
    updated_ts: int
    status: PipelineStatus | None = None


class PipelinePage(NamedTuple):
    pipelines: list[PipelineState]
    next_cursor: str | None


class Pipelines:
    """Changes are rare: one at a time is on its way, the next one waits for it."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._state = engine.state
        self._clock = clock
        self._in_flight = engine.in_flight
        self._table: dict[str, PipelineState] = {}
        self._names: list[str] = []
        home = self._state.hidden.get(HOME)
        if home is not None:
            self._load(home)

    def _load(self, home: Topic) -> None:
        decoder = msgspec.json.Decoder(list[Line])
        at = 0
        while at < home.head_seq:
            found = read(home, at, View(), PAGE_SIZE_MAX, READ_BYTES, self._state.cold.load_now)
            for line in decoder.decode(b"[" + found.records() + b"]"):
                self._fold(line.data, line.seq, line.ts)
            at = found.next_from_seq

    def _fold(self, entry: Entry, seq: int, ts: int) -> None:
        known = self._table.pop(entry.pipeline, None)
        if entry.definition is not None:
            status = known.status if known is not None else None
            state = PipelineState(entry.pipeline, entry.definition, seq, entry.generation or seq, ts, status)
            self._table[entry.pipeline] = state
            if known is None:
                self._names.insert(bisect_left(self._names, entry.pipeline), entry.pipeline)
        elif known is not None:
            del self._names[bisect_left(self._names, entry.pipeline)]

    # --- changing ---

    def put(self, name: str, request: PipelineRequest) -> PendingChange:
        """Create the pipeline, or change it. `result` is its state."""
        check_topic_name(name, "pipeline")
        check_pipeline(request)
        known = self._table.get(name)
        self._in_flight.check(("pipelines",))
        if known is not None and known.definition == request:
            return settled(0, known)
        if known is None and len(self._table) >= PIPELINES_MAX:
            raise Throttled(f"there are {PIPELINES_MAX} pipelines already", limit="max_pipelines", max=PIPELINES_MAX)
        same = known is not None and known.definition.substance() == request.substance()
        change = self._write(Entry(name, request, known.generation if known is not None and same else 0))
        change.created = known is None
        change.then(lambda done: setattr(done, "result", self._table.get(name)))
        return change

    def drop(self, name: str) -> PendingChange:
        """Forget the pipeline; what it wrote stays. `result` tells whether there was one."""
        check_topic_name(name, "pipeline")
        self._in_flight.check(("pipelines",))
        if name not in self._table:
            return settled(0, False)
        change = self._write(Entry(name))
        change.result = True
        return change

    def _write(self, entry: Entry) -> PendingChange:
        engine = self._engine
        engine.commit_log.check_writable()
        home = self._state.hidden.get(HOME)
        if home is None:
            raise Busy(engine.create_hidden(HOME, TopicConfig(durable=True, durability="fsync")))
        ts = home.now(self._clock.now_ms())
        record = RecordRequest(data=Raw(msgspec.json.encode(entry)), tag=entry.pipeline)
        batch = render(AppendRequest(records=[record]), home.assigned_seq + 1, ts, bare=False)
        change = engine.commit_log.submit_append(Appended(home.id, home.evict_floor, b"", batch), "fsync")
        self._forget_below(home, entry.pipeline, batch.first_seq)
        change.then(lambda done: self._written(entry, batch.first_seq, ts, done))
        return self._in_flight.hold(change, ("pipelines",))

    def _forget_below(self, home: Topic, name: str, seq: int) -> None:
        """What this record replaces need not be kept; a crash before this only leaves more to read."""
        found = deletion.find_tagged(home, TagMatch(name.encode(), False), seq, self._state.cold.load_now)
        runs = [run for block in found if not isinstance(block, ColdMiss) for run in block]
        if runs:
            self._engine.commit_log.submit_delete(Deleted(home.id, home.clock_ms, runs), "disk")

    def _written(self, entry: Entry, seq: int, ts: int, change: PendingChange) -> None:
        if change.error is None:
            self._fold(entry, seq, ts)

    # --- looking ---

    def look(self, name: str) -> PipelineState:
        found = self._table.get(name)
        if found is None:
            check_topic_name(name, "pipeline")
            raise PipelineNotFound(name)
        return found

    def list(
        self,
        prefix: str = "",
        cursor: str | None = None,
        page_size: int = PAGE_SIZE_DEFAULT,
        *,
        wanted: Callable[[PipelineState], bool],
    ) -> PipelinePage:
        """Pipelines by name, those that start with `prefix` and are `wanted`."""
        return PipelinePage(*page_of(self._names, prefix, cursor, page_size, self._table.__getitem__, wanted))

    def report(self, name: str, status: PipelineStatus) -> PipelineState:
        """What a runner says about a pipeline; kept in memory, the next word comes soon."""
        state = self.look(name)._replace(status=msgspec.structs.replace(status, ts=self._clock.now_ms()))
        self._table[name] = state
        return state

    def is_up(self, status: PipelineStatus) -> bool:
        """Whether a runner said lately that it runs."""
        return status.state in ("running", "idle") and self._clock.now_ms() - status.ts <= SILENT_MS_MAX
