"""Compaction of Parquet tables: small files of a folder become one; of an archive, without records deleted since.

Files of an archive have records of one topic. The topic says which records of a range are live. Records that retention
has dropped are not deleted: the topic reports them by a tombstone, and the archive keeps them. A topic that was created
again says nothing about the old topic.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
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
    for files in (*_groups(before.files, rows_max), *_groups_of_rows(before.files, rows_max)):
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
        yield from _bounded(same, rows_max)


def _groups_of_rows(files: list[DataFile], rows_max: int) -> Iterator[list[DataFile]]:
    """Files of one folder that are no part of an archive."""
    others = sorted((file for file in files if file.extent is None), key=lambda file: (_folder(file), file.path))
    for _, same in groupby(others, key=_folder):
        yield from _bounded(same, rows_max)


def _folder(file: DataFile) -> str:
    return str(Path(file.path).parent)


def _bounded(files: Iterable[DataFile], rows_max: int) -> Iterator[list[DataFile]]:
    group: list[DataFile] = []
    for file in files:
        if group and sum(each.rows for each in group) + file.rows > rows_max:
            yield group
            group = []
        group.append(file)
    yield group


def _place(file: DataFile) -> tuple[str, str, int, int]:
    assert file.extent is not None
    return _folder(file), file.extent.topic, file.extent.epoch, file.extent.first_seq


def _merged(client: Client, table: Path, files: list[DataFile]) -> tuple[Change | None, int]:
    """The change that replaces these files by one, and how many records it drops; None if nothing has to change."""
    whole = _extent([file.extent for file in files if file.extent is not None])
    if whole is None and len(files) == 1:
        return None, 0
    live = None if whole is None else _live(client, whole)
    # Columns that were added later are null in older files.
    rows: Any = pa.concat_tables([_rows(table / file.path) for file in files], promote_options="default")
    kept = rows if live is None else rows.filter(live.covers(rows["seq"]))
    gone = rows.num_rows - kept.num_rows
    if len(files) == 1 and not gone:
        return None, 0
    if whole is not None:
        kept = kept.sort_by("seq")
    version = time.time_ns() // 1000
    added: list[DataFile] = []
    if kept.num_rows:
        path = Path(files[0].path).parent / f"c{version}-{uuid.uuid4().hex[:8]}.parquet"
        parquet.write_table(kept, table / path, compression="zstd")
        sync(table / path)
        sync((table / path).parent)
        found = described(table / path, str(path), lambda _: 0 if whole is None else whole.epoch)
        added.append(found if whole is not None else msgspec.structs.replace(found, extent=None))
    return Change(version, added, [file.path for file in files], table.name, "compaction"), gone


def _extent(extents: list[Extent]) -> Extent | None:
    if not extents:
        return None
    low, high = min(each.first_seq for each in extents), max(each.last_seq for each in extents)
    return Extent(extents[0].topic, extents[0].epoch, low, high)


def _rows(path: Path) -> Any:
    """Times as Spark means them, in microseconds of UTC; every column may be null where another file lacks it."""
    with parquet.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        columns = [file.schema.column(number) for number in range(len(file.schema))]
        rows = file.read()
    spark_times = {column.path for column in columns if column.physical_type == "INT96"}
    utc = pa.timestamp("us", "UTC")
    fields = [pa.field(each.name, utc if each.name in spark_times else each.type) for each in rows.schema]
    return rows.cast(pa.schema(fields))


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
    manifest = load(table)
    named = {file.path for file in manifest.files}
    named |= {file.path for each in manifest.compactions for file in each.replaces}
    oldest_s = time.time() - ORPHAN_AGE_S
    for found in table.rglob("*.parquet"):
        path = str(found.relative_to(table))
        if path not in named and found.stat().st_mtime < oldest_s:
            found.unlink(missing_ok=True)
