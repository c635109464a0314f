"""A range of records as an Arrow stream from the server: columns that need no parsing."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pyarrow as pa

from topics.client import ConnectionFailed
from topics.client.exporting import ExportEnd
from topics.client.sync.export import ArrowExport
from topics_spark.source.rows import Records


class Gap(msgspec.Struct, frozen=True):
    """Lost records, as reported by the server."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int = 0


class Slice(NamedTuple):
    """What comes next: records, a gap or the end, and the seq after which reading continues."""

    records: Records | None
    gap: Gap | None
    end: ExportEnd | None
    seq: int


class ArrowSlices:
    """The slices of an export; `epoch` is known before the first one."""

    def __init__(self, export: ArrowExport) -> None:
        self._reader = pa.ipc.open_stream(export)
        self.epoch = int((self._reader.schema.metadata or {}).get(b"epoch", b"0"))

    def __iter__(self) -> Iterator[Slice]:
        while True:
            try:
                batch, about = self._reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                # A stream that is cut between two batches looks like one that has ended.
                raise ConnectionFailed("the export is truncated: its last batch is missing") from None
            if batch.num_rows:
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                yield Slice(Records(columns, batch.num_rows), None, None, columns["seq"][-1].as_py())
            if about is None:
                continue
            if gap_text := about.get(b"tombstone"):
                gap = msgspec.json.decode(gap_text, type=Gap)
                yield Slice(None, gap, None, gap.gap_to)
            if end_text := about.get(b"end"):
                end = msgspec.json.decode(end_text, type=ExportEnd)
                yield Slice(None, None, end, end.next_from_seq)
                return
