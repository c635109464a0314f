"""The ops of webhooks and their bytes.

WebhookPut      | 112 | webhook u32 | epoch u64 | cursor u64 (2⁶⁴−1: both stay) | resumes u8 | name_len u16 | name |
                | JSON: config, secrets |
WebhookDropped  | 113 | webhook u32 |
WebhookAdvanced | 114 | webhook u32 | epoch u64 | cursor u64 | delivered u32 | failed u32 | dead u32 | lost u32 |
                | ranges u32 | retries u32 | (from_seq u64, to_seq u64)×ranges |
                | (seq u64, next u64, attempts u32)×retries |
WebhookPaused   | 115 | webhook u32 | ts u64 | reason |
WebhookBuried   | 116 | length u32 | WebhookAdvanced | Appended, unless the log does not store it |
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from topics.engine.core.appended import Appended, decode_appended
from topics.engine.log.seq_ranges import SeqRange
from topics.model.webhooks.webhook_config import Secret, WebhookConfig, decode_webhook, encode_webhook

WEBHOOK_PUT, WEBHOOK_DROPPED, WEBHOOK_ADVANCED, WEBHOOK_PAUSED, WEBHOOK_BURIED = range(112, 117)
# In place of a cursor: the webhook continues where it is.
STAYS = 2**64 - 1

_PUT = struct.Struct("<BIQQBH")
_DROPPED = struct.Struct("<BI")
_ADVANCED = struct.Struct("<BIQQIIIIII")
_RANGE = struct.Struct("<QQ")
_RETRY = struct.Struct("<QQI")
_PAUSED = struct.Struct("<BIQ")
_BURIED = struct.Struct("<BI")


class Retry(NamedTuple):
    """A record that was not delivered yet: when to try again, and how often it was tried."""

    seq: int
    next_ms: int
    attempts: int


class WebhookPut(NamedTuple):
    """A webhook was created or changed. `cursor` is where it starts in the topic of this epoch.

    If it `resumes`, it is not paused any more, and what failed is tried again as if for the first time.
    """

    topic_id: int
    epoch: int
    cursor: int
    resumes: bool
    name: str
    config: WebhookConfig
    secrets: list[Secret]

    def encode(self) -> bytes:
        name = self.name.encode()
        head = _PUT.pack(WEBHOOK_PUT, self.topic_id, self.epoch, self.cursor, self.resumes, len(name))
        return head + name + encode_webhook(self.config, self.secrets)


class WebhookDropped(NamedTuple):
    topic_id: int

    def encode(self) -> bytes:
        return _DROPPED.pack(WEBHOOK_DROPPED, self.topic_id)


class WebhookAdvanced(NamedTuple):
    """Everything up to `cursor` is done, and the `ranges` above it; `retries` failed and stay to be delivered.

    The other numbers are what has happened since the op before.
    """

    topic_id: int
    epoch: int
    cursor: int
    delivered: int
    failed: int
    dead: int
    lost: int
    ranges: list[SeqRange]
    retries: list[Retry]

    def encode(self) -> bytes:
        head = _ADVANCED.pack(WEBHOOK_ADVANCED, *self[:7], len(self.ranges), len(self.retries))
        ranges = [_RANGE.pack(*seqs) for seqs in self.ranges]
        return b"".join([head, *ranges, *[_RETRY.pack(*retry) for retry in self.retries]])


class WebhookPaused(NamedTuple):
    """It delivers nothing until it is resumed, for this reason."""

    topic_id: int
    ts: int
    reason: str

    def encode(self) -> bytes:
        return _PAUSED.pack(WEBHOOK_PAUSED, self.topic_id, self.ts) + self.reason.encode()


class WebhookBuried(NamedTuple):
    """Records were given up: their copies in the dead-letter topic and the advance of the webhook are one step.

    Without a batch the copies are those of an ephemeral topic, which the log does not store.
    """

    advanced: WebhookAdvanced
    appended: Appended | None

    @property
    def topic_id(self) -> int:
        return self.appended.topic_id if self.appended is not None else self.advanced.topic_id

    def encode(self) -> bytes:
        return self.head() + (b"" if self.appended is None else self.appended.encode())

    def head(self) -> bytes:
        """The bytes before the batch."""
        advanced = self.advanced.encode()
        return _BURIED.pack(WEBHOOK_BURIED, len(advanced)) + advanced


def decode_webhook_put(body: bytes) -> WebhookPut:
    _, webhook_id, epoch, cursor, resumes, name_len = _PUT.unpack_from(body)
    name_end = _PUT.size + name_len
    stored = decode_webhook(body[name_end:])
    name = body[_PUT.size : name_end].decode()
    return WebhookPut(webhook_id, epoch, cursor, bool(resumes), name, stored.config, stored.secrets)


def decode_webhook_dropped(body: bytes) -> WebhookDropped:
    return WebhookDropped(*_DROPPED.unpack_from(body)[1:])


def decode_webhook_advanced(body: bytes) -> WebhookAdvanced:
    _, webhook_id, epoch, cursor, delivered, failed, dead, lost, ranges, retries = _ADVANCED.unpack_from(body)
    ranges_end = _ADVANCED.size + _RANGE.size * ranges
    retries_end = ranges_end + _RETRY.size * retries
    return WebhookAdvanced(
        webhook_id,
        epoch,
        cursor,
        delivered,
        failed,
        dead,
        lost,
        [SeqRange(*seqs) for seqs in _RANGE.iter_unpack(body[_ADVANCED.size : ranges_end])],
        [Retry(*fields) for fields in _RETRY.iter_unpack(body[ranges_end:retries_end])],
    )


def decode_webhook_paused(body: bytes) -> WebhookPaused:
    _, webhook_id, ts = _PAUSED.unpack_from(body)
    return WebhookPaused(webhook_id, ts, body[_PAUSED.size :].decode())


def decode_webhook_buried(body: bytes) -> WebhookBuried:
    advanced_end = _BURIED.size + _BURIED.unpack_from(body)[1]
    advanced = decode_webhook_advanced(body[_BURIED.size : advanced_end])
    return WebhookBuried(advanced, decode_appended(body[advanced_end:]) if len(body) > advanced_end else None)
