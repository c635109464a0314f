"""How runners share pipelines: by the load of each and the cores that each runner has.

    every 5 s   a runner notes in a topic that it lives, how many cores it has and what it may run
    every turn  all runners compute the same shares; each claims what is its own
    at times    a runner with more than its share gives one pipeline to one that has less

Leases decide who runs a pipeline; shares only decide who asks for it. If two runners compute different shares for a
moment, a pipeline waits for a turn, or moves once too often.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from topics.client import Record, TopicExistsIncompatible
from topics.model.requests.pipelines import seconds

if TYPE_CHECKING:
    from topics.client import Client, Pipeline

RUNNERS: Final = "pipelines.runners"
NOTE_S: Final = 5.0
# As long as a lease: a runner that is silent for longer has lost its pipelines.
ALIVE_MS: Final = 15_000
NOTES_KEPT: Final = 1_000
NOTES_READ: Final = 300
# An idle pipeline has this share of the load of one that is always busy.
IDLE_LOAD: Final = 0.1
# A move must make the lower side better than this part of the higher one; and pipelines do not move all the time.
GAIN: Final = 0.8
MOVE_S: Final = 30.0


class Note(msgspec.Struct, omit_defaults=True):
    """What a runner says about itself."""

    runner: str
    cores: int = 1
    # the pipelines it may run; none: all of them
    only: list[str] = []
    gone: bool = False


class Work(NamedTuple):
    """A pipeline: how much of a core it needs, and who has it."""

    load: float
    holder: str | None


@dataclass(slots=True)
class Shares:
    """Which runner each pipeline belongs to, and one that should move, if any."""

    of: dict[str, str] = field(default_factory=dict[str, str])
    moving: tuple[str, str] | None = None

    def mine(self, runner: str) -> set[str]:
        return {name for name, owner in self.of.items() if owner == runner}


def load_of(pipeline: Pipeline) -> float:
    """How much of the time its batches run, as last reported; a little if it only waits."""
    status = pipeline.status or {}
    progress: dict[str, Any] = status.get("progress") or {}
    if not status.get("rows_per_second"):
        return IDLE_LOAD
    trigger: dict[str, Any] = pipeline.definition.get("trigger") or {}
    every_ms = 1000 * seconds(str(trigger.get("every") or "1 second"))
    took_ms = float(progress.get("batchDuration") or 0)
    return IDLE_LOAD + (took_ms / max(took_ms, every_ms) if took_ms else 0.0)


def holder_of(pipeline: Pipeline, alive: Collection[str]) -> str | None:
    """The live runner that has it, as last reported."""
    status = pipeline.status or {}
    runner = status.get("runner")
    return runner if runner in alive and status.get("state") != "stopped" else None


def share(work: Mapping[str, Work], runners: Mapping[str, Note]) -> Shares:
    """Everybody gets as much as it has cores for; what somebody has stays there unless a move helps."""
    shares = Shares()
    loads = dict.fromkeys(runners, 0.0)

    def give(name: str, runner: str) -> None:
        shares.of[name] = runner
        loads[runner] += work[name].load

    def pressure(runner: str, more: float) -> tuple[float, str]:
        return (loads[runner] + more) / runners[runner].cores, runner

    free: list[str] = []
    for name in sorted(work):
        holder = work[name].holder
        if holder is not None and holder in runners and _may(runners[holder], name):
            give(name, holder)
        else:
            free.append(name)
    for name in sorted(free, key=lambda name: -work[name].load):
        able = [runner for runner, note in runners.items() if _may(note, name)]
        if able:
            give(name, min(able, key=lambda runner: pressure(runner, work[name].load)))
    if not free:
        shares.moving = _move(work, runners, shares.of, loads)
    return shares


def _move(
    work: Mapping[str, Work], runners: Mapping[str, Note], owners: Mapping[str, str], loads: Mapping[str, float]
) -> tuple[str, str] | None:
    """The pipeline whose move lowers the pressure on its runner the most, and where to."""
    best: tuple[float, str, str] | None = None
    for name, high in sorted(owners.items()):
        before = loads[high] / runners[high].cores
        for low, note in sorted(runners.items()):
            if low == high or not _may(note, name):
                continue
            after = (loads[low] + work[name].load) / note.cores
            if after < GAIN * before and (best is None or after - before < best[0]):
                best = after - before, name, low
    return None if best is None else best[1:]


def _may(note: Note, name: str) -> bool:
    return not note.only or name in note.only


class Fellows:
    """The runners that live, by what they note in a topic; the server's clock counts."""

    def __init__(self, client: Client, own: Note) -> None:
        self._client = client
        self._own = own
        self._noted_s: float | None = None
        self._alive: dict[str, Note] = {own.runner: own}

    def alive(self, now_s: float) -> Mapping[str, Note]:
        if self._noted_s is None or now_s - self._noted_s >= NOTE_S:
            if self._noted_s is None:
                with contextlib.suppress(TopicExistsIncompatible):
                    self._client.create(RUNNERS, cap_records=NOTES_KEPT)
            self._client.append(RUNNERS, msgspec.to_builtins(self._own), tag=self._own.runner)
            self._noted_s = now_s
            self.look()
        return self._alive

    def look(self) -> Mapping[str, Note]:
        """Those that live now: a pipeline that is free is not left to one that has just gone."""
        head_seq = self._client.state(RUNNERS, touch=False).head_seq
        self._alive = notes(self._client, head_seq) | {self._own.runner: self._own}
        return self._alive

    def leave(self) -> None:
        """Tell the others not to wait."""
        note = msgspec.structs.replace(self._own, gone=True)
        self._client.append(RUNNERS, msgspec.to_builtins(note), tag=self._own.runner)


def notes(client: Client, head_seq: int) -> dict[str, Note]:
    """The last note of each runner, if it is recent: measured against the newest note of all."""
    found = [record for record in client.read(RUNNERS, max(0, head_seq - NOTES_READ)) if isinstance(record, Record)]
    newest_ts = max((record.ts for record in found), default=0)
    last = {record.tag: record for record in found if newest_ts - record.ts < ALIVE_MS}
    decoded = [msgspec.json.decode(record.raw, type=Note) for record in last.values()]
    return {note.runner: note for note in decoded if not note.gone}
