"""Offsets of a stream: the epoch and seq of each topic; and how far the next batch may go.

    {"orders": {"epoch": 3675726299172698, "seq": 1200}, "refunds": {"epoch": …, "from": 0, "seq": 7}}

`seq` is the last one read. A topic that enters the stream with this batch has `from`, where it begins. So a batch is
determined by its two offsets, also for a driver that was restarted. Spark compares offsets as text: keys are sorted,
and equal offsets have equal texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from topics_spark.errors import DataLost
from topics_spark.source.ranges import Range

# The start of a new query, before any topic was read: no topic's name begins like this.
MARKER = "$start"


class Head(NamedTuple):
    """The state of a topic now. `earliest_seq` is the first one that still exists."""

    epoch: int
    head_seq: int
    earliest_seq: int


class Position(NamedTuple):
    epoch: int
    seq: int
    # Where this topic begins, if it was in no earlier offset.
    begin: int | None = None


Offsets = Mapping[str, Position]


def encoded(offsets: Offsets) -> dict[str, Any]:
    return {name: entry(offsets[name]) for name in sorted(offsets)}


def entry(position: Position) -> dict[str, int]:
    if position.begin is None:
        return {"epoch": position.epoch, "seq": position.seq}
    return {"epoch": position.epoch, "from": position.begin, "seq": position.seq}


def decoded(offset: Mapping[str, Any]) -> dict[str, Position]:
    return {name: Position(at["epoch"], at["seq"], at.get("from")) for name, at in offset.items() if name != MARKER}


def is_marker(offset: Mapping[str, Any]) -> bool:
    return MARKER in offset


def between(start: Offsets, end: Offsets) -> Iterator[Range]:
    """What a batch reads."""
    for name in sorted(end):
        position = end[name]
        before = start.get(name)
        if before is not None and before.epoch == position.epoch:
            begin = before.seq
        else:
            assert position.begin is not None, f"the offset does not say where {name} begins"
            begin = position.begin
        yield Range(name, position.epoch, begin, position.seq)


@dataclass(slots=True)
class Step:
    """Where the next batch could go from `start`: what can be read, and what is lost."""

    cursors: dict[str, Position] = field(default_factory=dict[str, Position])
    available: dict[str, int] = field(default_factory=dict[str, int])
    losses: list[DataLost] = field(default_factory=list[DataLost])
    changed: bool = False

    @property
    def total(self) -> int:
        return sum(self.available.values())

    def end(self, limit: int | None) -> dict[str, Position]:
        granted = self.available if limit is None else rationed(self.available, limit)
        return {name: cursor._replace(seq=cursor.seq + granted.get(name, 0)) for name, cursor in self.cursors.items()}


def step_from(start: Offsets, heads: Mapping[str, Head], begins: Mapping[str, int] | None) -> Step:
    """`begins` has the start of each topic of a new query; later topics are read from their first record."""
    step = Step(changed=begins is not None)
    for name, head in heads.items():
        before = start.get(name)
        if before is None or before.epoch != head.epoch:
            if before is not None:
                step.losses.append(recreated(name, before))
            begin = 0 if begins is None else begins.get(name, 0)
            step.cursors[name] = Position(head.epoch, begin, begin)
            step.changed = True
        elif head.head_seq < before.seq:
            step.losses.append(DataLost(f"topic {name!r} ends at seq {head.head_seq}, before offset {before.seq}"))
            step.cursors[name] = Position(head.epoch, head.head_seq)
            step.changed = True
        else:
            step.cursors[name] = Position(head.epoch, before.seq)
        step.available[name] = max(0, head.head_seq - step.cursors[name].seq)
    for name, before in start.items():
        if name not in heads:
            step.losses.append(DataLost(f"topic {name!r} was deleted; records after seq {before.seq} may be missing"))
            step.changed = True
    return step


def recreated(name: str, before: Position) -> DataLost:
    return DataLost(
        f"topic {name!r} was deleted and created again; records of the old topic after seq {before.seq} may be missing"
    )


def rationed(available: Mapping[str, int], limit: int) -> Mapping[str, int]:
    """`limit` offsets in proportion to what each topic has, using all of them."""
    total = sum(available.values())
    if total <= limit:
        return available
    granted = {name: seqs * limit // total for name, seqs in available.items()}
    left = limit - sum(granted.values())
    for name in sorted(available, key=lambda name: (-(available[name] * limit % total), name))[:left]:
        granted[name] += 1
    return granted
