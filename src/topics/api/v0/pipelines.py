"""Pipelines: define, change, get, list, remove, and the reports of their runners."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from topics.api.auth import Principal, Scope
from topics.api.call import Call
from topics.api.paging import NAME_PREFIX, page_params, page_query
from topics.api.replies import encode, performance, write_performance
from topics.api.routes import Route
from topics.api.schema import Performance
from topics.api.waiting import answering
from topics.engine.core.pending import PendingChange
from topics.engine.pipelines.verbs import Pipelines as Verbs
from topics.engine.pipelines.verbs import PipelineState
from topics.model.errors import PipelineNotFound
from topics.model.names import check_topic_name
from topics.model.requests.pipelines import PipelineRequest, PipelineStatus, check_pipeline, check_status_size


class PipelineItem(msgspec.Struct):
    """`generation` is the revision since which a checkpoint of the pipeline fits its definition."""

    pipeline: str
    definition: PipelineRequest
    revision: int
    generation: int
    updated_ts: int
    status: PipelineStatus | None


class PipelineReply(PipelineItem):
    performance: Performance
    created: bool | UnsetType = UNSET


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
                body=PipelineRequest,
                replies={200: PipelineReply, 201: PipelineReply},
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
        self._verbs.put(call.name, params).then(answering(call, self._was_put))

    def _was_put(self, call: Call, change: PendingChange) -> None:
        reply = _reply(change.result, write_performance(call, change))
        reply.created = change.created
        call.reply(201 if change.created else 200, encode(reply))

    def look(self, call: Call) -> None:
        state = self._verbs.look(call.name)
        _check_ends(call.principal, state.definition)
        call.reply(200, encode(_reply(state, performance(call))))

    def list(self, call: Call) -> None:
        def wanted(state: PipelineState) -> bool:
            names = [state.name, *(name for name, _ in _ends(state.definition))]
            return all(name.startswith(call.principal.prefixes) for name in names)

        page = self._verbs.list(*page_params(call), wanted=wanted)
        items = [PipelineItem(*state) for state in page.pipelines]
        reply = PipelineList(pipelines=items, performance=performance(call))
        if page.next_cursor is not None:
            reply.next_cursor = page.next_cursor
        call.reply(200, encode(reply))

    def drop(self, call: Call) -> None:
        self._check_existing(call)
        self._verbs.drop(call.name).then(answering(call, self._dropped))

    def _check_existing(self, call: Call) -> None:
        """A pipeline of this name that is about to be replaced or removed."""
        try:
            _check_ends(call.principal, self._verbs.look(call.name).definition)
        except PipelineNotFound:
            pass

    def _dropped(self, call: Call, change: PendingChange) -> None:
        spent = write_performance(call, change)
        call.reply(200, encode(PipelineDroppedReply(pipeline=call.name, deleted=change.result, performance=spent)))

    def report(self, call: Call) -> None:
        check_status_size(call.request.body)
        _check_ends(call.principal, self._verbs.look(call.name).definition)
        call.reply(200, encode(_reply(self._verbs.report(call.name, call.params), performance(call))))


def _reply(state: PipelineState, spent: Performance) -> PipelineReply:
    return PipelineReply(*state, performance=spent)


def _ends(params: PipelineRequest) -> list[tuple[str, str]]:
    """The topics that a definition names, with the field of each. A pattern may match any topic: the empty prefix."""
    ends = [
        (name, f"sources.{view}")
        for view, source in params.sources.items()
        for name in ([""] if source.pattern is not None else source.names())
    ]
    if params.sink is not None and params.sink.topic is not None:
        ends.append((params.sink.topic, "sink.topic"))
    return ends


def _check_ends(principal: Principal, params: PipelineRequest, *, given: bool = False) -> None:
    """A pipeline moves records between topics: the principal must be allowed to see them as well."""
    for name, field in _ends(params):
        principal.check_name(name, field, given=given)
