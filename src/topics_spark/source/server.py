"""The server as a backend: heads of topics, the seq of a time, and ranges of records as lines."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from topics.client import NotAcceptable, TopicsError
from topics.client.errors import TopicNotFound
from topics.client.exporting import ExportEnd
from topics.client.sync.export import Export
from topics.client.values import TopicItem
from topics_spark.errors import DataLost, ServerFailed
from topics_spark.options import SourceOptions, Subscription
from topics_spark.payloads.columns import line_columns
from topics_spark.source.arrow_export import ArrowSlices, Gap
from topics_spark.source.links import link_to
from topics_spark.source.loss import gap_text, report_loss
from topics_spark.source.offsets import Head
from topics_spark.source.ranges import Range
from topics_spark.source.rows import Records

log = logging.getLogger("topics_spark")

CHUNK_BYTES = 2 * 1024 * 1024
# An Arrow stream has a schema and an end of its own: for few records they cost the server more than lines do.
LINES_MAX = 500


class GapLine(msgspec.Struct, frozen=True):
    tombstone: Gap


class Server:
    """One server as the source uses it. Its errors name the server, never the key."""

    def __init__(self, options: SourceOptions) -> None:
        assert options.url is not None
        self._link = link_to(options.url, options.key or "", options.timeout_s)
        self._client = self._link.client

    # --- heads ---

    def heads(self, subscription: Subscription, known: Mapping[str, Head] | None = None) -> dict[str, Head]:
        """The existing topics; those of a pattern by their list alone.

        `known` saves a request for every topic that has not moved, with a server whose list has no epochs.
        """
        found: dict[str, Head] = {}
        if subscription.pattern is None:
            for name in subscription.names:
                if (head := self.head(name)) is not None:
                    found[name] = head
            return found
        for item in self._listed(subscription):
            if item.epoch:
                found[item.topic] = Head(item.epoch, item.head_seq, item.earliest_seq)
                continue
            before = (known or {}).get(item.topic)
            if before is not None and (before.head_seq, before.earliest_seq) == (item.head_seq, item.earliest_seq):
                found[item.topic] = before
            elif (head := self.head(item.topic)) is not None:
                found[item.topic] = head
        return found

    def _listed(self, subscription: Subscription) -> Iterator[TopicItem]:
        try:
            for item in self._client.list(subscription.prefix):
                if subscription.matches(item.topic):
                    yield item
        except TopicsError as error:
            raise ServerFailed(str(error)) from error

    def head(self, name: str) -> Head | None:
        try:
            state = self._client.state(name)
        except TopicNotFound:
            return None
        except TopicsError as error:
            raise ServerFailed(str(error)) from error
        return Head(state.epoch, state.head_seq, state.earliest_seq)

    def seq_before(self, name: str, timestamp_ms: int, head: Head) -> int:
        """The cursor after which records of that time and later are read."""
        try:
            page = self._client.diff(name, from_ts=timestamp_ms, limit=1, include_tags=False, include_meta=False)
        except TopicsError as error:
            raise ServerFailed(str(error)) from error
        return page.records[0].seq - 1 if page.records else head.head_seq

    # --- records ---

    def sample(self, name: str, records_max: int) -> Iterator[str]:
        """Payloads from the beginning and the end of a topic."""
        head = self.head(name)
        if head is None:
            return
        half = max(1, records_max // 2)
        middle = min(head.head_seq, head.earliest_seq + half - 1)
        for from_seq, to_seq in (
            (head.earliest_seq - 1, middle),
            (max(middle, head.head_seq - half), head.head_seq),
        ):
            wanted = Range(name, head.epoch, from_seq, to_seq)
            for records in self.read(wanted, (), frozenset({"data"}), fail_on_data_loss=False) if wanted.seqs else ():
                yield from records.columns["data"].to_pylist()

    def read(
        self, wanted: Range, nodes: Sequence[str], columns: frozenset[str], *, fail_on_data_loss: bool
    ) -> Iterator[Records]:
        """Every record of the range that is not deleted; a gap fails the read, or is logged with its range.

        Arrow for many records, if the server has it. Lines continue what breaks: their export reconnects until the
        time limit.
        """
        try:
            if self._link.has_arrow and wanted.seqs > LINES_MAX:
                try:
                    for records, seq in self._arrow(wanted, nodes, columns, fail_on_data_loss=fail_on_data_loss):
                        wanted = wanted._replace(from_seq=seq)
                        if records is not None:
                            yield records
                    return
                except TopicNotFound:
                    raise
                except NotAcceptable:
                    self._link.has_arrow = False
                except TopicsError as error:
                    log.info("continuing with lines after seq %d: %s", wanted.from_seq, error.message)
            yield from self._lines(wanted, nodes, columns, fail_on_data_loss=fail_on_data_loss)
        except TopicNotFound:
            report_loss(f"topic {wanted.topic!r} was deleted; {span(wanted)} cannot be read", fail=fail_on_data_loss)
        except TopicsError as error:
            raise ServerFailed(str(error)) from error

    def _arrow(
        self, wanted: Range, nodes: Sequence[str], columns: frozenset[str], *, fail_on_data_loss: bool
    ) -> Iterator[tuple[Records | None, int]]:
        """Records, if any, and the seq up to which everything was read with them."""
        with self._client.export_arrow(
            wanted.topic,
            wanted.from_seq,
            wanted.to_seq,
            node=nodes or None,
            include_tags="tag" in columns,
            include_meta="meta" in columns,
            include_data="data" in columns,
        ) as export:
            slices = ArrowSlices(export)
            if not self._is_same(slices.epoch, wanted, fail_on_data_loss):
                return
            for each in slices:
                if each.gap is not None:
                    self._report_gap(each.gap, wanted, fail_on_data_loss)
                if each.end is not None:
                    self._check_end(each.end, wanted, fail_on_data_loss)
                yield each.records, each.seq

    def _lines(
        self, wanted: Range, nodes: Sequence[str], columns: frozenset[str], *, fail_on_data_loss: bool
    ) -> Iterator[Records]:
        with self._client.export(
            wanted.topic,
            wanted.from_seq,
            wanted.to_seq,
            node=nodes or None,
            include_tags="tag" in columns,
            include_meta="meta" in columns,
            chunk_bytes=CHUNK_BYTES,
        ) as export:
            yield from self._checked(export, wanted, columns, fail_on_data_loss)

    def _checked(
        self, export: Export, wanted: Range, columns: frozenset[str], fail_on_data_loss: bool
    ) -> Iterator[Records]:
        started = False
        for chunk in export:
            # Records are passed on only once they are known to be of the right epoch.
            if not started and not self._same_life(export, wanted, fail_on_data_loss):
                return
            started = True
            lines = line_columns(chunk, columns)
            for other in lines.others:
                self._report_gap(msgspec.json.decode(other, type=GapLine).tombstone, wanted, fail_on_data_loss)
            if lines.records:
                yield Records(lines.columns, lines.records)
        if not started and not self._same_life(export, wanted, fail_on_data_loss):
            return
        assert export.end is not None
        self._check_end(export.end, wanted, fail_on_data_loss)

    def _report_gap(self, gap: Gap, wanted: Range, fail_on_data_loss: bool) -> None:
        what = gap_text(wanted.topic, gap.gap_from, gap.gap_to, gap.reason, gap.missed_estimate)
        report_loss(what, fail=fail_on_data_loss)

    def _check_end(self, end: ExportEnd, wanted: Range, fail_on_data_loss: bool) -> None:
        if end.epoch != wanted.epoch:
            # Some rows may be of the new topic: no option can fix that, but a new attempt does.
            raise DataLost(f"topic {wanted.topic!r} was deleted and created again while {span(wanted)} was read")
        if end.head_seq < wanted.to_seq:
            report_loss(
                f"topic {wanted.topic!r} ends at seq {end.head_seq}; {span(wanted)} is incomplete",
                fail=fail_on_data_loss,
            )

    def _same_life(self, export: Export, wanted: Range, fail_on_data_loss: bool) -> bool:
        if export.end is not None:
            epoch = export.end.epoch
        else:
            head = self.head(wanted.topic)
            epoch = 0 if head is None else head.epoch
        return self._is_same(epoch, wanted, fail_on_data_loss)

    def _is_same(self, epoch: int, wanted: Range, fail_on_data_loss: bool) -> bool:
        """Whether it is the topic that was planned, and not another one of its name."""
        if epoch != wanted.epoch:
            report_loss(
                f"topic {wanted.topic!r} was deleted and created again; {span(wanted)} of the old topic is lost",
                fail=fail_on_data_loss,
            )
        return epoch == wanted.epoch


def span(wanted: Range) -> str:
    return f"seq {wanted.from_seq + 1} to {wanted.to_seq}"
