"""The past of queues: what happened in each step, how long jobs waited, and whose past is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.queues.queue_rig import QueueRig
from tests.serving import serving
from topics.api.console import queue_history
from topics.api.console.queue_history import POINTS_MAX, SERIES, STEP_MS, QueueHistory


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[QueueRig]:
    with QueueRig(tmp_path / "data") as rig:
        yield rig


class Past:
    """A history whose steps the test takes."""

    def __init__(self, rig: QueueRig) -> None:
        self._rig = rig
        self._now_s = 0.0
        self.history = QueueHistory(rig.store, rig.clock.now_ms)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self._rig.clock.advance(STEP_MS)
            self._now_s += STEP_MS / 1000
            self.history.note(self._now_s)

    def last(self, name: str = "q") -> dict[str, float]:
        _, series = self.history.of(self._rig.store.state.by_name[name]).after(0)
        return {name: column[-1] for name, column in series.items()}

    def points(self, name: str = "q") -> int:
        return len(self.history.of(self._rig.store.state.by_name[name]).ts)


def test_a_point_tells_what_happened_since_the_one_before(rig: QueueRig) -> None:
    rig.queue(lease_ms=5_000, dead_letter="dead", max_deliveries=9)
    past = Past(rig)
    past.step()
    assert past.points() == 0, "there is nothing to compare with yet"
    rig.jobs(40)
    first, second, third, fourth = rig.claimed("w", max=4)
    rig.ack("w", first)
    rig.nack("w", second)
    rig.nack("w", third, dead_letter=True)
    # The lease of the fourth job expires meanwhile.
    assert fourth
    past.step()
    shown = past.last()
    assert set(shown) == set(SERIES)
    assert (shown["appended_per_s"], shown["done_per_s"]) == (4.0, 0.1)
    assert (shown["failed_per_s"], shown["dead_per_s"]) == (0.3, 0.1)
    assert (shown["ready"], shown["in_flight"]) == (38, 0)
    assert shown["waiting_ms"] == STEP_MS
    past.step()
    shown = past.last()
    assert (shown["appended_per_s"], shown["done_per_s"], shown["failed_per_s"]) == (0, 0, 0)
    assert shown["waiting_ms"] == 2 * STEP_MS
    assert past.history.latest() == (38, 0, 2 * STEP_MS)


def test_points_are_bounded_and_end_with_their_queue(rig: QueueRig) -> None:
    rig.queue()
    past = Past(rig)
    past.step(POINTS_MAX + 3)
    assert past.points() == POINTS_MAX
    ts, _ = past.history.of(rig.store.state.by_name["q"]).after(rig.clock.now_ms() - STEP_MS)
    assert ts == [rig.clock.now_ms()]
    rig.drop("q")
    rig.queue()
    past.step(2)
    assert past.points() == 1, "a queue of the same name begins anew"


def test_with_many_queues_those_that_are_asked_about_have_a_past(
    rig: QueueRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_history, "QUEUES_MAX", 2)
    for name in ("a", "b", "c"):
        rig.queue(name)
    past = Past(rig)
    past.step(2)
    # Asking for c takes the place of a; asking for a would take that of b.
    assert [past.points(name) for name in ("b", "c")] == [1, 0]
    past.step(2)
    assert [past.points(name) for name in ("b", "c")] == [3, 1]


def test_the_past_of_a_queue_is_read_with_its_names_prefix_only(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="root,team-key:read:team.") as server:
        client, team = server.client("root"), server.client("team-key")
        for name in ("team.q", "other.q"):
            client.put(f"/v0/topics/{name}", {"type": "queue"})
        client.append("team.log", 1)
        shown = team.get("/v0/topics/team.q/history")
        assert (shown.status, shown.json["step_ms"], set(shown.json["series"])) == (200, STEP_MS, set(SERIES))
        assert team.get("/v0/topics/other.q/history").code == "forbidden"
        assert team.get("/v0/topics/team.log/history").code == "not_a_queue"
        assert team.get("/v0/topics/team.none/history").code == "topic_not_found"
