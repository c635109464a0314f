"""Topics: create and configure, change in part, get, list, remove."""

from __future__ import annotations

from msgspec import UNSET, convert

from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.paging import NAME_PREFIX, page_params, page_query
from topics.api.replies import encode, performance, write_performance
from topics.api.routes import QueryField, Route
from topics.api.schema import (
    ConfiguredReply,
    DroppedReply,
    EditedReply,
    QueueCounters,
    StateReply,
    TopicItem,
    TopicList,
)
from topics.api.waiting import answering
from topics.engine.core.configuration import Edit
from topics.engine.core.engine import Engine
from topics.engine.core.pending import PendingChange
from topics.model.requests.config import ConfigPatch, ConfigRequest, resolve
from topics.model.requests.warnings import config_warnings


class Topics:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        one, touched = "/v0/topics/{topic}", "Whether this counts as a read for auto_priority."
        return [
            Route(
                method="PUT",
                path=one,
                handler=self.configure,
                summary="Create a topic or replace its configuration.",
                scopes=Scope.ADMIN,
                body=ConfigRequest,
                query=(QueryField("replace", bool, "false: refuse to change a topic that exists.", default=True),),
                replies={200: ConfiguredReply, 201: ConfiguredReply},
                errors=("topic_exists_incompatible",),
            ),
            Route(
                method="PATCH",
                path=one,
                handler=self.edit,
                summary="Change the given fields of a topic's configuration.",
                scopes=Scope.ADMIN,
                body=ConfigPatch,
                query=(QueryField("dry_run", bool, "Only report what would change.", default=False),),
                replies={200: EditedReply},
                errors=("topic_not_found", "topic_exists_incompatible"),
            ),
            Route(
                method="GET",
                path=one,
                handler=self.look,
                summary="The state of a topic.",
                scopes=Scope.READ,
                query=(QueryField("touch", bool, touched, default=True),),
                replies={200: StateReply},
                errors=("topic_not_found",),
            ),
            Route(
                method="GET",
                path="/v0/topics",
                handler=self.list,
                summary="Topics by name, a page at a time.",
                scopes=Scope.READ,
                query=(
                    NAME_PREFIX,
                    *page_query("Topics"),
                    QueryField("touch", bool, touched, default=False),
                ),
                replies={200: TopicList},
            ),
            Route(
                method="DELETE",
                path=one,
                handler=self.drop,
                summary="Remove a topic and everything in it.",
                scopes=Scope.DELETE,
                query=(QueryField("if_empty", bool, "Refuse if the topic holds records.", default=False),),
                replies={200: DroppedReply},
                errors=("topic_not_empty",),
            ),
        ]

    def configure(self, call: Call) -> None:
        call.check_query()
        check_config_names(call, call.params)
        replace = call.flag("replace", True)
        change = self._engine.configuration.put(call.name, call.params, replace=replace)
        change.then(answering(call, self._configured))

    def _configured(self, call: Call, change: PendingChange) -> None:
        reply = ConfiguredReply(
            topic=call.name, created=change.created, config=change.result, performance=write_performance(call, change)
        )
        reply.warnings = config_warnings(reply.config, call.params) or UNSET
        call.reply(201 if change.created else 200, encode(reply))

    def edit(self, call: Call) -> None:
        call.check_query()
        patch: ConfigPatch = call.params
        if isinstance(patch.dead_letter, str):
            check_config_names(call, ConfigRequest(dead_letter=patch.dead_letter))
        change = self._engine.configuration.edit(call.name, patch, dry_run=call.flag("dry_run", False))
        change.then(answering(call, self._edited))

    def _edited(self, call: Call, change: PendingChange) -> None:
        edit: Edit = change.result
        reply = EditedReply(
            topic=call.name,
            config=edit.config,
            changes=edit.changes,
            evicts=edit.evicts,
            dry_run=call.flag("dry_run", False),
            performance=write_performance(call, change),
            warnings=config_warnings(edit.config, call.params) or UNSET,
        )
        call.reply(200, encode(reply))

    def look(self, call: Call) -> None:
        state = self._engine.look(call.name, touch=call.flag("touch", True))
        reply = StateReply(
            topic=state.topic,
            type=state.type,
            epoch=state.epoch,
            head_seq=state.head_seq,
            earliest_seq=state.earliest_seq,
            next_seq=state.next_seq,
            count=state.count,
            bytes=state.bytes,
            config=state.config,
            effective_priority=state.effective_priority,
            last_write_ts=state.last_write_ts,
            last_read_ts=state.last_read_ts,
            performance=performance(call),
        )
        if state.queue is not None:
            reply.queue = convert(state.queue, QueueCounters, from_attributes=True)
        call.reply(200, encode(reply))

    def list(self, call: Call) -> None:
        page = self._engine.list(
            *page_params(call),
            prefixes=call.principal.prefixes,
            touch=call.flag("touch", False),
        )
        items = [
            TopicItem(
                topic=state.topic,
                type=state.type,
                head_seq=state.head_seq,
                earliest_seq=state.earliest_seq,
                count=state.count,
                bytes=state.bytes,
                durable=state.config.durable,
                effective_priority=state.effective_priority,
            )
            for state in page.topics
        ]
        reply = TopicList(topics=items, performance=performance(call))
        if page.next_cursor is not None:
            reply.next_cursor = page.next_cursor
        call.reply(200, encode(reply))

    def drop(self, call: Call) -> None:
        call.check_query()
        change = self._engine.drop(call.name, if_empty=call.flag("if_empty", False))
        change.then(answering(call, self._dropped))

    def _dropped(self, call: Call, change: PendingChange) -> None:
        removed = [name for name in change.routers_removed or () if name.startswith(call.principal.prefixes)]
        reply = DroppedReply(
            topic=call.name, deleted=change.result, routers_removed=removed, performance=write_performance(call, change)
        )
        call.reply(200, encode(reply))


def check_config_names(call: Call, params: ConfigRequest) -> None:
    """A configuration may name another topic; the principal must be allowed to use that one as well."""
    if params.dead_letter is not None:
        resolve(params, call.name)
        call.principal.check_name(params.dead_letter, "dead_letter")
