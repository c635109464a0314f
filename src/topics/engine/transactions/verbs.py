"""The verbs of transactions: stage, commit, abort, take a token, forget; and the upkeep of commits and expiry.

    stage ─▶ one op per part: acknowledged after write(2), in hidden topics
    commit ─▶ Commit, in slices of a millisecond in the background ─▶ one op, synced ─▶ all topics move at once

A version of an app is committed once; a later commit of it, or of an older one, gets the reply that it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from typing import TYPE_CHECKING, NamedTuple, cast

from topics.engine.core.appended import Appended
from topics.engine.core.ops import Dropped
from topics.engine.core.pending import Busy, PendingChange, settled
from topics.engine.core.waiting.runner import Runner
from topics.engine.log.topic import STAGING
from topics.engine.transactions.commit import Commit, Committed
from topics.engine.transactions.ledger import FENCE_FLOOR_ID, App, Ledger, PartSize, Stage
from topics.engine.transactions.ops import TxnAborted, TxnFenced, TxnForgotten, TxnStaged
from topics.model.clock import Clock
from topics.model.errors import Fenced, InvalidRequest, StageNotFound, Throttled, TopicsError
from topics.model.names import check_topic_name
from topics.model.requests.batch import Batch, check_batch, join_unless_large, render_headless
from topics.model.requests.records import AppendRequest, RecordRequest
from topics.model.requests.transactions import (
    PARTS_MAX,
    UNKNOWN_STAGES,
    AbortRequest,
    CommitRequest,
    StageRequest,
    check_app_name,
    check_empty_raise,
    check_owner,
    check_stage_name,
    check_stage_names,
    check_version,
    stages_digest,
)
from topics.storage.steps import at_once

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine

EXPIRY_EVERY_MS = 1_000
# Hidden topics that are removed before the clock is looked at, and how long one slice of upkeep takes.
REMOVED_AT_ONCE = 50
UPKEEP_S = 0.001


class StagedPart(NamedTuple):
    """The result of staging a part; `done` if its version was committed before, `fence` is the token of the highest."""

    part: PartSize
    expires_ms: int
    done: bool = False
    fence: int = 0


class LookedStage(NamedTuple):
    """A stage, when it began, and when it expires, both by the wall clock."""

    stage: Stage
    created_ms: int
    expires_ms: int


# The records of a part by the topic they are meant for, without their seqs.
PartBatches = list[tuple[str, Batch]]
# Records that are rendered at once.
RENDERED_PER_STEP = 500


class Transactions:
    """Owned by the thread that owns the engine. Commits are tasks of the background runner."""

    def __init__(self, engine: Engine, runner: Runner, clock: Clock) -> None:
        self._engine = engine
        self._state = engine.state
        self._ledger = engine.state.feature(Ledger)
        self._commit_log = engine.commit_log
        self._settings = engine.settings
        self._clock = clock
        self._steady = engine.steady
        self._in_flight = engine.in_flight
        self._runner = runner
        self._leftovers: list[int] = []  # hidden topics of commits that failed
        self._expiry_ms = 0.0

    # --- verbs ---

    def preparing(self, request: StageRequest, *, metas_checked: bool = False) -> Generator[None, None, PartBatches]:
        """Check and render the records of a part, whatever is staged; pauses after each millisecond or so of work."""
        batches: PartBatches = []
        unpaused = 0
        groups = self._groups(request, metas_checked=metas_checked)
        yield
        for name, records, bare in groups:
            batches.append((name, render_headless(AppendRequest(records, request.node), 1, 0, bare=bare)))
            unpaused += len(records)
            if unpaused >= RENDERED_PER_STEP:
                unpaused = 0
                yield
        join_unless_large([batch for _, batch in batches])
        return batches

    def stage(
        self, app_name: str, version: int, request: StageRequest, prepared: PartBatches | None = None
    ) -> PendingChange:
        """Stage a part. `result` is a StagedPart; the same part is not written twice."""
        check_app_name(app_name)
        check_version(version)
        check_stage_name(request.stage, "stage")
        app = self._ledger.by_name.get(app_name)
        if app is not None and app.version is not None and version <= app.version:
            fence = app.version_fence if version == app.version else 0
            return settled(app.id, StagedPart(PartSize(0, 0), 0, done=True, fence=fence))
        self._refuse_another_app(app_name)
        self._in_flight.check(("app", app_name))
        self._check_token(app_name, request.fence)
        self._in_flight.check(("stage", app_name, version, request.stage))
        stage = self._stage_of(app, version, request.stage)
        if request.part < (len(stage.parts) if stage is not None else 0):
            assert app is not None
            assert stage is not None
            return settled(app.id, StagedPart(stage.parts[request.part], self._shown_ms(stage)))
        self._check_part(request, stage)
        batches = prepared if prepared is not None else at_once(self.preparing(request))
        self._commit_log.check_writable()
        now = self._steady.now_ms()
        shelves: list[tuple[str, Appended]] = []
        for name, batch in batches:
            shelf = stage.shelves.get(name) if stage is not None else None
            if shelf is None:
                topic_id, batch.first_seq = self._state.new_id(), 1
            else:
                topic_id, batch.first_seq, now = shelf.id, shelf.head_seq + 1, shelf.now(now)
            batch.ts = now
            shelves.append((name, Appended(topic_id, 1, b"", batch)))
        part = PartSize(len(request.records), sum(appended.batch.size for _, appended in shelves))
        self._refuse_too_much(app, stage, part)
        op = TxnStaged(self._id_of(app_name), app_name, version, request.stage, request.part, now, shelves)
        change = self._commit_log.submit(op, op.body(), gated=False)
        change.result = StagedPart(part, self._steady.wall_ms(now + self._settings.stage_ttl_ms))
        return self._in_flight.hold(change, ("stage", app_name, version, request.stage), ("parts", app_name))

    def commit(
        self, app_name: str, version: int, request: CommitRequest, admit: Callable[[str], None] | None = None
    ) -> PendingChange:
        """Make stages visible in their topics, all or nothing. `result` is a Committed; `admit` may refuse a topic."""
        check_app_name(app_name)
        check_version(version)
        check_stage_names(request.stages)
        app = self._ledger.by_name.get(app_name)
        if app is not None and app.version is not None and version <= app.version:
            return self._done_before(app, version, request.stages)
        if not request.stages:
            check_empty_raise(version, (app.version if app is not None else None) or 0)
        self._refuse_another_app(app_name)
        self._check_settled(app_name)
        self._check_token(app_name, request.fence)
        stages = [self._stage_or_refuse(app, version, name) for name in request.stages]
        self._commit_log.check_writable()
        outcome = PendingChange(None, self._id_of(app_name), gated=False)
        commit = Commit(
            self._engine,
            self._runner,
            outcome.topic_id,
            app_name,
            version,
            stages,
            outcome,
            self._clock,
            self._leftovers,
            create=request.create,
            named=stages_digest(request.stages),
            admit=admit,
        )
        commit.start()
        return self._in_flight.hold(outcome, ("app", app_name))

    def _done_before(self, app: App, version: int, stages: Collection[str]) -> PendingChange:
        """The outcome of a committed version; stages that it did not name are refused, because they do not exist."""
        highest = version == app.version
        if stages and not (highest and app.named in (stages_digest(stages), UNKNOWN_STAGES)):
            raise StageNotFound(
                f'"{app.name}" has committed version {app.version}, but not these stages of version {version}: '
                "stage the records again under a higher version",
                app=app.name,
                version=app.version,
            )
        return settled(app.id, Committed(version, deduped=True, landed=app.outcome if highest else None))

    def abort(self, app_name: str, version: int, request: AbortRequest) -> PendingChange:
        """Drop stages. `result` is how many there were."""
        check_app_name(app_name)
        check_version(version)
        check_stage_names(request.stages)
        app = self._ledger.by_name.get(app_name)
        self._refuse_another_app(app_name)
        self._check_settled(app_name)
        self._check_token(app_name, request.fence)
        found = [(version, name) for name in request.stages if app is not None and (version, name) in app.stages]
        if app is None or not found:
            return settled(0, 0)
        self._commit_log.check_writable()
        return self._abort(app, found)

    def take_fence(self, app_name: str, owner: str | None = None) -> PendingChange:
        """A new token for the app, durable when this is done; `result` is the token. The same owner gets it again."""
        check_app_name(app_name)
        if owner is not None:
            check_owner(owner)
        self._refuse_another_app(app_name)
        self._in_flight.check(("app", app_name))
        app = self._ledger.by_name.get(app_name)
        if app is not None and owner is not None and self._holds_newest(app, owner):
            return settled(app.id, app.fence)
        self._check_settled(app_name)
        self._commit_log.check_writable()
        fence = max(app.fence if app is not None else 0, self._ledger.fence_floor) + 1
        op = TxnFenced(self._id_of(app_name), app_name, fence, self._clock.now_ms(), owner or "")
        change = self._commit_log.submit(op, op.encode(), gated=True)
        change.result = fence
        return self._in_flight.hold(change, ("app", app_name))

    def _holds_newest(self, app: App, owner: str) -> bool:
        """Whether the newest token belongs to this owner; an owner with an older token is refused."""
        held = {known: fence for fence, known in app.owners}.get(owner)
        if held is not None and held != app.fence:
            raise Fenced(
                f'"{owner}" has token {held} of "{app.name}", but the newest is {app.fence}: another has taken over',
                app=app.name,
                fence=app.fence,
            )
        return held is not None

    def forget(self, app_name: str) -> PendingChange:
        """Forget an app: its version, its token, its stages. `result`: whether it was known."""
        check_app_name(app_name)
        app = self._ledger.by_name.get(app_name)
        self._refuse_another_app(app_name)
        self._check_settled(app_name)
        if app is None:
            return settled(0, False)
        self._commit_log.check_writable()
        op = TxnForgotten(app.id)
        change = self._commit_log.submit(op, op.encode(), gated=True)
        change.result = True
        return self._in_flight.hold(change, ("app", app_name))

    def look(self, app_name: str) -> tuple[App | None, list[LookedStage]]:
        """The app and its stages."""
        check_app_name(app_name)
        app = self._ledger.by_name.get(app_name)
        if app is None:
            return None, []
        now = self._steady.now_ms()
        open_stages = [stage for stage in app.stages.values() if self._expires_ms(stage) > now]
        wall_ms = self._steady.wall_ms
        return app, [LookedStage(stage, wall_ms(stage.created_ms), self._shown_ms(stage)) for stage in open_stages]

    # --- deciding ---

    # Busy are ("app", name) with a commit, an abort or a new token: the next one decides after it; ("stage", app,
    # version, name) with a part: the next part of the stage waits; and ("parts", app) with the newest part of all.

    def _check_token(self, app_name: str, fence: int | None) -> None:
        """Only the newest token is valid, if there is one. Pending changes have been waited for."""
        app = self._ledger.by_name.get(app_name)
        newest = app.fence if app is not None else 0
        if (newest or fence is not None) and fence != newest:
            raise Fenced(
                f'the newest token of "{app_name}" is {newest}: its owner has taken over',
                app=app_name,
                fence=newest,
            )

    def _check_settled(self, app_name: str) -> None:
        """Raises Busy while a change of the app is pending."""
        self._in_flight.check(("app", app_name), ("parts", app_name))

    def _id_of(self, app_name: str) -> int:
        """The app's id, for a write about it; the id of a new app may be in its first parts."""
        app, part = self._ledger.by_name.get(app_name), self._in_flight.with_what(("parts", app_name))
        if app is not None:
            return app.id
        return part.topic_id if part is not None else self._state.new_id()

    def _stage_of(self, app: App | None, version: int, name: str) -> Stage | None:
        stage = app.stages.get((version, name)) if app is not None else None
        return None if stage is not None and self._expires_ms(stage) <= self._steady.now_ms() else stage

    def _stage_or_refuse(self, app: App | None, version: int, name: str) -> Stage:
        stage = self._stage_of(app, version, name)
        if stage is None:
            raise StageNotFound(
                f'stage "{name}" of version {version} does not exist (any more): stage it again', stage=name
            )
        return stage

    def _expires_ms(self, stage: Stage) -> int:
        return stage.touched_ms + self._settings.stage_ttl_ms

    def _shown_ms(self, stage: Stage) -> int:
        return self._steady.wall_ms(self._expires_ms(stage))

    def _check_part(self, request: StageRequest, stage: Stage | None) -> None:
        """Parts come in order, so that a stage that expired half-way is never taken for a complete one."""
        if stage is None and request.part:
            raise StageNotFound(
                f'there is no stage "{request.stage}" that part {request.part} could continue: start again with part 0 '
                "of a new stage",
                stage=request.stage,
            )
        expected = len(stage.parts) if stage is not None else 0
        if request.part > expected:
            raise InvalidRequest(f"part must be {expected}: the parts of a stage come in order", field="part")
        if expected >= PARTS_MAX:
            raise InvalidRequest(f"a stage has at most {PARTS_MAX} parts: use another stage", field="part")

    def _groups(self, request: StageRequest, *, metas_checked: bool) -> list[tuple[str, list[RecordRequest], bool]]:
        """The records by the topic they go to, and whether they are bare."""
        records = cast("list[RecordRequest]", request.records)
        bare = check_batch(AppendRequest(records, request.node), self._settings, metas_checked=metas_checked)
        if not bare and any(
            record.delay_ms or record.unique_key is not None or record.job_priority or record.group is not None
            for record in records
        ):
            raise InvalidRequest(
                "delay_ms, unique_key, job_priority and group cannot be part of a transaction", field="records"
            )
        names = list(dict.fromkeys(record.topic for record in request.records))
        if len(names) == 1:
            return [(self._topic_name(names.pop(), request), records, bare)]
        by_name: dict[str, list[RecordRequest]] = {}
        for name in names:
            by_name.setdefault(self._topic_name(name, request), [])
        for record in request.records:
            by_name[record.topic or request.topic or ""].append(record)
        return [(name, found, bare) for name, found in by_name.items()]

    def _topic_name(self, name: str | None, request: StageRequest) -> str:
        name = name or request.topic
        if not name:
            raise InvalidRequest("topic must be given, for the part or for each record", field="topic")
        check_topic_name(name)
        return name

    def _refuse_too_much(self, app: App | None, stage: Stage | None, part: PartSize) -> None:
        settings, ledger = self._settings, self._ledger
        way_out = "commit or abort some stages, or raise the setting"
        if stage is None and ledger.stages >= settings.max_stages:
            raise Throttled(
                f"there are {ledger.stages} stages; {way_out} max_stages", limit="max_stages", max=settings.max_stages
            )
        for held, limit, name in (
            (app.bytes if app is not None else 0, settings.max_staged_bytes_per_app, "max_staged_bytes_per_app"),
            (ledger.bytes, settings.max_staged_bytes, "max_staged_bytes"),
        ):
            if held + part.bytes > limit:
                raise Throttled(f"{held} bytes are staged; {way_out} {name}", limit=name, max=limit)

    def _refuse_another_app(self, app_name: str) -> None:
        limit, in_flight = self._settings.max_txn_apps, self._in_flight.with_what
        if app_name in self._ledger.by_name or in_flight(("app", app_name)) or in_flight(("parts", app_name)):
            return
        if len(self._ledger.by_name) >= limit:
            raise Throttled(
                f"there are {limit} apps; DELETE /v0/txns/<app> forgets one, or raise the setting max_txn_apps",
                limit="max_txn_apps",
                max=limit,
            )

    def _abort(self, app: App, stages: list[tuple[int, str]]) -> PendingChange:
        op = TxnAborted(app.id, stages)
        change = self._commit_log.submit(op, op.encode(), gated=False)
        change.result = len(stages)
        return self._in_flight.hold(change, ("app", app.name))

    # --- upkeep ---

    def keep_house(self) -> bool:
        """Drop what commits left, and stages that have expired; called regularly. Whether there is more to do now."""
        if self._leftovers and self._commit_log.read_only is None:
            leftovers, self._leftovers[:REMOVED_AT_ONCE] = self._leftovers[:REMOVED_AT_ONCE], []
            self._drop_hidden(leftovers)
        clock_s = self._runner.clock_s
        until_s = clock_s() + UPKEEP_S
        while self._ledger.abandoned:
            self._ledger.remove_abandoned(REMOVED_AT_ONCE)
            if clock_s() >= until_s:
                break
        self._expire()
        return bool(self._ledger.abandoned or (self._leftovers and self._commit_log.read_only is None))

    def _expire(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._expiry_ms or not self._ledger.stages or self._commit_log.read_only is not None:
            return
        self._expiry_ms = now_ms + EXPIRY_EVERY_MS
        horizon = self._steady.now_ms() - self._settings.stage_ttl_ms
        for app in list(self._ledger.by_id.values()):
            found = [key for key, stage in app.stages.items() if stage.touched_ms <= horizon]
            if found:
                try:
                    self._check_settled(app.name)
                    self._abort(app, found)
                except (Busy, TopicsError):
                    continue

    # --- after a start ---

    def recovered(self, *, whole: bool, fences_ahead: int = 0) -> None:
        """Drop what an unfinished commit had prepared. Drop all stages unless the log is complete: parts may be lost.

        `fences_ahead` is how many tokens of any app may have been issued that the log does not have.
        """
        if fences_ahead:
            newest = max((app.fence for app in self._ledger.by_id.values()), default=0)
            floor = max(newest, self._ledger.fence_floor) + fences_ahead
            fenced = TxnFenced(FENCE_FLOOR_ID, "", floor, self._clock.now_ms())
            self._commit_log.submit(fenced, fenced.encode(), gated=False, urgent=True)
        if not whole:
            for app in self._ledger.by_id.values():
                if app.stages:
                    op = TxnAborted(app.id, list(app.stages))
                    self._commit_log.submit(op, op.encode(), gated=False, urgent=True)
        self._commit_log.flush()
        self._ledger.remove_abandoned()
        used = self._ledger.hidden_in_use()
        hidden = [topic.id for topic in self._state.hidden.values() if topic.name.startswith(STAGING)]
        self._drop_hidden([topic_id for topic_id in hidden if topic_id not in used])
        self._commit_log.flush()

    def _drop_hidden(self, ids: list[int]) -> None:
        for topic_id in ids:
            topic = self._state.by_id.get(topic_id)
            if topic is not None and topic.name.startswith(STAGING):
                op = Dropped(topic_id)
                self._commit_log.submit(op, op.encode(), gated=False, urgent=True)

    def list(self, prefix: str, after: str, limit: int, *, prefixes: tuple[str, ...] = ("",)) -> list[App]:
        """Apps by name, those after `after` that start with `prefix` and with one of `prefixes`."""
        names = sorted(
            name
            for name in self._ledger.by_name
            if name.startswith(prefix) and name.startswith(prefixes) and name > after
        )
        return [self._ledger.by_name[name] for name in names[:limit]]
