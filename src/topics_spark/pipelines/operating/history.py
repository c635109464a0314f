"""The batches of a pipeline, as its runners have noted them in a topic: a table of them, and a picture."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingImports=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from topics_spark.pipelines.assignment import PROGRESS

if TYPE_CHECKING:
    from topics.client import Client

PICTURES: Final = (".png", ".svg", ".pdf")


class BatchLine(msgspec.Struct, frozen=True):
    """A finished batch."""

    ts: int
    batch: int
    rows: int
    duration_ms: int
    rows_per_second: float
    late_rows: int = 0
    unmet: dict[str, int] = {}
    runner: str = ""


def history(client: Client, name: str, since_ms: int | None, limit: int) -> list[BatchLine]:
    """The last ones, the oldest first; none if no runner has noted any."""
    from topics.client import Record, TopicNotFound

    found: deque[BatchLine] = deque(maxlen=limit)
    try:
        for record in client.read(PROGRESS, from_ts=since_ms):
            if isinstance(record, Record) and record.tag == name and "batchId" in record.data:
                found.append(line_of(record.ts, record.data))
    except TopicNotFound:
        pass
    return list(found)


def line_of(ts: int, told: dict[str, Any]) -> BatchLine:
    return BatchLine(
        ts=ts,
        batch=told["batchId"],
        rows=told.get("numInputRows", 0),
        duration_ms=told.get("batchDuration", 0),
        rows_per_second=float(told.get("processedRowsPerSecond") or 0.0),
        late_rows=told.get("late_rows", 0),
        unmet=told.get("unmet", {}),
        runner=told.get("runner", ""),
    )


def draw(name: str, batches: Iterable[BatchLine], place: Path) -> None:
    """Rows a second, and how long batches took."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = list(batches)
    times = [datetime.fromtimestamp(each.ts / 1000, UTC) for each in shown]
    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    speed, duration = figure.subplots(2, sharex=True)
    speed.step(times, [each.rows_per_second for each in shown], where="post", color="#2f6f9f")
    speed.set_ylabel("rows/s")
    speed.set_title(f"{name}: {sum(each.rows for each in shown)} rows in {len(shown)} batches")
    duration.plot(times, [each.duration_ms for each in shown], ".-", color="#b3423a", linewidth=0.8, markersize=3)
    duration.set_ylabel("batch, ms")
    duration.set_xlabel("UTC")
    for axes in (speed, duration):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    aside = place.with_name(f".{place.name}")
    figure.savefig(aside, format=place.suffix[1:], dpi=120)
    aside.rename(place)
