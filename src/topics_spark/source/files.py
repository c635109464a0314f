"""History from files: a data directory, a backup or a bucket, read without a server at the speed of the storage."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from topics.engine.core.checkpoints.image import decode_blocks
from topics.engine.log.run_columns import block_columns
from topics.engine.opening.scan import Chunk, Scan, read_part
from topics.model.errors import TopicsError as ModelError
from topics_spark.errors import FilesUnreadable
from topics_spark.options import SourceOptions, Subscription
from topics_spark.source.loss import gap_text, report_loss
from topics_spark.source.offsets import Head
from topics_spark.source.ranges import FilePart, FileShare, Range, dealt, share_seqs
from topics_spark.source.rows import Column, Records

# Blocks are small, but Spark works better with larger batches.
BATCH_ROWS = 16_384
# Up to this size shares are cut at an exact seq, so that two tasks may read one block; above, at the end of a block.
CUT_SEQS_MAX = 1_000_000


# How often a stream looks into a bucket: each look is a request, and Spark asks a hundred times a second.
LOOK_S = 0.5


class Files:
    """A data directory or a backup, as it was when it was opened; or a bucket, whose log goes on."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.path is not None
        self._options = options
        try:
            self._scan = Scan.open(options.path, cold_dir=options.cold_path)
        except (ModelError, OSError) as error:
            raise FilesUnreadable(str(error)) from error
        self._looked_s = time.monotonic()

    def close(self) -> None:
        self._scan.close()

    # --- heads ---

    def heads(self, subscription: Subscription, known: Mapping[str, Head] | None = None) -> dict[str, Head]:
        del known
        self._look()
        return {name: self.head(name) for name in self._scan.names() if subscription.matches(name)}

    def _look(self) -> None:
        if time.monotonic() - self._looked_s < LOOK_S:
            return
        try:
            self._scan.refresh()
        except (ModelError, OSError) as error:
            raise FilesUnreadable(str(error)) from error
        self._looked_s = time.monotonic()

    def head(self, name: str) -> Head:
        topic = self._scan.topic(name)
        return Head(topic.epoch, topic.head_seq, topic.earliest_seq)

    def sealed(self, name: str) -> Head | None:
        """How far the topic is in packs: later records are only in the log, which a server has in memory."""
        if name not in self._scan.names():
            return None
        topic = self._scan.topic(name)
        return Head(topic.epoch, topic.sealed_seq, topic.earliest_seq)

    def seq_before(self, name: str, timestamp_ms: int, head: Head) -> int:
        for part in self._scan.plan(name):
            for block in decode_blocks(part.blocks):
                if block.last_ts < timestamp_ms:
                    continue
                for piece in self._scan.plan(name, block.first_seq - 1, block.last_seq):
                    for records in columns_of(FilePart(piece, ()), frozenset({"seq", "ts"}), fail_on_data_loss=False):
                        ts = pa.scalar(timestamp_ms * 1000, pa.timestamp("us", "UTC"))
                        at = pc.index(pc.greater_equal(records.columns["ts"], ts), value=True).as_py()
                        if at >= 0:
                            return records.columns["seq"][at].as_py() - 1
        return head.head_seq

    # --- records ---

    def sample(self, name: str, records_max: int) -> Iterator[str]:
        """Payloads from the beginning and the end of a topic."""
        head = self.head(name)
        half = max(1, records_max // 2)
        middle = min(head.head_seq, head.earliest_seq + half - 1)
        for from_seq, to_seq in ((head.earliest_seq - 1, middle), (max(middle, head.head_seq - half), head.head_seq)):
            for part in self._scan.plan(name, from_seq, to_seq) if from_seq < to_seq else ():
                for records in columns_of(FilePart(part, ()), frozenset({"data"}), fail_on_data_loss=False):
                    yield from records.columns["data"].to_pylist()

    def shares(self, ranges: list[Range]) -> list[InputPartition]:
        """As many parts as asked for, of about equal size."""
        options = self._options
        size = share_seqs(ranges, options.partitions_min, options.records_per_partition_max)
        if sum(wanted.seqs for wanted in ranges) <= CUT_SEQS_MAX:
            return [FileShare(tuple(self._parts(share, size))) for share in dealt(ranges, size)]
        found: list[InputPartition] = []
        together: list[FilePart] = []
        room = size
        for each in self._parts(ranges, size):
            seqs = each.part.to_seq - each.part.from_seq
            if together and seqs > room:
                found.append(FileShare(tuple(together)))
                together, room = [], size
            together.append(each)
            room -= seqs
        return [*found, FileShare(tuple(together))] if together else found

    def _parts(self, ranges: list[Range], size: int) -> Iterator[FilePart]:
        for wanted in ranges:
            if wanted.seqs and self._is_same(wanted):
                nodes = self._options.nodes if self._scan.topic(wanted.topic).config.dedupe_node else ()
                parts = -(-wanted.seqs // size)
                for part in self._scan.plan(wanted.topic, wanted.from_seq, wanted.to_seq, parts):
                    yield FilePart(part, nodes)

    def _is_same(self, wanted: Range) -> bool:
        """Whether it is the topic that the range is of: a stream plans batches again that were planned before."""
        head = self.head(wanted.topic) if wanted.topic in self._scan.names() else None
        if head is not None and head.epoch == wanted.epoch:
            return True
        what = "deleted" if head is None else "deleted and created again"
        report_loss(
            f"topic {wanted.topic!r} was {what}; seq {wanted.from_seq + 1} to {wanted.to_seq} cannot be read",
            fail=self._options.fail_on_data_loss,
        )
        return False


def read_files(share: FileShare, wants: frozenset[str], *, fail_on_data_loss: bool) -> Iterator[tuple[str, Records]]:
    for each in share.parts:
        for records in columns_of(each, wants, fail_on_data_loss=fail_on_data_loss):
            yield each.part.topic, records


def columns_of(wanted: FilePart, wants: frozenset[str], *, fail_on_data_loss: bool) -> Iterator[Records]:
    """Live records of a part, some blocks at a time; a gap fails the read, or is logged with its range."""
    part, nodes = wanted
    waiting: list[Records] = []
    try:
        for piece in read_part(part):
            if not isinstance(piece, Chunk):
                report_loss(
                    gap_text(part.topic, piece.gap_from, piece.gap_to, piece.reason, piece.missed_estimate),
                    fail=fail_on_data_loss,
                )
                continue
            asked = wants | {"node"} if nodes else wants
            for columns, rows in block_columns(piece.block, piece.start, piece.stop, asked):
                waiting.append(without_nodes(Records(columns, rows), nodes))
            if sum(records.rows for records in waiting) >= BATCH_ROWS:
                yield joined(waiting)
                waiting = []
    except (ModelError, OSError) as error:
        raise FilesUnreadable(str(error)) from error
    if waiting:
        yield joined(waiting)


def without_nodes(records: Records, nodes: tuple[str, ...]) -> Records:
    if not nodes:
        return records
    own = pc.is_in(records.columns["node"], value_set=pa.array(nodes, pa.string()))
    columns: dict[str, Column] = {name: column.filter(pc.invert(own)) for name, column in records.columns.items()}
    return Records(columns, len(columns["node"]))


def joined(found: list[Records]) -> Records:
    columns: dict[str, Column] = {
        name: pa.concat_arrays([records.columns[name] for records in found]) for name in found[0].columns
    }
    return Records(columns, sum(records.rows for records in found))
