"""Backends of the source: a server, files or a bucket, or those for the history and a server for the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from pyspark.sql.datasource import InputPartition

from topics_spark.options import SourceOptions, Subscription
from topics_spark.source.offsets import Head
from topics_spark.source.ranges import Range, shares
from topics_spark.source.server import Server


class Backend(Protocol):
    """What planning a query needs."""

    def heads(self, subscription: Subscription, known: Mapping[str, Head] | None = None) -> dict[str, Head]: ...

    def seq_before(self, name: str, timestamp_ms: int, head: Head) -> int: ...

    def sample(self, name: str, records_max: int) -> Iterator[str]: ...

    def shares(self, ranges: list[Range]) -> list[InputPartition]: ...

    def close(self) -> None: ...


class Remote(Server):
    """A server alone."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._options = options

    def shares(self, ranges: list[Range]) -> list[InputPartition]:
        return shares(ranges, self._options.partitions_min, self._options.records_per_partition_max)

    def close(self) -> None:
        """The connection belongs to the process."""


class Joined(Remote):
    """Sealed records come from files, those after them from the server; seqs show where one ends.

    The server says which topics exist and where they end. Files of a deleted topic of the same name are not used.
    """

    def __init__(self, options: SourceOptions) -> None:
        from topics_spark.source.files import Files

        super().__init__(options)
        self._files = Files(options)

    def close(self) -> None:
        self._files.close()

    def heads(self, subscription: Subscription, known: Mapping[str, Head] | None = None) -> dict[str, Head]:
        return {name: self._deeper(name, head) for name, head in super().heads(subscription, known).items()}

    def _deeper(self, name: str, head: Head) -> Head:
        """Files may have records that the server has dropped."""
        sealed = self._sealed(name, head.epoch)
        return head if sealed is None else head._replace(earliest_seq=min(head.earliest_seq, sealed.earliest_seq))

    def _sealed(self, name: str, epoch: int) -> Head | None:
        sealed = self._files.sealed(name)
        return sealed if sealed is not None and sealed.epoch == epoch and sealed.head_seq else None

    def seq_before(self, name: str, timestamp_ms: int, head: Head) -> int:
        sealed = self._sealed(name, head.epoch)
        if sealed is not None:
            seq = self._files.seq_before(name, timestamp_ms, sealed)
            if seq < sealed.head_seq:
                return seq
        return super().seq_before(name, timestamp_ms, head)

    def shares(self, ranges: list[Range]) -> list[InputPartition]:
        history: list[Range] = []
        rest: list[Range] = []
        for wanted in ranges:
            sealed = self._sealed(wanted.topic, wanted.epoch)
            border = wanted.from_seq
            if sealed is not None:
                border = min(max(wanted.from_seq, sealed.head_seq), wanted.to_seq)
            history.append(wanted._replace(to_seq=border))
            rest.append(wanted._replace(from_seq=border))
        return [*self._files.shares([each for each in history if each.seqs]), *super().shares(rest)]


def backend_of(options: SourceOptions) -> Backend:
    if options.path is None:
        return Remote(options)
    from topics_spark.source.files import Files

    return Files(options) if options.url is None else Joined(options)
