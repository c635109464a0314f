"""Routers: copy every record of one topic into another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from topics.embedded.host import Host
from topics.embedded.requests import request_of, warn
from topics.embedded.values import Router
from topics.engine.routers.verbs import RouterPage, RouterState
from topics.model.requests.routers import RouterConfig, RouterRequest
from topics.model.requests.warnings import match_warnings

PAGE_SIZE: Final = 1_000


class Routers:
    _host: Host

    def route(
        self,
        name: str,
        source: str,
        dest: str,
        *,
        filter: str | tuple[str, str, str] | None = None,
        guarantee: Literal["at_least_once", "exactly_once"] | None = None,
        preserve_node: bool | None = None,
        preserve_tag: bool | None = None,
        create_dest: bool | None = None,
        allow_cycle: bool | None = None,
        backfill: bool | None = None,
    ) -> Router:
        """Create a router, or change it. `filter` is a tag, or `("tag", "Glob", "x*")`."""
        request = request_of(
            RouterRequest,
            source=source,
            dest=dest,
            filter=filter,
            guarantee=guarantee,
            preserve_node=preserve_node,
            preserve_tag=preserve_tag,
            create_dest=create_dest,
            allow_cycle=allow_cycle,
            backfill=backfill,
        )
        change = self._host.commit(lambda: self._host.store.routers.put(name, request))
        config: RouterConfig = change.result
        router = _router(name, config)
        router.created = change.created
        router.warnings = match_warnings(config.filter, "filter")
        warn(router.warnings)
        return router

    def router(self, name: str) -> Router:
        """A router and its progress."""
        state = self._host.look(lambda: self._host.store.routers.look(name))
        router = _router(name, state.config)
        router.forwarded_total, router.lag, router.last_error = state.forwarded_total, state.lag, state.last_error
        return router

    def routers(
        self,
        source: str | None = None,
        dest: str | None = None,
        *,
        prefix: str | None = None,
        page_size: int = PAGE_SIZE,
    ) -> Iterator[Router]:
        """Routers by name. Only the totals are given, not the lag."""

        def wanted(state: RouterState) -> bool:
            return source in (None, state.config.source) and dest in (None, state.config.dest)

        def page_after(cursor: str | None) -> RouterPage:
            routers = self._host.store.routers
            return self._host.look(lambda: routers.list(prefix or "", cursor, page_size, wanted=wanted))

        cursor: str | None = None
        while True:
            page = page_after(cursor)
            for state in page.routers:
                config = state.config
                yield Router(
                    router=state.name,
                    source=config.source,
                    dest=config.dest,
                    guarantee=config.guarantee,
                    forwarded_total=state.forwarded_total,
                )
            cursor = page.next_cursor
            if cursor is None:
                return

    def unroute(self, name: str) -> bool:
        """Stop forwarding; what was copied stays. False: there was no such router."""
        return bool(self._host.commit(lambda: self._host.store.routers.drop(name)).result)


def _router(name: str, config: RouterConfig) -> Router:
    return Router(
        router=name,
        source=config.source,
        dest=config.dest,
        guarantee=config.guarantee,
        preserve_node=config.preserve_node,
        preserve_tag=config.preserve_tag,
        filter=config.filter,
        allow_cycle=config.allow_cycle,
    )
