"""Groups by the thousand: their lags are counted some at a time, and each is what a count of records gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import OpenRig
from topics.api.console import overview, readers
from topics.client import Client
from topics.engine.core.waiting.runner import Runner, Task
from topics.engine.groups import verbs
from topics.engine.groups.verbs import GROUPS_PER_STEP
from topics.testing.fixtures import topics_client, topics_engine

__all__ = ["topics_client", "topics_engine"]

GROUPS = 5 * GROUPS_PER_STEP


class Counted:
    """How many lags are counted, and the most in one step of a task."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lags = self.most = 0
        lag_of = verbs.lag_of

        def counting(*given: Any) -> int:
            self.lags += 1
            return lag_of(*given)

        for module in (verbs, overview, readers):
            monkeypatch.setattr(module, "lag_of", counting)
        for kind, name in ((Task, "step"), (Runner, "start")):
            monkeypatch.setattr(kind, name, self._measured(getattr(kind, name)))

    def _measured(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*given: Any) -> Any:
            before = self.lags
            result = method(*given)
            self.most = max(self.most, self.lags - before)
            return result

        return measured


def test_no_step_counts_the_lags_of_all_groups(topics_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    topics_client.append("t", 1)
    for number in range(GROUPS):
        topics_client.consume("t", f"g{number}", start="Earliest", limit=1)
    for look in (topics_client.overview, lambda: list(topics_client.groups()), lambda: topics_client.readers("t")):
        with monkeypatch.context() as patch:
            counted = Counted(patch)
            look()
            assert counted.lags >= GROUPS
            assert counted.most <= GROUPS_PER_STEP


def test_records_up_to_the_head_are_counted_from_either_side(open_rig: OpenRig) -> None:
    rig = open_rig(segment_max_events=3)
    for number in range(20):
        rig.append("t", {"data": number, "tag": "ab"[number % 2]})
    rig.delete("t", match=["tag", "Eq", "b"], before_seq=15)
    topic = rig.store.state.by_name["t"]
    seqs = [record["$seq"] for record in rig.records("t")]
    for from_seq in range(1, 22):
        assert topic.live_within(from_seq, topic.head_seq) == sum(seq >= from_seq for seq in seqs)
