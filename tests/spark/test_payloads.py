"""Payloads by schema: the fast way and the careful way agree, and misfits are known by name."""

import json
from datetime import UTC, date, datetime
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
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from topics_spark.errors import SchemaError
from topics_spark.payloads.decoding import PayloadParser
from topics_spark.payloads.inference import inferred


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def parsed(schema: StructType, *texts: str) -> tuple[list[Any], list[bool]]:
    values, bad = PayloadParser(schema).parse(pa.array(texts, pa.string()))
    return values.to_pylist(), [False] * len(texts) if bad is None else bad.to_pylist()


FLAT = struct(
    i=IntegerType(),
    n=LongType(),
    f=DoubleType(),
    s=StringType(),
    b=BooleanType(),
    d=DateType(),
    t=TimestampType(),
    m=DecimalType(10, 2),
    a=ArrayType(LongType()),
    o=struct(x=LongType(), y=ArrayType(StringType())),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.integers(-5, 5),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["2026-01-31", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00.5+02:00", "1.25", "2026-02-30"]),
    st.decimals(-1000, 1000, places=2).map(float),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "z"]), inner, max_size=3),
    max_leaves=6,
)
PAYLOADS = st.one_of(
    st.dictionaries(st.sampled_from([*FLAT.fieldNames(), "other"]), VALUES, max_size=6), st.none(), VALUES
)


@given(st.lists(PAYLOADS, min_size=1, max_size=8))
def test_both_ways_give_the_same_wherever_the_fast_one_gives_anything(payloads: list[Any]) -> None:
    parser = PayloadParser(FLAT)
    for payload in payloads:
        texts = pa.array([json.dumps(payload)], pa.string())
        at_once = parser._at_once(texts)
        one_by_one, bad = parser._one_by_one(texts)
        if at_once is not None:
            assert bad is None
            assert at_once.to_pylist() == one_by_one.to_pylist()


@pytest.mark.parametrize("many", [1, 100])
def test_a_decimal_with_more_digits_than_its_type_does_not_fit(many: int) -> None:
    schema = struct(m=DecimalType(10, 2), a=ArrayType(DecimalType(10, 2)))
    texts = ['{"m": 99999999.99}', '{"m": 100000000}', '{"a": [1, 1000000000]}'] * many
    values, bad = parsed(schema, *texts)
    assert bad == [False, True, True] * many
    assert values[0]["m"] == Decimal("99999999.99")


@given(st.lists(PAYLOADS, max_size=100))
def test_a_payload_is_read_the_same_among_others_as_alone(payloads: list[Any]) -> None:
    texts = [json.dumps(payload) for payload in payloads]
    values, bad = parsed(FLAT, *texts)
    alone = [parsed(FLAT, text) for text in texts]
    assert values == [one[0][0] for one in alone]
    assert bad == [one[1][0] for one in alone]


def test_every_type_is_read() -> None:
    schema = StructType([*FLAT.fields, StructField("z", TimestampNTZType()), StructField("r", BinaryType())]).add(
        "k", MapType(StringType(), LongType())
    )
    text = (
        '{"i": 1, "n": 2, "f": 3, "s": "x\\u00e9", "b": true, "d": "2026-01-31", "t": "2026-01-31T12:00:00+02:00",'
        '"m": 1.5, "a": [1, null], "o": {"x": 1, "y": ["p"], "q": 0}, "z": "2026-01-31T12:00:00", "r": "aGk=",'
        '"k": {"one": 1}, "ignored": {}}'
    )
    values, bad = parsed(schema, text)
    assert bad == [False]
    assert values == [
        {
            "i": 1,
            "n": 2,
            "f": 3.0,
            "s": "xé",
            "b": True,
            "d": date(2026, 1, 31),
            "t": datetime(2026, 1, 31, 10, tzinfo=UTC),
            "m": Decimal("1.50"),
            "a": [1, None],
            "o": {"x": 1, "y": ["p"]},
            "z": datetime(2026, 1, 31, 12),  # noqa: DTZ001
            "r": b"hi",
            "k": [("one", 1)],
        }
    ]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (IntegerType(), "1.0"),
        (IntegerType(), "2147483648"),
        (IntegerType(), '"1"'),
        (LongType(), "1e3"),
        (LongType(), "true"),
        (DoubleType(), '"NaN"'),
        (DoubleType(), "1e999"),
        (BooleanType(), "1"),
        (BooleanType(), '"true"'),
        (DateType(), '"31.1.2026"'),
        (DateType(), "20484"),
        (TimestampType(), "1700000000"),
        (TimestampType(), '"soon"'),
        (DecimalType(3, 1), "12345"),
        (DecimalType(3, 1), '"x"'),
        (ArrayType(LongType()), "{}"),
        (ArrayType(LongType()), '["x"]'),
        (BinaryType(), '"%"'),
        (MapType(StringType(), LongType()), "[]"),
        (struct(x=LongType()), "[1]"),
    ],
)
def test_a_misfit_is_null_and_its_neighbours_are_kept(kind: DataType, text: str) -> None:
    schema = struct(v=kind, w=LongType())
    values, bad = parsed(schema, f'{{"v": {text}, "w": 5}}')
    assert values == [{"v": None, "w": 5}]
    assert bad == [True]


@pytest.mark.parametrize("text", ["5", '"x"', "[1]", "true", '{"a": 1, "b": "\\ud800"}'])
def test_a_payload_that_is_no_object_or_no_unicode_is_a_misfit(text: str) -> None:
    assert parsed(struct(a=LongType()), text) == ([None], [True])


def test_null_is_no_misfit() -> None:
    assert parsed(struct(a=LongType()), "null", '{"a": null}', "{}") == ([None, {"a": None}, {"a": None}], [False] * 3)


def test_text_takes_any_value_as_it_was_written() -> None:
    values, bad = parsed(struct(s=StringType()), '{"s": 1.50}', '{"s": {"a": [1,  2]}}')
    assert values == [{"s": "1.50"}, {"s": '{"a": [1,  2]}'}]
    assert bad == [False, False]


def test_one_misfit_among_many_is_found() -> None:
    texts = [f'{{"a": {n}}}' for n in range(10_000)]
    texts[4_321] = '{"a": "x"}'
    values, bad = parsed(struct(a=LongType()), *texts)
    assert bad.index(True) == 4_321
    assert sum(bad) == 1
    assert values[4_320:4_323] == [{"a": 4_320}, {"a": None}, {"a": 4_322}]


def test_line_breaks_inside_a_payload_are_blanks() -> None:
    assert parsed(struct(a=LongType()), '{"a":\n1}', "{\n}") == ([{"a": 1}, {"a": None}], [False, False])


@pytest.mark.parametrize("kind", [VariantType(), MapType(LongType(), LongType())])
def test_a_type_that_payloads_cannot_have_is_refused(kind: DataType) -> None:
    with pytest.raises(SchemaError, match="cannot be read as"):
        PayloadParser(struct(a=kind))


def test_a_promise_that_json_cannot_keep_is_refused() -> None:
    with pytest.raises(SchemaError, match="NOT NULL"):
        PayloadParser(StructType([StructField("a", LongType(), nullable=False)]))


def test_a_schema_is_inferred_that_every_sample_fits() -> None:
    samples = [
        {"id": 1, "price": 2, "tags": ["a"], "who": {"name": "x"}, "odd": 1, "none": None, "flag": True},
        {"id": 2**70, "price": 2.5, "tags": [], "who": {"age": 3}, "odd": "x", "later": [1, None]},
        [1, 2],
    ]
    schema = inferred([json.dumps(sample) for sample in samples])
    assert schema is not None
    assert {field.name: field.dataType.simpleString() for field in schema.fields} == {
        "id": "double",
        "price": "double",
        "tags": "array<string>",
        "who": "struct<name:string,age:bigint>",
        "odd": "string",
        "none": "string",
        "flag": "boolean",
        "later": "array<bigint>",
    }


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, min_size=1), min_size=1, max_size=6))
def test_what_a_schema_was_inferred_from_fits_it(payloads: list[dict[str, Any]]) -> None:
    texts = [json.dumps(payload) for payload in payloads]
    schema = inferred(texts)
    assert schema is not None
    assert parsed(schema, *texts)[1] == [False] * len(texts)


def test_nothing_is_inferred_from_nothing() -> None:
    assert inferred([]) is None
    assert inferred(["1", "{}"]) is None


def test_a_payload_as_deep_as_version_0_1_took_it_takes_no_other_with_it() -> None:
    deep = f'{{"a":1,"b":{"[" * 985}{"]" * 985}}}'
    for schema in (
        struct(a=LongType()),
        struct(a=LongType(), b=StringType()),
        struct(a=MapType(StringType(), LongType())),
    ):
        rows, bad = parsed(schema, '{"a":7}', deep, '{"a":8}')
        assert len(rows) == len(bad) == 3
    rows, bad = parsed(struct(a=LongType()), '{"a":7}', deep, '{"a":8}')
    assert [row["a"] for row in rows] == [7, 1, 8]
    assert inferred(['{"a":7}', deep, '{"a":8}']) == struct(a=LongType())
