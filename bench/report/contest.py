"""The results of a contest: rows, the ratios of each round, the targets, and the tables and pictures of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bench.report.figures import Spread, number, spread, table
from bench.report.pictures import Bar, Group, picture


class Row(NamedTuple):
    """One kind of work."""

    key: str
    what: str
    unit: str
    # Whether a higher figure is better: rates are, times are not.
    is_rate: bool


ROWS = (
    Row("append 1, 16", "append 1 record, 16 connections", "records/s", True),
    Row("append 100", "append 100 records, 16 connections", "records/s", True),
    Row("append 100, fsync", "append 100 records, 16 connections, synced", "records/s", True),
    Row("queue", "jobs enqueued by 100, claimed and acked by 8, 16 connections", "jobs/s", True),
    Row("library", "jobs of a Python worker library, enqueued one by one, 2 worker processes", "jobs/s", True),
    Row("append 1, 1, p50", "append 1 record, 1 connection, p50", "ms", False),
    Row("append 1, 1, fsync, p50", "append 1 record, 1 connection, synced, p50", "ms", False),
    Row("watch 1", "append to one watcher, p50", "ms", False),
    Row("watch 1,000", "append to 1,000 watchers, p50 of all deliveries", "ms", False),
    Row("recovery", "start after a kill with 1,000,000 single records in the log", "s", False),
)


class Entrant(NamedTuple):
    """A measured product."""

    name: str
    # "own", "limit" or "bar", as in pictures.
    kind: str
    promise: str


class Results:
    """Samples by row, entrant and round."""

    def __init__(self, entrants: Sequence[Entrant]) -> None:
        # One server may appear twice, as a server and as a worker library; its first description is used.
        by_name: dict[str, Entrant] = {}
        for entrant in entrants:
            by_name.setdefault(entrant.name, entrant)
        self.entrants = list(by_name.values())
        self._samples: dict[tuple[str, str], dict[int, float]] = {}
        # What was missing or failed.
        self.notes: list[str] = []

    def add(self, row: str, name: str, round_number: int, value: float) -> None:
        self._samples.setdefault((row, name), {})[round_number] = value

    def spread(self, row: str, name: str) -> Spread | None:
        samples = self._samples.get((row, name))
        return spread(list(samples.values())) if samples else None

    def ratio(self, row: Row, ours: str, other: str) -> Spread | None:
        """How many times as good ours is, in the rounds that measured both."""
        mine, theirs = self._samples.get((row.key, ours), {}), self._samples.get((row.key, other), {})
        pairs = [(mine[each], theirs[each]) for each in mine.keys() & theirs.keys()]
        ratios = [a / b if row.is_rate else b / a for a, b in pairs if a and b]
        return spread(ratios) if ratios else None

    def of(self, kind: str) -> list[str]:
        return [entrant.name for entrant in self.entrants if entrant.kind == kind]

    def others(self) -> list[str]:
        return [entrant.name for entrant in self.entrants if entrant.kind != "own"]

    def starting(self, prefix: str) -> str:
        """The full name of an entrant, with its version."""
        return next((entrant.name for entrant in self.entrants if entrant.name.startswith(prefix)), prefix)


def ratio_table(results: Results) -> str:
    """A line for each kind of work and each other entrant; above 1 is always in our favour, below 1 is marked."""
    own = results.of("own")
    lines: list[list[str]] = []
    for row in ROWS:
        mine = {name: results.spread(row.key, name) for name in own}
        if not any(mine.values()):
            continue
        work = f"{row.what}, {row.unit}"
        figures = [value.shown() if value else "–" for value in mine.values()]
        compared = [other for other in results.others() if results.spread(row.key, other)]
        for other in compared or [""]:
            theirs = results.spread(row.key, other)
            ratios = [_ratio(results.ratio(row, name, other), other in results.of("limit")) for name in own]
            lines.append([work, *figures, other or "–", theirs.shown() if theirs else "–", *ratios])
            work, figures = "", [""] * len(own)
    ratio_heads = [f"{name}: times as good" for name in own] if len(own) > 1 else ["times as good"]
    return table(["work", *own, "beside", "its figure", *ratio_heads], lines)


def _ratio(value: Spread | None, is_limit: bool) -> str:
    """No entrant can be faster than a limit, so a limit is not marked."""
    if value is None:
        return "–"
    return f"**{value.shown()}: behind**" if value.median < 1 and not is_limit else value.shown()


def promise_table(results: Results) -> str:
    """The guarantee of each acknowledgement."""
    own = [entrant for entrant in results.entrants if entrant.kind == "own"][:1]
    others = [entrant for entrant in results.entrants if entrant.kind != "own"]
    lines = [["topics" if entrant in own else entrant.name, entrant.promise] for entrant in own + others]
    return table(["who", "what an acknowledgement means"], lines)


def wanted_table(results: Results) -> str:
    """The target figures, for the first tree of ours."""
    ours = results.of("own")[0]
    redis, bare, raw = results.starting("Redis"), results.starting("bare"), results.starting("raw")
    rows = {row.key: row for row in ROWS}
    lines: list[list[str]] = []

    def at_least(key: str, other: str, wanted: float, against: str) -> None:
        found = results.ratio(rows[key], ours, other)
        verdict = "" if found is None else "yes" if found.median >= wanted else "**no**"
        measured = f"{found.shown()} ×" if found else "not measured"
        lines.append([f"{rows[key].what}, against {against}", f"at least {wanted} ×", measured, verdict])

    def at_most(key: str, limits: Sequence[tuple[str, str]], more_ms: float, text: str) -> None:
        mine = results.spread(key, ours)
        parts = [results.spread(row, name) for row, name in limits]
        if mine is None or None in parts:
            lines.append([rows[key].what, text, "not measured", ""])
            return
        limit = sum(each.median for each in parts if each) + more_ms
        verdict = "yes" if mine.median <= limit else "**no**"
        shown = f"at most {number(limit)} {rows[key].unit}" + (f" ({text})" if limits else "")
        lines.append([rows[key].what, shown, mine.shown(rows[key].unit), verdict])

    at_least("append 1, 16", redis, 0.9, "`XADD`")
    at_least("append 100", redis, 1.5, "`XADD`, `everysec`")
    at_least("append 100, fsync", redis, 1.8, "`XADD`, `always`")
    single = ("append 1, 1, p50", bare)
    at_most("append 1, 1, p50", [single], 0.060, "the bare server + 60 µs")
    synced = [single, ("append 1, 1, fsync, p50", raw)]
    at_most("append 1, 1, fsync, p50", synced, 0.080, "the bare server + a raw sync + 80 µs")
    at_most("watch 1", [("watch 1", bare)], 0.100, "the bare server + 100 µs")
    at_most("watch 1,000", [], 6.0, "6 ms")
    at_most("recovery", [], 3.0, "3 s")
    return table([f"work, {ours}", "wanted", "measured", "reached"], lines)


def pictures(results: Results) -> dict[str, str]:
    """One for figures that should be high, one for those that should be low."""
    found: dict[str, str] = {}
    for name, is_rate, title in (("peers-rates", True, "higher is better"), ("peers-times", False, "lower is better")):
        groups = [_group(results, row, title) for row in ROWS if row.is_rate is is_rate]
        found[name] = picture(f"Beside others: {title}", [group for group in groups if group.bars])
    return found


def _group(results: Results, row: Row, title: str) -> Group:
    bars = [
        Bar(entrant.name, value, entrant.kind)
        for entrant in results.entrants
        if (value := results.spread(row.key, entrant.name))
    ]
    return Group(f"{row.what}, {row.unit} ({title})", row.unit, bars)
