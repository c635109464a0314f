"""Arrow's types for those of Spark, with times in UTC."""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

# Spark 4.1 has no such parameter, and takes UTC.
_UTC: Final[dict[str, Any]] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}


def arrow_type(kind: DataType) -> pa.DataType:
    return to_arrow_type(kind, **_UTC)


def arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, **_UTC)
