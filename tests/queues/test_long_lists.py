"""Lists of jobs by time go on in bounded steps, however many jobs there are and wherever in time they lie."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.queues.queue_rig import QueueRig
from topics.engine.queues import due
from topics.engine.queues.due import DueGroup, DueTimes, Job, JobPlace, jobs_of
from topics.engine.queues.operator.job_pages import START, JobPosition
from topics.model.requests.jobs import JobState

K = TypeVar("K")
V = TypeVar("V")
PLACES = 4


class Visited(dict[K, V]):
    """Counts the places that are looked at."""

    places = 0

    def get(self, key: Any, default: Any = None) -> Any:
        Visited.places += 1
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        Visited.places += 1
        return super().__contains__(key)


def most_between(items: Any) -> tuple[int, list[Any]]:
    """The most places that were looked at for one item of an iterator, and all of its items."""
    most, before = 0, Visited.places
    found: list[Any] = []
    for item in items:
        most, before = max(most, Visited.places - before), Visited.places
        found.append(item)
    return max(most, Visited.places - before), found


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due, "PLACES_PER_STEP", PLACES)


def resting(dues: list[int]) -> DueTimes:
    times = DueTimes(JobPlace.RESTING)
    for seq, due_ms in enumerate(dues, 1):
        group = times.at(due_ms)
        group.jobs[seq] = Job(seq, group)
    return times


@given(dues=st.lists(st.integers(1_000, 20_000), max_size=30), after_ms=st.integers(0, 21_000))
def test_groups_are_found_by_time_whether_they_are_sorted_or_walked_to(dues: list[int], after_ms: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for places in (PLACES, 1_000):
            patch.setattr(due, "PLACES_PER_STEP", places)
            found = [(at, [*group.jobs]) for at, groups in resting(dues).groups_from(after_ms) for group in groups]
            seqs_of = {at: [seq for seq, other in enumerate(dues, 1) if other == at] for at in dues}
            assert found == sorted((at, seqs) for at, seqs in seqs_of.items() if at >= after_ms)


@pytest.mark.usefixtures("few_places")
def test_a_walk_over_times_without_jobs_can_be_left_after_some_places() -> None:
    times = resting([1_000 + 10_000 * number for number in range(10)])
    times._buckets = Visited(times._buckets)
    most, found = most_between(times.groups_from(0))
    assert most <= PLACES
    assert [at for at, groups in found if groups] == [1_000 + 10_000 * number for number in range(10)]


@pytest.mark.usefixtures("few_places")
def test_so_can_a_walk_over_the_seqs_of_a_large_group() -> None:
    group = DueGroup(JobPlace.RESTING)
    group.jobs = Visited({seq: Job(seq, group) for seq in range(300, 100, -25)})
    most, found = most_between(jobs_of([group], 1, 400))
    assert most <= PLACES
    assert [seq for seq, job in found if job is not None] == list(range(125, 301, 25))


@pytest.mark.usefixtures("few_places")
def test_pages_hold_every_delayed_and_leased_job_once_in_the_order_of_their_times(rig: QueueRig) -> None:
    rig.queue(lease_ms=60_000)
    delays = [5_000, 900_000, 5_000, 5_000, 40_000, 5_000, 5_000, 77_700, 5_000, 900_000]
    rig.append("q", *({"data": n, "delay_ms": delay_ms} for n, delay_ms in enumerate(delays)))
    rig.append("q", *range(9))
    rig.claim(max=6, lease_ms=90_000)
    rig.claim(max=3, lease_ms=30_000)
    delayed = [seq for _, seq in sorted((delay_ms, seq) for seq, delay_ms in enumerate(delays, 1))]
    leased = [17, 18, 19, 11, 12, 13, 14, 15, 16]
    for page_size in (1, 3, 100):
        assert listed(rig, "delayed", page_size) == delayed
        assert listed(rig, "leased", page_size) == leased
    topic, queue = rig.parts()
    assert [seq for seq, _ in queue.leases_from(topic, 0, 0, 4)] == leased[:4]


def listed(rig: QueueRig, state: JobState, page_size: int) -> list[int]:
    seqs: list[int] = []
    after: JobPosition | None = START
    while after is not None:
        chosen = rig.drive(rig.store.queues.job_pages.choose("q", state, None, after, page_size))
        seqs += [at.seq for at in chosen.found]
        after = chosen.after
    return seqs
