"""The rows of webhooks in the table of ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from topics.engine.core.fold import addition_of
from topics.engine.core.op_table import OpKind
from topics.engine.webhooks.feature import WebhookTable
from topics.engine.webhooks.ops import (
    WEBHOOK_ADVANCED,
    WEBHOOK_BURIED,
    WEBHOOK_DROPPED,
    WEBHOOK_PAUSED,
    WEBHOOK_PUT,
    WebhookAdvanced,
    WebhookBuried,
    WebhookDropped,
    WebhookPaused,
    WebhookPut,
    decode_webhook_advanced,
    decode_webhook_buried,
    decode_webhook_dropped,
    decode_webhook_paused,
    decode_webhook_put,
)

if TYPE_CHECKING:
    from topics.engine.core.commit_log import CommitLog
    from topics.engine.core.pending import PendingChange


def _buried(commit_log: CommitLog, op: WebhookBuried, _found: Any, change: PendingChange) -> None:
    if op.appended is not None:
        commit_log.append_published(op.appended, None, change)


WEBHOOK_OPS: Final[tuple[OpKind[Any], ...]] = (
    OpKind(
        WebhookPut,
        WEBHOOK_PUT,
        decode=decode_webhook_put,
        fold=lambda state, op: state.feature(WebhookTable).put(op),
        needs_topic=False,
    ),
    OpKind(
        WebhookDropped,
        WEBHOOK_DROPPED,
        decode=decode_webhook_dropped,
        fold=lambda state, op: state.feature(WebhookTable).drop(op),
        needs_topic=False,
    ),
    OpKind(
        WebhookAdvanced,
        WEBHOOK_ADVANCED,
        decode=decode_webhook_advanced,
        fold=lambda state, op: state.feature(WebhookTable).advance(op),
        needs_topic=False,
    ),
    OpKind(
        WebhookPaused,
        WEBHOOK_PAUSED,
        decode=decode_webhook_paused,
        fold=lambda state, op: state.feature(WebhookTable).pause(op),
        needs_topic=False,
    ),
    OpKind(
        WebhookBuried,
        WEBHOOK_BURIED,
        decode=decode_webhook_buried,
        fold=lambda state, op: state.feature(WebhookTable).bury(op),
        published=_buried,
        other_topics=lambda _, op: () if op.appended is None else (op.advanced.topic_id,),
        adds=lambda op: () if op.appended is None else (addition_of(op.appended),),
        needs_topic=False,
        carries_floor=True,
    ),
)
