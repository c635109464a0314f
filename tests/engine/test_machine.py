"""Whatever is done in whatever order, with restarts and crashes in between, the engine equals a naive model."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engine.rig import Rig
from tests.examples import examples

NAMES = ("a", "b:1", "c.x")
TAGS = ("t1", "t2", "t2:x", "u")
NODES = ("n1", "n2")


@dataclass
class ModelRecord:
    seq: int
    ts: int
    data: Any
    tag: str | None
    node: str | None


@dataclass
class ModelTopic:
    """A list of records, and nothing clever."""

    cap_records: int = 0
    ttl_ms: int = 0
    durability: str = "disk"
    records: list[ModelRecord] = field(default_factory=list)
    head_seq: int = 0
    floor: int = 1
    keys: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def expire(self, now: int) -> None:
        if self.ttl_ms:
            self.lose([record for record in self.records if record.ts < now - self.ttl_ms])

    def enforce(self) -> None:
        if self.cap_records and len(self.records) > self.cap_records:
            self.lose(self.records[: len(self.records) - self.cap_records])

    def lose(self, lost: list[ModelRecord]) -> None:
        if lost:
            self.floor = max(self.floor, lost[-1].seq + 1)
            self.records = [record for record in self.records if record.seq >= self.floor]

    @property
    def earliest_seq(self) -> int:
        return self.records[0].seq if self.records else self.head_seq + 1


class EngineMachine(RuleBasedStateMachine):
    @initialize(events=st.sampled_from([2, 5, 1000]), hot=st.sampled_from([0, 1, 4]))
    def start(self, events: int, hot: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="topics-machine-"))
        self.rig = Rig(self.root / "data", segment_max_events=events, hot_retain_segments=hot, wal_file_bytes=65536)
        self.model: dict[str, ModelTopic] = {}
        self.values = itertools.count()

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.abandon()
            shutil.rmtree(self.root)

    def now(self) -> int:
        return self.rig.clock.now_ms()

    @rule(
        name=st.sampled_from(NAMES),
        cap=st.sampled_from([0, 0, 3, 7]),
        ttl=st.sampled_from([0, 0, 50]),
        durability=st.sampled_from(["disk", "fsync", "memory"]),
    )
    def configure(self, name: str, cap: int, ttl: int, durability: str) -> None:
        self.rig.configure(name, cap_records=cap, ttl_ms=ttl, durability=durability)
        topic = self.model.setdefault(name, ModelTopic())
        topic.expire(self.now())
        topic.cap_records, topic.ttl_ms, topic.durability = cap, ttl, durability
        topic.enforce()

    @rule(
        name=st.sampled_from(NAMES),
        count=st.integers(1, 12),
        tag=st.sampled_from((None, *TAGS)),
        node=st.sampled_from((None, *NODES)),
        key=st.sampled_from((None, None, "k1", "k2")),
    )
    def append(self, name: str, count: int, tag: str | None, node: str | None, key: str | None) -> None:
        topic = self.model.setdefault(name, ModelTopic())
        datas = [next(self.values) for _ in range(count)]
        records = [{"data": data, "tag": tag, "node": node} for data in datas]
        staged = self.rig.append(name, *records, idempotency_key=key)
        known = topic.keys.get(key) if key else None
        if known is not None and self.now() - known[2] <= 120_000:
            assert (staged.deduped, staged.first_seq, staged.count) == (True, known[0], known[1])
            return
        assert (staged.deduped, staged.first_seq, staged.count) == (False, topic.head_seq + 1, count)
        topic.expire(self.now())
        for data in datas:
            topic.head_seq += 1
            topic.records.append(ModelRecord(topic.head_seq, self.now(), data, tag, node))
        topic.enforce()
        if key:
            topic.keys[key] = staged.first_seq, count, self.now()

    @precondition(lambda self: self.model)
    @rule(
        data=st.data(),
        match=st.sampled_from((None, "t1", ["tag", "Eq", "t2"], ["tag", "Glob", "t2*"], ["tag", "Glob", "*"])),
        share=st.floats(0, 1),
        bounded=st.booleans(),
    )
    def delete(self, data: st.DataObject, match: Any, share: float, bounded: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        topic = self.model[name]
        topic.expire(self.now())
        before = int(topic.head_seq * share) + 1 if bounded or match is None else topic.head_seq + 1
        request: dict[str, Any] = {} if match is None else {"match": match}
        if bounded or match is None:
            request["before_seq"] = before
        dying = [record for record in topic.records if record.seq < before and _matches(record.tag, match)]
        assert self.rig.delete(name, **request) == len(dying)
        topic.records = [record for record in topic.records if record not in dying]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        assert self.rig.drop(name)
        del self.model[name]

    @rule(ms=st.sampled_from([1, 20, 60, 130_000]))
    def wait(self, ms: int) -> None:
        self.rig.clock.advance(ms)

    @rule()
    def checkpoint(self) -> None:
        self.rig.checkpoint()

    @rule()
    def restart(self) -> None:
        self.rig.reopen()

    @rule()
    def crash(self) -> None:
        self.rig.crash()

    @precondition(lambda self: self.model)
    @rule(data=st.data(), limit=st.integers(1, 9), node=st.sampled_from((None, *NODES)))
    def read_in_steps(self, data: st.DataObject, limit: int, node: str | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.model)))
        topic = self.model[name]
        topic.expire(self.now())
        from_seq = data.draw(st.integers(0, topic.head_seq))
        diff = self.rig.diff(name, from_seq, limit=limit, node=node)
        assert (diff.tombstone is not None) == (from_seq + 1 < topic.floor)
        if diff.tombstone is not None:
            assert (diff.tombstone.gap_from, diff.tombstone.gap_to) == (from_seq + 1, topic.earliest_seq - 1)
        found = self.rig.records(name, from_seq, limit=limit, node=node)
        wanted = [record for record in topic.records if record.seq > from_seq and (not node or record.node != node)]
        assert [(record["$seq"], record["data"]) for record in found] == [(r.seq, r.data) for r in wanted]

    @invariant()
    def equals_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        assert self.rig.store.state.names == sorted(self.model)
        for name, topic in self.model.items():
            topic.expire(self.now())
            found = self.rig.records(name, include_tags=True)
            wanted = [_rendered(record) for record in topic.records]
            assert found == wanted
            state = self.rig.look(name)
            assert (state.head_seq, state.earliest_seq) == (topic.head_seq, topic.earliest_seq)
            assert state.count == len(topic.records)
        assert self.rig.store.state.count == sum(len(topic.records) for topic in self.model.values())
        assert self.rig.store.state.bytes == sum(topic.bytes for topic in self.rig.store.state.by_id.values())


def _matches(tag: str | None, match: Any) -> bool:
    if match is None:
        return True
    if tag is None:
        return False
    if isinstance(match, str):
        return tag == match
    return tag == match[2] if match[1] == "Eq" else tag.startswith(match[2][:-1])


def _rendered(record: ModelRecord) -> dict[str, Any]:
    rendered: dict[str, Any] = {"$seq": record.seq, "$ts": record.ts, "data": record.data}
    if record.node is not None:
        rendered["$node"] = record.node
    if record.tag is not None:
        rendered["$tag"] = record.tag
    return rendered


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(settings.default, max_examples=examples(30), stateful_step_count=40, deadline=None)
