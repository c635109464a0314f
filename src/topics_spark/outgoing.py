"""Rows into records: columns of an Arrow batch become the JSON of a request, text as it is, everything else encoded."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
    VariantVal,
)

from topics_spark.errors import SchemaError

# The columns a sink understands; `data` is the only one that must be there.
COLUMNS: Final = ("data", "topic", "tag", "node", "meta")
STRUCTURED: Final = (StructType, MapType, ArrayType, VariantType)

Column = Any
Texts = Sequence[bytes | None]
_encode = msgspec.json.Encoder(decimal_format="number").encode


class RecordWriter:
    """Made once for a schema. `plain_text`: a string in `data` is text to be quoted, not JSON to be sent as it is."""

    def __init__(self, schema: StructType, *, topic: str | None, plain_text: bool) -> None:
        names = schema.fieldNames()
        if unknown := [name for name in names if name not in COLUMNS]:
            raise SchemaError(
                f"a sink takes the columns {', '.join(COLUMNS)}, not {unknown[0]!r}: put it into `data`, "
                "as in select(to_json(struct('*')).alias('data'))"
            )
        if "data" not in names:
            raise SchemaError("a sink needs a column `data`, as in select(to_json(struct('*')).alias('data'))")
        if topic is None and "topic" not in names:
            raise SchemaError("a sink needs the option `topic`, or a column `topic` that names one for each row")
        self._names = [name for name in names if topic is None or name != "topic"]
        self._renders: dict[str, Callable[[Column], Texts]] = {}
        for field in schema.fields:
            is_json = field.name in ("data", "meta")
            if not is_json and not isinstance(field.dataType, StringType):
                raise SchemaError(f"column {field.name!r} must be a string, not {field.dataType.simpleString()}")
            if isinstance(field.dataType, StringType):
                as_is = is_json and not (plain_text and field.name == "data")
                self._renders[field.name] = _json_texts if as_is else _quoted
            else:
                self._renders[field.name] = _encoder_of(field.dataType)

    def records(self, batch: Column, start: int, stop: int) -> bytes:
        """Rows `start` to `stop` as a JSON array of records."""
        part = batch.slice(start, stop - start)
        columns = {name: self._renders[name](part.column(part.schema.get_field_index(name))) for name in self._names}
        data = [b"null" if text is None else text for text in columns.pop("data")]
        if not columns:
            return b'[{"data":' + b'},{"data":'.join(data) + b"}]"
        pieces = list(map(b'{"data":%b'.__mod__, data))
        for name, texts in columns.items():
            key = b',"%b":' % name.encode()
            pieces = [piece if text is None else piece + key + text for piece, text in zip(pieces, texts, strict=True)]
        return b"[" + b"},".join(pieces) + b"}]"


def _json_texts(column: Column) -> Texts:
    return cast("Texts", column.cast(pa.binary()).to_pylist())


def _quoted(column: Column) -> Texts:
    return [None if text is None else _encode(text) for text in column.to_pylist()]


def _encoder_of(kind: DataType) -> Callable[[Column], Texts]:
    if not isinstance(kind, STRUCTURED):
        return lambda column: [None if value is None else _encode(_scalar(value)) for value in column.to_pylist()]
    if isinstance(kind, VariantType):
        return lambda column: [None if value is None else _variant(value).encode() for value in column.to_pylist()]
    convert = _converter(kind)
    return lambda column: [None if value is None else _encode(convert(value)) for value in column.to_pylist()]


def _converter(kind: DataType) -> Callable[[Any], Any]:
    """From what Arrow gives for a value of this type to what has an obvious JSON."""
    if isinstance(kind, StructType):
        fields = {field.name: _converter(field.dataType) for field in kind.fields}
        return lambda value: None if value is None else {name: convert(value[name]) for name, convert in fields.items()}
    if isinstance(kind, MapType):
        convert = _converter(kind.valueType)
        return lambda value: None if value is None else {_key(name): convert(inner) for name, inner in _pairs(value)}
    if isinstance(kind, ArrayType):
        convert_element = _converter(kind.elementType)
        return lambda value: None if value is None else [convert_element(inner) for inner in value]
    if isinstance(kind, VariantType):
        return lambda value: None if value is None else msgspec.Raw(_variant(value).encode())
    if isinstance(kind, TimestampType):
        return lambda value: None if value is None else _instant(value)
    return _scalar


def _pairs(value: Any) -> Iterator[tuple[Any, Any]]:
    return iter(value.items() if isinstance(value, dict) else value)


def _key(name: Any) -> str:
    return name if isinstance(name, str) else _encode(_scalar(name)).decode().strip('"')


def _scalar(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, datetime):
        return _instant(value)
    if isinstance(value, Decimal) and not value.is_finite():
        return None
    return value


def _instant(value: datetime) -> str:
    """With a zone: UTC, as Spark's to_json writes it; without one: as it is."""
    if value.tzinfo is None:
        return value.isoformat(timespec="milliseconds")
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _variant(value: Any) -> str:
    found = value if isinstance(value, VariantVal) else VariantVal(value["value"], value["metadata"])
    return found.toJson()
