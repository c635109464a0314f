"""Transactions driven by hand: a commit is stepped to its end in the test's own thread, or as far as the test likes."""

from __future__ import annotations

from itertools import count
from typing import Any

import msgspec
from msgspec import Raw

from tests.engine.rig import Rig
from topics.engine.core.pending import PendingChange
from topics.engine.transactions.commit import Committed
from topics.engine.transactions.ledger import Ledger
from topics.engine.transactions.verbs import StagedPart
from topics.model.requests.transactions import AbortRequest, CommitRequest, StageRequest


class TxnRig(Rig):
    """A rig that speaks the verbs of transactions."""

    def __enter__(self) -> TxnRig:
        return self

    def open(self) -> None:
        """Each look at the clock of the background finds a slice later: a commit has as many steps as it can have."""
        super().open()
        looks = count()
        self.store.background.clock_s = lambda: float(next(looks))

    def stage(self, app: str, version: int, stage: str, *payloads: Any, part: int = 0, **fields: Any) -> StagedPart:
        records = [
            payload if isinstance(payload, dict) and "data" in payload else {"data": payload} for payload in payloads
        ]
        body = msgspec.json.encode({"stage": stage, "part": part, "records": records, **fields})
        return self.stage_body(app, version, body)

    def request(self, stage: str, *payloads: Any, **fields: Any) -> StageRequest:
        body = {"stage": stage, "records": [{"data": payload} for payload in payloads], **fields}
        return msgspec.json.decode(msgspec.json.encode(body), type=StageRequest)

    def stage_many(self, app: str, version: int, stage: str, topic: str, records: int, part: int = 0) -> StagedPart:
        """As many records as one part takes, cheaply."""
        bodies = b",".join([b'{"data":%d}' % number for number in range(records)])
        body = b'{"stage":"%b","part":%d,"topic":"%b","records":[%b]}' % (stage.encode(), part, topic.encode(), bodies)
        return self.stage_body(app, version, body)

    def stage_body(self, app: str, version: int, body: bytes) -> StagedPart:
        request = msgspec.json.decode(body, type=StageRequest)
        return self._commit(lambda: self.store.transactions.stage(app, version, request)).result

    def commit(self, app: str, version: int, *stages: str, **fields: Any) -> Committed:
        return self.finish(self.begin_commit(app, version, *stages, **fields)).result

    def begin_commit(self, app: str, version: int, *stages: str, **fields: Any) -> PendingChange:
        request = CommitRequest(list(stages), **fields)
        return self._run(lambda: self.store.transactions.commit(app, version, request))

    def abort(self, app: str, version: int, *stages: str, fence: int | None = None) -> int:
        request = AbortRequest(list(stages), fence)
        return self._commit(lambda: self.store.transactions.abort(app, version, request)).result

    def take_fence(self, app: str, owner: str | None = None) -> int:
        return self._commit(lambda: self.store.transactions.take_fence(app, owner)).result

    def forget(self, app: str) -> bool:
        return self._commit(lambda: self.store.transactions.forget(app)).result

    def version(self, app: str) -> int | None:
        found, _ = self.store.transactions.look(app)
        return found.version if found is not None else None

    def stages(self, app: str) -> list[tuple[int, str, int, int]]:
        """What is staged: version, stage, parts, records."""
        _, stages = self.store.transactions.look(app)
        return [(stage.version, stage.name, len(stage.parts), stage.records) for stage, *_ in stages]

    def payloads(self, topic: str) -> list[Any]:
        return [record["data"] for record in self.records(topic)]

    def hidden(self) -> int:
        """How many hidden topics there are, without those that are about to be removed."""
        return len(self.store.state.hidden) - self.abandoned()

    def abandoned(self) -> int:
        """How many hidden topics of dropped stages there still are."""
        return sum(len(stage.shelves) for stage in self.store.state.feature(Ledger).abandoned)

    def finish(self, change: PendingChange) -> PendingChange:
        """Run commits, too, until this is done."""
        self.store.commit_log.flush()

        def is_done() -> bool:
            while not change.done and self.work():
                self.store.settle()
            return change.done

        self.wait_until(is_done)
        if change.error is not None:
            raise change.error
        return change


def raw(text: bytes) -> Raw:
    return Raw(text)
