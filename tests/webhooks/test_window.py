"""The order of sending, and the position in the log: whatever fails, whichever order answers come in."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from topics.engine.log.seq_ranges import SeqRange
from topics.engine.webhooks.ops import Retry, WebhookAdvanced
from topics.engine.webhooks.webhook import Webhook
from topics.engine.webhooks.window import OpenRecord, Window
from topics.model.webhooks.webhook_config import Order, Secret, WebhookConfig

TAGS = st.sampled_from([None, b"a", b"b", b"c"])
ORDERS: list[Order] = ["topic", "tag", "none"]


@given(
    order=st.sampled_from(ORDERS), tags=st.lists(TAGS, min_size=1, max_size=30), choices=st.lists(st.integers(0, 99))
)
def test_a_record_is_never_sent_before_those_it_waits_for(
    order: Order, tags: list[bytes | None], choices: list[int]
) -> None:
    window = Window(order)
    for seq, tag in enumerate(tags, 1):
        window.add(seq, tag)
    now_ms, sending, done = 1, list[OpenRecord](), list[int]()
    draw = iter(choices)
    while len(done) < len(tags):
        while (entry := window.take(now_ms)) is not None:
            sending.append(entry)
            tag = tags[entry.seq - 1]
            before = [
                seq for seq in range(1, entry.seq) if order == "topic" or (order == "tag" and tags[seq - 1] == tag)
            ]
            assert (tag is None and order == "tag") or set(before) <= set(done)
        if not sending:
            assert window.next_ms is not None
            assert window.next_ms > now_ms
            now_ms = window.next_ms
            continue
        choice = next(draw, 0)
        entry = sending.pop(choice % len(sending))
        if choice % 3 == 1:
            window.rest(entry, now_ms + 1 + choice)
        else:
            window.done(entry)
            done.append(entry.seq)
        left = sorted(set(range(1, len(tags) + 1)) - set(done))
        assert list(window.seqs()) == left
        assert window.lowest_seq == (left[0] if left else None)
    assert window.next_ms is None
    assert len(window) == window.ready == 0


@given(st.lists(st.sets(st.integers(1, 60), max_size=8), max_size=20))
def test_the_position_says_what_is_done_and_nothing_else(rounds: list[set[int]]) -> None:
    """Each op has the lowest seq that is not done, and single ranges above it, as a delivery makes them."""
    webhook = Webhook(1, "w", WebhookConfig("t", "https://x.org"), [Secret("s")])
    webhook.start_at(7, 0)
    done: set[int] = set()
    for seqs in rounds:
        done |= seqs
        cursor = next(seq for seq in range(1, 62) if seq not in done) - 1
        ranges = [SeqRange(seq, seq) for seq in sorted(seqs) if seq > cursor]
        webhook.advance(WebhookAdvanced(1, 7, cursor, len(seqs), 0, 0, 0, ranges, [Retry(61, 5, 1)]))
        assert [seq for seq in range(1, 62) if webhook.is_done(seq)] == sorted(done)
        assert webhook.cursor == cursor
        spans = list(webhook.done)
        assert all(earlier.to_seq + 1 < later.from_seq for earlier, later in itertools.pairwise(spans))
    assert all(not webhook.is_done(seq) for seq in webhook.retries)


def test_another_epoch_starts_from_the_beginning() -> None:
    webhook = Webhook(1, "w", WebhookConfig("t", "https://x.org"), [Secret("s")])
    webhook.start_at(7, 40)
    arguments: dict[str, Any] = {"delivered": 1, "failed": 0, "dead": 0, "lost": 0, "retries": []}
    webhook.advance(WebhookAdvanced(1, 9, 0, ranges=[SeqRange(2, 2)], **arguments))
    assert (webhook.epoch, webhook.cursor, webhook.done) == (9, 0, [SeqRange(2, 2)])
