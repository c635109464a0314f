"""The stream: offsets that determine each batch, how much the next batch reads, and the lag."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from topics_spark.errors import OptionError
from topics_spark.options import SourceOptions
from topics_spark.source import offsets
from topics_spark.source.backends import Backend, backend_of
from topics_spark.source.limits import LIMITED, ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from topics_spark.source.offsets import Head, Offsets, Position
from topics_spark.source.planning import beginnings
from topics_spark.source.reading import read_share
from topics_spark.source.rows import Batch, RowBuilder

log = logging.getLogger("topics_spark")


class TopicsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in one process beside the driver while the query runs; its copies in tasks only `read`."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        if options.end is not None:
            raise OptionError("endingOffsets", "cannot be given for a stream, which does not end")
        if options.url is None:
            check_goes_on(options.path or "")
        if not LIMITED and (options.offsets_per_trigger_max is not None or options.offsets_per_trigger_min):
            # A limited batch would be the last one under AvailableNow, and this Spark does not say whether it is that.
            name = "minOffsetsPerTrigger" if options.offsets_per_trigger_max is None else "maxOffsetsPerTrigger"
            raise OptionError(name, "needs Spark 4.2 or newer: Spark 4.1 does not let a source bound its batches")
        self._schema = schema
        self._options = options
        RowBuilder(schema, options)
        # the heads at the last look, for the progress report and the next look
        self._heads: dict[str, Head] = {}
        self._reached: Offsets = {}
        # opened on first use: this object is copied to tasks, too
        self._backend: Backend | None = None
        # the end of the last batch, which Spark 4.1 does not name
        self._seen: dict[str, Any] | None = None
        # the last offsets that AvailableNow reads
        self._target: dict[str, Head] | None = None
        # when the last batch with data began, for `maxTriggerDelay`
        self._begun_s = time.monotonic()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """A marker: Spark asks more than once, and the end of a topic moves meanwhile."""
        return {offsets.MARKER: "new"}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._opened().heads(self._options.subscription)

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        if start is None:
            start = self.initialOffset() if self._seen is None else self._seen
        self._seen = self._next_offset(start, limit)
        return self._seen

    def _next_offset(self, start: dict[str, Any], limit: ReadLimit | None) -> dict[str, Any]:
        options = self._options
        backend = self._opened()
        before = offsets.decoded(start)
        self._heads = backend.heads(options.subscription, self._heads)
        heads = self._readable(before)
        begins = beginnings(backend, options, heads) if offsets.is_marker(start) else None
        step = offsets.step_from(before, heads, begins)
        for loss in step.losses:
            if options.fail_on_data_loss:
                raise loss
            log.warning("data loss: %s", loss.what)
        if not step.changed and not self._worth_a_batch(step.total):
            self._reached = before
            return start
        self._begun_s = time.monotonic()
        end = step.end(limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        self._reached = end
        return offsets.encoded(end)

    def _readable(self, before: Offsets) -> dict[str, Head]:
        """The current heads, or under AvailableNow those at the start of the query."""
        if self._target is None:
            return self._heads
        heads = dict(self._target)
        for name, position in before.items():
            target = heads.get(name)
            now = self._heads.get(name)
            if target is not None and target.epoch == position.epoch and position.seq > target.head_seq:
                # A batch of an earlier run had read further than this run has seen.
                heads[name] = target._replace(head_seq=position.seq)
            if target is None and now is not None:
                heads[name] = Head(position.epoch, position.seq, 0)
        return heads

    def _worth_a_batch(self, available: int) -> bool:
        """Fewer than `minOffsetsPerTrigger` wait for more, but not for ever, and not if no more can come."""
        if not available:
            return False
        if self._target is not None or available >= self._options.offsets_per_trigger_min:
            return True
        return (time.monotonic() - self._begun_s) * 1000 >= self._options.trigger_delay_ms_max

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The heads of the topics at the last look, and by how many seqs each is ahead of the batch: the lag."""
        report: dict[str, Any] = {}
        for name in sorted(self._heads):
            head = self._heads[name]
            reached = self._reached.get(name, Position(head.epoch, 0))
            lag = head.head_seq - (reached.seq if reached.epoch == head.epoch else 0)
            report[name] = {"epoch": head.epoch, "lag": max(0, lag), "seq": head.head_seq}
        return report or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        # After a restart Spark 4.1 asks for the empty batch at the last offset that it knows.
        self._seen = end
        ranges = offsets.between(offsets.decoded(start), offsets.decoded(end))
        return self._opened().shares(list(ranges))

    def read(self, partition: InputPartition) -> Iterator[Batch]:
        return read_share(partition, self._schema, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: Spark's checkpoint stores the offsets, not the server."""

    def stop(self) -> None:
        if self._backend is not None:
            self._backend.close()

    def _opened(self) -> Backend:
        if self._backend is None:
            self._backend = backend_of(self._options)
        return self._backend


def check_goes_on(path: str) -> None:
    from topics.storage.bucket.starting.connecting import is_bucket

    if not is_bucket(path):
        raise OptionError(
            "path", "of a data directory or a backup is for batches; a stream also needs `url`, where it continues"
        )
