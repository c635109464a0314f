"""Job groups: how many jobs of each have ended and how, which record says so, and which jobs belong to them.

    open ──`size` jobs have ended──▶ complete ──GroupNotified──▶ notified ──KEPT_MS──▶ forgotten
      └─ idle: all jobs so far have ended ──OPEN_MAX others──▶ GroupsForgotten ──────────▶ forgotten

The counts follow from the fold of what ends jobs. The record that says so and the mark that it was written are one op:
a complete group that is not notified after a restart has no record yet, and gets it then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from topics.engine.log.seq_spans import SeqSpans
from topics.engine.queues.results.ended import EndState

if TYPE_CHECKING:
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic
    from topics.model.requests.batch import Batch
    from topics.model.requests.records import GroupColumn

# Of one queue: groups that are not notified, and notified ones that are remembered, the latest.
OPEN_MAX = 10_000
NOTIFIED_MAX = 10_000
# How long a notified group is remembered: until then its name takes no other jobs.
KEPT_MS = 3_600_000


class JobGroup(msgspec.Struct, array_like=True):
    """One group, as a snapshot stores it; the index of a field never changes. `added` may exceed `size`."""

    number: int
    name: str
    size: int
    notify: str
    since_ts: int
    added: int = 0
    # by EndState
    ended: list[int] = msgspec.field(default_factory=lambda: [0, 0, 0, 0])
    # when the record was written, and its seq; 0: not yet
    notified_ts: int = 0
    notified_seq: int = 0

    @property
    def ended_count(self) -> int:
        return sum(self.ended)

    @property
    def is_due(self) -> bool:
        """Whether its record has to be written."""
        return not self.notified_ts and self.ended_count >= self.size

    def has_passed(self, now_ms: int) -> bool:
        """Whether its name may be used for another group. By the times of ops alone: a replay decides alike."""
        return self.notified_ts > 0 and now_ms >= self.notified_ts + KEPT_MS


class JobGroupsImage(msgspec.Struct, array_like=True):
    """Groups of a queue in a snapshot: notified, idle (both in their order) and other ones; and the seqs of each."""

    next_number: int
    groups: list[JobGroup]
    spans: bytes


class JobGroups:
    """The groups of one queue."""

    __slots__ = ("_by_number", "_idle", "_next_number", "_notified", "_spans", "by_name", "due")

    def __init__(self) -> None:
        self.by_name: dict[str, JobGroup] = {}
        self._by_number: dict[int, JobGroup] = {}
        # in the order in which they were notified
        self._notified: OrderedDict[str, None] = OrderedDict()
        # open, with fewer jobs than `size`, of which none is left; in the order in which they became so
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._spans = SeqSpans()
        self._next_number = 1
        # complete, and without a record
        self.due: dict[str, JobGroup] = {}

    @property
    def open_count(self) -> int:
        return len(self.by_name) - len(self._notified)

    def above_limit(self, new: int) -> int:
        """How many are too many once the new ones are added; 0 or less: none."""
        return self.open_count + new - OPEN_MAX

    def idle(self, most: int, wanted: Callable[[str], bool]) -> list[JobGroup]:
        """Groups that have no job left, those first that have had none for longest; only `wanted` names."""
        return [self.by_name[name] for name in islice(filter(wanted, self._idle), most)]

    @property
    def counting(self) -> bool:
        """Whether the end of a job may matter to a group."""
        return bool(self._spans.left)

    # --- folds ---

    def appended(self, topic: Topic, batch: Batch, column: GroupColumn) -> None:
        """Jobs of a batch join their groups; the first of a name makes it."""
        for given in column.groups:
            self._idle.pop(given.name, None)
        groups = [None, *[self._group(given.name, given.size, given.notify, batch.ts) for given in column.groups]]
        seq = batch.first_seq
        for number, count in _runs(column):
            group = groups[number]
            if group is not None:
                group.added += count
                self._spans.add(group.number, seq, count)
            seq += count
        self._spans.tidy(topic)

    def _group(self, name: str, size: int, notify: str, ts: int) -> JobGroup:
        group = self.by_name.get(name)
        if group is not None and group.has_passed(ts):
            self._forget(group)
            group = None
        if group is None:
            # Only in logs of earlier versions, where no op says which one: jobs are admitted once there is room.
            if self._idle and self.open_count >= OPEN_MAX:
                self._forget(self.by_name[next(iter(self._idle))])
            group = JobGroup(self._next_number, name, size, notify, ts)
            self._next_number += 1
            self.by_name[name] = self._by_number[group.number] = group
        return group

    def dying(self, block: Block, start: int, stop: int, state: EndState) -> None:
        """The live records start … stop − 1 of a block are about to die, because of that."""
        for number, died in self._spans.take(block, start, stop):
            group = self._by_number.get(number)
            if group is not None:
                group.ended[state] += died
                if group.is_due:
                    self.due[group.name] = group
                elif not group.notified_ts and number not in self._spans.left:
                    self._idle[group.name] = None

    def notified(self, name: str, ts: int, seq: int) -> None:
        group = self.by_name.get(name)
        if group is None:
            return
        group.notified_ts, group.notified_seq = ts, seq
        self.due.pop(name, None)
        self._notified[name] = None
        if len(self._notified) > NOTIFIED_MAX:
            self._forget(self.by_name[next(iter(self._notified))])

    def forget_numbers(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            group = self._by_number.get(number)
            if group is not None:
                self._forget(group)

    def _forget(self, group: JobGroup) -> None:
        self._notified.pop(group.name, None)
        self._idle.pop(group.name, None)
        del self.by_name[group.name], self._by_number[group.number]

    # --- between ops ---

    def forget(self, now_ms: int, most: int) -> bool:
        """Drop those that were notified long ago, `most` of them; whether there may be more."""
        for _ in range(most):
            name = next(iter(self._notified), None)
            if name is None or not self.by_name[name].has_passed(now_ms):
                return False
            self._forget(self.by_name[name])
        return True

    # --- in a snapshot ---

    def image(self) -> JobGroupsImage:
        groups = [self.by_name[name] for name in (*self._notified, *self._idle)]
        groups += [
            group for name, group in self.by_name.items() if name not in self._notified and name not in self._idle
        ]
        return JobGroupsImage(self._next_number, groups, self._spans.encode())

    def restore(self, image: JobGroupsImage, blocks: list[Block]) -> None:
        self._next_number = image.next_number
        self._spans.restore(image.spans, blocks)
        for group in image.groups:
            self.by_name[group.name] = self._by_number[group.number] = group
            if group.notified_ts:
                self._notified[group.name] = None
            elif group.is_due:
                self.due[group.name] = group
            elif group.number not in self._spans.left:
                self._idle[group.name] = None


def _runs(column: GroupColumn) -> Iterator[tuple[int, int]]:
    """Neighbours of one group: its number, and how many they are."""
    before, count = 0, 0
    for number in column.numbers:
        if number != before and count:
            yield before, count
            count = 0
        before = number
        count += 1
    if count:
        yield before, count
