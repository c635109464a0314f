"""Counters of the log: totals that only grow, and the duration of syncs."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

SYNC_BOUNDS_US = (50, 100, 200, 400, 500, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400, 250_000, 1_000_000)


class LatencyHistogram:
    """Counts per bucket: bucket i counts durations up to `bounds_us[i]`, the last one everything slower."""

    __slots__ = ("bounds_us", "count", "counts", "sum_us")

    def __init__(self, bounds_us: tuple[int, ...] = SYNC_BOUNDS_US) -> None:
        self.bounds_us = bounds_us
        self.counts = [0] * (len(bounds_us) + 1)
        self.count = 0
        self.sum_us = 0

    def observe(self, us: int) -> None:
        self.counts[bisect_left(self.bounds_us, us)] += 1
        self.count += 1
        self.sum_us += us


@dataclass(slots=True)
class WalStats:
    """Written by the owner and the commit thread, each its own fields except while writing is handed over."""

    frames_total: int = 0
    batches_total: int = 0
    bytes_written_total: int = 0
    rotations_total: int = 0
    write_errors_total: int = 0
    handovers_total: int = 0
    fsyncs_total: int = 0
    fsync_us: LatencyHistogram = field(default_factory=LatencyHistogram)
