"""Pipelines: define, change, get, list, remove, and the reports of their runners."""

from __future__ import annotations

from heapq import nlargest
from typing import cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from topics.api.auth import Principal, Scope
from topics.api.call import Call
from topics.api.paging import NAME_PREFIX, page_params, page_query
from topics.api.replies import encode, performance, write_performance
from topics.api.routes import QueryField, Route
from topics.api.schema import Performance
from topics.api.waiting import answering
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import Steps
from topics.engine.pipelines.backlog import Backlog
from topics.engine.pipelines.meaning import Effect, Plan
from topics.engine.pipelines.verbs import Pipelines as Verbs
from topics.engine.pipelines.verbs import PipelineState
from topics.model.cursors import AfterName, page_cursor
from topics.model.errors import PipelineNotFound, TableTaken
from topics.model.names import check_topic_name
from topics.model.requests.pipelines import (
    PipelineRequest,
    PipelineRestart,
    PipelineStatus,
    check_pipeline,
    check_status_size,
)

INPUTS_SHOWN_MAX = 1_000
# Of a list; and from here on other requests are handled before the next pipeline.
PAGE_BYTES_MAX, PAUSE_BYTES = 4 * 1024 * 1024, 64 * 1024


class PipelineInput(msgspec.Struct):
    """A topic that it reads, up to `seq` so far. `oldest_unread_ts`: of the first record after it."""

    topic: str
    seq: int
    head_seq: int
    lag: int
    oldest_unread_ts: int | None


class PipelineItem(msgspec.Struct):
    """`generation` is the revision since which a checkpoint of the pipeline fits its definition.

    `lag` is measured against the heads of its topics, whether or not a runner runs it; null: its positions are unknown.
    """

    pipeline: str
    definition: PipelineRequest
    revision: int
    generation: int
    updated_ts: int
    status: PipelineStatus | None
    lag: int | None
    oldest_unread_ts: int | None


class PipelineReply(PipelineItem):
    """`inputs` has the topics with the longest lag first, at most 1,000.

    A PUT says which fields it `changed`, and its `effect`: whether the pipeline continues from its checkpoint.
    """

    performance: Performance
    inputs: list[PipelineInput]
    created: bool | UnsetType = UNSET
    effect: Effect | UnsetType = UNSET
    changed: list[str] | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET


class PipelineList(msgspec.Struct):
    pipelines: list[PipelineItem]
    performance: Performance
    next_cursor: str | UnsetType = UNSET


class PipelineDroppedReply(msgspec.Struct):
    pipeline: str
    deleted: bool
    performance: Performance


class Pipelines:
    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    def routes(self) -> list[Route]:
        one = "/v0/pipelines/{pipeline}"
        return [
            Route(
                method="PUT",
                path=one,
                handler=self.put,
                summary="Define a pipeline or change it; a runner runs it.",
                scopes=Scope.ADMIN,
                query=(
                    QueryField("dry_run", bool, "Only report the effect.", default=False),
                    QueryField(
                        "keep_checkpoint",
                        bool,
                        "Continue from the checkpoint after a change that would start the pipeline again.",
                        default=False,
                    ),
                ),
                body=PipelineRequest,
                replies={200: PipelineReply, 201: PipelineReply},
                errors=("table_taken",),
            ),
            Route(
                method="GET",
                path=one,
                handler=self.look,
                summary="A pipeline and its last reported status.",
                scopes=Scope.READ,
                replies={200: PipelineReply},
                errors=("pipeline_not_found",),
            ),
            Route(
                method="GET",
                path="/v0/pipelines",
                handler=self.list,
                summary="Pipelines by name, a page at a time.",
                scopes=Scope.READ,
                query=(NAME_PREFIX, *page_query("Pipelines")),
                replies={200: PipelineList},
            ),
            Route(
                method="DELETE",
                path=one,
                handler=self.drop,
                summary="Remove a pipeline; its runner stops it, and the records it wrote stay.",
                scopes=Scope.DELETE,
                replies={200: PipelineDroppedReply},
            ),
            *self._running_routes(one),
        ]

    def _running_routes(self, one: str) -> list[Route]:
        """How it is run, and what its runner says."""
        return [
            Route(
                method="POST",
                path=f"{one}/restart",
                handler=self.restart,
                summary="Let the runner stop the pipeline and start it again.",
                scopes=Scope.ADMIN,
                body=PipelineRestart,
                replies={200: PipelineReply},
                errors=("pipeline_not_found",),
            ),
            Route(
                method="POST",
                path=f"{one}/status",
                handler=self.report,
                summary="Report the status of a pipeline, which `GET` then shows.",
                scopes=Scope.ADMIN,
                body=PipelineStatus,
                replies={200: PipelineReply},
                errors=("pipeline_not_found",),
            ),
        ]

    def put(self, call: Call) -> None:
        params: PipelineRequest = call.params
        check_topic_name(call.name, "pipeline")
        check_pipeline(params)
        _check_ends(call.principal, params, given=True)
        self._check_existing(call)
        self._check_rivals(call, params)
        keep = call.flag("keep_checkpoint", False)
        plan = self._verbs.plan(call.name, params, keep_checkpoint=keep)
        if call.flag("dry_run", False):
            self._reply_planned(call, params, plan)
            return
        change = self._verbs.put(call.name, params, keep_checkpoint=keep)
        change.answer(answering(call, lambda call, change: self._was_put(call, change, plan)))

    def _reply_planned(self, call: Call, params: PipelineRequest, plan: Plan) -> None:
        try:
            state = self._verbs.look(call.name)
        except PipelineNotFound:
            state = PipelineState(call.name, params, 0, 0, 0)
        reply = self._reply(state._replace(definition=params), performance(call))
        reply.created, reply.effect, reply.changed = plan.effect == "created", plan.effect, plan.changed
        reply.dry_run = True
        call.reply(200, encode(reply))

    def _check_rivals(self, call: Call, params: PipelineRequest) -> None:
        """A table of a pipeline that the principal may not change cannot be taken over."""
        principal = call.principal
        for rival in self._verbs.rivals(call.name, params):
            names = [rival.name, *(name for name, _ in rival.definition.ends())]
            if not all(name.startswith(principal.prefixes) for name in names):
                raise TableTaken(params.table_of(call.name), None)

    def _was_put(self, call: Call, change: PendingChange, plan: Plan) -> None:
        reply = self._reply(change.result, write_performance(call, change))
        reply.created, reply.effect, reply.changed = change.created, plan.effect, plan.changed
        call.reply(201 if change.created else 200, encode(reply))

    def look(self, call: Call) -> None:
        state = self._verbs.look(call.name)
        _check_ends(call.principal, state.definition)
        call.reply(200, encode(self._reply(state, performance(call))))

    def list(self, call: Call) -> Steps[None]:
        def wanted(state: PipelineState) -> bool:
            names = [state.name, *(name for name, _ in state.definition.ends())]
            return all(name.startswith(call.principal.prefixes) for name in names)

        page = self._verbs.list(*page_params(call), wanted=wanted)
        next_cursor, items, size = page.next_cursor, list[Raw](), 0
        for state in page.pipelines:
            if size >= PAGE_BYTES_MAX:
                # A page of pipelines that report a lot is shorter than requested.
                next_cursor = page_cursor(AfterName(page.pipelines[len(items) - 1].name))
                break
            items.append(Raw(encode(_shown(state, self._verbs.backlog(state)))))
            size += len(items[-1])
            if len(items[-1]) >= PAUSE_BYTES:
                yield None
        reply = PipelineList(pipelines=cast("list[PipelineItem]", items), performance=performance(call))
        if next_cursor is not None:
            reply.next_cursor = next_cursor
        call.reply(200, encode(reply))

    def drop(self, call: Call) -> None:
        self._check_existing(call)
        self._verbs.drop(call.name).answer(answering(call, self._dropped))

    def _check_existing(self, call: Call) -> None:
        """A pipeline of this name that is about to be replaced or removed."""
        try:
            _check_ends(call.principal, self._verbs.look(call.name).definition)
        except PipelineNotFound:
            pass

    def _dropped(self, call: Call, change: PendingChange) -> None:
        spent = write_performance(call, change)
        call.reply(200, encode(PipelineDroppedReply(pipeline=call.name, deleted=change.result, performance=spent)))

    def restart(self, call: Call) -> None:
        params: PipelineRestart = call.params
        _check_ends(call.principal, self._verbs.look(call.name).definition)
        self._verbs.restart(call.name, anew=params.start == "sources").answer(answering(call, self._restarted))

    def _restarted(self, call: Call, change: PendingChange) -> None:
        call.reply(200, encode(self._reply(change.result, write_performance(call, change))))

    def report(self, call: Call) -> None:
        check_status_size(call.request.body)
        _check_ends(call.principal, self._verbs.look(call.name).definition)
        call.reply(200, encode(self._reply(self._verbs.report(call.name, call.params), performance(call))))

    def _reply(self, state: PipelineState, spent: Performance) -> PipelineReply:
        backlog = self._verbs.backlog(state)
        longest = nlargest(INPUTS_SHOWN_MAX, backlog.inputs if backlog is not None else (), key=lambda each: each.lag)
        inputs = [PipelineInput(*each) for each in longest]
        return PipelineReply(**msgspec.structs.asdict(_shown(state, backlog)), performance=spent, inputs=inputs)


def _shown(state: PipelineState, backlog: Backlog | None) -> PipelineItem:
    """A pipeline in a list. Positions are shown as `inputs`, and only for one pipeline at a time."""
    status = state.status
    if status is None or backlog is None:
        return PipelineItem(*state, None if status is None else status.lag, None)
    status = msgspec.structs.replace(status, lag=backlog.lag, positions=None)
    return PipelineItem(*state._replace(status=status), backlog.lag, backlog.oldest_unread_ts)


def _check_ends(principal: Principal, params: PipelineRequest, *, given: bool = False) -> None:
    """A pipeline moves records between topics: the principal must be allowed to see them as well."""
    for name, field in params.ends():
        principal.check_name(name, field, given=given)
