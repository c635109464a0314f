"""Samples of several rounds: their median and range, and how both are printed."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Spread(NamedTuple):
    """The results of several rounds."""

    median: float
    low: float
    high: float

    def shown(self, unit: str = "") -> str:
        """`55.1 µs (53.0 to 61.2)`; a single sample has no range."""
        value = f"{number(self.median)} {unit}".rstrip()
        return value if self.low == self.high else f"{value} ({number(self.low)} to {number(self.high)})"


def spread(samples: Sequence[float]) -> Spread:
    return Spread(statistics.median(samples), min(samples), max(samples))


def number(value: float) -> str:
    """Three significant digits, and separators where there are more."""
    if abs(value) >= 1000:
        step = 10 ** max(0, len(str(int(abs(value)))) - 3)
        return f"{round(value / step) * step:,}"
    size = abs(float(f"{value:.3g}"))
    decimals = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 or size == 0 else 3
    return f"{value:.{decimals}f}"


def percentile(samples: Iterable[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
