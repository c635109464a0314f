"""Whether jobs may join their groups: a name means one size and one topic, and a complete group takes no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import TYPE_CHECKING

from topics.engine.core.pending import Busy
from topics.engine.queues.part import results_of
from topics.engine.queues.results.job_groups import OPEN_MAX, JobGroup, JobGroups
from topics.engine.queues.results.ops import GroupsForgotten
from topics.model.errors import InvalidRequest, JobGroupConflict, Throttled

if TYPE_CHECKING:
    from topics.engine.core.commit_log import CommitLog
    from topics.engine.core.in_flight import Key
    from topics.engine.core.pending import PendingChange
    from topics.engine.log.topic import Topic
    from topics.model.requests.records import AppendRequest, GroupColumn, JobGroupRequest


class GroupAdmission:
    """A group exists once its first jobs are published: until then its name is held by that change."""

    def __init__(self, commit_log: CommitLog) -> None:
        self._commit_log = commit_log
        self._in_flight = commit_log.in_flight
        # jobs that are pending, by queue and group
        self._pending: Counter[tuple[int, str]] = Counter()

    def check(self, topic: Topic | None, request: AppendRequest, now_ms: int) -> None:
        """Refuse jobs that cannot join their groups; raises Busy while one of these is created."""
        given: dict[str, JobGroupRequest] = {}
        counts: Counter[str] = Counter()
        for index, record in enumerate(request.records):
            group = record.group
            if group is not None:
                if given.setdefault(group.name, group) != group:
                    field = f"records[{index}].group"
                    raise InvalidRequest(
                        f'{field} says something else of group "{group.name}" than before', field=field
                    )
                counts[group.name] += 1
        if not given:
            return
        if topic is not None:
            # One of them may be among those that are being forgotten.
            self._in_flight.check(_forgotten_key(topic))
            self._in_flight.check_members(_key(topic), [name.encode() for name in given])
        new = 0
        for name, group in given.items():
            existing = _existing(topic, name, now_ms)
            new += existing is None
            pending = self._pending[topic.id, name] if topic is not None else 0
            _check(group, existing, counts[name], pending)
        if new:
            self._make_room(topic, new, given)

    def _make_room(self, topic: Topic | None, new: int, joined: Container[str]) -> None:
        """Idle groups give way. An op says which ones: in a replay, jobs may expire before or after another op."""
        results = results_of(topic) if topic is not None else None
        groups = results.groups if results is not None else JobGroups()
        if topic is not None:
            new += len(self._in_flight.members.get(_key(topic), ()))
        excess = groups.above_limit(new)
        if excess <= 0:
            return
        forgotten = groups.idle(excess, lambda name: name not in joined and not self._has_pending(topic, name))
        if topic is None or len(forgotten) < excess:
            raise Throttled(
                f"a queue has at most {OPEN_MAX} open job groups; finish or cancel their jobs, or use another queue",
                limit="open job groups",
                max=OPEN_MAX,
            )
        op = GroupsForgotten(topic.id, [group.number for group in forgotten])
        journaled = topic.config.durability != "ephemeral"
        change = self._commit_log.submit(op, op.encode(), gated=False, journaled=journaled)
        raise Busy(self._in_flight.hold(change, _forgotten_key(topic)))

    def _has_pending(self, topic: Topic | None, name: str) -> bool:
        return topic is not None and (topic.id, name) in self._pending

    def note(self, topic: Topic, column: GroupColumn, change: PendingChange) -> None:
        """Jobs of these groups are pending."""
        made = [group.name for group in column.groups if _existing(topic, group.name, topic.clock_ms) is None]
        counts = Counter((topic.id, column.groups[number - 1].name) for number in column.numbers if number)
        self._pending.update(counts)
        change.then(lambda _: self._landed(counts))
        if made:
            self._in_flight.hold_members(change, _key(topic), [name.encode() for name in made])

    def _landed(self, counts: Counter[tuple[int, str]]) -> None:
        pending = self._pending
        for key, count in counts.items():
            pending[key] -= count
            if not pending[key]:
                del pending[key]


def _key(topic: Topic) -> Key:
    return ("job groups", topic.id)


def _forgotten_key(topic: Topic) -> Key:
    return ("job groups forgotten", topic.id)


def _existing(topic: Topic | None, name: str, now_ms: int) -> JobGroup | None:
    results = results_of(topic) if topic is not None else None
    group = results.groups.by_name.get(name) if results is not None else None
    return None if group is None or group.has_passed(now_ms) else group


def _check(given: JobGroupRequest, existing: JobGroup | None, count: int, pending: int) -> None:
    if existing is not None and (existing.size, existing.notify) != (given.size, given.notify):
        raise JobGroupConflict(
            given.name,
            f'was opened with size {existing.size} and notify "{existing.notify}"; say the same, or another name',
        )
    added = pending + (existing.added if existing is not None else 0)
    if added + count > given.size:
        raise JobGroupConflict(given.name, f"has {added} of its {given.size} jobs, {count} more do not fit")
