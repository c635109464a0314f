"""Arrow batches become JSON: every type of Spark, nulls everywhere, and texts that are not what they should be."""

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VariantType,
    VariantVal,
)

from topics_spark.errors import RowRefused, SchemaError
from topics_spark.sink.outgoing import RecordWriter

NOON = datetime(2026, 11, 16, 12, 0, 0, 123456, UTC)
BERLIN = pa.timestamp("us", "Europe/Berlin")
VARIANT = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def writer(schema: StructType, *, topic: str | None = "t", plain_text: bool = False) -> RecordWriter:
    return RecordWriter(schema, topic=topic, plain_text=plain_text)


def written(schema: StructType, plain_text: bool = False, **columns: Any) -> list[Any]:
    batch = pa.RecordBatch.from_pydict(columns)
    body = writer(schema, plain_text=plain_text).records(batch, 0, batch.num_rows)
    return json.loads(body, parse_float=Decimal)


def payloads(kind: DataType, column: pa.Array) -> list[Any]:
    return [record["data"] for record in written(struct(data=kind), data=column)]


# --- every type ---


@pytest.mark.parametrize(
    ("kind", "arrow", "values", "expected"),
    [
        (ByteType(), pa.int8(), [-128, None], [-128, None]),
        (ShortType(), pa.int16(), [32767, None], [32767, None]),
        (IntegerType(), pa.int32(), [-1, None], [-1, None]),
        (LongType(), pa.int64(), [2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
        (BooleanType(), pa.bool_(), [True, False, None], [True, False, None]),
        (FloatType(), pa.float32(), [1.5, 0.1], [Decimal("1.5"), Decimal("0.1")]),
        (DoubleType(), pa.float64(), [1e300, -0.25, None], [Decimal("1e300"), Decimal("-0.25"), None]),
        (
            DoubleType(),
            pa.float64(),
            [float("nan"), float("inf"), float("-inf"), None, 1.5],
            ["NaN", "Infinity", "-Infinity", None, Decimal("1.5")],
        ),
        (DecimalType(38, 8), pa.decimal128(38, 8), [Decimal("0.00000001"), None], [Decimal("1E-8"), None]),
        (DecimalType(5, 0), pa.decimal128(5, 0), [Decimal(12345)], [12345]),
        (DateType(), pa.date32(), [date(1969, 12, 31), None], ["1969-12-31", None]),
        (TimeType(), pa.time64("us"), [time(23, 59, 59, 5)], ["23:59:59.000005"]),
        (TimestampType(), BERLIN, [NOON, None], ["2026-11-16T12:00:00.123456Z", None]),
        (
            TimestampNTZType(),
            pa.timestamp("us"),
            [NOON.replace(tzinfo=None), None],
            ["2026-11-16T12:00:00.123456", None],
        ),
        (BinaryType(), pa.binary(), [b"\x00\xff", b"", None], ["AP8=", "", None]),
        (NullType(), pa.null(), [None, None], [None, None]),
    ],
)
def test_a_value_of_each_type_has_its_json(
    kind: DataType, arrow: pa.DataType, values: list[Any], expected: list[Any]
) -> None:
    assert payloads(kind, pa.array(values, arrow)) == expected
    inner = pa.array([{"x": value} for value in values], pa.struct([("x", arrow)]))
    assert [record["data"] for record in written(struct(data=struct(x=kind)), data=inner)] == [
        {"x": value} for value in expected
    ]
    listed = pa.array([values, [], None], pa.list_(arrow))
    assert [record["data"] for record in written(struct(data=ArrayType(kind)), data=listed)] == [expected, [], None]


def test_structs_maps_and_lists_nest_and_keep_their_nulls() -> None:
    schema = struct(
        data=struct(
            id=LongType(), tags=ArrayType(struct(k=StringType())), more=MapType(StringType(), ArrayType(IntegerType()))
        )
    )
    rows = [
        {"id": 1, "tags": [{"k": "a"}, None, {"k": None}], "more": {"x": [1, None], "y": None}},
        None,
        {"id": None, "tags": [], "more": {}},
        {"id": 4, "tags": None, "more": None},
    ]
    kind = pa.struct(
        [
            ("id", pa.int64()),
            ("tags", pa.list_(pa.struct([("k", pa.string())]))),
            ("more", pa.map_(pa.string(), pa.list_(pa.int32()))),
        ]
    )
    arrow_rows = [row and {**row, "more": None if row["more"] is None else list(row["more"].items())} for row in rows]
    assert [record["data"] for record in written(schema, data=pa.array(arrow_rows, kind))] == rows


def test_any_stretch_of_a_batch_can_be_written_alone() -> None:
    schema = struct(data=struct(a=ArrayType(IntegerType()), m=MapType(StringType(), IntegerType())), tag=StringType())
    rows = [{"a": list(range(n)), "m": {f"k{i}": i for i in range(n % 3)}} for n in range(10)]
    kind = pa.struct([("a", pa.list_(pa.int32())), ("m", pa.map_(pa.string(), pa.int32()))])
    data = pa.array([{"a": row["a"], "m": list(row["m"].items())} for row in rows], kind)
    batch = pa.RecordBatch.from_pydict({"data": data, "tag": pa.array([f"t{n}" for n in range(10)])})
    for start in range(10):
        for stop in range(start + 1, 11):
            records = json.loads(writer(schema).records(batch, start, stop))
            assert records == [{"data": rows[n], "tag": f"t{n}"} for n in range(start, stop)]


def test_keys_of_maps_become_strings() -> None:
    numbers = pa.array([[(1, "a"), (-2, None)]], pa.map_(pa.int32(), pa.string()))
    assert written(struct(data=MapType(IntegerType(), StringType())), data=numbers)[0]["data"] == {"1": "a", "-2": None}
    floats = pa.array([[(1.5, 1), (float("nan"), 2)]], pa.map_(pa.float64(), pa.int32()))
    assert written(struct(data=MapType(DoubleType(), IntegerType())), data=floats)[0]["data"] == {"1.5": 1, "NaN": 2}
    texts = pa.array([[('say "x"', 1), ("plain", 2)]], pa.map_(pa.string(), pa.int32()))
    assert written(struct(data=MapType(StringType(), IntegerType())), data=texts)[0]["data"] == {
        'say "x"': 1,
        "plain": 2,
    }


def test_a_variant_is_the_json_it_came_from() -> None:
    given = [{"a": [1, None, "x"]}, "text", 3, None]
    parsed = [VariantVal.parseJson(json.dumps(value)) for value in given]
    rows = [{"value": variant.value, "metadata": variant.metadata} for variant in parsed]
    assert [
        record["data"] for record in written(struct(data=VariantType()), data=pa.array([*rows, None], VARIANT))
    ] == [
        *given,
        None,
    ]
    inner = pa.array([{"v": row} for row in rows], pa.struct([("v", VARIANT)]))
    assert [record["data"] for record in written(struct(data=struct(v=VariantType())), data=inner)] == [
        {"v": value} for value in given
    ]


def test_a_struct_without_fields_is_an_empty_object() -> None:
    schema = struct(data=struct())
    assert written(schema, data=pa.array([{}, None], pa.struct([]))) == [{"data": {}}, {"data": None}]


@given(st.lists(st.none() | st.text(st.characters(codec="utf-8")), min_size=1))
def test_any_text_is_quoted_so_that_it_comes_back(values: list[str | None]) -> None:
    column = pa.array(values, pa.string())
    assert written(struct(data=StringType(), tag=StringType()), plain_text=True, data=column, tag=column) == [
        {"data": value} if value is None else {"data": value, "tag": value} for value in values
    ]


def test_large_strings_are_written_like_others() -> None:
    column = pa.array(['{"a": 1}', None], pa.large_string())
    assert written(struct(data=StringType(), tag=StringType()), data=column, tag=column) == [
        {"data": {"a": 1}, "tag": '{"a": 1}'},
        {"data": None},
    ]


# --- strings that are JSON ---


def test_json_in_a_string_is_sent_as_it_stands() -> None:
    texts = ['{"a":  1.10}', "[]", '"x"', "null", "1e2"]
    batch = pa.RecordBatch.from_pydict({"data": texts})
    assert (
        writer(struct(data=StringType())).records(batch, 0, 5)
        == b'[{"data":' + '},{"data":'.join(texts).encode() + b"}]"
    )


def test_white_space_around_json_does_no_harm() -> None:
    assert written(struct(data=StringType()), data=pa.array([" 1 ", '\n{"a": 2}\n'])) == [
        {"data": 1},
        {"data": {"a": 2}},
    ]


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "",
        "{",
        "1,2",
        '1},{"data":2',
        '1,"topic":"other"',
        '1,"data":2',
        '{"a":1},"meta":{"b":2}',
        "NaN",
        '"\n"',
        "'x'",
        "01",
    ],
)
def test_a_text_that_is_not_one_json_value_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(RowRefused, match=r"column 'data' has .* which is not valid JSON.*`stringData` to text"):
        written(struct(data=StringType()), data=pa.array(["1", text, "2"]))
    with pytest.raises(RowRefused, match="column 'meta' has"):
        written(struct(data=StringType(), meta=StringType()), data=pa.array(["1", "1"]), meta=pa.array([None, text]))


def test_texts_that_only_make_sense_together_are_refused() -> None:
    with pytest.raises(RowRefused, match="column 'data' has '\\[1'"):
        written(struct(data=StringType()), data=pa.array(["[1", "2]", '3},{"data":4']))


def test_a_long_text_is_named_by_its_beginning() -> None:
    with pytest.raises(RowRefused) as caught:
        written(struct(data=StringType()), data=pa.array(["x" * 1000]))
    assert len(str(caught.value)) < 250


def test_text_that_is_no_utf8_is_refused() -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b'"\xff"']).buffers())
    for column in ("data", "tag"):
        columns = {"data": pa.array(["1"]), column: broken}
        with pytest.raises(RowRefused, match=f"column '{column}' has text that is not UTF-8"):
            written(struct(**dict.fromkeys(columns, StringType())), **columns)


# --- the columns ---


def test_each_row_carries_what_it_has_beside_its_data() -> None:
    records = written(
        struct(
            data=IntegerType(),
            topic=StringType(),
            tag=StringType(),
            node=StringType(),
            meta=MapType(StringType(), IntegerType()),
        ),
        topic=pa.array(["a", "b"]),
        data=pa.array([1, 2], pa.int32()),
        tag=pa.array(["x", None]),
        node=pa.array([None, 'n"1']),
        meta=pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
    )
    assert records == [{"data": 1, "tag": "x", "meta": {"k": 1}}, {"data": 2, "node": 'n"1'}]


def test_without_the_option_the_column_names_the_topic() -> None:
    columns = {"data": pa.array(["1", "2"]), "topic": pa.array(["a", "b"])}
    batch = pa.RecordBatch.from_pydict(columns)
    body = writer(struct(data=StringType(), topic=StringType()), topic=None).records(batch, 0, 2)
    assert [record["topic"] for record in json.loads(body)] == ["a", "b"]
    batch = pa.RecordBatch.from_pydict({**columns, "topic": pa.array(["a", None])})
    with pytest.raises(RowRefused, match="'topic' is null in a row"):
        writer(struct(data=StringType(), topic=StringType()), topic=None).records(batch, 0, 2)


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (struct(value=StringType()), "not 'value': put it into `data`"),
        (struct(data=StringType(), extra=IntegerType()), "not 'extra'"),
        (struct(topic=StringType()), "needs a column `data`"),
        (struct(data=StringType(), tag=IntegerType()), "column 'tag' must be a string, not int"),
        (struct(data=struct(a=ArrayType(DayTimeIntervalType()))), 'column "data.a\'s elements" has type interval'),
        (
            struct(data=MapType(struct(a=IntegerType()), IntegerType())),
            "keys of 'data' are struct<a:int>, but keys in JSON must be strings",
        ),
    ],
)
def test_columns_that_make_no_record_are_refused_before_anything_is_sent(schema: StructType, complaint: str) -> None:
    with pytest.raises(SchemaError) as caught:
        writer(schema)
    assert complaint in str(caught.value)


def test_a_topic_must_be_said_somewhere() -> None:
    with pytest.raises(SchemaError, match="needs the option `topic`, or a column `topic`"):
        writer(struct(data=StringType()), topic=None)


@pytest.mark.parametrize("kind", [ArrayType(DayTimeIntervalType()), MapType(StringType(), DayTimeIntervalType())])
def test_a_type_without_json_names_where_it_stands(kind: DataType) -> None:
    with pytest.raises(SchemaError, match="cast it to a string"):
        writer(struct(data=kind))
