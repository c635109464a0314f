"""Who reads a topic: followers, consumer groups, routers in and out, and the workers of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.replies import encode, performance
from topics.api.routes import Route
from topics.api.schema import Performance
from topics.engine.core.waiting.runner import Steps
from topics.engine.groups.part import groups_of
from topics.engine.groups.verbs import GROUPS_PER_STEP, lag_of
from topics.engine.log.topic import Topic
from topics.engine.queues.part import queue_of
from topics.engine.routers.part import inbound_of, outbound_of
from topics.model.errors import TopicNotFound
from topics.model.names import check_topic_name

if TYPE_CHECKING:
    from topics.engine.opening.store import Store
    from topics.engine.routers.router import Router

SHOWN_MAX = 1_000


class FollowerItem(msgspec.Struct):
    """A connection that follows the topic; `paced`: it is held back while the server is under pressure."""

    seq: int
    lag: int
    paced: bool


class ReadingGroup(msgspec.Struct):
    group: str
    lag: int


class ReadingRouter(msgspec.Struct):
    router: str
    source: str
    dest: str
    lag: int
    last_error: str | None


class WorkerItem(msgspec.Struct):
    """A worker that has claimed jobs since the server started; `last_claim_ts` is the latest time."""

    worker: str
    last_claim_ts: int


class ReadersReply(msgspec.Struct):
    """Each list has at most 1000 entries; `followers_total` counts all."""

    topic: str
    followers: list[FollowerItem]
    followers_total: int
    groups: list[ReadingGroup]
    routers_in: list[ReadingRouter]
    routers_out: list[ReadingRouter]
    workers: list[WorkerItem]
    performance: Performance


class Readers:
    def __init__(self, store: Store) -> None:
        self._store = store

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/v0/topics/{topic}/readers",
                handler=self.show,
                summary="Who reads a topic: followers, groups, routers, workers.",
                scopes=Scope.READ,
                replies={200: ReadersReply},
                errors=("topic_not_found",),
            )
        ]

    def show(self, call: Call) -> Steps[None]:
        topic = self._store.state.by_name.get(call.name)
        if topic is None:
            check_topic_name(call.name)
            raise TopicNotFound(call.name)
        prefixes = call.principal.prefixes

        def shown(routers: list[Router]) -> list[ReadingRouter]:
            names = [(router, (router.name, router.source.name, router.dest.name)) for router in routers[:SHOWN_MAX]]
            return [_router(router) for router, used in names if all(name.startswith(prefixes) for name in used)]

        inbound = inbound_of(topic)
        followers = self._store.live.followers(topic, SHOWN_MAX)
        groups: list[ReadingGroup] = []
        for name, group in list(groups_of(topic).items())[:SHOWN_MAX]:
            groups.append(ReadingGroup(name, lag_of(topic, group)))
            if len(groups) % GROUPS_PER_STEP == 0:
                yield None
        reply = ReadersReply(
            topic=topic.name,
            followers=[FollowerItem(seq, max(0, topic.head_seq - seq), paced) for seq, paced in followers.shown],
            followers_total=followers.total,
            groups=groups,
            routers_in=shown([] if inbound is None else [inbound]),
            routers_out=shown(outbound_of(topic)),
            workers=self._workers(topic),
            performance=performance(call),
        )
        call.reply(200, encode(reply))

    def _workers(self, topic: Topic) -> list[WorkerItem]:
        queue = queue_of(topic)
        if queue is None:
            return []
        wall_ms = self._store.engine.steady.wall_ms
        return [WorkerItem(node, wall_ms(seen_ms)) for node, seen_ms in reversed(queue.workers.items())]


def _router(router: Router) -> ReadingRouter:
    error = router.last_error
    return ReadingRouter(
        router.name, router.source.name, router.dest.name, router.lag, None if error is None else error.message
    )
