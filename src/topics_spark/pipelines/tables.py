"""Tables of Parquet files: files are written first, and are valid from the moment a manifest record names them.

    batch ─▶ _staging/…\u200b ─▶ day=2026-11-16/<version>-….parquet          nobody looks at a file that no record names
          └▶ transaction (pipeline, version, fence): record {added, removed} ─▶ topic pipelines.manifest.<pipeline>
          └▶ _manifest/<seq>.json: the files that are valid by then, for readers that do not use topics

The record is the commit: it is made once for a version, and only by the holder of the newest fencing token. The
manifest file is made from the records and can be made again at any time; the one with the highest number is the newest.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow.parquet

from topics.client import Client, Record, TopicNotFound
from topics.model.errors import InvalidRequest
from topics_spark.pipelines.assignment import Assignment, RunnerConfig

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STAGING: Final = "_staging"
MANIFESTS: Final = "_manifest"
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


class Change(msgspec.Struct, frozen=True):
    """A manifest record: one batch added, or files replaced by others with the same rows."""

    version: int
    added: list[DataFile]
    removed: list[str] = []


class Manifest(msgspec.Struct):
    """The files of a table as of one record of its topic."""

    seq: int
    files: list[DataFile]

    def apply(self, seq: int, change: Change) -> None:
        """A change that removes a file that is already gone has lost a race: it is ignored."""
        self.seq = seq
        gone = set(change.removed)
        if gone <= {file.path for file in self.files}:
            self.files = [file for file in self.files if file.path not in gone] + change.added


_decoder = msgspec.json.Decoder(Manifest)


def manifest_topic(pipeline: str) -> str:
    return f"pipelines.manifest.{pipeline}"


def load(table: str | os.PathLike[str]) -> Manifest:
    """The newest manifest in the directory; an empty one for a new table."""
    newest = max(_manifests(Path(table)), default=None)
    return Manifest(0, []) if newest is None else _decoder.decode(newest.read_bytes())


def files(table: str | os.PathLike[str]) -> list[str]:
    """The paths of all valid files, for any reader of Parquet."""
    return [str(Path(table) / file.path) for file in load(table).files]


def project(client: Client, pipeline: str, table: Path) -> Manifest:
    """Update the directory's manifest to the topic's head."""
    manifest = load(table)
    before = manifest.seq
    for record in _records(client, manifest_topic(pipeline), manifest.seq):
        manifest.apply(record.seq, msgspec.json.decode(record.raw, type=Change))
    if manifest.seq > before:
        _store(table, manifest)
    return manifest


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
    aside.rename(folder / f"{manifest.seq:020}.json")
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
        self.table = config.table(assignment.table)

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """One micro-batch. Spark repeats a batch whose end it has not seen."""
        self._epochs.clear()
        version = self._assignment.version_base + batch_id
        committed = self._client.txn(self._assignment.app).version
        if committed is None or committed < version:
            added = self.place_files(rows, version)
            removed = [file.path for file in self._manifest().files] if self._complete else []
            self.commit(Change(version, added, removed))
        self._manifest()

    def _manifest(self) -> Manifest:
        return project(self._client, self._assignment.name, self.table)

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
