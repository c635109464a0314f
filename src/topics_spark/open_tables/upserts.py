"""One row of each key: the newest of a batch, and the statement that merges it into a table."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from pyspark.sql.functions import coalesce, col, input_file_name, lit, monotonically_increasing_id, row_number
from pyspark.sql.types import BooleanType
from pyspark.sql.window import Window

from topics.model.errors import InvalidRequest
from topics_spark.open_tables.formats import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from topics.model.requests.pipelines import PipelineSink

# The order of the records of a topic, where the rows still have it.
SEQ: Final = "seq"
# The order in which the rows of a batch were read, where no shuffle has changed it.
ARRIVAL: Final = "_topics_arrival"
RANK: Final = "_topics_rank"
FRESH: Final = "_topics_fresh"
FILE: Final = "_topics_file"


def stored(schema: StructType, sink: PipelineSink | None) -> StructType:
    """The columns that the table has; everything that a sink names must be among those of the rows."""
    from pyspark.sql.types import StructType

    if sink is None:
        return schema
    wanted = {"key": sink.key, "partition_by": sink.partition_by, "cluster_by": sink.cluster_by}
    wanted |= {"newest_by": _one(sink.newest_by), "deleted": _one(sink.deleted)}
    for field, columns in wanted.items():
        for name in columns or ():
            if name not in schema.names:
                raise InvalidRequest(
                    f"sink.{field}: the rows have no column {name}, only {', '.join(schema.names)}",
                    field=f"sink.{field}",
                )
    if sink.deleted is not None and not isinstance(schema[sink.deleted].dataType, BooleanType):
        raise InvalidRequest(f"sink.deleted: the column {sink.deleted} must be a boolean", field="sink.deleted")
    return StructType([each for each in schema.fields if each.name != sink.deleted])


def _one(column: str | None) -> list[str] | None:
    return None if column is None else [column]


def order_of(schema: StructType, sink: PipelineSink) -> list[str]:
    """The columns by which one row of a key is newer than another in a batch; of equal ones the later record."""
    wanted = [sink.newest_by, SEQ if SEQ in schema.names else None]
    return list(dict.fromkeys(name for name in wanted if name is not None))


def newest(rows: DataFrame, key: Sequence[str], order: Sequence[str]) -> DataFrame:
    """One row of each key."""
    latest = Window.partitionBy(*key).orderBy(*(col(name).desc_nulls_last() for name in (*order, ARRIVAL)))
    ranked = rows.withColumn(ARRIVAL, monotonically_increasing_id()).withColumn(RANK, row_number().over(latest))
    return ranked.where(col(RANK) == lit(1)).drop(RANK, ARRIVAL)


def files_with(table: DataFrame, rows: DataFrame, key: Sequence[str]) -> list[str]:
    """The paths of a table's files that have rows of these keys."""
    keys = rows.select(*(col(name).alias(f"_key_{at}") for at, name in enumerate(key))).distinct()
    same = lit(True)
    for at, name in enumerate(key):
        same = same & col(name).eqNullSafe(col(f"_key_{at}"))
    found = table.select(*key, input_file_name().alias(FILE)).join(keys, same, "left_semi").select(FILE).distinct()
    return [unquote(urlsplit(str(row[0])).path) for row in found.collect()]


def survivors(
    old: DataFrame | None,
    rows: DataFrame,
    key: Sequence[str],
    order: Sequence[str],
    newest_by: str | None,
    deleted: str | None,
) -> DataFrame:
    """Of each key the newest row, of those in the table and those of a batch; none if that row deletes it."""
    fresh = newest(rows, key, order)
    if old is not None:
        both = old.withColumn(FRESH, lit(0)).unionByName(fresh.withColumn(FRESH, lit(1)), allowMissingColumns=True)
        newer = [] if newest_by is None else [col(newest_by).desc_nulls_last()]
        latest = Window.partitionBy(*key).orderBy(*newer, col(FRESH).desc())
        fresh = both.withColumn(RANK, row_number().over(latest)).where(col(RANK) == lit(1)).drop(RANK, FRESH)
    return fresh if deleted is None else fresh.where(~coalesce(col(deleted), lit(False))).drop(deleted)


def merge_statement(
    table: str, view: str, columns: Sequence[str], key: Sequence[str], newest_by: str | None, deleted: str | None
) -> str:
    """Rows of known keys replace those of the table unless they are older; the others are added."""
    same = " AND ".join(f"t.{quoted(name)} <=> s.{quoted(name)}" for name in key)
    fresh = "" if newest_by is None else f" AND NOT coalesce(s.{quoted(newest_by)} < t.{quoted(newest_by)}, false)"
    updates = ", ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in columns)
    listed = ", ".join(map(quoted, columns))
    values = ", ".join(f"s.{quoted(name)}" for name in columns)
    clauses = [f"MERGE INTO {table} AS t USING {quoted(view)} AS s ON {same}"]
    absent = "WHEN NOT MATCHED"
    if deleted is not None:
        clauses.append(f"WHEN MATCHED AND s.{quoted(deleted)}{fresh} THEN DELETE")
        absent += f" AND NOT coalesce(s.{quoted(deleted)}, false)"
    clauses.append(f"WHEN MATCHED{fresh} THEN UPDATE SET {updates}")
    clauses.append(f"{absent} THEN INSERT ({listed}) VALUES ({values})")
    return "\n".join(clauses)
