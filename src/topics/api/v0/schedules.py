"""Schedules: create and change, get, list, remove, run now."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.paging import NAME_PREFIX, page_params, page_query
from topics.api.replies import encode, performance, write_performance
from topics.api.routes import QueryField, Route
from topics.api.schema import Performance
from topics.api.waiting import answering
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import Steps
from topics.engine.schedules.verbs import Schedules as Verbs
from topics.engine.schedules.verbs import ScheduleState
from topics.model.errors import ScheduleNotFound
from topics.model.names import check_topic_name
from topics.model.schedules.schedule_config import Missed, ScheduleConfig, ScheduleRequest, ScheduleRunRequest


class ScheduleItem(msgspec.Struct):
    """`next_ts`: its next due time; `last_due_ts`: that of its last record, which was appended at `last_ts`."""

    schedule: str
    topic: str
    cron: str | None
    every_ms: int | None
    at: int | None
    timezone: str
    data: Raw
    tag: str | None
    missed: Missed
    jitter_ms: int
    paused: bool
    next_ts: int | None
    last_due_ts: int | None
    last_ts: int | None
    last_seq: int | None
    runs_total: int
    last_error: str | None


class ScheduleReply(ScheduleItem):
    performance: Performance
    created: bool | UnsetType = UNSET


class ScheduleList(msgspec.Struct):
    schedules: list[ScheduleItem]
    performance: Performance
    next_cursor: str | UnsetType = UNSET


class ScheduleRunReply(msgspec.Struct):
    schedule: str
    topic: str
    seq: int
    performance: Performance


class ScheduleDroppedReply(msgspec.Struct):
    schedule: str
    deleted: bool
    performance: Performance


class Schedules:
    """A schedule appends for its creator: a key that may write to its topic may create it."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    def routes(self) -> list[Route]:
        one = "/v0/schedules/{schedule}"
        return [
            Route(
                method="PUT",
                path=one,
                handler=self.put,
                summary="Create a schedule or change it.",
                scopes=Scope.WRITE,
                body=ScheduleRequest,
                replies={200: ScheduleReply, 201: ScheduleReply},
                errors=("topic_not_found", "record_too_large"),
            ),
            Route(
                method="GET",
                path=one,
                handler=self.look,
                summary="A schedule, its next and its last run.",
                scopes=Scope.READ,
                replies={200: ScheduleReply},
                errors=("schedule_not_found",),
            ),
            Route(
                method="GET",
                path="/v0/schedules",
                handler=self.list,
                summary="Schedules by name, a page at a time.",
                scopes=Scope.READ,
                query=(
                    NAME_PREFIX,
                    QueryField("topic", str, "Only schedules of this topic."),
                    *page_query("Schedules"),
                ),
                replies={200: ScheduleList},
            ),
            Route(
                method="DELETE",
                path=one,
                handler=self.drop,
                summary="Remove a schedule; the records it appended stay.",
                scopes=Scope.DELETE,
                replies={200: ScheduleDroppedReply},
            ),
            Route(
                method="POST",
                path=f"{one}/run",
                handler=self.run,
                summary="Append the record of a schedule now; its due times stay.",
                scopes=Scope.WRITE,
                body=ScheduleRunRequest,
                replies={200: ScheduleRunReply},
                errors=("schedule_not_found", "topic_not_found", "topic_full"),
            ),
        ]

    def put(self, call: Call) -> None:
        params: ScheduleRequest = call.params
        check_topic_name(call.name, "schedule")
        self._verbs.resolve(params)
        call.principal.check_name(params.topic, "topic")
        self._check_existing(call)
        self._verbs.put(call.name, params).answer(answering(call, self._was_put))

    def _was_put(self, call: Call, change: PendingChange) -> None:
        reply = _reply(change.result, write_performance(call, change))
        reply.created = change.created
        call.reply(201 if change.created else 200, encode(reply))

    def look(self, call: Call) -> None:
        state = self._verbs.look(call.name)
        call.principal.check_name(state.config.topic, "topic", given=False)
        call.reply(200, encode(_reply(state, performance(call))))

    def list(self, call: Call) -> Steps[None]:
        topic, prefixes = call.text("topic"), call.principal.prefixes

        def wanted(name: str, config: ScheduleConfig) -> bool:
            if topic is not None and topic != config.topic:
                return False
            return name.startswith(prefixes) and config.topic.startswith(prefixes)

        page = yield from self._verbs.list(*page_params(call), wanted=wanted)
        reply = ScheduleList(schedules=[_item(state) for state in page.schedules], performance=performance(call))
        if page.next_cursor is not None:
            reply.next_cursor = page.next_cursor
        call.reply(200, encode(reply))

    def drop(self, call: Call) -> None:
        self._check_existing(call)
        self._verbs.drop(call.name).answer(answering(call, self._dropped))

    def _dropped(self, call: Call, change: PendingChange) -> None:
        spent = write_performance(call, change)
        call.reply(200, encode(ScheduleDroppedReply(schedule=call.name, deleted=change.result, performance=spent)))

    def run(self, call: Call) -> None:
        state = self._verbs.look(call.name)
        call.principal.check_name(state.config.topic, "topic", given=False)
        self._verbs.run(call.name).answer(answering(call, lambda call, change: self._has_run(call, change, state)))

    def _has_run(self, call: Call, change: PendingChange, state: ScheduleState) -> None:
        spent = write_performance(call, change)
        reply = ScheduleRunReply(schedule=state.name, topic=state.config.topic, seq=change.first_seq, performance=spent)
        call.reply(200, encode(reply))

    def _check_existing(self, call: Call) -> None:
        """A schedule of this name that is about to be replaced or removed."""
        try:
            state = self._verbs.look(call.name)
        except ScheduleNotFound:
            return
        call.principal.check_name(state.config.topic, "topic", given=False)


def _item(state: ScheduleState) -> ScheduleItem:
    return ScheduleItem(state.name, **msgspec.structs.asdict(state.config), **_progress(state))


def _reply(state: ScheduleState, spent: Performance) -> ScheduleReply:
    return ScheduleReply(state.name, **msgspec.structs.asdict(state.config), **_progress(state), performance=spent)


def _progress(state: ScheduleState) -> dict[str, Any]:
    return {name: getattr(state, name) for name in ScheduleState._fields[2:]}
