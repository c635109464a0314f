"""Compaction of an archive: small files of a folder become one, without records that were deleted since.

The topic says which records of a range are live. Records that retention has dropped are not deleted: the topic reports
them by a tombstone, and the archive keeps them. A topic that was created again says nothing about the old topic.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from topics.client import Client, TopicNotFound
from topics_spark.payloads.columns import line_columns
from topics_spark.pipelines.assignment import app_of
from topics_spark.pipelines.tables import Change, DataFile, Extent, commit, described, load, project, sync

ROWS_MAX: Final = 2_000_000
ORPHAN_AGE_S: Final = 24 * 3600
_SEQ: Final = frozenset(("seq",))


class Compacted(NamedTuple):
    files_before: int
    files_after: int
    rows_removed: int


class Gap(msgspec.Struct):
    gap_from: int
    gap_to: int


class GapLine(msgspec.Struct):
    tombstone: Gap


def compact(client: Client, pipeline: str, table: Path, rows_max: int = ROWS_MAX) -> Compacted:
    """One run over all folders; each is a change of its own, so that an interrupted run keeps its progress."""
    app = f"{app_of(pipeline)}:compact"
    fence = client.take_fence(app)
    before = project(client, pipeline, table)
    removed = 0
    for files in _groups(before.files, rows_max):
        change, gone = _merged(client, table, files)
        if change is not None:
            commit(client, pipeline, app, fence, change)
            removed += gone
    after = project(client, pipeline, table)
    _remove_orphans(table)
    return Compacted(len(before.files), len(after.files), removed)


def _groups(files: list[DataFile], rows_max: int) -> Iterator[list[DataFile]]:
    """Files of one folder and one topic, in order, with no more rows than fit into memory."""
    known = sorted((file for file in files if file.extent is not None), key=_place)
    for _, same in groupby(known, key=lambda file: _place(file)[:3]):
        group: list[DataFile] = []
        for file in same:
            if group and sum(each.rows for each in group) + file.rows > rows_max:
                yield group
                group = []
            group.append(file)
        yield group


def _place(file: DataFile) -> tuple[str, str, int, int]:
    assert file.extent is not None
    return str(Path(file.path).parent), file.extent.topic, file.extent.epoch, file.extent.first_seq


def _merged(client: Client, table: Path, files: list[DataFile]) -> tuple[Change | None, int]:
    """The change that replaces these files by one, and how many records it drops; None if nothing has to change."""
    extents = [file.extent for file in files if file.extent is not None]
    whole = Extent(
        extents[0].topic,
        extents[0].epoch,
        min(extent.first_seq for extent in extents),
        max(extent.last_seq for extent in extents),
    )
    live = _live(client, whole)
    rows: Any = pa.concat_tables([parquet.ParquetFile(table / file.path).read() for file in files])
    kept = rows if live is None else rows.filter(live.covers(rows["seq"]))
    gone = rows.num_rows - kept.num_rows
    if len(files) == 1 and not gone:
        return None, 0
    version = time.time_ns() // 1000
    added: list[DataFile] = []
    if kept.num_rows:
        path = Path(files[0].path).parent / f"c{version}-{uuid.uuid4().hex[:8]}.parquet"
        parquet.write_table(kept.sort_by("seq"), table / path, compression="zstd")
        sync(table / path)
        sync((table / path).parent)
        added.append(described(table / path, str(path), lambda _: whole.epoch))
    return Change(version, added, [file.path for file in files]), gone


class Live(NamedTuple):
    """Seqs that exist, and ranges that the topic no longer knows."""

    seqs: Any
    unknown: list[Gap]

    def covers(self, seqs: Any) -> Any:
        found = pc.is_in(seqs, value_set=self.seqs)
        for gap in self.unknown:
            low, high = (pa.scalar(seq, pa.int64()) for seq in (gap.gap_from, gap.gap_to))
            found = pc.or_(found, pc.and_(pc.greater_equal(seqs, low), pc.less_equal(seqs, high)))
        return found


def _live(client: Client, extent: Extent) -> Live | None:
    """None if the topic of the archived records no longer exists."""
    parts: list[Any] = []
    unknown: list[Gap] = []
    try:
        if client.state(extent.topic, touch=False).epoch != extent.epoch:
            return None
        with client.export(
            extent.topic,
            extent.first_seq - 1,
            extent.last_seq,
            include_tags=False,
            include_meta=False,
            include_data=False,
        ) as export:
            for chunk in export:
                lines = line_columns(chunk, _SEQ)
                parts.append(lines.columns["seq"])
                unknown += [msgspec.json.decode(line, type=GapLine).tombstone for line in lines.others]
            if export.end is None or export.end.epoch != extent.epoch:
                return None
    except TopicNotFound:
        return None
    return Live(pa.concat_arrays(parts) if parts else pa.array([], pa.int64()), unknown)


def _remove_orphans(table: Path) -> None:
    """Files that no manifest names and that no writer can be about to name."""
    named = {file.path for file in load(table).files}
    oldest_s = time.time() - ORPHAN_AGE_S
    for found in table.rglob("*.parquet"):
        path = str(found.relative_to(table))
        if path not in named and found.stat().st_mtime < oldest_s:
            found.unlink(missing_ok=True)
