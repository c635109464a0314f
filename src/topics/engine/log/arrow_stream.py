"""Runs of records as messages of an Arrow IPC stream. Needs pyarrow, and is called on a thread.

schema ─▶ batch ─▶ … ─▶ end        `tombstone` and `end` are metadata of batches without rows, which readers that do
     └─ (tombstone) batch ─┘       not know them pass over
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from topics.engine.log.reading import FrozenRun
from topics.engine.log.run_columns import UTC_US, Columns, run_columns

TYPES: Final[Mapping[str, Any]] = {
    "seq": pa.int64(),
    "ts": UTC_US,
    "node": pa.string(),
    "tag": pa.string(),
    "data": pa.string(),
    "meta": pa.string(),
}
END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"


class ArrowWriter:
    """Makes the bytes of one stream, slice by slice, in order."""

    def __init__(self, wants: frozenset[str], about: Mapping[str, str]) -> None:
        self._wants = wants
        self._schema = pa.schema([(name, kind) for name, kind in TYPES.items() if name in wants], metadata=about)
        self._begun = False

    def slice(self, runs: Sequence[FrozenRun], gap: bytes | None, end: bytes | None) -> bytes:
        """The records of the runs as a batch, after the gap before them; the last slice has the end."""
        messages: list[Any] = []
        if not self._begun:
            self._begun = True
            messages.append(self._schema.serialize())
        if gap is not None:
            messages.append(self._note({"tombstone": gap}))
        if runs:
            messages.append(self._batch(runs).serialize())
        if end is not None:
            messages += (self._note({"end": end}), END_OF_STREAM)
        # Everything was deleted: an empty batch, so that a slice is never without bytes.
        return b"".join(messages) or self._note({})

    def _batch(self, runs: Sequence[FrozenRun]) -> Any:
        found: list[Columns] = [columns for run in runs for columns, _ in run_columns(run, self._wants)]
        arrays = [pa.concat_arrays([columns[name] for columns in found]) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _note(self, metadata: Mapping[str, bytes]) -> bytes:
        """A batch without rows that carries metadata; only a writer of whole streams can make one."""
        out = io.BytesIO()
        with pa.ipc.new_stream(out, self._schema) as stream:
            stream.write_batch(pa.RecordBatch.from_pylist([], schema=self._schema), custom_metadata=metadata)
        return out.getvalue()[self._schema.serialize().size : -len(END_OF_STREAM)]
