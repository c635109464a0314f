"""Places of jobs in a queue, by the calls of its fold alone."""

from topics.engine.queues.due import NO_STREAM
from topics.engine.queues.queue import Queue

DEADLINE_MS = 1_000


def leased(count: int = 1) -> Queue:
    queue = Queue()
    queue.fresh = count
    queue.hand_out([(seq, 7, 1) for seq in range(1, count + 1)], "worker", DEADLINE_MS, 0, 10, NO_STREAM)
    return queue


def test_a_lease_that_is_replayed_over_itself_expires() -> None:
    """A snapshot that was taken during a claim holds the lease, and the log after it says so again."""
    queue = leased()
    queue.hand_out([(1, 7, 1)], "worker", DEADLINE_MS, 0, 10, NO_STREAM)
    assert queue.in_flight == 1
    queue.advance(DEADLINE_MS + 1)
    assert (queue.in_flight, queue.released) == (0, 1)


def test_a_claim_of_jobs_with_a_priority_leaves_no_empty_group() -> None:
    queue = leased()
    queue.advance(DEADLINE_MS + 1)
    queue.job_for(1).priority = 5
    queue.hand_out([(1, 8, 2)], "worker", 2 * DEADLINE_MS, 0, DEADLINE_MS + 1, NO_STREAM)
    assert [group.priority for bucket in queue._leases._buckets.values() for group in bucket.values()] == [5]
