"""Which server is primary, and how its copy is: what a standby refuses, and `POST /v0/promote`, which ends that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.replies import encode, performance
from topics.api.routes import Route
from topics.api.schema import BucketHealth, Performance
from topics.engine.core.waiting.runner import Signal, Steps
from topics.engine.opening.standby import Standby
from topics.engine.opening.store import Store
from topics.model.errors import Forbidden, InvalidRequest, NotPrimary, PrimaryAlive
from topics.storage.bucket.shipping import Status


class PromoteRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`force`: also if the primary renews its lease."""

    force: bool = False


class PromoteReply(msgspec.Struct):
    role: Literal["primary"]
    term: int
    performance: Performance


class Promotion:
    def __init__(self, store: Store) -> None:
        self._store = store

    def check_primary(self) -> None:
        """Called for requests that change something: raises NotPrimary unless this server is primary."""
        store = self._store
        if store.commit_log.closed is not None:
            raise store.commit_log.closed()
        if store.commit_log.may_answer is not None and not store.commit_log.may_answer():
            raise NotPrimary(
                "this server did not run for longer than its lease, and asks the bucket whether it is still primary",
                primary=None,
                role="unknown",
            )

    @property
    def age(self) -> Callable[[], int | None] | None:
        """What tells with every reply how old the state of a standby is at most; None: there is no standby."""
        return None if self._store.settings.bucket is None else self._age_ms

    def _age_ms(self) -> int | None:
        return self._store.standby.age_ms if self._store.standby is not None else None

    @property
    def outlived(self) -> str | None:
        """Why the store must be closed, and the server must start again as a standby; None: it need not."""
        shipping, standby = self._store.shipping, self._store.standby
        if standby is not None and standby.following.lost is not None:
            return standby.following.lost.message
        if shipping is not None and shipping.fenced is not None and self._store.settings.bucket_takeover != "off":
            return shipping.fenced.message
        return None

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v0/promote",
                handler=self.promote,
                changes=False,
                summary="Make a standby the primary.",
                scopes=Scope.ADMIN,
                body=PromoteRequest,
                replies={200: PromoteReply},
                errors=("primary_alive", "not_primary"),
            )
        ]

    def promote(self, call: Call) -> Steps[None]:
        if not call.principal.sees_all_names:
            raise Forbidden("promoting concerns every topic, but the key is limited to names with its prefixes")
        store, force = self._store, call.params.force
        if store.role is None:
            raise InvalidRequest(
                "this server has no bucket (TOPICS_BUCKET), so there is no other server to take over from",
                field="bucket",
            )
        standby = store.standby
        if standby is not None:
            if not force:
                self._check_lease(standby)
            decided = Signal()
            standby.when_decided(decided.set)
            standby.following.promote(force=force)
            yield decided
        if store.standby is not None:
            raise store.standby.refusal()
        assert store.shipping is not None
        reply = PromoteReply(role="primary", term=store.shipping.term, performance=performance(call))
        call.reply(200, encode(reply))

    def _check_lease(self, standby: Standby) -> None:
        following = standby.following
        if not following.lease_left_s:
            return
        primary = following.primary
        who = f"{primary.holder} ({primary.url})" if primary is not None else "a server that is about to start"
        raise PrimaryAlive(
            f"{who} may be primary for another {following.lease_left_s:.1f} s, or renews its lease; stop it and try "
            "again, or use --force (`force` is true), and lose what it acknowledges until it notices",
            primary=primary.url if primary is not None else None,
        )


def bucket_health(store: Store) -> BucketHealth | UnsetType:
    """How the copy in the bucket is, or how old a standby's state; UNSET without a bucket."""
    if store.standby is not None:
        following = store.standby.following
        away = following.away_since_s is not None
        status = Status("away" if away else "ok", following.term, store.standby.age_ms, 0)
    elif store.shipping is not None:
        status = store.shipping.status
    else:
        return UNSET
    return BucketHealth(*status, store.packs.local_bytes, store.packs.remote_bytes)
