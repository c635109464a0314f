"""The verbs of routers: create, change, look, list, drop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from topics.engine.core.listing import PAGE_SIZE_DEFAULT, page_of
from topics.engine.core.pending import PendingChange, settled
from topics.engine.log.topic import Topic
from topics.engine.routers.fold import Routes
from topics.engine.routers.ops import KEPT, RouterDropped, RouterPut
from topics.engine.routers.part import inbound_of
from topics.engine.routers.router import Router
from topics.model.errors import RouterCycle, RouterNotFound, Throttled, TopicExistsIncompatible, TopicNotFound
from topics.model.names import check_router_name
from topics.model.requests.routers import RouterConfig, RouterRequest, resolve_router

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine


class RouterState(NamedTuple):
    """A router as it is shown."""

    name: str
    config: RouterConfig
    forwarded_total: int
    lag: int
    last_error: str | None


class RouterPage(NamedTuple):
    routers: list[RouterState]
    next_cursor: str | None


def describe(router: Router) -> RouterState:
    error = router.last_error
    return RouterState(
        router.name,
        router.config,
        router.forwarded_total,
        router.lag,
        None if error is None else f"{error.code}: {error.message}",
    )


class Routers:
    """Changes of routers are rare: one at a time is pending, the next one waits for it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._state = engine.state
        self._routes = engine.state.feature(Routes)
        self._in_flight = engine.in_flight

    def resolve(self, request: RouterRequest) -> RouterConfig:
        return resolve_router(request, self._engine.settings.max_tag_bytes)

    def put(self, name: str, request: RouterRequest) -> PendingChange:
        """Create the router, or change it. `result` is the resolved configuration."""
        check_router_name(name)
        config = self.resolve(request)
        self._in_flight.check(("routers",))
        router = self._routes.by_name.get(name)
        if router is not None and router.config == config:
            return settled(router.dest.id, config)
        source, dest = self._engine.find(config.source), self._engine.find(config.dest)
        if dest is None and request.create_dest is False:
            raise TopicNotFound(config.dest)
        if source is not None and dest is not None:
            _refuse_second_source(dest, router, config)
            if not config.allow_cycle:
                _refuse_cycle(source, dest, router)
        elif dest is not None:
            _refuse_second_source(dest, router, config)
        self._refuse_beyond_caps(router is None, (source is None) + (dest is None))
        self._engine.commit_log.check_writable()
        cursor = _starting_point(router, source, config, backfill=bool(request.backfill))
        op = RouterPut(self._id_of(dest, config.dest), self._id_of(source, config.source), cursor, name, config)
        change = self._engine.commit_log.submit(op, op.encode(), gated=True)
        change.created = router is None
        change.result = config
        return self._announce(change, router)

    def drop(self, name: str) -> PendingChange:
        """Stop forwarding and remove the router. `result`: whether there was one."""
        check_router_name(name)
        self._in_flight.check(("routers",))
        router = self._routes.by_name.get(name)
        if router is None:
            return settled(0, False)
        self._in_flight.check(("topic", router.source.name), ("topic", router.dest.name))
        self._engine.commit_log.check_writable()
        op = RouterDropped(router.dest.id)
        change = self._engine.commit_log.submit(op, op.encode(), gated=True, urgent=True)
        change.result = True
        return self._announce(change, router)

    def look(self, name: str) -> RouterState:
        router = self._routes.by_name.get(name)
        if router is None:
            check_router_name(name)
            raise RouterNotFound(name)
        return describe(router)

    def list(
        self,
        prefix: str = "",
        cursor: str | None = None,
        page_size: int = PAGE_SIZE_DEFAULT,
        *,
        wanted: Callable[[RouterState], bool],
    ) -> RouterPage:
        """Routers by name, those that start with `prefix` and are `wanted`."""
        find = self._routes.by_name
        return RouterPage(
            *page_of(self._routes.names, prefix, cursor, page_size, lambda name: describe(find[name]), wanted)
        )

    def _announce(self, change: PendingChange, router: Router | None) -> PendingChange:
        """Until this change is done, no router can be changed, and this one forwards nothing."""
        self._in_flight.hold(change, ("routers",))
        if router is not None:
            self._in_flight.hold(change, ("router", router.name))
            change.then(lambda _: self._changed(router))
        return change

    def _changed(self, router: Router) -> None:
        router.last_error = None
        router.backoff_ms = 0.0

    def _refuse_beyond_caps(self, is_new: bool, absent_topics: int) -> None:
        settings = self._engine.settings
        limit = settings.max_routers
        if is_new and limit and len(self._routes.by_name) >= limit:
            raise Throttled(
                f"there are {limit} routers already, and no more are allowed", limit="max_routers", max=limit
            )
        limit = settings.max_topics
        if absent_topics and limit and len(self._state.by_name) + absent_topics > limit:
            raise Throttled(
                f"at most {limit} topics are allowed, too few for this router", limit="max_topics", max=limit
            )

    def _id_of(self, topic: Topic | None, name: str) -> int:
        """The topic of one end, created if absent."""
        return topic.id if topic is not None else self._engine.room_for(name, 0, 0).topic_id


def _starting_point(router: Router | None, source: Topic | None, config: RouterConfig, *, backfill: bool) -> int:
    if router is not None and router.config.source == config.source:
        return KEPT
    if source is None:
        return 0
    return source.earliest_seq - 1 if backfill and router is None else source.head_seq


def _refuse_second_source(dest: Topic, router: Router | None, config: RouterConfig) -> None:
    other = inbound_of(dest)
    if other is None or other is router:
        return
    if other.config.source == config.source:
        raise TopicExistsIncompatible(
            f'router "{other.name}" forwards from "{config.source}" to "{dest.name}" already',
            router=other.name,
            reason="router_exists",
        )
    raise TopicExistsIncompatible(
        f'topic "{dest.name}" gets its records from "{other.config.source}"; a destination can have only one source',
        router=other.name,
        reason="router_dest_fan_in",
    )


def _refuse_cycle(source: Topic, dest: Topic, router: Router | None) -> None:
    """A topic has at most one router into it, so there is one path up from the source."""
    way = [source]
    while (above := inbound_of(way[-1])) is not None and above is not router and above.source not in way:
        way.append(above.source)
        if above.source is dest:
            cycle = [topic.name for topic in (*reversed(way), dest)]
            raise RouterCycle(f"the router would close a cycle: {' -> '.join(cycle)}", cycle=cycle)
