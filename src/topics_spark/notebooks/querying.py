"""A query from Python: through DuckDB where that is the same as Spark, else in a session of this process."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

from topics.cli.spans import moment_ms
from topics_spark.errors import ConnectorError
from topics_spark.notebooks.results import QueryResult
from topics_spark.options import URL_DEFAULT
from topics_spark.sql.duckdb.answering import ENGINE, is_installed, rows_of
from topics_spark.sql.query_inputs import QueryInputs
from topics_spark.sql.statements import statements

Engine = Literal["auto", "spark", "duckdb"]


def query(
    sql: str,
    *,
    url: str | None = None,
    path: str | Path | None = None,
    tables: str | Path | None = None,
    since: str | None = None,
    until: str | None = None,
    engine: Engine = "auto",
) -> QueryResult:
    """The rows of one query, as `topics sql` would answer it; the key is in TOPICS_API_KEY.

    `url` defaults to TOPICS_URL. `path` is a data directory or a backup instead of a server, `tables` the directory of
    tables of a runner. `since` and `until` bound the records that are read: 1h, 2026-11-16T08:00Z.
    """
    texts = [statement.text for statement in statements(sql)]
    if len(texts) != 1:
        raise ConnectorError(f"give one query, not {len(texts)}")
    inputs = QueryInputs(
        url=None if path is not None else url or os.environ.get("TOPICS_URL", URL_DEFAULT),
        path=None if path is None else str(Path(path).absolute()),
        tables_dir=None if tables is None else str(Path(tables).absolute()),
        since_ms=None if since is None else moment_ms(since, "since"),
        until_ms=None if until is None else moment_ms(until, "until"),
    )
    begun_s = time.monotonic()
    found = None if engine == "spark" else _through_duckdb(texts[0], inputs, only=engine == "duckdb")
    if found is not None:
        return QueryResult(found, ENGINE, time.monotonic() - begun_s)
    return QueryResult(_through_spark(texts[0], inputs), "Spark", time.monotonic() - begun_s)


def _through_duckdb(sql: str, inputs: QueryInputs, *, only: bool) -> Any:
    """None: the query is for Spark."""
    if not is_installed():
        if only:
            raise ConnectorError("DuckDB is not installed: %pip install 'topicsd[duckdb]'")
        return None
    import pyarrow as pa

    from topics_spark.sql.duckdb.expressions import NotAlike

    try:
        with rows_of(sql, inputs, is_small=not only) as rows:
            return pa.Table.from_batches(list(rows.batches))
    except NotAlike as refused:
        if only:
            raise ConnectorError(f"DuckDB does not answer this query: {refused.why}") from None
        return None


def _through_spark(sql: str, inputs: QueryInputs) -> Any:
    from pyspark.sql.utils import is_remote

    from topics_spark.sql.views import SESSION_SETTINGS, Views
    from topics_spark.start import session

    if is_remote():
        raise ConnectorError(
            "this query needs Spark in the process of the notebook, and the session is Spark Connect: "
            'use spark.read.format("topics") and spark.sql() there'
        )
    spark = session("topics notebook", config=SESSION_SETTINGS, quick=True).newSession()
    # A session that was started elsewhere may have others.
    for name in ("spark.sql.session.timeZone", "spark.sql.runSQLOnFiles"):
        spark.conf.set(name, SESSION_SETTINGS[name])
    return Views(spark, inputs).ask(sql).toArrow()
