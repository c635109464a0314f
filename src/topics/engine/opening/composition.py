"""Which features there are: what a start, an inspection and a scan put their state together from."""

from __future__ import annotations

from topics.engine.core.state import State
from topics.engine.groups.feature import GroupsFeature
from topics.engine.queues.feature import QueuesFeature
from topics.engine.routers.fold import Routes
from topics.engine.transactions.ledger import Ledger
from topics.model.settings import Settings
from topics.storage.pack import Packs

FEATURES = (QueuesFeature, Routes, GroupsFeature, Ledger)


def new_state(settings: Settings, packs: Packs) -> State:
    """An empty state that knows the ops of every feature."""
    return State(settings, packs, FEATURES)
