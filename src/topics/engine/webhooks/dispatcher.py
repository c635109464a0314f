"""The dispatcher: one delivery for each webhook that is not paused, and what all of them may have under way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from topics.engine.core.waiting.runner import Runner
from topics.engine.webhooks.delivery import FAILED_MS, Delivery, History
from topics.engine.webhooks.feature import WebhookTable
from topics.engine.webhooks.messages import Message, Outcome, message_of, payload, sample_record
from topics.model.errors import Throttled

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.webhooks.webhook import Webhook
    from topics.engine.webhooks.window import OpenRecord
    from topics.model.clock import Clock

log = logging.getLogger("topics.engine")

# What may be under way for all webhooks together. The second half is for webhooks with few messages under way: some
# receivers that never answer do not keep others from theirs.
SENDING_MAX: Final = 128
SENDING_BYTES_MAX: Final = 64 * 1024 * 1024
SHARE_MIN: Final = 4

# Sends a message, and calls back once, later, in the owner's thread.
Post = Callable[[Message, Callable[[Outcome], None]], None]


class Dispatcher:
    """Owned by the store. Nothing is delivered before a host that can send has called `start`."""

    def __init__(self, engine: Engine, runner: Runner, clock: Clock) -> None:
        self.engine = engine
        self.runner = runner
        self.table = engine.state.feature(WebhookTable)
        self._clock = clock
        self._post: Post | None = None
        self._deliveries: dict[int, Delivery] = {}
        self._histories: dict[int, History] = {}
        # of the end of the process
        self._noted: Callable[[], None] | None = None
        self._sending = self._sending_bytes = 0
        # deliveries that wait for room, the longest waiting first
        self._without_room: dict[Delivery, None] = {}

    def now_ms(self) -> int:
        return self._clock.now_ms()

    # --- for the host ---

    def start(self, post: Post) -> None:
        self._post = post
        for webhook in list(self.table.by_id.values()):
            self._begin(webhook)

    def stop(self, noted: Callable[[], None]) -> None:
        """Send nothing more. `noted` is called when everything that is under way has ended and is in the log."""
        self._noted = noted
        if not self._deliveries:
            noted()
        for delivery in self._deliveries.values():
            delivery.end()

    # --- for the verbs ---

    @property
    def delivers(self) -> bool:
        return self._post is not None

    def changed(self, webhook: Webhook) -> None:
        """It was created, changed, paused or dropped."""
        delivery = self._deliveries.get(webhook.id)
        if delivery is not None:
            delivery.end()
        else:
            self._begin(webhook)
        if webhook.id not in self.table.by_id:
            self._histories.pop(webhook.id, None)

    def delivery(self, webhook: Webhook) -> Delivery | None:
        return self._deliveries.get(webhook.id)

    def history(self, webhook: Webhook) -> History:
        return self._histories.get(webhook.id) or History()

    def send_sample(self, webhook: Webhook, message_id: str, done: Callable[[Outcome], None]) -> None:
        """One message that stands for no record, as the webhook would send it."""
        if self._is_full:
            raise Throttled(
                f"{self._sending} messages of webhooks are under way, and no more fit; try again later",
                limit="messages under way",
                max=SENDING_MAX,
            )
        now_ms = self.now_ms()
        body = payload(webhook.config.format, webhook.config.topic, 0, sample_record(now_ms))
        self._hand_over(message_of(webhook, message_id, body, now_ms), done)

    # --- for deliveries ---

    @property
    def _is_full(self) -> bool:
        return self._sending >= SENDING_MAX or self._sending_bytes >= SENDING_BYTES_MAX

    def _has_room(self, delivery: Delivery) -> bool:
        if self._sending < SENDING_MAX // 2 and self._sending_bytes < SENDING_BYTES_MAX // 2:
            return True
        return delivery.sending < SHARE_MIN and not self._is_full

    def wants_room(self, delivery: Delivery) -> bool:
        """Whether it may send now; if not, it is woken when it may."""
        if self._has_room(delivery):
            return True
        self._without_room[delivery] = None
        return False

    def send(self, delivery: Delivery, entry: OpenRecord, message: Message) -> None:
        self.engine.state.read_total += 1
        self._hand_over(message, partial(delivery.finished, entry))

    def _hand_over(self, message: Message, done: Callable[[Outcome], None]) -> None:
        assert self._post is not None
        self._sending += 1
        self._sending_bytes += len(message.body)
        self._post(message, partial(self._sent, done, len(message.body)))

    def _sent(self, done: Callable[[Outcome], None], size: int, outcome: Outcome) -> None:
        self._sending -= 1
        self._sending_bytes -= size
        done(outcome)
        for waiting in [delivery for delivery in self._without_room if self._has_room(delivery)]:
            del self._without_room[waiting]
            waiting.wake()

    def ended(self, delivery: Delivery) -> None:
        """It has noted everything; with another configuration, it begins again."""
        self._without_room.pop(delivery, None)
        webhook = delivery.webhook
        if self._deliveries.get(webhook.id) is delivery:
            del self._deliveries[webhook.id]
            self._begin(webhook)
            if self._noted is not None and not self._deliveries:
                self._noted()

    def broke(self, delivery: Delivery, error: Exception) -> None:
        log.error("webhook %s: a bug, starting its delivery again", delivery.webhook.name, exc_info=error)
        self._without_room.pop(delivery, None)
        self.runner.deadlines.add(FAILED_MS, partial(self.ended, delivery))

    def _begin(self, webhook: Webhook) -> None:
        if self._post is None or self._noted is not None or not webhook.runs or webhook.id not in self.table.by_id:
            return
        history = self._histories.setdefault(webhook.id, History())
        delivery = self._deliveries[webhook.id] = Delivery(self, webhook, history)
        self.runner.start(delivery.steps(), delivery)
