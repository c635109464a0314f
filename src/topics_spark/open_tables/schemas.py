"""How the columns of a table may change: new ones are added, the others keep their types."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from topics_spark.errors import NeedsDecision

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def evolved(table: StructType, rows: StructType, place: str) -> list[tuple[str, DataType]]:
    """The columns that the rows add to the table. Raises NeedsDecision for a column of another type."""
    known = {each.name.lower(): each for each in table.fields}
    added: list[tuple[str, DataType]] = []
    for each in rows.fields:
        there = known.get(each.name.lower())
        if there is None:
            added.append((each.name, each.dataType))
        elif bare(there.dataType) != bare(each.dataType):
            raise NeedsDecision(
                "table_schema",
                f"column {each.name} of the table in {place} is {there.dataType.simpleString()}, and the rows would "
                f"have {each.dataType.simpleString()}: CAST it in the definition, give it another name, or name "
                "another sink.table",
            )
    return added


def extended(table: StructType, rows: StructType, place: str) -> StructType:
    """The table's columns, then those that the rows add; all of them may be null."""
    from pyspark.sql.types import StructField, StructType

    added = evolved(table, rows, place)
    columns = [*((each.name, each.dataType) for each in table.fields), *added]
    return StructType([StructField(name, kind) for name, kind in columns])


def bare(kind: DataType) -> object:
    """Without what may be null, and without comments: files do not keep them."""
    return _bare(kind.jsonValue())


def _bare(value: object) -> object:
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return {
            name: _bare(each)
            for name, each in fields.items()
            if name not in ("nullable", "containsNull", "valueContainsNull", "metadata")
        }
    return [_bare(each) for each in cast("list[object]", value)] if isinstance(value, list) else value
