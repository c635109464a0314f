"""A schema from samples: the type that fits all sampled payloads, and the file in which a stream keeps it."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from topics_spark.errors import OptionError
from topics_spark.options import SourceOptions

LONG_MAX = 2**63 - 1


def inferred(payloads: Iterable[str]) -> StructType | None:
    """The narrowest struct that fits all payloads that are objects; None if there is none."""
    found: DataType = NullType()
    for payload in payloads:
        try:
            value = json.loads(payload)
            if isinstance(value, dict):
                found = merged(found, type_of(value))
        except RecursionError:
            # Deeper than any useful schema.
            continue
    return cast("StructType", settled(found)) if isinstance(found, StructType) and found.fields else None


def type_of(value: Any) -> DataType:
    match value:
        case None:
            return NullType()
        case bool():
            return BooleanType()
        case int():
            return LongType() if -LONG_MAX - 1 <= value <= LONG_MAX else DoubleType()
        case float():
            return DoubleType()
        case dict():
            items = cast("dict[str, Any]", value).items()
            return StructType([StructField(name, type_of(each)) for name, each in items])
        case list():
            element: DataType = NullType()
            for each in cast("list[Any]", value):
                element = merged(element, type_of(each))
            return ArrayType(element)
        case _:
            return StringType()


def merged(one: DataType, other: DataType) -> DataType:
    match one, other:
        case NullType(), _:
            return other
        case _, NullType():
            return one
        case StructType(), StructType():
            fields = {field.name: field.dataType for field in one.fields}
            for field in other.fields:
                fields[field.name] = merged(fields.get(field.name, NullType()), field.dataType)
            return StructType([StructField(name, kind) for name, kind in fields.items()])
        case ArrayType(), ArrayType():
            return ArrayType(merged(one.elementType, other.elementType))
        case (LongType(), DoubleType()) | (DoubleType(), LongType()):
            return DoubleType()
        case _ if type(one) is type(other):
            return one
        case _:
            return StringType()


def settled(kind: DataType) -> DataType:
    """A field that was only ever null, or an object without fields, becomes text."""
    match kind:
        case StructType() if kind.fields:
            return StructType([StructField(field.name, settled(field.dataType)) for field in kind.fields])
        case StructType() | NullType():
            return StringType()
        case ArrayType():
            return ArrayType(settled(kind.elementType))
        case _:
            return kind


class SchemaFile:
    """The schema that a stream was started with, kept in a file so that a restart uses the same."""

    def __init__(self, options: SourceOptions) -> None:
        import pyarrow.fs

        assert options.schema_location is not None
        location = options.schema_location
        self._files, folder = pyarrow.fs.FileSystem.from_uri(
            location if "://" in location else Path(location.removeprefix("file:")).absolute().as_uri()
        )
        # Two sources of one query share a checkpoint.
        what = json.dumps([options.subscription.names, options.subscription.pattern, options.url, options.path])
        self._folder = f"{folder.rstrip('/')}/topics_schemas"
        self._file = f"{self._folder}/{hashlib.sha256(what.encode()).hexdigest()[:16]}.json"

    def load(self) -> StructType | None:
        if not self._files.get_file_info(self._file).is_file:
            return None
        with self._files.open_input_stream(self._file) as file:
            return StructType.fromJson(json.loads(file.read()))

    def store(self, schema: StructType) -> None:
        self._files.create_dir(self._folder, recursive=True)
        # Renamed into place: a reader finds no file or a complete one.
        with self._files.open_output_stream(f"{self._file}.new") as file:
            file.write(schema.json().encode())
        self._files.move(f"{self._file}.new", self._file)


def nothing_to_infer() -> OptionError:
    return OptionError("inferSchema", "found no payload that is an object; give the fields with the option `schema`")
