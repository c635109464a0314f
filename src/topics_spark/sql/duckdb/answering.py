"""A question through DuckDB: translated, read, run, and its rows written; what it must not answer is left to Spark."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import importlib.util
import re
import time
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from topics.cli.failure import NOT_SO, WRONG_USE, CommandFailed
from topics_spark.sql.formats import say_count
from topics_spark.sql.statements import statements

if TYPE_CHECKING:
    from topics_spark.sql.duckdb.rendering import Rows
    from topics_spark.sql.formats import Form
    from topics_spark.sql.query_inputs import QueryInputs

ENGINE: Final = "DuckDB"
BATCH_ROWS: Final = 16_384
SETTINGS: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",
    # Sums of doubles depend on their order.
    "threads": "1",
}


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("duckdb", "sqlglot"))


def answer_first(
    text: str, inputs: QueryInputs, form: Form, out: Path | None, limit_rows: int | None, *, only: bool
) -> str:
    """Answer the statements up to the first one that is for Spark; what is left, at the same lines and columns.

    `only`: there is no Spark to leave them to, and no limit to what is read.
    """
    from topics_spark.sql.duckdb.expressions import NotAlike

    for statement in statements(text):
        try:
            _answer(statement.text, inputs, form, out, limit_rows, only=only)
        except NotAlike as refused:
            if only:
                why = f"DuckDB does not answer this query: {refused.why}; --engine spark does"
                raise CommandFailed(why, WRONG_USE) from None
            return re.sub(r"[^\n]", " ", text[: statement.begin]) + text[statement.begin :]
    return ""


def _answer(sql: str, inputs: QueryInputs, form: Form, out: Path | None, limit_rows: int | None, *, only: bool) -> None:
    import duckdb

    from topics_spark.errors import ConnectorError
    from topics_spark.sql.duckdb.rendering import deliver
    from topics_spark.sql.error_lines import error_line

    begun_s = time.monotonic()
    try:
        with rows_of(sql, inputs, limit_rows, is_small=not only) as rows:
            count = deliver(rows, form, out)
    except ConnectorError as error:
        raise CommandFailed(error_line(error), NOT_SO) from error
    except duckdb.Error as error:
        # Rows are out already: Spark must not write them once more.
        raise CommandFailed(first_line(error), NOT_SO) from error
    say_count(count, out, time.monotonic() - begun_s, ENGINE)


@contextlib.contextmanager
def rows_of(sql: str, inputs: QueryInputs, limit_rows: int | None = None, *, is_small: bool = True) -> Generator[Rows]:
    """The rows of a query that is the same for both engines, else NotAlike; the first ones are already computed."""
    import duckdb
    import pyarrow as pa
    from pyspark.sql.types import StructField, StructType

    from topics_spark.sql.duckdb.expressions import ROWS, NotAlike
    from topics_spark.sql.duckdb.relations import RECORDS_MAX, relation
    from topics_spark.sql.duckdb.rendering import Rows
    from topics_spark.sql.duckdb.translation import parsed, translated
    from topics_spark.sql.parsing import Question

    question = parsed(sql)
    source = relation(inputs, question.relation)
    plan = translated(question, source.columns)
    asked = Question(sql, (question.relation,), frozenset(), None if question.is_whole else sql.lower())
    schema, batches = source.read(asked, RECORDS_MAX if is_small else None)
    reading = _Reading(batches)
    with contextlib.closing(duckdb.connect(":memory:", config=dict(SETTINGS))) as connection:
        connection.register(ROWS, pa.RecordBatchReader.from_batches(schema, reading.batches()))
        result = StructType([StructField(*each) for each in zip(plan.names, plan.types, strict=True)])
        with reading.own_errors():
            try:
                found = connection.sql(plan.sql).to_arrow_reader(BATCH_ROWS)
                first = next(found, None)
            except duckdb.Error as error:
                raise NotAlike(first_line(error)) from error
            kept = found if first is None else chain([first], found)
            yield Rows(plan.names, result, _as_spark(kept, result, limit_rows))


class _Reading:
    """Batches on their way into DuckDB, whose own errors would hide those of the reader."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._failed: BaseException | None = None

    def batches(self) -> Iterator[Any]:
        try:
            yield from self._batches
        except GeneratorExit:
            raise
        except BaseException as error:
            self._failed = error
            raise

    @contextlib.contextmanager
    def own_errors(self) -> Generator[None]:
        from topics_spark.errors import ServerFailed

        try:
            yield
        except Exception:
            if self._failed is None:
                raise
            cause = self._failed.__cause__ if isinstance(self._failed, ServerFailed) else None
            raise (cause or self._failed) from None


def _as_spark(batches: Iterator[Any], result: Any, limit_rows: int | None) -> Iterator[Any]:
    """Batches of exactly the result's columns, at least one, up to the limit."""
    import pyarrow as pa

    from topics_spark.payloads.arrow_types import arrow_type

    schema = pa.schema([(each.name, arrow_type(each.dataType)) for each in result.fields])
    left = limit_rows
    some = False
    for batch in batches:
        if left is not None:
            batch = batch.slice(0, left)
            left -= batch.num_rows
        columns: Sequence[Any] = [column.cast(each.type) for column, each in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        some = True
        if left == 0:
            break
    if not some:
        yield pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)


def first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
