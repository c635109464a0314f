"""What a queue keeps of its jobs beyond their records; most queues keep nothing, and have none of this."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.engine.queues.results.ended import EndedJobs, EndState, split_ended
from topics.engine.queues.results.job_groups import JobGroups, JobGroupsImage

if TYPE_CHECKING:
    from topics.engine.core.waiting.runner import Signal
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic
    from topics.model.requests.batch import Batch

# Progress of more jobs than this is dropped, that of the first ones first.
PROGRESS_MAX = 10_000


class KeptResults:
    """Which queues keep something for a time, and which have a job group that is complete and not notified; by id."""

    __slots__ = ("due", "for_a_time")

    def __init__(self) -> None:
        self.for_a_time: dict[int, Topic] = {}
        self.due: dict[int, Topic] = {}

    def discard(self, topic: Topic) -> None:
        self.for_a_time.pop(topic.id, None)
        self.due.pop(topic.id, None)


class QueueResults:
    """Of one queue: progress of its jobs, jobs that have ended, groups, and who waits for the end of a job.

    `state` says how the jobs end that die now; a fold that knows sets it for as long as it lasts.
    """

    __slots__ = ("_kept", "_topic", "awaited", "ended", "groups", "progress", "refusals", "state")

    def __init__(self, topic: Topic, kept: KeptResults) -> None:
        self._topic = topic
        self._kept = kept
        # by seq, JSON as the worker sent it
        self.progress: dict[int, bytes] = {}
        self.ended = EndedJobs()
        self.groups = JobGroups()
        self.state = EndState.REMOVED
        self.awaited: dict[int, list[Signal]] = {}
        # why groups that are complete could not be notified so far, by name
        self.refusals: dict[str, str] = {}

    def appended(self, topic: Topic, batch: Batch) -> None:
        """A batch with groups was added to the queue."""
        assert batch.jobs is not None and batch.jobs.groups is not None
        self.groups.appended(topic, batch, batch.jobs.groups)

    def add_ended(self, jobs: bytes) -> None:
        self.ended.add(split_ended(jobs))
        self._kept.for_a_time[self._topic.id] = self._topic

    def notified(self, group: str, ts: int, seq: int) -> None:
        self.groups.notified(group, ts, seq)
        self._kept.for_a_time[self._topic.id] = self._topic

    def restore_groups(self, image: JobGroupsImage) -> None:
        self.groups.restore(image, self._topic.blocks)
        self._kept.for_a_time[self._topic.id] = self._topic
        if self.groups.due:
            self.alert()

    def forget(self, ended_until: int, now_ms: int, most: int) -> bool:
        """Drop some of what has been kept long enough; whether there may be more."""
        more = self.ended.forget(ended_until, most) or self.groups.forget(now_ms, most)
        if not self.ended and not self.groups.by_name:
            self._kept.for_a_time.pop(self._topic.id, None)
        return more

    def note_progress(self, seqs: list[int], progress: bytes) -> None:
        kept = self.progress
        for seq in seqs:
            kept.pop(seq, None)
            kept[seq] = progress
        while len(kept) > PROGRESS_MAX:
            del kept[next(iter(kept))]

    def dying(self, block: Block, start: int, stop: int) -> None:
        """The live records start … stop − 1 of a block are about to die."""
        if self.groups.counting:
            self.groups.dying(block, start, stop, self.state)
            if self.groups.due:
                self.alert()
        for kept in (self.progress, self.awaited):
            if kept:
                self._pass_on(kept, block, start, stop)

    def _pass_on(self, kept: dict[int, bytes] | dict[int, list[Signal]], block: Block, start: int, stop: int) -> None:
        """Drop the progress of jobs that end; wake those who wait for the end, who look again then."""
        for first, end in block.alive_runs(start, stop):
            seqs = [block.seq_at(number) for number in range(first, end)] if end - first < len(kept) else list(kept)
            first_seq, last_seq = block.seq_at(first), block.seq_at(end - 1)
            for seq in seqs:
                if first_seq <= seq <= last_seq:
                    found = kept.pop(seq, None)
                    if isinstance(found, list):
                        _wake(found)

    def alert(self) -> None:
        """A job group has to be notified."""
        self._kept.due[self._topic.id] = self._topic

    def wake_all(self) -> None:
        """The queue is removed."""
        for signals in self.awaited.values():
            _wake(signals)


def _wake(signals: list[Signal]) -> None:
    for signal in signals:
        signal.set()
