"""The history of a world, sorted by what the checkers ask for."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from tests.simulation.history import Call, History
from tests.simulation.plan import Plan
from tests.simulation.reading import Final
from tests.simulation.reigns import Reigns

if TYPE_CHECKING:
    from tests.simulation.bucket import ObjectStore


@dataclass
class Written:
    """A record as its writer knows it: what was asked, and everything that was answered."""

    topic: str
    data: str
    tag: str | None
    # of a job: while another one with it is pending, this one is not added, and answered with the seq of that
    unique_key: str | None = None
    calls: list[Call] = field(default_factory=list)
    # by the answers: seq, and when that answer came
    seqs: list[tuple[int, float]] = field(default_factory=list)
    # synced whatever the class of the topic; in the bucket, as another topic of the same append has to be
    synced: bool = False
    replicated: bool = False
    # a part of a transaction, which shows when that is committed
    staged: bool = False

    @property
    def acked(self) -> bool:
        return bool(self.seqs)


class Judged(Protocol):
    """A world that has come to its end, simulated or real."""

    @property
    def plan(self) -> Plan: ...
    @property
    def history(self) -> History: ...
    @property
    def finals(self) -> list[Final]: ...
    @property
    def failed_syncs(self) -> int: ...
    @property
    def damaged(self) -> bool: ...
    @property
    def mistakes(self) -> list[str]: ...
    @property
    def bucket(self) -> ObjectStore | None: ...
    @property
    def copies(self) -> list[Final]: ...
    @property
    def skews_s(self) -> dict[str, float]: ...


class Evidence:
    """The history, sorted by what the checkers ask for."""

    def __init__(self, world: Judged) -> None:
        self.plan: Plan = world.plan
        self.history: History = world.history
        self.finals: list[Final] = world.finals
        self.copies: list[Final] = world.copies
        self.skews_s = world.skews_s
        self.reigns = Reigns(world.bucket) if world.bucket is not None else None
        # When another server has taken over: its clocks are its own, and it may never have been told of some changes.
        self.replaced = self.reigns.replaced if self.reigns is not None else []
        kills = self.history.times("kill", "power loss", "disk loss", "end", "stop", "rejoin")
        self.kills = [*kills, *self.replaced]
        self.powers = self.history.times("power loss")
        self.steps = [*self.history.times("clock"), *self.replaced]
        # When everything was read for the first time; what is read later is compared with that.
        self.read_s = self.finals[0].read_s
        self.failed_syncs = world.failed_syncs
        self.damaged = world.damaged
        # Every record that any answer showed: by topic and epoch, seq → data → the first call that showed it.
        self.seen: dict[tuple[str, int], dict[int, dict[str, Call]]] = defaultdict(lambda: defaultdict(dict))
        self.written: dict[str, Written] = {}
        self.deletes: dict[str, list[Call]] = defaultdict(list)
        # When a worker may have let go of a job, or changed its lease, by worker and seq.
        self.released: dict[tuple[str, int], list[float]] = defaultdict(list)
        # Jobs that may have been acked, and those that are dead letters in the end.
        self.acked: set[int] = set()
        self.dead = {record["data"] for record in self.final.records.get("dead", ())}
        self._gather()
        self._places: dict[str, dict[str, list[int]]] = {}

    @property
    def final(self) -> Final:
        """What is there in the end; damage may show only when the records are no longer in memory."""
        return self.finals[-1 if self.damaged else 0]

    def durability(self, topic: str) -> str:
        for plan in self.plan.topics:
            if plan.name == topic:
                return plan.durability
        return self.plan.topic("jobs").durability if topic == "dead" else "disk"

    def config(self, topic: str) -> dict[str, object]:
        return next((plan.config for plan in self.plan.topics if plan.name == topic), {})

    def may_be_kept(self, call: Call) -> bool:
        """A staged record is judged by its commit; a refused write is nowhere, unless a sync failed beneath it."""
        if call.may_have_happened:
            return True
        return call.status in (500, 503) and bool(self.failed_syncs)

    def may_be_gone(self, topic: str, call: Call) -> bool:
        """Whether what this call has changed may be gone with a server that was replaced."""
        if self.reigns is None or self.durability(topic) == "replicated":
            return False
        return self.reigns.may_be_gone(call)

    def is_outdated(self, call: Call) -> bool:
        """Whether it was answered by a standby, or by a server that had been replaced and did not know it."""
        return self.reigns is not None and (call.aged or not self.reigns.owned(call))

    def epoch(self, topic: str) -> int:
        return self.final.states[topic]["epoch"] if topic in self.final.states else 0

    def _gather(self) -> None:
        for call in self.history.of("ack", "nack", "extend"):
            for seq in call.request["seqs"] if call.sent else ():
                self.released[call.client, seq].append(call.began_s)
        for call in self.history.calls:
            match call.verb:
                case "append":
                    self._append(call)
                case "multi":
                    self._multi(call)
                case "stage":
                    self._stage(call)
                case "diff" | "stream":
                    for record in call.answer.get("records", ()):
                        self._show(call, record["$seq"], record["data"])
                case "claim":
                    for job in call.answer.get("claimed", ()):
                        self._show(call, job["$seq"], job["data"])
                case "delete":
                    self.deletes[call.topic].append(call)
                case "ack" if self.may_be_kept(call):
                    self.acked |= set(call.request["seqs"]) - set(call.answer.get("skipped", ()))
                case "consume":
                    for message in call.answer.get("messages", ()):
                        data = json.loads(base64.b64decode(message["payload"]))
                        self._show(call, message["offset"] + 1, data)
                case _:
                    pass

    def _stage(self, call: Call) -> None:
        for record in call.request["records"]:
            written = self._sent(record["topic"], record, call)
            written.synced = written.staged = True

    def seqs_of(self, topic: str, data: str) -> list[int]:
        """Where a record was seen in its topic."""
        places = self._places.get(topic)
        if places is None:
            places = self._places[topic] = defaultdict(list)
            for seq, found in self.seen[topic, self.epoch(topic)].items():
                for one in found:
                    places[one].append(seq)
        return places.get(data, [])

    def _sent(self, topic: str, record: dict[str, Any], call: Call) -> Written:
        written = self.written.get(record["data"])
        if written is None:
            written = self.written[record["data"]] = Written(
                topic, record["data"], record.get("tag"), record.get("unique_key")
            )
        written.calls.append(call)
        return written

    def _append(self, call: Call) -> None:
        seqs = call.answer.get("seqs", []) if call.ok else []
        for number, record in enumerate(call.request["records"]):
            written = self._sent(call.topic, record, call)
            if number < len(seqs) and written.unique_key is None:
                written.seqs.append((seqs[number], call.ended_s))
                self._show(call, seqs[number], record["data"])

    def _multi(self, call: Call) -> None:
        classes = {self.durability(topic) for topic in call.request["topics"]}
        for topic, part in call.request["topics"].items():
            seqs = call.answer["topics"][topic]["seqs"] if call.ok else []
            for number, record in enumerate(part["records"]):
                written = self._sent(topic, record, call)
                written.synced = not classes.isdisjoint(("fsync", "replicated"))
                written.replicated = "replicated" in classes
                if number < len(seqs):
                    written.seqs.append((seqs[number], call.ended_s))
                    self.seen[topic, self.epoch(topic)][seqs[number]].setdefault(record["data"], call)

    def _show(self, call: Call, seq: int, data: str) -> None:
        # A topic that is made anew has its own numbers; only a diff says which epoch it read.
        epoch = call.answer.get("epoch", self.epoch(call.topic))
        if call.topic != "churn" or call.verb == "diff":
            self.seen[call.topic, epoch][seq].setdefault(data, call)
