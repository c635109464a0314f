"""Transactions: stage records in parts, then commit all of them under a version, once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from topics.client.request import body_of
from topics.client.transactions import CommittedTxn, Span, Staged, StageState, Txn, TxnItem
from topics.client.values import Outgoings
from topics.embedded.host import Host
from topics.embedded.requests import check_nesting, decoded, request_of
from topics.embedded.values import encoded
from topics.engine.core.listing import PAGE_SIZE_MAX
from topics.engine.transactions.commit import Committed
from topics.engine.transactions.ledger import App
from topics.engine.transactions.verbs import StagedPart
from topics.model.requests.transactions import AbortRequest, CommitRequest, FenceRequest, StageRequest

PAGE_SIZE: Final = 1_000
_stage_decoder = msgspec.json.Decoder(StageRequest)


class Transactions:
    _host: Host

    def take_fence(self, app: str, owner: str | None = None) -> int:
        """A new, higher token: from now on, holders of a lower one are refused with Fenced.

        An `owner` that asks again gets the same token, and is refused with Fenced once another owner has taken one.
        """
        params = request_of(FenceRequest, owner=owner)
        return self._host.commit(lambda: self._host.store.transactions.take_fence(app, params.owner)).result

    def stage(
        self,
        app: str,
        version: int,
        stage: str,
        part: int,
        records: Outgoings,
        topic: str | None = None,
        fence: int | None = None,
    ) -> Staged:
        """Stage records for a version. Repeating a part changes nothing.

        Each record is an Outgoing or plain data for `topic`; or all of them are a JSON array in bytes, in which a
        record may name its own `topic`.
        """
        fields = body_of(stage=stage, part=part, topic=topic, fence=fence)
        params = decoded(_stage_decoder, b'{"records":%b,%b' % (encoded(records), fields[1:]))
        check_nesting(params.records)
        done: StagedPart = self._host.commit(lambda: self._host.store.transactions.stage(app, version, params)).result
        return Staged(
            stage=stage,
            part=part,
            records=done.part.records,
            bytes=done.part.bytes,
            expires_ms=done.expires_ms,
            done=done.done,
            fence=done.fence if done.done else 0,
        )

    def commit_txn(self, app: str, version: int, stages: Iterable[str], fence: int | None = None) -> CommittedTxn:
        """Make all records in these stages visible, once: a version that was committed before stays unchanged."""
        params = request_of(CommitRequest, stages=list(stages), fence=fence)
        done: Committed = self._host.commit(lambda: self._host.store.transactions.commit(app, version, params)).result
        return CommittedTxn(
            committed=True,
            version=done.version,
            deduped=done.deduped,
            topics={
                landed.topic: Span(first_seq=landed.first_seq, last_seq=landed.last_seq, records=landed.records)
                for landed in done.landed or ()
            },
        )

    def abort_txn(self, app: str, version: int, stages: Iterable[str], fence: int | None = None) -> int:
        """Drop stages; how many there were."""
        params = request_of(AbortRequest, stages=list(stages), fence=fence)
        return self._host.commit(lambda: self._host.store.transactions.abort(app, version, params)).result

    def txn(self, app: str) -> Txn:
        """What an app has committed and staged."""

        def look() -> Txn:
            found, stages = self._host.store.transactions.look(app)
            if found is None:
                return Txn(app=app)
            return Txn(
                app=app,
                version=found.version,
                fence=found.fence,
                stages=[
                    StageState(
                        version=stage.version,
                        stage=stage.name,
                        parts=len(stage.parts),
                        records=stage.records,
                        bytes=stage.bytes,
                        expires_ms=expires_ms,
                        created_ms=created_ms,
                        owner=stage.owner or None,
                    )
                    for stage, created_ms, expires_ms in stages
                ],
            )

        return self._host.look(look)

    def txns(self, *, page_size: int = PAGE_SIZE) -> Iterator[TxnItem]:
        """Apps that have transactions, by name."""
        size = max(1, min(PAGE_SIZE_MAX, page_size))
        after = ""
        while True:
            page = self._apps_after(after, size)
            yield from page
            if len(page) < size:
                return
            after = page[-1].app

    def _apps_after(self, after: str, size: int) -> list[TxnItem]:
        def item(app: App) -> TxnItem:
            return TxnItem(app=app.name, version=app.version, fence=app.fence, stages=len(app.stages), bytes=app.bytes)

        transactions = self._host.store.transactions
        return self._host.look(lambda: [item(app) for app in transactions.list("", after, size)])

    def forget_txn(self, app: str) -> bool:
        """Forget an app: its version, its token and its stages. Committed records stay."""
        return self._host.commit(lambda: self._host.store.transactions.forget(app)).result
