"""Webhooks: create and change, get, list, remove, rotate the secret, resume, test."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from topics.api.auth import Principal, Scope
from topics.api.call import Call
from topics.api.paging import NAME_PREFIX, page_params, page_query
from topics.api.replies import encode, performance, write_performance
from topics.api.routes import QueryField, Route
from topics.api.schema import Performance
from topics.api.waiting import answering
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import Steps
from topics.engine.webhooks.verbs import Webhooks as Verbs
from topics.engine.webhooks.verbs import WebhookState
from topics.model.errors import WebhookNotFound
from topics.model.names import check_topic_name
from topics.model.webhooks.webhook_config import (
    Format,
    Order,
    RotateRequest,
    WebhookConfig,
    WebhookEmptyRequest,
    WebhookRequest,
    target_of,
)

HIDDEN = "…"


class SecretItem(msgspec.Struct):
    """The end of a secret; `until_ts`: when it stops signing."""

    hint: str
    until_ts: int | None


class AttemptItem(msgspec.Struct):
    """One attempt: the answer's status (0: there was none), and when the record is tried again."""

    seq: int
    attempt: int
    ts: int
    took_ms: int
    status: int
    error: str | None
    next_ts: int | None


class WebhookItem(msgspec.Struct):
    """`cursor`: everything up to it is delivered; `lag`: records after it that are not.

    Keys without `admin` see the host of `url` only, and nobody sees the values of `headers`.
    """

    webhook: str
    topic: str
    url: str
    tag: str | None
    format: Format
    headers: dict[str, str]
    timeout_ms: int
    concurrency: int
    order: Order
    max_attempts: int
    backoff_ms: int
    backoff_ms_max: int
    dead_letter: str | None
    pause_after: int
    paused: bool
    paused_reason: str | None
    paused_ts: int | None
    secrets: list[SecretItem]
    cursor: int
    lag: int
    in_flight: int
    retrying: int
    next_retry_ts: int | None
    failures_in_a_row: int
    delivered_total: int
    failed_total: int
    dead_total: int
    lost_total: int
    last_error: str | None


class WebhookReply(WebhookItem):
    """`secret` is there once: in the reply to the request that made the server draw it."""

    attempts: list[AttemptItem]
    performance: Performance
    secret: str | UnsetType = UNSET
    created: bool | UnsetType = UNSET


class WebhookList(msgspec.Struct):
    webhooks: list[WebhookItem]
    performance: Performance
    next_cursor: str | UnsetType = UNSET


class WebhookTestReply(msgspec.Struct):
    """`answer` is the beginning of what the receiver answered."""

    webhook: str
    id: str
    delivered: bool
    status: int
    took_ms: int
    error: str | None
    answer: str
    performance: Performance


class WebhookDroppedReply(msgspec.Struct):
    webhook: str
    deleted: bool
    performance: Performance


class Webhooks:
    """A webhook reads for its creator, and writes dead letters: the key needs the names of all topics concerned."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    def routes(self) -> list[Route]:
        one = "/v0/webhooks/{webhook}"
        return [
            Route(
                method="PUT",
                path=one,
                handler=self.put,
                summary="Deliver a topic to a URL, or change how.",
                scopes=Scope.ADMIN | Scope.READ,
                body=WebhookRequest,
                replies={200: WebhookReply, 201: WebhookReply},
                errors=("topic_not_found",),
            ),
            Route(
                method="GET",
                path=one,
                handler=self.look,
                summary="A webhook, its position, and its last attempts.",
                scopes=Scope.READ,
                replies={200: WebhookReply},
                errors=("webhook_not_found",),
            ),
            Route(
                method="GET",
                path="/v0/webhooks",
                handler=self.list,
                summary="Webhooks by name, a page at a time.",
                scopes=Scope.READ,
                query=(
                    NAME_PREFIX,
                    QueryField("topic", str, "Only webhooks of this topic."),
                    *page_query("Webhooks"),
                ),
                replies={200: WebhookList},
            ),
            Route(
                method="DELETE",
                path=one,
                handler=self.drop,
                summary="Remove a webhook; its topic stays.",
                scopes=Scope.ADMIN,
                replies={200: WebhookDroppedReply},
            ),
            *self._actions(one),
        ]

    def _actions(self, one: str) -> list[Route]:
        return [
            Route(
                method="POST",
                path=f"{one}/rotate",
                handler=self.rotate,
                summary="Sign with a new secret, and for a while with the one before it.",
                scopes=Scope.ADMIN,
                body=RotateRequest,
                replies={200: WebhookReply},
                errors=("webhook_not_found",),
            ),
            Route(
                method="POST",
                path=f"{one}/resume",
                handler=self.resume,
                summary="Continue after a pause; what has failed is tried at once.",
                scopes=Scope.ADMIN,
                body=WebhookEmptyRequest,
                replies={200: WebhookReply},
                errors=("webhook_not_found",),
            ),
            Route(
                method="POST",
                path=f"{one}/test",
                handler=self.test,
                summary="Send one message that is not a record, and report what came of it.",
                scopes=Scope.ADMIN,
                body=WebhookEmptyRequest,
                replies={200: WebhookTestReply},
                errors=("webhook_not_found", "throttled"),
            ),
        ]

    def put(self, call: Call) -> None:
        params: WebhookRequest = call.params
        check_topic_name(call.name, "webhook")
        config = self._verbs.resolve(params)
        call.principal.check_name(params.topic, "topic")
        if config.dead_letter is not None:
            call.principal.check_scopes(Scope.WRITE)
            call.principal.check_name(config.dead_letter, "dead_letter")
        self._check_existing(call)
        self._verbs.put(call.name, params).answer(answering(call, self._was_put))

    def _was_put(self, call: Call, change: PendingChange) -> None:
        reply = _reply(call, change.result, write_performance(call, change))
        reply.created = change.created
        call.reply(201 if change.created else 200, encode(reply))

    def look(self, call: Call) -> None:
        call.reply(200, encode(_reply(call, self._state(call), performance(call))))

    def list(self, call: Call) -> Steps[None]:
        topic, prefixes = call.text("topic"), call.principal.prefixes

        def wanted(name: str, config: WebhookConfig) -> bool:
            if topic is not None and topic != config.topic:
                return False
            return name.startswith(prefixes) and config.topic.startswith(prefixes)

        page = yield from self._verbs.list(*page_params(call), wanted=wanted)
        items = [WebhookItem(state.name, **_fields(state, call.principal)) for state in page.webhooks]
        reply = WebhookList(webhooks=items, performance=performance(call))
        if page.next_cursor is not None:
            reply.next_cursor = page.next_cursor
        call.reply(200, encode(reply))

    def drop(self, call: Call) -> None:
        self._check_existing(call)
        self._verbs.drop(call.name).answer(answering(call, self._dropped))

    def _dropped(self, call: Call, change: PendingChange) -> None:
        spent = write_performance(call, change)
        call.reply(200, encode(WebhookDroppedReply(webhook=call.name, deleted=change.result, performance=spent)))

    def rotate(self, call: Call) -> None:
        self._state(call)
        self._verbs.rotate(call.name, call.params).answer(answering(call, self._changed))

    def resume(self, call: Call) -> None:
        self._state(call)
        self._verbs.resume(call.name).answer(answering(call, self._changed))

    def _changed(self, call: Call, change: PendingChange) -> None:
        call.reply(200, encode(_reply(call, change.result, write_performance(call, change))))

    def test(self, call: Call) -> Steps[None]:
        self._state(call)
        found = yield from self._verbs.send_sample(call.name)
        outcome = found.outcome
        reply = WebhookTestReply(
            webhook=call.name,
            id=found.id,
            delivered=outcome.delivered,
            status=outcome.status,
            took_ms=outcome.took_ms,
            error=outcome.error or None,
            answer=outcome.answer.decode("utf-8", "replace"),
            performance=performance(call),
        )
        call.reply(200, encode(reply))

    def _state(self, call: Call) -> WebhookState:
        state = self._verbs.look(call.name)
        call.principal.check_name(state.config.topic, "topic", given=False)
        return state

    def _check_existing(self, call: Call) -> None:
        """A webhook of this name that is about to be replaced or removed."""
        try:
            self._state(call)
        except WebhookNotFound:
            return


def _reply(call: Call, state: WebhookState, spent: Performance) -> WebhookReply:
    attempts = [
        AttemptItem(
            note.seq, note.attempt, note.ts, note.took_ms, note.status, note.error or None, note.next_ts or None
        )
        for note in state.attempts
    ]
    reply = WebhookReply(state.name, **_fields(state, call.principal), attempts=attempts, performance=spent)
    if state.secret is not None:
        reply.secret = state.secret
    return reply


def _fields(state: WebhookState, principal: Principal) -> dict[str, Any]:
    fields = msgspec.structs.asdict(state.config)
    fields |= {name: getattr(state, name) for name in WebhookState._fields if name in WebhookItem.__struct_fields__}
    fields["secrets"] = [SecretItem(*secret) for secret in state.secrets]
    fields["headers"] = dict.fromkeys(state.config.headers, HIDDEN)
    if not principal.scopes & Scope.ADMIN:
        # The path of some receivers is their secret.
        target = target_of(state.config.url)
        fields["url"] = f"{'https' if target.tls else 'http'}://{target.authority}/{HIDDEN}"
    return fields
