"""Expectations: rows are counted, dropped, set aside or refused by conditions, before any of them is committed.

    source ─▶ misfits of the schema, rows that do not meet `sources.VIEW.expect` ─────────────────┐ rejected
      └─ accepted ─▶ watermark, transformation ─▶ rows that do not meet `expect` ─ rejected ──────┤
                                                    └─ accepted ─▶ sink                           └─▶ their topics

What is rejected is part of the same query as what is accepted: a batch that is repeated rejects the same rows. In front
of a topic both are in one transaction. In front of a table the rejected ones have one of their own, which comes first
and has the number of the batch, too.

Conditions come before the watermark: one wrong time in the future would make every later row late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql.functions import (
    array,
    array_compact,
    coalesce,
    col,
    concat,
    count_if,
    expr,
    lit,
    raise_error,
    struct,
    to_json,
    udf,
    when,
)

from topics.model.requests.pipelines import (
    Expectation,
    Expectations,
    PipelineRequest,
    PipelineSource,
    expectations,
)
from topics_spark.options import CORRUPT
from topics_spark.payloads.misfits import misfit
from topics_spark.pipelines.assignment import DEAD_LETTER, NOT_MET, OBSERVED
from topics_spark.pipelines.delivery import OF_RECORDS, json_of, record_columns
from topics_spark.pipelines.guard import check_sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

# The columns of judged rows: exactly one of both is not null.
ROW: Final = "row"
REJECTED: Final = "rejected"
REJECTED_TYPE: Final = "STRUCT<topic: STRING, data: STRING, tag: STRING, meta: STRING>"


@dataclass(frozen=True, slots=True)
class Rule:
    """An expectation, with its name in reports and its condition as a column. NULL does not meet it."""

    name: str
    holds: Column
    given: Expectation


class Judge:
    """Judges the rows of one query: `admit` is for each stream that it reads, then `judged` for its result."""

    def __init__(self, spark: SparkSession, pipeline: str, definition: PipelineRequest) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._expect = definition.expect
        self._rejected: list[DataFrame] = []

    def admit(self, view: str, source: PipelineSource, rows: DataFrame) -> DataFrame:
        """The rows of a view that are accepted; the others are kept for `judged`."""
        rules = self._rules(source.expect, f"{view}.", f"sources.{view}.expect")
        if not rules and source.dead_letter is None:
            return rows
        fits = lit(True) if source.dead_letter is None else col(CORRUPT).isNull()
        counted = [count_if(fits & ~rule.holds).alias(rule.name) for rule in rules]
        if source.dead_letter is not None:
            counted.append(count_if(~fits).alias(f"{view}.{DEAD_LETTER}"))
            self._rejected.append(self._misfits(view, source, rows.where(~fits)))
        aside = aside_topic(rules, rows.columns)
        if any(rule.given.topic for rule in rules):
            told = {"view": lit(view), "topic": col("topic"), "seq": col("seq"), "expectations": unmet(rules)}
            data = json_of(rows.schema["data"], col("data"))
            # A payload that does not fit the schema has no fields, but it is known as it was sent.
            data = coalesce(col(CORRUPT), data) if CORRUPT in rows.columns else data
            rejected = self._rejected_as(aside, data, col("tag"), told)
            self._rejected.append(rows.where(fits & aside.isNotNull()).select(rejected.alias(REJECTED)))
        # Filters on the fields of misfits, which are null, are not reached.
        accepted = when(fits, aside.isNull() & not_dropped(rules)).otherwise(lit(False))
        return rows.observe(f"{OBSERVED}.{view}", *counted).where(accepted)

    def judged(self, rows: DataFrame) -> DataFrame:
        """All rows as ROW or REJECTED; those that are dropped are gone."""
        rules = self._rules(self._expect, "", "expect")
        whole = struct(*map(quoted, rows.columns))
        if rules:
            aside = aside_topic(rules, rows.columns)
            fields = record_columns(rows.schema, quoted, None)
            told = {"expectations": unmet(rules)}
            rejected = self._rejected_as(aside, fields["data"], fields.get("tag", no_text()), told)
            observed = rows.observe(OBSERVED, *(count_if(~rule.holds).alias(rule.name) for rule in rules))
            judged = observed.where(aside.isNotNull() | not_dropped(rules)).select(
                when(aside.isNull(), whole).alias(ROW), when(aside.isNotNull(), rejected).alias(REJECTED)
            )
        else:
            judged = rows.select(whole.alias(ROW), lit(None).cast(REJECTED_TYPE).alias(REJECTED))
        no_row = lit(None).cast(judged.schema[ROW].dataType).alias(ROW)
        for each in self._rejected:
            judged = judged.union(each.select(no_row, REJECTED))
        return judged

    def _rules(self, expect: Expectations | None, prefix: str, field: str) -> list[Rule]:
        rules: list[Rule] = []
        for name, each in expectations(expect).items():
            # The line break ends a comment at the end of the condition.
            check_sql(self._spark, f"SELECT ({each.condition}\n)", (), f"{field}.{name}")
            rules.append(Rule(f"{prefix}{name}", coalesce(expr(each.condition), lit(False)), each))
        return rules

    def _misfits(self, view: str, source: PipelineSource, rows: DataFrame) -> DataFrame:
        """Their payloads as they were sent, with what is wrong with them."""
        schema = cast("StructType", rows.schema["data"].dataType)

        def wrong(text: str | None) -> str:
            return misfit(schema, text)

        reason: Callable[[Any], Column] = udf(wrong, "STRING", useArrow=False)
        told = {"view": lit(view), "topic": col("topic"), "seq": col("seq"), "reason": reason(col(CORRUPT))}
        rejected = self._rejected_as(lit(source.dead_letter), col(CORRUPT), col("tag"), told)
        return rows.select(rejected.alias(REJECTED))

    def _rejected_as(self, topic: Column, data: Column, tag: Column, told: dict[str, Column]) -> Column:
        told = {"pipeline": lit(self._pipeline), **told}
        meta = to_json(struct(*(value.alias(name) for name, value in told.items())))
        record = {"topic": topic, "data": data, "tag": tag, "meta": meta}
        return struct(*(value.cast("string").alias(name) for name, value in record.items()))


def no_text() -> Column:
    return lit(None).cast("string")


def aside_topic(rules: Sequence[Rule], columns: Sequence[str]) -> Column:
    """Where a row goes that must not go on; an error if it must not exist."""
    found = no_text()
    for rule in reversed([rule for rule in rules if rule.given.topic is not None]):
        found = when(~rule.holds, lit(rule.given.topic)).otherwise(found)
    for rule in (rule for rule in rules if rule.given.otherwise == "fail"):
        said = concat(lit(f"expectation {rule.name} {NOT_MET} "), to_json(struct(*map(quoted, columns))))
        found = when(~rule.holds, raise_error(said).cast("string")).otherwise(found)
    return found


def not_dropped(rules: Sequence[Rule]) -> Column:
    found = lit(True)
    for rule in rules:
        found = found & rule.holds if rule.given.otherwise == "drop" else found
    return found


def unmet(rules: Sequence[Rule]) -> Column:
    """The names of those that a row does not meet."""
    return array_compact(array(*(when(~rule.holds, lit(rule.name)) for rule in rules)))


def quoted(name: str) -> Column:
    return col("`" + name.replace("`", "``") + "`")


# --- what becomes of judged rows ---


def accepted_rows(judged: DataFrame) -> DataFrame:
    return judged.where(col(ROW).isNotNull()).select(f"{ROW}.*")


def rejected_records(judged: DataFrame) -> DataFrame:
    """Each with its topic."""
    return judged.where(col(REJECTED).isNotNull()).select(f"{REJECTED}.*")


def judged_records(judged: DataFrame, topic: str, tag: str | None) -> DataFrame:
    """Both kinds as records, each with its topic."""
    row = cast("StructType", judged.schema[ROW].dataType)
    fields = record_columns(row, lambda name: col(ROW).getField(name), tag)
    fields["topic"] = lit(topic)
    if "meta" in fields:
        fields["meta"] = json_of(row["meta"], fields["meta"])
    is_row = col(ROW).isNotNull()
    rejected = {"topic", "data", "tag", "meta"}
    names = [name for name in OF_RECORDS if name in fields or name in rejected]
    return judged.select(
        *(
            when(is_row, fields.get(name, no_text()))
            .otherwise(col(REJECTED).getField(name) if name in rejected else no_text())
            .alias(name)
            for name in names
        )
    )
