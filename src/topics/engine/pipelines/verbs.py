"""The verbs of pipelines: definitions are stored in a hidden topic, where the newest record of a name is valid.

PUT     ─▶ record {pipeline, definition, generation}     its seq is the revision, so that no revision is used twice,
DELETE  ─▶ record {pipeline}                             even if a pipeline is dropped and created again
             └─ once it is published, the records it replaces are deleted
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Raw

from topics.engine.core.appended import Appended
from topics.engine.core.listing import PAGE_SIZE_DEFAULT, page_of
from topics.engine.core.ops import Deleted
from topics.engine.core.pending import Busy, PendingChange, settled
from topics.engine.log import deletion
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.pipelines.backlog import Backlog, backlog_of
from topics.engine.pipelines.feature import HOME, Entry, PipelineState, PipelineTable
from topics.engine.pipelines.meaning import Plan, plan_of
from topics.model.errors import PipelineNotFound, TableTaken, Throttled
from topics.model.names import check_topic_name
from topics.model.requests.batch import render
from topics.model.requests.config import TopicConfig
from topics.model.requests.pipelines import PipelineRequest, PipelineStatus, Position, check_pipeline
from topics.model.requests.records import AppendRequest, RecordRequest, TagMatch

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.log.topic import Topic
    from topics.model.clock import Clock

PIPELINES_MAX = 10_000
# A runner reports every 20 s; one that has not reported for this long is dead or disconnected.
SILENT_MS_MAX = 60_000


class PipelinePage(NamedTuple):
    pipelines: list[PipelineState]
    next_cursor: str | None


class Pipelines:
    """Changes are rare: one at a time is pending, the next one waits for it."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._state = engine.state
        self._clock = clock
        self._in_flight = engine.in_flight
        table = engine.state.feature(PipelineTable)
        table.load()
        self._table, self._names = table.by_name, table.names

    # --- changing ---

    def plan(self, name: str, request: PipelineRequest, *, keep_checkpoint: bool = False) -> Plan:
        """What `put` would do; it is refused as `put` would be."""
        check_topic_name(name, "pipeline")
        check_pipeline(request)
        self._displaced(name, request)
        known = self._table.get(name)
        return plan_of(None if known is None else known.definition, request, keep_checkpoint=keep_checkpoint)

    def put(self, name: str, request: PipelineRequest, *, keep_checkpoint: bool = False) -> PendingChange:
        """Create the pipeline, or change it. `result` is its state."""
        self._in_flight.check(("pipelines",))
        plan = self.plan(name, request, keep_checkpoint=keep_checkpoint)
        known = self._table.get(name)
        if known is not None and plan.effect == "same":
            return settled(0, known)
        if known is None and len(self._table) >= PIPELINES_MAX:
            raise Throttled(f"there are {PIPELINES_MAX} pipelines already", limit="max_pipelines", max=PIPELINES_MAX)
        entry = Entry(name, request, known.generation if known is not None and plan.effect == "continues" else 0)
        change = self._write(entry, *map(_disabled, self._displaced(name, request)))
        change.created = known is None
        change.then(lambda done: setattr(done, "result", self._table.get(name)))
        return change

    def rivals(self, name: str, request: PipelineRequest) -> list[PipelineState]:
        """Other pipelines with the table that this definition would begin to write: a table has one owner."""
        table = written_table(name, request)
        known = self._table.get(name)
        if table is None or (known is not None and written_table(name, known.definition) == table):
            return []
        others = (state for state in self._table.values() if state.name != name)
        return [state for state in others if state.definition.table_written(state.name) == table]

    def _displaced(self, name: str, request: PipelineRequest) -> list[PipelineState]:
        """Those whose table it takes over; without its consent to that, the definition is refused."""
        rivals = self.rivals(name, request)
        if rivals and not (request.sink is not None and request.sink.take_over):
            raise TableTaken(request.table_of(name), rivals[0].name)
        return [rival for rival in rivals if rival.definition.enabled is not False]

    def drop(self, name: str) -> PendingChange:
        """Remove the pipeline; its output stays. `result`: whether there was one."""
        check_topic_name(name, "pipeline")
        self._in_flight.check(("pipelines",))
        if name not in self._table:
            return settled(0, False)
        change = self._write(Entry(name))
        change.result = True
        return change

    def restart(self, name: str, *, anew: bool) -> PendingChange:
        """Give it a new revision, so that its runner starts it again; `anew`: without its checkpoint, too."""
        self._in_flight.check(("pipelines",))
        known = self.look(name)
        change = self._write(Entry(name, known.definition, 0 if anew else known.generation))
        change.then(lambda done: setattr(done, "result", self._table.get(name)))
        return change

    def _write(self, *entries: Entry) -> PendingChange:
        engine = self._engine
        engine.commit_log.check_writable()
        home = self._state.hidden.get(HOME)
        if home is None:
            raise Busy(engine.create_hidden(HOME, TopicConfig(durable=True, durability="fsync")))
        ts = home.now(self._clock.now_ms())
        records = [RecordRequest(data=Raw(msgspec.json.encode(entry)), tag=entry.pipeline) for entry in entries]
        batch = render(AppendRequest(records=records), home.assigned_seq + 1, ts, bare=False)
        change = engine.commit_log.submit_append(Appended(home.id, home.evict_floor, b"", batch), "fsync")
        for entry in entries:
            self._forget_below(home, entry.pipeline, batch.first_seq)
        return self._in_flight.hold(change, ("pipelines",))

    def _forget_below(self, home: Topic, name: str, seq: int) -> None:
        """Delete the records that this one replaces; without this, there is only more to read.

        It must not wait for the bucket: records that are only there stay.
        """
        found = deletion.find_tagged(home, TagMatch(name.encode(), False), seq, self._state.cold.load_unless_remote)
        runs = [run for block in found if not isinstance(block, ColdMiss) for run in block]
        if runs:
            self._engine.commit_log.submit_delete(Deleted(home.id, home.clock_ms, runs), "disk")

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
        """Store a runner's report; in memory only, because the next one comes soon."""
        state = self.look(name)
        positions = _own_positions(state.definition, status)
        state = state._replace(status=msgspec.structs.replace(status, ts=self._clock.now_ms(), positions=positions))
        self._table[name] = state
        return state

    def backlog(self, state: PipelineState) -> Backlog | None:
        """What it has not read yet; None if no runner has reported its positions since the start of the server."""
        positions = state.status.positions if state.status is not None else None
        return None if positions is None else backlog_of(self._state.by_name, positions)

    def age_ms(self, backlog: Backlog) -> int:
        """How long its oldest record has waited; 0 if there is none."""
        oldest_ts = backlog.oldest_unread_ts
        return 0 if oldest_ts is None else max(0, self._clock.now_ms() - oldest_ts)

    def is_up(self, status: PipelineStatus) -> bool:
        """Whether a runner has recently reported that it runs."""
        return status.state in ("running", "idle") and self._clock.now_ms() - status.ts <= SILENT_MS_MAX


def written_table(name: str, request: PipelineRequest) -> str | None:
    """The table that a definition writes while it is enabled."""
    return request.table_written(name) if request.enabled is not False else None


def _own_positions(definition: PipelineRequest, status: PipelineStatus) -> dict[str, Position] | None:
    """Only of topics that the definition names: those who may see the pipeline may see these."""
    if status.positions is None or any(source.pattern is not None for source in definition.sources.values()):
        return status.positions
    names = {name for source in definition.sources.values() for name in source.names()}
    return {name: position for name, position in status.positions.items() if name in names}


def _disabled(state: PipelineState) -> Entry:
    return Entry(state.name, msgspec.structs.replace(state.definition, enabled=False), state.generation)
