"""A column of any type as a column of JSON texts; null stays null, and is JSON's null only inside other values."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import functools
from base64 import b64encode
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VariantType,
    VariantVal,
)

from topics_spark.errors import SchemaError

Column = Any
Render = Callable[[Column], Column]
# Characters that JSON escapes.
ESCAPED: Final = r'[\x00-\x1f"\\]'

_encode = msgspec.json.Encoder().encode


def rendering(kind: DataType, where: str) -> Render:
    """How a column of this type is written; `where` names it in the error if it cannot be."""
    match kind:
        case StructType():
            return _structs([(field.name, rendering(field.dataType, f"{where}.{field.name}")) for field in kind.fields])
        case MapType():
            key = rendering(kind.keyType, f"{where}'s keys")
            if isinstance(kind.keyType, StructType | MapType | ArrayType | VariantType):
                raise SchemaError(
                    f"keys of {where!r} are {kind.keyType.simpleString()}, but keys in JSON must be strings"
                )
            return _maps(key, rendering(kind.valueType, f"{where}'s values"))
        case ArrayType():
            return _lists(rendering(kind.elementType, f"{where}'s elements"))
        case _:
            for known, render in PLAIN:
                if isinstance(kind, known):
                    return render
    raise SchemaError(f"column {where!r} has type {kind.simpleString()}, which JSON does not have: cast it to a string")


# --- pieces ---


@functools.cache
def text(value: str) -> Column:
    """A constant in a form for which Arrow need not look up the type at each call."""
    return pa.scalar(value, pa.string())


def joined(*pieces: Column | str) -> Column:
    """Texts joined row by row, null where one of them is null."""
    return pc.binary_join_element_wise(*(text(piece) if isinstance(piece, str) else piece for piece in (*pieces, "")))


def strung(texts: Column, between: str) -> bytes:
    """All rows joined into one, with a separator."""
    row = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return pc.binary_join(row, text(between))[0].as_buffer().to_pybytes()


def or_null(texts: Column) -> Column:
    return pc.fill_null(texts, text("null")) if texts.null_count else texts


def _each(render: Callable[[Any], str]) -> Render:
    """One by one, where Arrow has no function."""

    def texts(column: Column) -> Column:
        return pa.array([None if value is None else render(value) for value in column.to_pylist()], pa.string())

    return texts


# --- plain values ---


def _cast(column: Column) -> Column:
    return column.cast(pa.string())


def _quoted(column: Column) -> Column:
    column = column.cast(pa.string())
    if pc.any(pc.match_substring_regex(column, ESCAPED)).as_py():
        return _quoted_each(column)
    return joined('"', column, '"')


_quoted_each = _each(lambda value: _encode(value).decode())


def _floats(column: Column) -> Column:
    """JSON has no infinity; these are the strings that Spark's to_json and from_json use."""
    texts = column.cast(pa.string())
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return texts
    infinite = pc.if_else(pc.greater(column, pa.scalar(0, column.type)), text('"Infinity"'), text('"-Infinity"'))
    return pc.if_else(pc.is_nan(column), text('"NaN"'), pc.if_else(pc.is_inf(column), infinite, texts))


def _wall_times(column: Column) -> Column:
    return pc.replace_substring(column.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string()), " ", "T")


def _instants(column: Column) -> Column:
    """In UTC, whatever the session's time zone."""
    return joined('"', _wall_times(column), 'Z"')


def _variant(value: Any) -> str:
    found = value if isinstance(value, VariantVal) else VariantVal(value["value"], value["metadata"])
    return found.toJson()


PLAIN: Final[tuple[tuple[type[DataType], Render], ...]] = (
    (StringType, _quoted),
    (IntegralType, _cast),
    (DecimalType, _cast),
    (FractionalType, _floats),
    (BooleanType, _cast),
    (TimestampType, _instants),
    (TimestampNTZType, lambda column: joined('"', _wall_times(column), '"')),
    (DateType, lambda column: joined('"', _cast(column), '"')),
    (TimeType, lambda column: joined('"', _cast(column), '"')),
    (BinaryType, _each(lambda value: f'"{b64encode(value).decode()}"')),
    (NullType, _cast),
    (VariantType, _each(_variant)),
)


# --- nested values ---


def _where_valid(column: Column, texts: Column) -> Column:
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.string())) if column.null_count else texts


def _structs(fields: list[tuple[str, Render]]) -> Render:
    names = [f"{'{' if not index else ','}{_encode(name).decode()}:" for index, (name, _) in enumerate(fields)]

    def texts(column: Column) -> Column:
        pieces: list[Column | str] = []
        for name, (_, render), values in zip(names, fields, column.flatten(), strict=True):
            pieces += [name, or_null(render(values))]
        # A struct without fields gives Arrow nothing to count rows by.
        written = joined(*pieces, "}") if fields else pa.array(["{}"] * len(column), pa.string())
        return _where_valid(column, written)

    return texts


def _lists(render: Render) -> Render:
    def texts(column: Column) -> Column:
        first, count, offsets = _stretch(column)
        inner = or_null(render(column.values.slice(first, count)))
        return _enclosed(column, "[", offsets, inner, "]")

    return texts


def _maps(key: Render, value: Render) -> Render:
    def texts(column: Column) -> Column:
        first, count, offsets = _stretch(column)
        names = key(column.keys.slice(first, count))
        names = pc.if_else(pc.starts_with(names, '"'), names, joined('"', names, '"'))
        inner = joined(names, ":", or_null(value(column.items.slice(first, count))))
        return _enclosed(column, "{", offsets, inner, "}")

    return texts


def _stretch(column: Column) -> tuple[int, int, Column]:
    """Which of all elements belong to these rows, and where each row begins among them."""
    offsets = column.offsets
    first = offsets[0]
    return first.as_py(), offsets[-1].as_py() - first.as_py(), pc.subtract(offsets, first)


def _enclosed(column: Column, opening: str, offsets: Column, inner: Column, closing: str) -> Column:
    rows = pc.binary_join(pa.ListArray.from_arrays(offsets, inner), text(","))
    return _where_valid(column, joined(opening, rows, closing))
