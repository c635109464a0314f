"""Transactions: stage parts, commit or abort them, take a fencing token, get, list."""

from __future__ import annotations

from functools import partial

import msgspec
from msgspec import UNSET, UnsetType

from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.paging import NAME_PREFIX, page_params, page_query
from topics.api.replies import encode, performance, write_performance
from topics.api.routes import Route
from topics.api.schema import Performance
from topics.api.waiting import answering
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import Steps, attempt
from topics.engine.transactions.commit import Committed
from topics.engine.transactions.verbs import RENDERED_PER_STEP, StagedPart, Transactions
from topics.model.errors import InvalidRequest
from topics.model.requests.transactions import AbortRequest, CommitRequest, FenceRequest, StageRequest

VERSION_DIGITS_MAX = 19


class StageReply(msgspec.Struct):
    """`expires_ms` is when the stage is dropped if nothing more happens.

    `done` if the version is committed already; `fence` is the token of the highest version, 0 if it had none.
    """

    stage: str
    part: int
    records: int
    bytes: int
    expires_ms: int
    done: bool
    performance: Performance
    fence: int | UnsetType = UNSET


class LandedItem(msgspec.Struct):
    first_seq: int
    last_seq: int
    records: int


class CommitReply(msgspec.Struct):
    """`topics` is absent for a version below the highest one, whose outcome is not kept."""

    committed: bool
    deduped: bool
    version: int
    performance: Performance
    topics: dict[str, LandedItem] | UnsetType = UNSET


class AbortReply(msgspec.Struct):
    aborted: int
    performance: Performance


class FenceReply(msgspec.Struct):
    fence: int
    performance: Performance


class StageItem(msgspec.Struct):
    """`owner` had the token of the app when the stage was begun; null without a token, or if it has no owner."""

    version: int
    stage: str
    parts: int
    records: int
    bytes: int
    expires_ms: int
    created_ms: int
    owner: str | None


class AppReply(msgspec.Struct):
    app: str
    version: int | None
    fence: int
    stages: list[StageItem]
    performance: Performance


class AppItem(msgspec.Struct):
    app: str
    version: int | None
    fence: int
    stages: int
    bytes: int


class AppList(msgspec.Struct):
    apps: list[AppItem]
    next_cursor: str | None
    performance: Performance


class ForgottenReply(msgspec.Struct):
    app: str
    forgotten: bool
    performance: Performance


class Txns:
    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def routes(self) -> list[Route]:
        return [*self._version_routes("/v0/txns/{app}/{version}"), *self._app_routes("/v0/txns/{app}")]

    def _version_routes(self, version: str) -> list[Route]:
        return [
            Route(
                method="POST",
                path=f"{version}/stage",
                handler=self.stage,
                summary="Stage records, which become visible when their version is committed.",
                scopes=Scope.WRITE,
                body=StageRequest,
                replies={200: StageReply},
                errors=("batch_too_large", "record_too_large", "stage_not_found", "fenced", "storage_full"),
            ),
            Route(
                method="POST",
                path=f"{version}/commit",
                handler=self.commit,
                summary="Make stages visible in all their topics at once; a version is committed only once.",
                scopes=Scope.WRITE,
                body=CommitRequest,
                replies={200: CommitReply},
                errors=(
                    "stage_not_found",
                    "fenced",
                    "topic_not_found",
                    "topic_exists_incompatible",
                    "topic_full",
                    "storage_full",
                ),
            ),
            Route(
                method="POST",
                path=f"{version}/abort",
                handler=self.abort,
                summary="Drop stages.",
                scopes=Scope.WRITE,
                body=AbortRequest,
                replies={200: AbortReply},
                errors=("fenced",),
            ),
        ]

    def _app_routes(self, one: str) -> list[Route]:
        return [
            Route(
                method="POST",
                path=f"{one}/fence",
                handler=self.take_fence,
                summary="Take a new fencing token; holders of an older one are refused.",
                scopes=Scope.WRITE,
                body=FenceRequest,
                replies={200: FenceReply},
                errors=("fenced",),
            ),
            Route(
                method="GET",
                path=one,
                handler=self.look,
                summary="The highest version of an app, its token and its stages.",
                scopes=Scope.WRITE,
                replies={200: AppReply},
            ),
            Route(
                method="GET",
                path="/v0/txns",
                handler=self.list,
                summary="Apps by name, a page at a time.",
                scopes=Scope.WRITE,
                query=(NAME_PREFIX, *page_query("Apps")),
                replies={200: AppList},
            ),
            Route(
                method="DELETE",
                path=one,
                handler=self.forget,
                summary="Remove an app: its version, its token and its stages.",
                scopes=Scope.WRITE | Scope.DELETE,
                replies={200: ForgottenReply},
            ),
        ]

    # --- writing ---

    def stage(self, call: Call) -> Steps[None] | None:
        params: StageRequest = call.params
        app, version = _names(call)
        names = {record.topic for record in params.records}
        if params.topic is not None:
            call.principal.check_name(params.topic, "topic")
        for name in names:
            if name is not None:
                call.principal.check_name(name, "records[].topic")
        if len(params.records) > RENDERED_PER_STEP:
            return self._stage_large(call)
        self._transactions.stage(app, version, params).answer(answering(call, self._was_staged))
        return None

    def _stage_large(self, call: Call) -> Steps[None]:
        app, version = _names(call)
        prepared = yield from self._transactions.preparing(call.params, metas_checked=call.sliced)
        stage = partial(self._transactions.stage, app, version, call.params, prepared)
        change = yield from attempt(stage)
        change.answer(answering(call, self._was_staged))

    def _was_staged(self, call: Call, change: PendingChange) -> None:
        params: StageRequest = call.params
        result: StagedPart = change.result
        reply = StageReply(
            stage=params.stage,
            part=params.part,
            records=result.part.records,
            bytes=result.part.bytes,
            expires_ms=result.expires_ms,
            done=result.done,
            performance=write_performance(call, change),
            fence=result.fence if result.done else UNSET,
        )
        call.reply(200, encode(reply))

    def commit(self, call: Call) -> None:
        app, version = _names(call)

        def admit(name: str) -> None:
            call.principal.check_name(name, "stages")

        self._transactions.commit(app, version, call.params, admit).answer(answering(call, self._was_committed))

    def _was_committed(self, call: Call, change: PendingChange) -> None:
        result: Committed = change.result
        reply = CommitReply(
            committed=True,
            deduped=result.deduped,
            version=result.version,
            performance=write_performance(call, change),
        )
        if result.landed is not None:
            reply.topics = {
                landed.topic: LandedItem(landed.first_seq, landed.last_seq, landed.records) for landed in result.landed
            }
        call.reply(200, encode(reply))

    def abort(self, call: Call) -> None:
        app, version = _names(call)
        self._transactions.abort(app, version, call.params).answer(answering(call, self._was_aborted))

    def _was_aborted(self, call: Call, change: PendingChange) -> None:
        call.reply(200, encode(AbortReply(aborted=change.result, performance=write_performance(call, change))))

    def take_fence(self, call: Call) -> None:
        params: FenceRequest = call.params
        self._transactions.take_fence(call.name, params.owner).answer(answering(call, self._was_fenced))

    def _was_fenced(self, call: Call, change: PendingChange) -> None:
        call.reply(200, encode(FenceReply(fence=change.result, performance=write_performance(call, change))))

    def forget(self, call: Call) -> None:
        self._transactions.forget(call.name).answer(answering(call, self._was_forgotten))

    def _was_forgotten(self, call: Call, change: PendingChange) -> None:
        reply = ForgottenReply(app=call.name, forgotten=change.result, performance=write_performance(call, change))
        call.reply(200, encode(reply))

    # --- reading ---

    def look(self, call: Call) -> None:
        app, stages = self._transactions.look(call.name)
        reply = AppReply(
            app=call.name,
            version=app.version if app is not None else None,
            fence=app.fence if app is not None else 0,
            stages=[
                StageItem(
                    stage.version,
                    stage.name,
                    len(stage.parts),
                    stage.records,
                    stage.bytes,
                    expires_ms,
                    created_ms,
                    stage.owner or None,
                )
                for stage, created_ms, expires_ms in stages
            ],
            performance=performance(call),
        )
        call.reply(200, encode(reply))

    def list(self, call: Call) -> None:
        prefix, cursor, page_size = page_params(call)
        found = self._transactions.list(prefix, cursor or "", page_size + 1, prefixes=call.principal.prefixes)
        apps = [AppItem(app.name, app.version, app.fence, len(app.stages), app.bytes) for app in found[:page_size]]
        next_cursor = apps[-1].app if len(found) > page_size else None
        call.reply(200, encode(AppList(apps=apps, next_cursor=next_cursor, performance=performance(call))))


def _names(call: Call) -> tuple[str, int]:
    """The app and the version of a path that has both; only the version is certain to have no slash."""
    app, _, text = call.name.rpartition("/")
    if not text.isascii() or not text.isdigit() or len(text) > VERSION_DIGITS_MAX:
        raise InvalidRequest("version must be a whole number from 0 to 9223372036854775807", field="version")
    # The route compares prefixes with the whole path, in which a slash follows the app.
    call.principal.check_name(app, "app")
    return app, int(text)
