"""Payloads into typed columns: Arrow's JSON reader for payloads that fit the schema, field by field for others.

A chunk that the fast reader refuses is halved until the payloads that it refuses are isolated; these are decoded one
by one. Where both ways give a value it is the same, and only the slow way knows what is wrong.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import base64
import binascii
import functools
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, Final, TypeVar, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from topics.model.requests.nesting import decode_deep
from topics_spark.errors import SchemaError
from topics_spark.payloads.arrow_types import arrow_type

# Below this many payloads, halving costs more than decoding them one by one.
SLOW_ROWS_MAX = 32
# A chunk that is refused this often is full of misfits: it is not halved further.
REFUSALS_MAX = 24
INTEGER_BITS: Final = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
INTEGER = re.compile(r"-?\d+")
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")

Convert = Callable[[msgspec.Raw, "Findings"], Any]
T = TypeVar("T")


class Mismatch(Exception):
    """A value does not have the type of its field in the schema."""


class Findings:
    """Whether anything in the current payload did not fit."""

    __slots__ = ("bad",)

    def __init__(self) -> None:
        self.bad = False


class PayloadParser:
    """Parses texts into one struct array, and marks those that did not fit."""

    def __init__(self, schema: StructType) -> None:
        self._type: pa.DataType = arrow_type(schema)
        self._convert = converter(schema)
        wire = wire_type(schema)
        self._wire: pa.Schema | None = None if wire is None else pa.schema(list(wire))

    def parse(self, texts: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        """The structs, and a mask of misfits if there are any."""
        parts = list(self._parts(texts))
        structs = pa.concat_arrays([part for part, _ in parts]) if parts else pa.array([], self._type)
        if all(bad is None for _, bad in parts):
            return structs, None
        masks = [pa.array([False]).take(pa.array([0] * len(part))) if bad is None else bad for part, bad in parts]
        return structs, pa.concat_arrays(masks)

    def _parts(self, texts: pa.Array) -> Iterator[tuple[pa.Array, pa.Array | None]]:
        waiting = [texts] if len(texts) else []
        refusals = 0
        while waiting:
            chunk = waiting.pop()
            parsed = self._at_once(chunk) if refusals < REFUSALS_MAX else None
            if parsed is not None:
                yield parsed, None
            elif len(chunk) <= SLOW_ROWS_MAX or refusals >= REFUSALS_MAX or self._wire is None:
                yield self._one_by_one(chunk)
            else:
                refusals += 1
                middle = len(chunk) // 2
                waiting += [chunk[middle:], chunk[:middle]]

    def _at_once(self, texts: pa.Array) -> pa.Array | None:
        if self._wire is None:
            return None
        count = len(texts)
        # The reader needs an object on every line; a null as the first one would crash the process.
        nothing = pc.equal(texts, "null")
        mask = nothing if pc.any(nothing).as_py() else None
        if mask is not None:
            texts = pc.if_else(mask, "{}", texts)
        if not pc.all(pc.starts_with(texts, "{")).as_py():
            return None
        options = arrow_json.ParseOptions(explicit_schema=self._wire, unexpected_field_behavior="ignore")
        lines = joined(texts)
        try:
            table = arrow_json.read_json(
                pa.BufferReader(lines),
                read_options=arrow_json.ReadOptions(use_threads=False, block_size=lines.size + 1),
                parse_options=options,
            )
            if table.num_rows != count:
                return None
            columns = [column.combine_chunks().cast(self._type.field(i).type) for i, column in enumerate(table.columns)]
            for column in columns:
                if "decimal" in str(column.type):
                    # The reader lets pass what has more digits than the type, as long as they fit its bytes.
                    column.validate(full=True)
        except pa.ArrowException:
            return None
        return pa.StructArray.from_arrays(columns, fields=list(self._type), mask=mask)

    def _one_by_one(self, texts: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        values: list[Any] = []
        bad: list[bool] = []
        for text in cast("list[str]", texts.to_pylist()):
            findings = Findings()
            try:
                values.append(self._convert(msgspec.Raw(text), findings))
            except Mismatch:
                findings.bad = True
                values.append(None)
            bad.append(findings.bad)
        return pa.array(values, self._type), pa.array(bad) if any(bad) else None


def joined(texts: pa.Array) -> pa.Buffer:
    """One payload per line. A line break in JSON is white space unless it is escaped, so a blank replaces it."""
    count = len(texts)
    whole = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), texts), "\n")[0].as_buffer()
    if whole.to_pybytes().count(b"\n") == count - 1:
        return whole
    return joined(pc.replace_substring(texts, "\n", " "))


def wire_type(schema: DataType) -> pa.DataType | None:
    """The type that the fast reader uses for this type; None if it cannot read it."""
    match schema:
        case StructType():
            inner = [(field.name, wire_type(field.dataType)) for field in schema.fields]
            names = [name for name, _ in inner]
            fit = inner and len(set(names)) == len(names) and all(each is not None for _, each in inner)
            return pa.struct(cast("Any", inner)) if fit else None
        case ArrayType():
            element = wire_type(schema.elementType)
            return None if element is None else pa.list_(element)
        case DateType():
            # The reader would read a date as a number of days; its text is cast instead.
            return pa.string()
        case MapType() | BinaryType():
            return None
        case _:
            return arrow_type(schema)


def decoded(raw: msgspec.Raw, kind: type[T]) -> T:
    try:
        return decode_deep(functools.partial(msgspec.json.decode, type=kind), bytes(raw))
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise Mismatch from None


def text_of(raw: msgspec.Raw) -> str:
    return bytes(raw).decode().strip()


def converter(schema: DataType) -> Convert:
    """How one value of the type is read; null is None for every type."""
    read = reader_of(schema)

    def convert(raw: msgspec.Raw, findings: Findings) -> Any:
        return None if text_of(raw) == "null" else read(raw, findings)

    return convert


def reader_of(schema: DataType) -> Convert:
    match schema:
        case StructType():
            return struct_reader(schema)
        case ArrayType():
            return array_reader(converter(schema.elementType))
        case MapType() if isinstance(schema.keyType, StringType):
            return map_reader(converter(schema.valueType))
        case DecimalType():
            return decimal_reader(schema.precision, schema.scale)
        case ByteType() | ShortType() | IntegerType() | LongType():
            return integer_reader(1 << (INTEGER_BITS[type(schema)] - 1))
        case _ if type(schema) in LEAVES:
            return LEAVES[type(schema)]
        case _:
            raise SchemaError(
                f"a payload cannot be read as {schema.simpleString()}; leave `data` as text and convert it in a query "
                "(parse_json gives a VARIANT)"
            )


def struct_reader(schema: StructType) -> Convert:
    for field in schema.fields:
        if not field.nullable:
            raise SchemaError(
                f"field {field.name!r} is NOT NULL, which JSON cannot guarantee; remove that from the schema"
            )
    fields = [(field.name, converter(field.dataType)) for field in schema.fields]

    def read(raw: msgspec.Raw, findings: Findings) -> dict[str, Any]:
        given = decoded(raw, dict[str, msgspec.Raw])
        found: dict[str, Any] = {}
        for name, convert in fields:
            value = given.get(name)
            try:
                found[name] = None if value is None else convert(value, findings)
            except Mismatch:
                findings.bad = True
                found[name] = None
        return found

    return read


def array_reader(convert: Convert) -> Convert:
    def read(raw: msgspec.Raw, findings: Findings) -> list[Any]:
        return [convert(each, findings) for each in decoded(raw, list[msgspec.Raw])]

    return read


def map_reader(convert: Convert) -> Convert:
    def read(raw: msgspec.Raw, findings: Findings) -> list[tuple[str, Any]]:
        return [(name, convert(each, findings)) for name, each in decoded(raw, dict[str, msgspec.Raw]).items()]

    return read


def integer_reader(bound: int) -> Convert:
    def read(raw: msgspec.Raw, _findings: Findings) -> int:
        text = text_of(raw)
        if INTEGER.fullmatch(text) is None or len(text) > 20 or not -bound <= (value := int(text)) < bound:
            raise Mismatch
        return value

    return read


def decimal_reader(precision: int, scale: int) -> Convert:
    step = Decimal(1).scaleb(-scale)

    def read(raw: msgspec.Raw, findings: Findings) -> Decimal:
        text = text_of(raw)
        text = read_string(raw, findings) if text.startswith('"') else text
        try:
            value = Decimal(text).quantize(step, ROUND_HALF_UP)
        except InvalidOperation:
            raise Mismatch from None
        if not value.is_finite() or len(value.as_tuple().digits) > precision:
            raise Mismatch
        return value

    return read


def read_string(raw: msgspec.Raw, _findings: Findings) -> str:
    """A value that is not a string becomes its JSON text, as in Spark's own `from_json`."""
    text = text_of(raw)
    return decoded(raw, str) if text.startswith('"') else text


def read_only_string(raw: msgspec.Raw) -> str:
    if not text_of(raw).startswith('"'):
        raise Mismatch
    return decoded(raw, str)


def read_boolean(raw: msgspec.Raw, _findings: Findings) -> bool:
    return decoded(raw, bool)


def read_float(raw: msgspec.Raw, _findings: Findings) -> float:
    text = text_of(raw)
    if NUMBER.fullmatch(text) is None or (value := float(text)) in {float("inf"), float("-inf")}:
        raise Mismatch
    return value


def read_date(raw: msgspec.Raw, _findings: Findings) -> date:
    try:
        return date.fromisoformat(read_only_string(raw))
    except ValueError:
        raise Mismatch from None


def read_moment(raw: msgspec.Raw, _findings: Findings) -> datetime:
    """A time without a zone is in UTC."""
    try:
        moment = datetime.fromisoformat(read_only_string(raw))
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Mismatch from None


def read_local_moment(raw: msgspec.Raw, findings: Findings) -> datetime:
    return read_moment(raw, findings).replace(tzinfo=None)


def read_binary(raw: msgspec.Raw, _findings: Findings) -> bytes:
    try:
        return base64.b64decode(read_only_string(raw), validate=True)
    except (binascii.Error, ValueError):
        raise Mismatch from None


LEAVES: Final[dict[type[DataType], Convert]] = {
    StringType: read_string,
    BooleanType: read_boolean,
    FloatType: read_float,
    DoubleType: read_float,
    DateType: read_date,
    TimestampType: read_moment,
    TimestampNTZType: read_local_moment,
    BinaryType: read_binary,
}
