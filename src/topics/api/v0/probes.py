"""Health and readiness for load balancers, at the version root and at the server root."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET

from topics.api.call import Call
from topics.api.lifecycle import VERSION, Lifecycle
from topics.api.promotion import bucket_health
from topics.api.replies import encode, performance
from topics.api.routes import Route
from topics.api.schema import HealthReply, ReadyReply
from topics.engine.opening.store import Store
from topics.model.variant import VARIANT


def probe_routes(lifecycle: Lifecycle, store: Store) -> list[Route]:
    def health(call: Call) -> None:
        reply = HealthReply(
            status="ok",
            version=VERSION,
            variant=VARIANT,
            uptime_ms=lifecycle.uptime_ms,
            performance=performance(call),
            bucket=bucket_health(store),
            role=store.role or UNSET,
        )
        call.reply(200, encode(reply))

    def ready(call: Call) -> None:
        if not lifecycle.serving:
            raise lifecycle.refusal()
        if store.commit_log.read_only is not None:
            raise store.commit_log.read_only
        reply = ReadyReply(
            status="ready",
            wal_replay_complete=True,
            topics=len(store.state.by_name),
            performance=performance(call),
            role=store.role or UNSET,
        )
        call.reply(200, encode(reply))

    return [
        _probe("/v0/health", health, "Whether the process responds.", HealthReply),
        _probe("/healthz", health, "The same as /v0/health.", HealthReply),
        _probe(
            "/v0/ready",
            ready,
            "Whether the server is ready for requests.",
            ReadyReply,
            "not_ready",
            "shutting_down",
            "read_only",
        ),
        _probe("/readyz", ready, "The same as /v0/ready.", ReadyReply, "not_ready", "shutting_down", "read_only"),
    ]


def _probe(path: str, handler: Callable[[Call], None], summary: str, reply: type, *errors: str) -> Route:
    return Route(
        method="GET",
        path=path,
        handler=handler,
        summary=summary,
        replies={200: reply},
        errors=errors,
        always=True,
        public=True,
    )
