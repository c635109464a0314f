"""A state folded from ops that a test writes down, as if they were read from the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from topics.engine.core.appended import Appended
from topics.engine.core.op_table import Op
from topics.engine.core.ops import Created
from topics.engine.log.topic import Topic
from topics.engine.opening.composition import new_state
from topics.model.requests.batch import Batch, render
from topics.model.requests.config import TopicConfig
from topics.model.requests.records import append_decoder, decode_body
from topics.model.settings import Settings
from topics.storage.disk import Disk
from topics.storage.pack import Packs


class Folding:
    """Each op has the next position, and nothing but its bytes reaches the state."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.state = new_state(Settings(**settings), Packs(Disk(), str(folder)))
        self.position = 0

    def fold(self, *ops: Op) -> Any:
        """The result of the last one."""
        result: Any = None
        for op in ops:
            self.position += 1
            result = self.state.apply(self.state.ops.decode(op.encode()), self.position)
        return result

    def create(self, topic_id: int, name: str, **config: Any) -> Topic:
        self.fold(Created(topic_id, topic_id << 20, 0, 0, name, TopicConfig(**config)))
        return self.state.by_id[topic_id]

    def append(self, topic_id: int, *records: Any, floor: int = 0, ts: int = 1, skipping: int = 0) -> None:
        """To the end of the topic, as one batch."""
        first_seq = self.state.by_id[topic_id].head_seq + 1 + skipping
        self.fold(Appended(topic_id, floor, b"", batch_of(first_seq, *records, ts=ts)))


def batch_of(first_seq: int, *records: Any, ts: int = 1) -> Batch:
    """Records are payloads, or dictionaries with `data` and what else a request may say."""
    wanted = [record if isinstance(record, dict) else {"data": record} for record in records]
    request = decode_body(append_decoder, msgspec.json.encode({"records": wanted}))
    return render(request, first_seq, ts, bare=all(set(record) == {"data"} for record in wanted))
