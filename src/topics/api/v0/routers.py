"""Routers: create and change, get, list, remove."""

from __future__ import annotations

from msgspec import UNSET

from topics.api.auth import Principal, Scope
from topics.api.call import Call
from topics.api.paging import NAME_PREFIX, page_params, page_query
from topics.api.replies import encode, performance, write_performance
from topics.api.routes import QueryField, Route
from topics.api.schema import RouterDroppedReply, RouterItem, RouterList, RouterPutReply, RouterReply
from topics.api.waiting import answering
from topics.engine.core.pending import PendingChange
from topics.engine.routers.verbs import Routers as Verbs
from topics.engine.routers.verbs import RouterState
from topics.model.errors import RouterNotFound
from topics.model.names import check_router_name
from topics.model.requests.routers import RouterConfig, RouterRequest
from topics.model.requests.warnings import match_warnings


class Routers:
    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    def routes(self) -> list[Route]:
        one = "/v0/routers/{router}"
        return [
            Route(
                method="PUT",
                path=one,
                handler=self.put,
                summary="Create a router or change it.",
                scopes=Scope.ADMIN,
                body=RouterRequest,
                checks_slot=True,
                replies={200: RouterPutReply, 201: RouterPutReply},
                errors=("topic_not_found", "router_cycle", "topic_exists_incompatible"),
            ),
            Route(
                method="GET",
                path=one,
                handler=self.look,
                summary="A router and its progress.",
                scopes=Scope.READ,
                replies={200: RouterReply},
                errors=("router_not_found",),
            ),
            Route(
                method="GET",
                path="/v0/routers",
                handler=self.list,
                summary="Routers by name, a page at a time.",
                scopes=Scope.READ,
                query=(
                    NAME_PREFIX,
                    QueryField("source", str, "Only routers from this topic."),
                    QueryField("dest", str, "Only routers to this topic."),
                    *page_query("Routers"),
                ),
                replies={200: RouterList},
            ),
            Route(
                method="DELETE",
                path=one,
                handler=self.drop,
                summary="Stop forwarding and remove a router; the records it copied stay.",
                scopes=Scope.DELETE,
                replies={200: RouterDroppedReply},
            ),
        ]

    def put(self, call: Call) -> None:
        params: RouterRequest = call.params
        check_router_name(call.name)
        self._verbs.resolve(params)
        call.principal.check_name(params.source, "source")
        call.principal.check_name(params.dest, "dest")
        self._check_existing(call)
        call.check_slot()
        self._verbs.put(call.name, params).answer(answering(call, self._was_put))

    def _was_put(self, call: Call, change: PendingChange) -> None:
        config: RouterConfig = change.result
        reply = RouterPutReply(
            router=call.name,
            created=change.created,
            source=config.source,
            dest=config.dest,
            preserve_node=config.preserve_node,
            preserve_tag=config.preserve_tag,
            filter=config.filter,
            allow_cycle=config.allow_cycle,
            guarantee=config.guarantee,
            performance=write_performance(call, change),
            warnings=match_warnings(config.filter, "filter") or UNSET,
        )
        call.reply(201 if change.created else 200, encode(reply))

    def look(self, call: Call) -> None:
        state = self._verbs.look(call.name)
        _check_ends(call.principal, state.config)
        config = state.config
        reply = RouterReply(
            router=state.name,
            source=config.source,
            dest=config.dest,
            preserve_node=config.preserve_node,
            preserve_tag=config.preserve_tag,
            filter=config.filter,
            allow_cycle=config.allow_cycle,
            guarantee=config.guarantee,
            forwarded_total=state.forwarded_total,
            lag=state.lag,
            last_error=state.last_error,
            performance=performance(call),
        )
        call.reply(200, encode(reply))

    def list(self, call: Call) -> None:
        source, dest, prefixes = call.text("source"), call.text("dest"), call.principal.prefixes

        def wanted(state: RouterState) -> bool:
            config = state.config
            return (
                source in (None, config.source)
                and dest in (None, config.dest)
                and all(name.startswith(prefixes) for name in (state.name, config.source, config.dest))
            )

        page = self._verbs.list(*page_params(call), wanted=wanted)
        items = [
            RouterItem(
                router=state.name,
                source=state.config.source,
                dest=state.config.dest,
                guarantee=state.config.guarantee,
                forwarded_total=state.forwarded_total,
                lag=state.lag,
                last_error=state.last_error,
            )
            for state in page.routers
        ]
        reply = RouterList(routers=items, performance=performance(call))
        if page.next_cursor is not None:
            reply.next_cursor = page.next_cursor
        call.reply(200, encode(reply))

    def drop(self, call: Call) -> None:
        self._check_existing(call)
        self._verbs.drop(call.name).answer(answering(call, self._dropped))

    def _check_existing(self, call: Call) -> None:
        """A router of this name that is about to be replaced or removed."""
        try:
            _check_ends(call.principal, self._verbs.look(call.name).config)
        except RouterNotFound:
            pass

    def _dropped(self, call: Call, change: PendingChange) -> None:
        reply = RouterDroppedReply(router=call.name, deleted=change.result, performance=write_performance(call, change))
        call.reply(200, encode(reply))


def _check_ends(principal: Principal, config: RouterConfig) -> None:
    """A router uses two topics: the principal must be allowed to use them as well."""
    principal.check_name(config.source, "source", given=False)
    principal.check_name(config.dest, "dest", given=False)
