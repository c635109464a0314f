"""The verbs of webhooks: create, change, look, list, drop, rotate the secret, resume, and send a test."""

from __future__ import annotations

import secrets as randomness
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from topics.engine.core.listing import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, page_of
from topics.engine.core.pending import PendingChange, settled
from topics.engine.core.waiting.runner import Signal, Steps
from topics.engine.webhooks.delivery import AttemptNote
from topics.engine.webhooks.feature import WebhookTable
from topics.engine.webhooks.messages import Outcome
from topics.engine.webhooks.ops import STAYS, WebhookDropped, WebhookPut
from topics.engine.webhooks.webhook import Webhook
from topics.model.errors import InvalidRequest, Throttled, TopicNotFound, WebhookNotFound
from topics.model.names import check_topic_name
from topics.model.webhooks.addresses import AddressPolicy, literal_address
from topics.model.webhooks.signatures import check_secret, masked, new_secret
from topics.model.webhooks.webhook_config import (
    GRACE_MS,
    GRACE_MS_MAX,
    RotateRequest,
    Secret,
    Start,
    WebhookConfig,
    WebhookRequest,
    resolve_webhook,
    target_of,
)

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.log.topic import Topic
    from topics.engine.webhooks.dispatcher import Dispatcher
    from topics.model.clock import Clock

# Webhooks that are looked at in one step of a list, whether they are wanted or not.
SCANNED_PER_STEP: Final = 1_000
# Secrets that may sign at the same time.
SECRETS_MAX: Final = 4
BY_REQUEST: Final = "by request"
Secrets = list[Secret]


class SecretState(NamedTuple):
    """A secret as it is shown; `until_ts` is None for the one that stays."""

    hint: str
    until_ts: int | None


class WebhookState(NamedTuple):
    """A webhook as it is shown. `secret` is the whole secret, only when the server has just made it."""

    name: str
    config: WebhookConfig
    paused: bool
    paused_reason: str | None
    paused_ts: int | None
    secrets: list[SecretState]
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
    attempts: list[AttemptNote]
    secret: str | None = None


class WebhookPage(NamedTuple):
    webhooks: list[WebhookState]
    next_cursor: str | None


class SampleResult(NamedTuple):
    id: str
    outcome: Outcome


class Webhooks:
    """A change of a webhook waits for an earlier one."""

    def __init__(self, engine: Engine, dispatcher: Dispatcher, clock: Clock) -> None:
        self._engine = engine
        self._dispatcher = dispatcher
        self._clock = clock
        self._table = engine.state.feature(WebhookTable)
        self._in_flight = engine.in_flight
        self._addresses = AddressPolicy(engine.settings.webhooks_allow)

    @property
    def names(self) -> Sequence[str]:
        """In order."""
        return self._table.names

    def resolve(self, request: WebhookRequest) -> WebhookConfig:
        """An address in the URL is judged now; that of a name, when it is connected to."""
        config = resolve_webhook(request)
        if request.secret is not None:
            check_secret(request.secret)
        host = target_of(config.url).host
        if literal_address(host) is not None and not self._addresses.allows(host, host):
            raise InvalidRequest(
                f"url has the address {host}, which is not a public one; the setting webhooks_allow can allow it",
                field="url",
            )
        return config

    def put(self, name: str, request: WebhookRequest) -> PendingChange:
        """Create the webhook, or change it. `result` is its state."""
        check_topic_name(name, "webhook")
        config = self.resolve(request)
        self._in_flight.check(("webhook", name))
        known = self._table.by_name.get(name)
        secrets, made = self._secrets(known, request)
        if known is not None and known.config == config and known.secrets == secrets and not known.paused_reason:
            return settled(known.id, self.describe(known))
        topic = self._source(config.topic)
        limit = self._engine.settings.max_webhooks
        if known is None and limit and len(self._table.by_name) >= limit:
            raise Throttled(f"there are {limit} webhooks already", limit="max_webhooks", max=limit)
        epoch, cursor = 0, STAYS
        if known is None or known.config.topic != config.topic:
            epoch, cursor = topic.epoch, _start(topic, request.start)
        return self._submit(known, WebhookPut(0, epoch, cursor, True, name, config, secrets), made)

    def _source(self, name: str) -> Topic:
        topic = self._engine.find(name)
        if topic is None:
            raise TopicNotFound(name)
        if topic.config.type == "queue":
            raise InvalidRequest(
                f'topic "{name}" is a queue: its jobs are claimed by workers, a webhook needs a log', field="topic"
            )
        return topic

    def _secrets(self, known: Webhook | None, request: WebhookRequest) -> tuple[Secrets, str | None]:
        """All that sign from now on; and the newest of them, if it was made here."""
        if known is None:
            made = None if request.secret is not None else new_secret()
            return [Secret(request.secret or made or "")], made
        if request.secret is None or request.secret == known.secrets[0].text:
            return known.secrets, None
        return self._with(known, request.secret, GRACE_MS), None

    def _with(self, webhook: Webhook, secret: str, grace_ms: int) -> Secrets:
        """A new secret before the others, which end after the grace period, unless they end before."""
        now_ms = self._clock.now_ms()
        until_ms = now_ms + grace_ms
        kept = [
            Secret(earlier.text, min(earlier.until_ms or until_ms, until_ms))
            for earlier in webhook.secrets
            if earlier.text != secret and grace_ms and not 0 < earlier.until_ms <= now_ms
        ]
        return [Secret(secret), *kept][:SECRETS_MAX]

    def _submit(self, known: Webhook | None, op: WebhookPut, made: str | None) -> PendingChange:
        engine = self._engine
        engine.commit_log.check_writable()
        op = op._replace(topic_id=known.id if known is not None else engine.state.new_id())
        change = engine.commit_log.submit(op, op.encode(), gated=True)
        change.created = known is None
        change.then(lambda done: self._was_put(done, op.topic_id, made))
        return self._in_flight.hold(change, ("webhook", op.name))

    def _was_put(self, change: PendingChange, webhook_id: int, made: str | None) -> None:
        webhook = self._table.by_id.get(webhook_id)
        if change.error is None and webhook is not None:
            self._dispatcher.changed(webhook)
            change.result = self.describe(webhook)._replace(secret=made)

    def rotate(self, name: str, request: RotateRequest) -> PendingChange:
        """Sign with a new secret, and for the grace period with the ones before. `result` is the state."""
        webhook = self._existing(name)
        if request.grace_ms > GRACE_MS_MAX:
            raise InvalidRequest(
                f"grace_ms must be at most {GRACE_MS_MAX}, not {request.grace_ms}", field="grace_ms", max=GRACE_MS_MAX
            )
        made = None if request.secret is not None else new_secret()
        secret = check_secret(request.secret or made or "")
        secrets = self._with(webhook, secret, request.grace_ms)
        return self._submit(webhook, WebhookPut(0, 0, STAYS, False, name, webhook.config, secrets), made)

    def resume(self, name: str) -> PendingChange:
        """Go on after a pause of any cause; what has failed is tried now. `result` is the state."""
        webhook = self._existing(name)
        if webhook.runs and not webhook.retries:
            return settled(webhook.id, self.describe(webhook))
        config = msgspec.structs.replace(webhook.config, paused=False)
        return self._submit(webhook, WebhookPut(0, 0, STAYS, True, name, config, webhook.secrets), None)

    def drop(self, name: str) -> PendingChange:
        """Remove the webhook; what is under way ends. `result`: whether there was one."""
        check_topic_name(name, "webhook")
        self._in_flight.check(("webhook", name))
        webhook = self._table.by_name.get(name)
        if webhook is None:
            return settled(0, False)
        self._engine.commit_log.check_writable()
        op = WebhookDropped(webhook.id)
        change = self._engine.commit_log.submit(op, op.encode(), gated=True, urgent=True)
        change.result = True
        change.then(lambda done: self._dispatcher.changed(webhook) if done.error is None else None)
        return self._in_flight.hold(change, ("webhook", name))

    def send_sample(self, name: str) -> Steps[SampleResult]:
        """Send one message that is no record, whether the webhook is paused or not; its position stays."""
        webhook = self._existing(name)
        if not self._dispatcher.delivers:
            raise InvalidRequest("this server delivers no webhooks: it runs inside another program")
        message_id = f"test-{randomness.token_hex(8)}"
        signal, outcomes = Signal(), list[Outcome]()

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            signal.set()

        self._dispatcher.send_sample(webhook, message_id, done)
        while not outcomes:
            yield signal
        return SampleResult(message_id, outcomes[0])

    # --- looking ---

    def look(self, name: str) -> WebhookState:
        return self.describe(self._find(name))

    def _existing(self, name: str) -> Webhook:
        """To be changed: an earlier change is waited for."""
        self._in_flight.check(("webhook", name))
        return self._find(name)

    def _find(self, name: str) -> Webhook:
        webhook = self._table.by_name.get(name)
        if webhook is None:
            check_topic_name(name, "webhook")
            raise WebhookNotFound(name)
        return webhook

    def describe(self, webhook: Webhook) -> WebhookState:
        now_ms = self._clock.now_ms()
        delivery, history = self._dispatcher.delivery(webhook), self._dispatcher.history(webhook)
        position = webhook.cursor if delivery is None else delivery.position
        topic = self._engine.state.by_name.get(webhook.config.topic)
        lag = 0
        if topic is not None:
            above = position if topic.epoch == webhook.epoch else 0
            done = sum(seqs.to_seq - max(seqs.from_seq, above + 1) + 1 for seqs in webhook.done if seqs.to_seq > above)
            lag = max(0, topic.live_within(above + 1, topic.head_seq) - done) if topic.head_seq > above else 0
        return WebhookState(
            name=webhook.name,
            config=webhook.config,
            paused=not webhook.runs,
            paused_reason=webhook.paused_reason or (BY_REQUEST if webhook.config.paused else None),
            paused_ts=webhook.paused_ts or None,
            secrets=[
                SecretState(masked(secret.text), secret.until_ms or None)
                for secret in webhook.secrets
                if not 0 < secret.until_ms <= now_ms
            ],
            cursor=position,
            lag=lag,
            in_flight=0 if delivery is None else delivery.sending,
            retrying=len(webhook.retries),
            next_retry_ts=min((retry.next_ms for retry in webhook.retries.values()), default=None),
            failures_in_a_row=history.failures,
            delivered_total=webhook.delivered_total,
            failed_total=webhook.failed_total,
            dead_total=webhook.dead_total,
            lost_total=webhook.lost_total,
            last_error=history.last_error,
            attempts=list(history.notes),
        )

    def list(
        self,
        prefix: str = "",
        cursor: str | None = None,
        page_size: int = PAGE_SIZE_DEFAULT,
        *,
        wanted: Callable[[str, WebhookConfig], bool],
    ) -> Steps[WebhookPage]:
        """Webhooks by name, those that start with `prefix` and are `wanted`; with other work between the steps."""
        table, left = self._table, max(1, min(PAGE_SIZE_MAX, page_size))
        page: list[WebhookState] = []
        while True:
            found, cursor = page_of(
                table.names,
                prefix,
                cursor,
                left,
                table.by_name.__getitem__,
                lambda webhook: wanted(webhook.name, webhook.config),
                SCANNED_PER_STEP,
            )
            for webhook in found:
                page.append(self.describe(webhook))
                yield None
            left -= len(found)
            if cursor is None or not left:
                return WebhookPage(page, cursor)
            yield None


def _start(topic: Topic, start: Start | int | None) -> int:
    """The cursor of a new webhook."""
    if start == "earliest":
        return topic.earliest_seq - 1
    return topic.head_seq if start in (None, "head") else min(int(start), topic.head_seq)
