"""What is wrong with a payload that does not fit its schema, for people."""

from __future__ import annotations

import functools
from typing import Final

import msgspec
from pyspark.sql.types import StructType

from topics_spark.payloads.decoding import Convert, Findings, Mismatch, converter, decoded

VALUE_CHARS_MAX: Final = 80


def misfit(schema: StructType, text: str | None) -> str:
    """The first field that does not fit, or what the payload is instead of an object."""
    raw = msgspec.Raw((text or "null").encode())
    try:
        given = decoded(raw, dict[str, msgspec.Raw])
    except Mismatch:
        return f"{_shown(raw)} is not an object"
    for name, kind, convert in _fields(schema):
        value = given.get(name)
        if value is not None and not _fits(convert, value):
            return f"{name} must be {kind}, not {_shown(value)}"
    return "the payload does not fit the schema"


def _fits(convert: Convert, value: msgspec.Raw) -> bool:
    findings = Findings()
    try:
        convert(value, findings)
    except Mismatch:
        return False
    return not findings.bad


@functools.lru_cache(maxsize=16)
def _fields(schema: StructType) -> list[tuple[str, str, Convert]]:
    return [(field.name, field.dataType.simpleString(), converter(field.dataType)) for field in schema.fields]


def _shown(raw: msgspec.Raw) -> str:
    text = bytes(raw).decode().strip()
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"
