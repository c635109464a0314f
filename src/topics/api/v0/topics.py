"""Topics: create and configure, change in part, get, list, remove."""

from __future__ import annotations

from typing import Literal

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
from topics.engine.core.listing import Page, TopicState
from topics.engine.core.pending import PendingChange
from topics.engine.core.topic_search import TopicQuery, order_of, search
from topics.engine.core.waiting.runner import Steps
from topics.engine.routers.part import routers_of
from topics.model.names import TopicOrder
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
            self._list_route(touched),
            Route(
                method="DELETE",
                path=one,
                handler=self.drop,
                summary="Remove a topic and everything in it.",
                scopes=Scope.DELETE,
                query=(
                    QueryField("if_empty", bool, "Refuse if the topic holds records.", default=False),
                    QueryField("dry_run", bool, "Only report what would go.", default=False),
                ),
                replies={200: DroppedReply},
                errors=("topic_not_empty",),
            ),
        ]

    def _list_route(self, touched: str) -> Route:
        return Route(
            method="GET",
            path="/v0/topics",
            handler=self.list,
            summary="Topics by name, a page at a time.",
            scopes=Scope.READ,
            query=(
                NAME_PREFIX,
                QueryField("contains", str, "Only names that contain this, in upper or lower case."),
                QueryField("type", Literal["log", "queue"], "Only topics of this type."),
                QueryField("sort", TopicOrder, "The order; - puts the highest first. Absent: by name."),
                *page_query("Topics"),
                QueryField("touch", bool, touched, default=False),
            ),
            replies={200: TopicList},
        )

    def configure(self, call: Call) -> None:
        call.check_query()
        check_config_names(call, call.params)
        replace = call.flag("replace", True)
        change = self._engine.configuration.put(call.name, call.params, replace=replace)
        change.answer(answering(call, self._configured))

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
        change.answer(answering(call, self._edited))

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

    def list(self, call: Call) -> Steps[None] | None:
        contains, kind, order = (call.text("contains") or "").lower(), call.text("type"), call.text("sort") or "name"
        if contains or kind is not None or order != "name":
            query = TopicQuery(call.text("prefix") or "", contains, kind, call.principal.prefixes)
            query.check()
            return self._search(call, query, order_of(order))
        page = self._engine.list(
            *page_params(call),
            prefixes=call.principal.prefixes,
            touch=call.flag("touch", False),
        )
        _reply_with(call, page)
        return None

    def _search(self, call: Call, query: TopicQuery, order: TopicOrder) -> Steps[None]:
        _, cursor, page_size = page_params(call)
        topics, next_cursor = yield from search(self._engine.state, query, order, cursor, page_size)
        _reply_with(call, Page([self._engine.describe(topic) for topic in topics], next_cursor))

    def drop(self, call: Call) -> None:
        call.check_query()
        dry_run = call.flag("dry_run", False)
        topic = self._engine.state.by_name.get(call.name)
        size = (topic.count, topic.bytes) if topic is not None else (0, 0)
        routers = routers_of(topic) if topic is not None and dry_run else []
        change = self._engine.drop(call.name, if_empty=call.flag("if_empty", False), dry_run=dry_run)

        def dropped(call: Call, change: PendingChange) -> None:
            names = change.routers_removed or [router.name for router in routers]
            reply = DroppedReply(
                topic=call.name,
                deleted=change.result,
                routers_removed=[name for name in names if name.startswith(call.principal.prefixes)],
                performance=write_performance(call, change),
            )
            if dry_run:
                reply.records, reply.bytes, reply.dry_run = *size, True
            call.reply(200, encode(reply))

        change.answer(answering(call, dropped))


def _reply_with(call: Call, page: Page) -> None:
    reply = TopicList(topics=[_item(state) for state in page.topics], performance=performance(call))
    if page.next_cursor is not None:
        reply.next_cursor = page.next_cursor
    call.reply(200, encode(reply))


def _item(state: TopicState) -> TopicItem:
    item = TopicItem(
        topic=state.topic,
        type=state.type,
        head_seq=state.head_seq,
        earliest_seq=state.earliest_seq,
        count=state.count,
        bytes=state.bytes,
        durable=state.config.durable,
        effective_priority=state.effective_priority,
        durability=state.config.durability,
        last_write_ts=state.last_write_ts,
        epoch=state.epoch,
    )
    if state.queue is not None:
        item.queue = convert(state.queue, QueueCounters, from_attributes=True)
    return item


def check_config_names(call: Call, params: ConfigRequest) -> None:
    """A configuration may name another topic; the principal must be allowed to use that one as well."""
    if params.dead_letter is not None:
        resolve(params, call.name)
        call.principal.check_name(params.dead_letter, "dead_letter")
