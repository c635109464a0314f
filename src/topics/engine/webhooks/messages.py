"""A message: one record as it is sent to the URL of a webhook, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from topics.engine.webhooks.webhook import Webhook
from topics.model.cloudevents.events_out import StoredRecord, render_event
from topics.model.requests.nesting import decode_deep
from topics.model.webhooks.signatures import signature
from topics.model.webhooks.webhook_config import Format, Target, target_of

# The part of a pause that is added by chance, so that many records that failed together do not come back together.
JITTER_SHARE: Final = 0.2
# What a server may ask for at most, by Retry-After.
RETRY_AFTER_MS_MAX: Final = 86_400_000

CONTENT_TYPES: Final[Mapping[Format, str]] = {
    "record": "application/json",
    "data": "application/json",
    "cloudevents": "application/cloudevents+json",
}
TEST_DATA: Final = b'{"test":true}'
_stored = msgspec.json.Decoder(StoredRecord)


class Message(NamedTuple):
    """A request to be sent: a POST of `body` to `target` within `timeout_ms`."""

    target: Target
    headers: list[tuple[str, str]]
    body: bytes
    timeout_ms: int


class Outcome(NamedTuple):
    """What came of a message: a status, or an error without one."""

    took_ms: int
    status: int = 0
    error: str = ""
    # the answer asked for a pause
    retry_after_ms: int = 0
    # the beginning of the answer
    answer: bytes = b""
    # the server stopped before there was one
    cancelled: bool = False

    @property
    def delivered(self) -> bool:
        return 200 <= self.status < 300

    @property
    def reason(self) -> str:
        """Why it failed."""
        return self.error or f"status {self.status}"


def payload(form: Format, topic: str, epoch: int, record: bytes) -> bytes:
    """The body of a record as diff renders it, with its tag."""
    if form == "cloudevents":
        return render_event(topic, epoch, decode_deep(_stored.decode, record))
    if form == "data":
        return bytes(decode_deep(_stored.decode, record).data)
    return record


def message_of(webhook: Webhook, message_id: str, body: bytes, now_ms: int) -> Message:
    """Signed for this moment."""
    config, timestamp_s = webhook.config, now_ms // 1000
    headers = [
        ("content-type", CONTENT_TYPES[config.format]),
        ("webhook-id", message_id),
        ("webhook-timestamp", str(timestamp_s)),
        ("webhook-signature", signature(webhook.secrets_at(now_ms), message_id, timestamp_s, body)),
        ("topics-topic", config.topic),
        ("topics-webhook", webhook.name),
        *config.headers.items(),
    ]
    return Message(target_of(config.url), headers, body, config.timeout_ms)


def sample_record(now_ms: int) -> bytes:
    return b'{"$seq":0,"$ts":%d,"data":%b}' % (now_ms, TEST_DATA)


def pause_ms(webhook: Webhook, seq: int, attempts: int) -> int:
    """How long to wait after this number of failed attempts: twice as long each time, and a part by chance."""
    config = webhook.config
    # No shift of more than the largest quotient of the two.
    ms = min(config.backoff_ms_max, config.backoff_ms << min(attempts - 1, 20))
    chance = xxh3_64_intdigest(b"%d %d %d" % (webhook.id, seq, attempts)) / 2**64
    return round(ms * (1 + JITTER_SHARE * chance))
