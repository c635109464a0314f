"""All webhooks by name, folded from their ops."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import msgspec

from topics.engine.core.feature import Feature
from topics.engine.webhooks.ops import (
    STAYS,
    WebhookAdvanced,
    WebhookBuried,
    WebhookDropped,
    WebhookPaused,
    WebhookPut,
)
from topics.engine.webhooks.webhook import Webhook, WebhookImage
from topics.model.webhooks.webhook_config import decode_webhook, encode_webhook

if TYPE_CHECKING:
    from topics.engine.core.state import State

# The first byte of a webhook in a snapshot; no topic starts with it.
WEBHOOK_CHUNK = b"\xca"

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(WebhookImage)


class WebhookTable(Feature):
    chunk: ClassVar[bytes | None] = WEBHOOK_CHUNK

    def __init__(self, state: State) -> None:
        self._state = state
        self.by_name: dict[str, Webhook] = {}
        self.by_id: dict[int, Webhook] = {}
        self.names: list[str] = []

    # --- folds ---

    def put(self, op: WebhookPut) -> None:
        webhook = self.by_id.get(op.topic_id)
        if webhook is None:
            webhook = self._add(Webhook(op.topic_id, op.name, op.config, op.secrets))
            if self._state.behind_mark:
                webhook.captured = self._state.checkpoint
        else:
            self._touch(webhook)
            webhook.config, webhook.secrets = op.config, op.secrets
        if op.cursor != STAYS:
            webhook.start_at(op.epoch, op.cursor)
            webhook.starts += 1
        if op.resumes:
            webhook.resume()

    def drop(self, op: WebhookDropped) -> None:
        webhook = self.by_id.get(op.topic_id)
        if webhook is not None:
            self._touch(webhook)
            del self.by_id[webhook.id], self.by_name[webhook.name]
            del self.names[bisect_left(self.names, webhook.name)]

    def advance(self, op: WebhookAdvanced) -> None:
        webhook = self.by_id.get(op.topic_id)
        if webhook is not None:
            self._touch(webhook)
            webhook.advance(op)

    def bury(self, op: WebhookBuried) -> None:
        self.advance(op.advanced)
        # In a repaired log the topic may be missing.
        if op.appended is not None and op.appended.topic_id in self._state.by_id:
            self._state.append(op.appended)

    def pause(self, op: WebhookPaused) -> None:
        webhook = self.by_id.get(op.topic_id)
        if webhook is not None:
            self._touch(webhook)
            webhook.paused_reason, webhook.paused_ts = op.reason, op.ts

    # --- snapshots ---

    def _add(self, webhook: Webhook) -> Webhook:
        self.by_id[webhook.id] = self.by_name[webhook.name] = webhook
        insort(self.names, webhook.name)
        self._state.next_id = max(self._state.next_id, webhook.id + 1)
        return webhook

    def _touch(self, webhook: Webhook) -> None:
        if self._state.behind_mark and webhook.captured != self._state.checkpoint:
            self._state.keep_chunk(self._captured(webhook))

    def capture(self) -> Iterator[bytes]:
        for webhook in list(self.by_id.values()):
            if webhook.captured != self._state.checkpoint and self.by_id.get(webhook.id) is webhook:
                yield self._captured(webhook)

    def _captured(self, webhook: Webhook) -> bytes:
        webhook.captured = self._state.checkpoint
        image = WebhookImage(
            webhook.id,
            webhook.name,
            encode_webhook(webhook.config, webhook.secrets),
            webhook.epoch,
            webhook.cursor,
            webhook.done,
            list(webhook.retries.values()),
            webhook.paused_reason,
            webhook.paused_ts,
            (webhook.delivered_total, webhook.failed_total, webhook.dead_total, webhook.lost_total),
        )
        return WEBHOOK_CHUNK + _encoder.encode(image)

    def restore(self, chunk: bytes) -> None:
        image = _decoder.decode(chunk[len(WEBHOOK_CHUNK) :])
        stored = decode_webhook(image.stored)
        webhook = self._add(Webhook(image.id, image.name, stored.config, stored.secrets))
        webhook.epoch, webhook.cursor, webhook.done = image.epoch, image.cursor, image.done
        webhook.retries = {retry.seq: retry for retry in image.retries}
        webhook.paused_reason, webhook.paused_ts = image.paused_reason, image.paused_ts
        webhook.delivered_total, webhook.failed_total, webhook.dead_total, webhook.lost_total = image.totals
