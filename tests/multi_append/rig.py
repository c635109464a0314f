"""A store driven by hand that takes appends to several topics."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.engine.rig import Rig
from topics.engine.core.multi_append import Landed
from topics.engine.core.pending import PendingChange
from topics.model.requests.multi_append import MultiAppendRequest


class MultiRig(Rig):
    def __enter__(self) -> MultiRig:
        return self

    def request(self, topics: dict[str, Any], **fields: Any) -> MultiAppendRequest:
        """Of each topic its payloads, or its whole part of the body."""
        parts = {
            name: part if isinstance(part, dict) else {"records": [{"data": payload} for payload in part]}
            for name, part in topics.items()
        }
        return msgspec.json.decode(msgspec.json.encode({"topics": parts, **fields}), type=MultiAppendRequest)

    def begin_all(self, topics: dict[str, Any], **fields: Any) -> PendingChange:
        """Decided and not yet written."""
        request = self.request(topics, **fields)
        return self._run(lambda: self.store.multi_append.append(request))

    def append_all(self, topics: dict[str, Any], **fields: Any) -> PendingChange:
        return self.finish(self.begin_all(topics, **fields))

    def landed(self, topics: dict[str, Any], **fields: Any) -> dict[str, Landed]:
        return self.append_all(topics, **fields).result

    def payloads(self, topic: str) -> list[Any]:
        return [record["data"] for record in self.records(topic)] if topic in self.store.state.by_name else []
