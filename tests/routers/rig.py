"""A hand-driven store with routers: everything that can be forwarded is, before a call returns."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.engine.rig import Rig
from topics.engine.routers.verbs import RouterState
from topics.model.requests.routers import RouterRequest


class RoutedRig(Rig):
    def route(self, name: str, source: str, dest: str, **fields: Any) -> bool:
        """PUT; whether the router is new."""
        request = msgspec.convert({"source": source, "dest": dest, **fields}, RouterRequest)
        change = self._commit(lambda: self.store.routers.put(name, request))
        self.forward()
        return change.created

    def unroute(self, name: str) -> bool:
        return self._commit(lambda: self.store.routers.drop(name)).result

    def router(self, name: str) -> RouterState:
        return self.store.routers.look(name)

    def forward(self) -> None:
        """Until nothing moves any more."""
        forwarder = self.store.forwarder
        while True:
            if not self.work() and not forwarder.step():
                self.settle_threads()
                if not self.work() and not forwarder.pending:
                    return

    def settle_threads(self) -> None:
        """Whatever the threads still have to say."""
        position = self.store.wal.written_to
        self.store.syncer.want_sync(position)
        self.wait_until(lambda: self.store.wal.synced_to >= position)
        self.store.settle()
        self.store.worker.submit(lambda: None)
        self.wait_until(lambda: not self.store.worker.pending)

    def copies(self, topic: str, **fields: Any) -> list[Any]:
        """The payloads there are, forwarded first."""
        self.forward()
        return [record["data"] for record in self.records(topic, **fields)]

    def journal_bytes(self) -> int:
        return self.store.wal.written_to
