"""The composition of the engine: its features, and every op that its log may have."""

from __future__ import annotations

from typing import Final

from topics.engine.core.fold import CORE_OPS
from topics.engine.core.op_table import OpTable
from topics.engine.core.state import State
from topics.engine.groups.feature import GroupsFeature
from topics.engine.groups.fold import GROUP_OPS
from topics.engine.pipelines.feature import PipelineTable
from topics.engine.queues.feature import QueuesFeature
from topics.engine.queues.fold import QUEUE_OPS
from topics.engine.queues.results.fold import RESULT_OPS
from topics.engine.routers.fold import ROUTER_OPS, Routes
from topics.engine.schedules.feature import ScheduleTable
from topics.engine.schedules.fold import SCHEDULE_OPS
from topics.engine.transactions.fold import TXN_OPS
from topics.engine.transactions.ledger import Ledger
from topics.engine.webhooks.feature import WebhookTable
from topics.engine.webhooks.fold import WEBHOOK_OPS
from topics.model.settings import Settings
from topics.storage.pack import Packs

FEATURES = (QueuesFeature, Routes, GroupsFeature, Ledger, PipelineTable, ScheduleTable, WebhookTable)
OPS: Final = OpTable(CORE_OPS, QUEUE_OPS, RESULT_OPS, ROUTER_OPS, GROUP_OPS, TXN_OPS, SCHEDULE_OPS, WEBHOOK_OPS)


def new_state(settings: Settings, packs: Packs) -> State:
    """An empty state that knows the ops of every feature."""
    return State(settings, packs, OPS, FEATURES)
