"""Tables of Parquet files: files are written first, and are valid from the moment a manifest record names them.

    batch ─▶ _staging/…\u200b ─▶ day=2026-11-16/<version>-….parquet          nobody looks at a file that no record names
          └▶ transaction (pipeline, version, fence): record {added, removed} ─▶ topic pipelines.manifest.<pipeline>
          └▶ _manifest/<number>.json: the files that are valid by then, for readers that do not use topics

The record is the commit: it is made once for a version, and only by the holder of the newest fencing token. The
manifest file is made from the records and can be made again at any time; the one with the highest number is the newest.

A table has one owner, the pipeline whose topic its manifests are made from: records of two topics have no order.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import pyarrow.parquet

from topics.client import Client, Record, TopicNotFound
from topics.model.errors import InvalidRequest
from topics_spark.errors import NeedsDecision
from topics_spark.pipelines.assignment import GENERATION_SHIFT, MANIFESTS, Assignment, RunnerConfig, manifest_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

STAGING: Final = "_staging"
MANIFESTS_KEPT: Final = 3


class Extent(msgspec.Struct, frozen=True):
    """The records of one topic that a file has, if they are all of one topic."""

    topic: str
    epoch: int
    first_seq: int
    last_seq: int


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Parquet file, by its path below the table."""

    path: str
    rows: int
    bytes: int
    extent: Extent | None = None


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """A manifest record: one batch added, or files replaced by others with the same rows."""

    version: int
    added: list[DataFile]
    removed: list[str] = []
    # A pipeline may have had other tables before. None: written by an earlier version.
    table: str | None = None
    # None: written by an earlier version.
    kind: Literal["batch", "compaction"] | None = None
    # Of a batch: the seq of the record up to which it knows the table, and the table's columns, as Spark's JSON.
    based_on: int = 0
    schema: str | None = None


class Compaction(msgspec.Struct, frozen=True):
    """A file that a compaction has made, and those that it replaces, in case that a batch has not seen it."""

    seq: int
    path: str
    replaces: list[DataFile]


class Manifest(msgspec.Struct, omit_defaults=True):
    """The files of a table as of one record of its owner's topic."""

    seq: int
    files: list[DataFile]
    # The owner's topic; None: written by an earlier version. Its epoch is 0 until it exists.
    topic: str | None = None
    epoch: int = 0
    # Raised when another owner takes over: numbers of manifests only grow.
    base: int = 0
    # The columns of all files, as Spark's JSON; None: written by an earlier version.
    schema: str | None = None
    # Compactions that the last batch has not seen.
    compactions: list[Compaction] = []

    @property
    def number(self) -> int:
        return self.base + self.seq

    def apply(self, seq: int, change: Change) -> None:
        """Of a compaction and a batch that replace the same file, the batch is valid, whichever came first."""
        self.seq = seq
        gone = set(change.removed)
        if change.kind == "batch":
            self._undo(gone - {file.path for file in self.files})
            self.compactions = [each for each in self.compactions if each.seq > change.based_on]
            self.schema = change.schema or self.schema
        elif not gone <= {file.path for file in self.files}:
            return
        elif change.kind == "compaction":
            replaced = [file for file in self.files if file.path in gone]
            made = [Compaction(seq, file.path, replaced) for file in change.added]
            self.compactions = [*self.compactions, *made]
        self.files = [file for file in self.files if file.path not in gone] + change.added

    def _undo(self, missing: set[str]) -> None:
        """Bring back the files that compactions have merged, if one of them is missing."""
        undone: list[Compaction] = []
        for each in self.compactions:
            # One may have merged what an earlier one made.
            if missing & {file.path for file in each.replaces}:
                missing = missing | {each.path}
                undone.append(each)
        for each in reversed(undone):
            self.files = [file for file in self.files if file.path != each.path] + each.replaces
        self.compactions = [each for each in self.compactions if each not in undone]


_decoder = msgspec.json.Decoder(Manifest)


def load(table: str | os.PathLike[str]) -> Manifest:
    """The newest manifest in the directory; an empty one for a new table."""
    newest = max(_manifests(Path(table)), default=None)
    return Manifest(0, []) if newest is None else _decoder.decode(newest.read_bytes())


def files(table: str | os.PathLike[str]) -> list[str]:
    """The paths of all valid files, for any reader of Parquet."""
    return [str(Path(table) / file.path) for file in load(table).files]


def project(client: Client, pipeline: str, table: Path, *, take_over: bool = False, generation: int = 0) -> Manifest:
    """Update the directory's manifest to the topic's head; `generation`: of the pipeline, to find a lost directory.

    Raises NeedsDecision if the table belongs to another pipeline, or if files of it are gone.
    """
    before = load(table)
    manifest = _owned(client, pipeline, table, before, take_over=take_over, generation=generation)
    _catch_up(client, manifest, table)
    if manifest != before:
        _store(table, manifest)
    return manifest


def _catch_up(client: Client, manifest: Manifest, table: Path) -> None:
    assert manifest.topic is not None
    for record in _records(client, manifest.topic, manifest.seq):
        change = _change(record)
        if change.table in (None, table.name):
            manifest.apply(record.seq, change)
        else:
            manifest.seq = record.seq


def check_files(table: Path, manifest: Manifest) -> None:
    """Every file that the manifest names must be there: a reader would fail, or miss rows."""
    gone = [file.path for file in manifest.files if not (table / file.path).exists()]
    if gone:
        raise NeedsDecision(
            "table_missing",
            f"{len(gone)} of {len(manifest.files)} files of the table are gone, the first is {table / gone[0]}. "
            "Restore the directory, or name another sink.table, which is written from the start of the sources",
        )


def _owned(
    client: Client, pipeline: str, table: Path, manifest: Manifest, *, take_over: bool, generation: int
) -> Manifest:
    """The newest manifest, if it is the pipeline's, or the pipeline takes it over."""
    topic = manifest_topic(pipeline)
    epoch, head_seq = _end_of(client, topic)
    if not any(_manifests(table)):
        manifest = _rebuilt(client, topic, table, generation)
        check_files(table, manifest)
    elif manifest.topic is None and manifest.seq <= head_seq:
        # Made before manifests had owners, and as far as can be known by this pipeline.
        pass
    elif manifest.topic != topic or manifest.epoch not in (0, epoch):
        if not take_over:
            raise NeedsDecision("table_taken", _taken(table, manifest, topic))
        if manifest.topic is not None and manifest.epoch == _end_of(client, manifest.topic)[0]:
            # A batch that its owner has committed and not listed yet.
            manifest = msgspec.structs.replace(manifest)
            _catch_up(client, manifest, table)
        return Manifest(head_seq, manifest.files, topic, epoch, manifest.number + 1, manifest.schema)
    return msgspec.structs.replace(manifest, topic=topic, epoch=epoch)


def _end_of(client: Client, topic: str) -> tuple[int, int]:
    """Its epoch and its head; 0 and 0 if it does not exist."""
    try:
        state = client.state(topic, touch=False)
    except TopicNotFound:
        return 0, 0
    return state.epoch, state.head_seq


def _taken(table: Path, manifest: Manifest, topic: str) -> str:
    if manifest.topic == topic:
        whose = f"was written with an earlier topic {topic}, which was deleted"
    else:
        owner = (manifest.topic or "").removeprefix(manifest_topic(""))
        whose = f"belongs to {'the pipeline ' + owner if owner else 'another pipeline'}"
    return (
        f"the table in {table} {whose}. Name another sink.table, or continue this one with its files: "
        "`topics pipelines put --take-over`, or sink.take_over in the definition"
    )


def _rebuilt(client: Client, topic: str, table: Path, generation: int) -> Manifest:
    """The manifest of a directory that has none: of a new table, or all of it from the records."""
    found = Manifest(0, [])
    for record in _records(client, topic, 0):
        change = _change(record)
        if change.table == table.name or (change.table is None and _is_of(change, table, generation)):
            found.apply(record.seq, change)
        found.seq = record.seq
    return found


def _is_of(change: Change, table: Path, generation: int) -> bool:
    """Whether a record of an earlier version, which does not name its table, is about this one."""
    return change.version >> GENERATION_SHIFT == generation or any(
        (table / file.path).exists() for file in change.added
    )


def _change(record: Record) -> Change:
    return msgspec.json.decode(record.raw, type=Change)


def _records(client: Client, topic: str, from_seq: int) -> Iterator[Record]:
    try:
        for record in client.read(topic, from_seq):
            if not isinstance(record, Record):
                raise InvalidRequest(f"topic {topic} has lost records, and with them files of the table: {record}")
            yield record
    except TopicNotFound:
        return


def _store(table: Path, manifest: Manifest) -> None:
    """Write to a temporary file, sync, rename. Older manifests are removed, except those that a reader may be using."""
    folder = table / MANIFESTS
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{uuid.uuid4().hex}"
    with aside.open("wb") as file:
        file.write(msgspec.json.encode(manifest))
        file.flush()
        os.fsync(file.fileno())
    aside.rename(folder / f"{manifest.number:020}.json")
    for old in sorted(_manifests(table))[:-MANIFESTS_KEPT]:
        old.unlink(missing_ok=True)


def _manifests(table: Path) -> Iterator[Path]:
    return (table / MANIFESTS).glob("[0-9]*.json")


class TableSink:
    """Writes the batches of one assignment into its table."""

    def __init__(
        self,
        assignment: Assignment,
        config: RunnerConfig,
        client: Client,
        partition_by: Sequence[str] = (),
        *,
        complete: bool = False,
    ) -> None:
        sink = assignment.definition.sink
        self._assignment = assignment
        self._client = client
        self._partition_by = (sink.partition_by if sink is not None else None) or list(partition_by)
        # per batch
        self._epochs: dict[str, int] = {}
        self._complete = complete or assignment.definition.output_mode == "complete"
        self._take_over = sink is not None and bool(sink.take_over)
        self._sink = sink
        if "://" in config.tables_dir:
            raise NeedsDecision(
                "table_place",
                f"a table of Parquet files needs a file system, not {config.tables_dir}: "
                'set sink.format to "delta" or "iceberg", or --tables to a directory',
            )
        self.table = config.table(assignment.table)

    def open(self, spark: SparkSession | None = None, schema: StructType | None = None) -> None:
        """Before the first batch: the table must be this pipeline's, and complete, and have columns of these types."""
        manifest = self._manifest()
        check_files(self.table, manifest)
        if spark is not None and schema is not None:
            self._columns(spark, manifest, schema)

    def _columns(self, spark: SparkSession, manifest: Manifest, schema: StructType) -> StructType:
        """Those of the table with these rows: its own, then new ones."""
        from topics_spark.open_tables.schemas import extended
        from topics_spark.open_tables.upserts import stored

        rows = stored(schema, self._sink)
        if self._complete or not manifest.files:
            return rows
        return extended(schema_of(spark, self.table, manifest), rows, str(self.table))

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """One micro-batch. Spark repeats a batch whose end it has not seen."""
        self._epochs.clear()
        version = self._assignment.version_base + batch_id
        committed = self._client.txn(self._assignment.app).version
        if committed is None or committed < version:
            self.commit(self._change(rows, version))
        self._manifest()

    def _change(self, rows: DataFrame, version: int) -> Change:
        manifest = self._manifest()
        key = self._sink.key if self._sink is not None else None
        schema = self.columns_text(rows, manifest)
        if key is None:
            removed = [file.path for file in manifest.files] if self._complete else []
            added = self.place_files(rows, version)
        else:
            fresh = rows.persist()
            try:
                removed, merged = self._merged(fresh, manifest)
                added = self.place_files(merged, version)
            finally:
                fresh.unpersist()
        return Change(version, added, removed, self.table.name, "batch", manifest.seq, schema)

    def columns_text(self, rows: DataFrame, manifest: Manifest) -> str | None:
        return self._columns(rows.sparkSession, manifest, rows.schema).json()

    def _merged(self, rows: DataFrame, manifest: Manifest) -> tuple[list[str], DataFrame]:
        """The files that have rows of these keys, and the rows that replace them: of each key the newest."""
        from topics_spark.open_tables.upserts import files_with, order_of, survivors

        sink = self._sink
        assert sink is not None and sink.key is not None
        order = order_of(rows.schema, sink)
        touched: list[str] = []
        if manifest.files:
            known = read_files(rows.sparkSession, self.table, manifest)
            touched = [str(Path(path).relative_to(self.table)) for path in files_with(known, rows, sink.key)]
        held = set(touched)
        files = [file for file in manifest.files if file.path in held]
        old = read_files(rows.sparkSession, self.table, manifest, files) if files else None
        return touched, survivors(old, rows, sink.key, order, sink.newest_by, sink.deleted)

    def _manifest(self) -> Manifest:
        assignment = self._assignment
        return project(
            self._client,
            assignment.name,
            self.table,
            take_over=self._take_over,
            generation=assignment.generation,
        )

    def place_files(self, rows: DataFrame, version: int) -> list[DataFile]:
        """Folders are named after copies of the columns, so that a file itself has all columns."""
        staging = self.table / STAGING / f"{version}-{uuid.uuid4().hex}"
        folders = [f"_{name}" for name in self._partition_by]
        copies = {folder: rows[name] for folder, name in zip(folders, self._partition_by, strict=True)}
        out = rows.withColumns(copies).write.mode("error")
        (out.partitionBy(*folders) if folders else out).parquet(staging.as_uri())
        try:
            return list(_moved(staging, self.table, f"{version}-{uuid.uuid4().hex[:8]}", self._epoch))
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _epoch(self, topic: str) -> int:
        """The epoch of the topic of this name; 0 for one that is gone, which no later topic can have."""
        if topic not in self._epochs:
            try:
                self._epochs[topic] = self._client.state(topic, touch=False).epoch
            except TopicNotFound:
                self._epochs[topic] = 0
        return self._epochs[topic]

    def commit(self, change: Change) -> None:
        commit(self._client, self._assignment.name, self._assignment.app, self._assignment.fence, change)


def commit(client: Client, pipeline: str, app: str, fence: int, change: Change) -> None:
    """From now on the change is valid; a version that was committed before is unchanged."""
    stage = uuid.uuid4().hex
    record = msgspec.json.encode([{"data": msgspec.to_builtins(change)}])
    client.stage(app, change.version, stage, 0, record, topic=manifest_topic(pipeline), fence=fence)
    client.commit_txn(app, change.version, [stage], fence=fence)


def schema_of(spark: SparkSession, table: Path, manifest: Manifest) -> StructType:
    """The columns of a table that has files; those of an earlier version are read from the files themselves."""
    from pyspark.sql.types import StructType

    if manifest.schema is not None:
        return StructType.fromJson(json.loads(manifest.schema))
    reader = spark.read.option("mergeSchema", "true")
    return reader.parquet(*(str(table / file.path) for file in manifest.files)).schema


def read_files(
    spark: SparkSession, table: Path, manifest: Manifest, files: Sequence[DataFile] | None = None
) -> DataFrame:
    """The rows of a table's files, all or some, with all columns of the table."""
    paths = [str(table / file.path) for file in (manifest.files if files is None else files)]
    return spark.read.schema(schema_of(spark, table, manifest)).parquet(*paths)


def _moved(staging: Path, table: Path, prefix: str, epoch_of: Callable[[str], int]) -> Iterator[DataFile]:
    """Files with rows, in their folders, under unique names; all are durable before they are named."""
    folders: set[Path] = set()
    for number, written in enumerate(sorted(staging.rglob("*.parquet"))):
        place = table / written.relative_to(staging).with_name(f"{prefix}-{number}.parquet")
        found = described(written, str(place.relative_to(table)), epoch_of)
        if found.rows:
            place.parent.mkdir(parents=True, exist_ok=True)
            sync(written)
            written.rename(place)
            folders.add(place.parent)
            yield found
    for folder in folders:
        sync(folder)


def described(written: Path, path: str, epoch_of: Callable[[str], int]) -> DataFile:
    """What the footer of a file says about it."""
    footer: Any = pyarrow.parquet.read_metadata(written)
    ranges = {name: _range(footer, name) for name in ("topic", "seq")}
    topic, seqs = ranges["topic"], ranges["seq"]
    extent = None
    if topic is not None and seqs is not None and topic[0] == topic[1]:
        extent = Extent(topic[0], epoch_of(topic[0]), *seqs)
    return DataFile(path, footer.num_rows, written.stat().st_size, extent)


def _range(footer: Any, name: str) -> tuple[Any, Any] | None:
    """The minimum and maximum of a column, if all parts of the file have them."""
    names = [footer.schema.column(number).path for number in range(footer.num_columns)]
    if name not in names:
        return None
    parts = [footer.row_group(number).column(names.index(name)).statistics for number in range(footer.num_row_groups)]
    if not parts or not all(part is not None and part.has_min_max for part in parts):
        return None
    return min(part.min for part in parts), max(part.max for part in parts)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
