"""A model of transactions: whatever stages, commits, aborts, tokens, time and crashes do, topics hold what it says."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.txns.rig import TxnRig
from topics.engine.transactions import commit as committing
from topics.engine.transactions.ledger import Ledger
from topics.model.errors import Fenced, StageNotFound

APPS, TOPICS, STAGES = ("app-1", "app-2"), ("x", "y"), ("s1", "s2")
TTL_MS = 1_000
apps, topics, stages, versions = map(st.sampled_from, (APPS, TOPICS, STAGES, (1, 2, 3, 4)))


class Model:
    """What one app is known to have done."""

    def __init__(self) -> None:
        self.version: int | None = None
        self.named: frozenset[str] = frozenset()
        self.fence = 0
        # stage ─▶ parts, each a list of (topic, payload), and when it expires
        self.stages: dict[tuple[int, str], tuple[list[list[tuple[str, int]]], int]] = {}


class TxnMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="txns-"))
        # Three records are many here, so that both ways of a commit are taken.
        self.much, committing.INLINE_RECORDS_MAX = committing.INLINE_RECORDS_MAX, 2
        self.slice, committing.SLICE_RECORDS_MAX = committing.SLICE_RECORDS_MAX, 2
        self.rig = TxnRig(self.path / "data", wal_file_bytes=1 << 16, stage_ttl_ms=TTL_MS)
        self.apps = {app: Model() for app in APPS}
        self.topics: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        self.payload = 0

    def teardown(self) -> None:
        committing.INLINE_RECORDS_MAX, committing.SLICE_RECORDS_MAX = self.much, self.slice
        self.rig.abandon()
        shutil.rmtree(self.path)

    def alive(self, app: str) -> dict[tuple[int, str], list[list[tuple[str, int]]]]:
        now = self.rig.clock.now_ms()
        return {key: parts for key, (parts, expires_ms) in self.apps[app].stages.items() if expires_ms > now}

    def token(self, app: str, stale: bool) -> int | None:
        fence = self.apps[app].fence
        return (fence or None) if not stale else fence + 1

    def numbers(self, count: int) -> list[int]:
        self.payload += count
        return list(range(self.payload - count, self.payload))

    # --- rules ---

    @rule(topic=topics, count=st.integers(1, 3))
    def append(self, topic: str, count: int) -> None:
        numbers = self.numbers(count)
        self.rig.append(topic, *numbers)
        self.topics[topic] += numbers

    @rule(
        app=apps,
        version=versions,
        stage=stages,
        where=st.lists(topics, min_size=1, max_size=5),
        repeat=st.booleans(),
        stale=st.booleans(),
    )
    def stage(self, app: str, version: int, stage: str, where: list[str], repeat: bool, stale: bool) -> None:
        model = self.apps[app]
        numbers = self.numbers(len(where))
        records: list[dict[str, Any]] = [
            {"data": number, "topic": topic} for number, topic in zip(numbers, where, strict=True)
        ]
        parts = self.alive(app).get((version, stage), [])
        part = len(parts) - 1 if repeat and parts else len(parts)
        fields = {"part": part, "fence": self.token(app, stale)}
        if model.version is not None and version <= model.version:
            assert self.rig.stage(app, version, stage, *records, **fields).done
            return
        if stale:
            with pytest.raises(Fenced):
                self.rig.stage(app, version, stage, *records, **fields)
            return
        change = self.rig.stage(app, version, stage, *records, **fields)
        if part < len(parts):
            assert change.part.records == len(parts[part])
            return
        assert change.part.records == len(records)
        written = [*parts, list(zip(where, numbers, strict=True))]
        model.stages[version, stage] = written, self.rig.clock.now_ms() + TTL_MS

    @rule(app=apps, version=versions, names=st.lists(stages, unique=True), stale=st.booleans())
    def commit(self, app: str, version: int, names: list[str], stale: bool) -> None:
        model = self.apps[app]
        alive = self.alive(app)
        token = self.token(app, stale)
        if model.version is not None and version <= model.version:
            if names and (version, frozenset(names)) != (model.version, model.named):
                with pytest.raises(StageNotFound):
                    self.rig.commit(app, version, *names, fence=token)
                return
            assert self.rig.commit(app, version, *names, fence=token).deduped
            return
        expected = None
        if stale:
            expected = Fenced
        elif any((version, name) not in alive for name in names):
            expected = StageNotFound
        if expected is not None:
            with pytest.raises(expected):
                self.rig.commit(app, version, *names, fence=token)
            return
        assert not self.rig.commit(app, version, *names, fence=token).deduped
        records = [record for name in names for part in alive[version, name] for record in part]
        for topic in TOPICS:
            self.topics[topic] += [number for where, number in records if where == topic]
        model.version, model.named = version, frozenset(names)
        model.stages = {key: kept for key, kept in model.stages.items() if key[0] > version}

    @rule(app=apps, version=versions, names=st.lists(stages, unique=True))
    def abort(self, app: str, version: int, names: list[str]) -> None:
        alive = self.alive(app)
        aborted = self.rig.abort(app, version, *names, fence=self.token(app, stale=False))
        # Some that expired may not have been swept up yet.
        assert aborted >= sum((version, name) in alive for name in names)
        for name in names:
            self.apps[app].stages.pop((version, name), None)

    @rule(app=apps)
    def take_fence(self, app: str) -> None:
        self.apps[app].fence += 1
        assert self.rig.take_fence(app) == self.apps[app].fence

    @rule(app=apps)
    def forget(self, app: str) -> None:
        self.rig.forget(app)
        self.apps[app] = Model()

    @rule(passed_ms=st.sampled_from((1, TTL_MS // 2, TTL_MS)))
    def time_passes(self, passed_ms: int) -> None:
        self.rig.clock.advance(passed_ms)
        self.rig.store.transactions.keep_house()
        self.rig.store.commit_log.flush()

    @rule()
    def checkpoint(self) -> None:
        self.rig.checkpoint()

    @rule()
    def restart(self) -> None:
        self.rig.reopen()

    @rule()
    def crash(self) -> None:
        self.rig.crash()

    # --- what holds always ---

    @invariant()
    def topics_hold_what_was_committed(self) -> None:
        for topic, numbers in self.topics.items():
            if topic in self.rig.store.state.by_name:
                assert self.rig.payloads(topic) == numbers
                assert self.rig.seqs(topic) == list(range(1, len(numbers) + 1))
            else:
                assert not numbers

    @invariant()
    def apps_are_as_reported(self) -> None:
        for app, model in self.apps.items():
            assert self.rig.version(app) == model.version
            alive = self.alive(app)
            assert sorted(self.rig.stages(app)) == sorted(
                (version, name, len(parts), sum(map(len, parts))) for (version, name), parts in alive.items()
            )

    @invariant()
    def totals_are_true(self) -> None:
        state = self.rig.store.state
        assert state.count == sum(map(len, self.topics.values()))
        assert state.bytes == sum(topic.bytes for topic in state.by_name.values())
        ledger = state.feature(Ledger)
        stages = [stage for app in ledger.by_id.values() for stage in app.stages.values()]
        assert ledger.bytes == sum(app.bytes for app in ledger.by_id.values()) == sum(stage.bytes for stage in stages)
        assert ledger.stages == len(stages)
        assert self.rig.hidden() == sum(len(stage.shelves) for stage in stages)


TestTransactions = TxnMachine.TestCase
TestTransactions.settings = settings(max_examples=examples(25), stateful_step_count=30, deadline=None)
