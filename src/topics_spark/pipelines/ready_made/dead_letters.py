"""Dead-letter report: why jobs die, with rates and samples, as a table or records, and as a picture."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingImports=false

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql.functions import avg, coalesce, col, count, from_json, lit, max_by, row_number, unix_timestamp
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import min as least
from pyspark.sql.functions import sum as total

from topics.model.requests.ready_made import DeadLetterReportOptions
from topics_spark.pipelines.delivery import deliver
from topics_spark.pipelines.sources import read_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from topics_spark.pipelines.jobs import Work

PICTURE: Final = "report.png"
UNSAID: Final = "(no reason given)"
REASON_CHARS_SHOWN: Final = 60


def run(work: Work, options: DeadLetterReportOptions) -> None:
    (letters,) = read_views(work.spark, work.assignment.definition, work.config, batch=True).values()
    report = rows(letters, options).cache()
    try:
        work.done(deliver(work, report))
        sink = work.assignment.definition.sink
        folder = Path(work.config.tables_dir) / ((sink.table if sink is not None else None) or work.assignment.name)
        folder.mkdir(parents=True, exist_ok=True)
        draw([row.asDict() for row in report.collect()], folder / PICTURE)
    finally:
        report.unpersist()


def preview(views: dict[str, DataFrame], options: DeadLetterReportOptions) -> DataFrame:
    (letters,) = views.values()
    return rows(letters, options)


def rows(letters: DataFrame, options: DeadLetterReportOptions) -> DataFrame:
    """A row for each reason of each queue, the most frequent first."""
    stamps = from_json(col("meta"), "map<string,string>")
    told = letters.select(
        "seq",
        "ts",
        "data",
        coalesce(stamps["$dead_letter_from"], col("topic")).alias("queue"),
        coalesce(stamps["$dead_letter_error"], lit(UNSAID)).alias("reason"),
        stamps["$dead_letter_deliveries"].cast("int").alias("deliveries"),
    )
    grouped = told.groupBy("queue", "reason").agg(
        count(lit(1)).alias("jobs"),
        least("ts").alias("first_ts"),
        greatest("ts").alias("last_ts"),
        avg("deliveries").alias("deliveries"),
        greatest("seq").alias("sample_seq"),
        max_by("data", "seq").alias("sample"),
    )
    everything = Window.partitionBy()
    hours = (unix_timestamp("last_ts") - unix_timestamp("first_ts")) / lit(3600)
    ranked = grouped.withColumns(
        {
            "share": col("jobs") / total("jobs").over(everything),
            "per_hour": col("jobs") / coalesce(greatest_of(hours), lit(1)),
            "rank": row_number().over(Window.orderBy(col("jobs").desc(), "queue", "reason")),
        }
    )
    return ranked.where(col("rank") <= lit(options.reasons)).orderBy("rank")


def greatest_of(hours: Any) -> Any:
    """A rate is computed over at least an hour."""
    from pyspark.sql.functions import greatest as larger

    return larger(hours, lit(1.0))


def draw(report: list[dict[str, Any]], place: Path) -> None:
    """Bars, the most frequent reason on top."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = report[::-1]
    figure = Figure(figsize=(10, 1.5 + 0.4 * max(1, len(shown))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    labels = [f"{row['queue']}: {row['reason'][:REASON_CHARS_SHOWN]}" for row in shown]
    bars = axes.barh(range(len(shown)), [row["jobs"] for row in shown], color="#b3423a")
    axes.set_yticks(range(len(shown)), labels)
    axes.bar_label(bars, [f"{row['jobs']} ({row['share']:.0%})" for row in shown], padding=3)
    axes.set_title("Why jobs die" if shown else "No job has died")
    axes.spines[["top", "right"]].set_visible(False)
    aside = place.with_name(f".{place.name}")
    figure.savefig(aside, format="png", dpi=120)
    aside.rename(place)
