"""A webhook's state: its configuration, its secrets, and how far its topic is delivered.

cursor         delivered above it                     the head
──────┤ failed ├── done ──┤ in flight ├── done ──┤ not looked at ├
      └ a record that is not done keeps the cursor below it; ranges above are kept, so that a restart repeats little
"""

from __future__ import annotations

import msgspec

from topics.engine.log.seq_ranges import SeqRange, add_range, holds, take_from
from topics.engine.webhooks.ops import Retry, WebhookAdvanced
from topics.model.webhooks.webhook_config import Secret, WebhookConfig


class Webhook:
    """Changed only by folds."""

    __slots__ = (
        "captured",
        "config",
        "cursor",
        "dead_total",
        "delivered_total",
        "done",
        "epoch",
        "failed_total",
        "id",
        "lost_total",
        "name",
        "paused_reason",
        "paused_ts",
        "retries",
        "secrets",
        "starts",
    )

    def __init__(self, webhook_id: int, name: str, config: WebhookConfig, secrets: list[Secret]) -> None:
        self.id = webhook_id
        self.name = name
        self.config = config
        # the newest first
        self.secrets = secrets
        # the epoch of the topic that the position is in
        self.epoch = 0
        self.cursor = 0
        # how often a request has set the position, since the start of the process
        self.starts = 0
        self.done: list[SeqRange] = []
        self.retries: dict[int, Retry] = {}
        # why it does not deliver, since when; empty: it does, unless its configuration says that it is paused
        self.paused_reason = ""
        self.paused_ts = 0
        # records that were delivered, attempts that failed, records that were given up, that were lost before
        self.delivered_total = self.failed_total = self.dead_total = self.lost_total = 0
        # number of the checkpoint that has captured it
        self.captured = 0

    @property
    def runs(self) -> bool:
        return not self.paused_reason and not self.config.paused

    def secrets_at(self, now_ms: int) -> list[str]:
        """Those that sign; the newest first."""
        return [secret.text for secret in self.secrets if not secret.until_ms or now_ms < secret.until_ms]

    def is_done(self, seq: int) -> bool:
        return seq <= self.cursor or holds(self.done, seq)

    # --- folds ---

    def start_at(self, epoch: int, cursor: int) -> None:
        self.epoch, self.cursor = epoch, cursor
        self.done = []
        self.retries = {}

    def advance(self, op: WebhookAdvanced) -> None:
        if op.epoch != self.epoch:
            self.start_at(op.epoch, 0)
        for seqs in op.ranges:
            add_range(self.done, seqs)
        self.cursor = take_from(self.done, max(self.cursor, op.cursor))
        for retry in op.retries:
            self.retries[retry.seq] = retry
        if self.retries:
            self.retries = {seq: retry for seq, retry in self.retries.items() if not self.is_done(seq)}
        self.delivered_total += op.delivered
        self.failed_total += op.failed
        self.dead_total += op.dead
        self.lost_total += op.lost

    def resume(self) -> None:
        self.paused_reason, self.paused_ts = "", 0
        # What has failed gets all of its attempts again.
        self.retries = {}


class WebhookImage(msgspec.Struct, array_like=True):
    """A webhook in a snapshot."""

    id: int
    name: str
    stored: bytes
    epoch: int
    cursor: int
    done: list[SeqRange]
    retries: list[Retry]
    paused_reason: str
    paused_ts: int
    totals: tuple[int, int, int, int]
