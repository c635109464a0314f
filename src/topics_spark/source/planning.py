"""Where a query begins and ends: options for offsets and times, resolved against the current topics."""

from __future__ import annotations

from collections.abc import Mapping

from topics_spark.errors import OptionError
from topics_spark.options import EARLIEST, LATEST, Bound, SourceOptions, Subscription
from topics_spark.source.backends import Backend
from topics_spark.source.offsets import Head
from topics_spark.source.ranges import Range


def batch_ranges(backend: Backend, options: SourceOptions) -> list[Range]:
    """What a batch query reads, fixed once."""
    start = options.start or Bound(whole=EARLIEST)
    end = options.end or Bound(whole=LATEST)
    if start.whole == LATEST or LATEST in start.seqs.values():
        raise OptionError("startingOffsets", "cannot be latest in a batch query, which would be empty")
    if end.whole == EARLIEST or EARLIEST in end.seqs.values():
        raise OptionError("endingOffsets", "cannot be earliest in a batch query, which would be empty")
    heads = backend.heads(options.subscription)
    if missing := [name for name in options.subscription.names if name not in heads]:
        raise OptionError("subscribe", f"names {missing[0]!r}, which does not exist")
    check_named(start, options.subscription, "startingOffsets")
    check_named(end, options.subscription, "endingOffsets")
    ranges: list[Range] = []
    for name, head in sorted(heads.items()):
        from_seq = cursor(backend, name, head, start, EARLIEST)
        # An explicit end may be after the head: there are no such records yet, and the query does not wait for them.
        to_seq = min(cursor(backend, name, head, end, LATEST), head.head_seq)
        ranges.append(Range(name, head.epoch, from_seq, to_seq))
    return ranges


def beginnings(backend: Backend, options: SourceOptions, heads: Mapping[str, Head]) -> dict[str, int]:
    """Where a new stream begins in each topic."""
    start = options.start or Bound(whole=LATEST)
    check_named(start, options.subscription, "startingOffsets")
    return {name: cursor(backend, name, head, start, EARLIEST) for name, head in heads.items()}


def cursor(backend: Backend, name: str, head: Head, bound: Bound, default: int) -> int:
    """The last seq before the bound; a bound names the first record to read, or the first to exclude."""
    timestamp_ms = bound.time_for(name)
    if timestamp_ms is not None:
        return backend.seq_before(name, timestamp_ms, head)
    match bound.seq_for(name, default):
        case -2:
            return max(0, head.earliest_seq - 1)
        case -1:
            return head.head_seq
        case seq:
            return max(0, seq - 1)


def check_named(bound: Bound, subscription: Subscription, option: str) -> None:
    for name in (*bound.seqs, *bound.timestamps_ms):
        if not subscription.matches(name):
            raise OptionError(option, f"names {name!r}, which is not among the topics to read")
