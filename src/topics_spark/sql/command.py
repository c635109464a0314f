"""`topics sql`: one query, a file of them, or a prompt."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from topics.cli.connection import RETRIES_QUICK, Access, takes_access
from topics.cli.failure import NOT_SO, WRONG_USE, CommandFailed, failure_of
from topics.cli.output import say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics_spark.sql.formats import Form
    from topics_spark.sql.query_inputs import QueryInputs
    from topics_spark.sql.views import Views

LIMIT_ROWS_MAX = 2**31 - 1
SQL_BYTES_MAX = 1 << 20

Schemas = Annotated[
    list[str] | None,
    typer.Option(
        "--schema",
        metavar="TOPIC=DDL",
        help="Fields of a topic's payloads: orders='id BIGINT, total DOUBLE'; repeatable.",
        show_default="inferred from samples",
    ),
]


Engines = Annotated[
    Literal["auto", "spark", "duckdb"],
    typer.Option(
        "--engine", help="What answers; auto: DuckDB, if it is installed and answers as Spark does, else Spark."
    ),
]


@takes_access
def sql(
    access: Access,
    query: Annotated[
        str | None,
        typer.Argument(help="The query; several end with a semicolon each.", metavar="QUERY", show_default=False),
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Queries from a file; - is standard input.")] = None,
    output: Annotated[
        Literal["table", "csv", "json", "parquet"] | None,
        typer.Option("--output", "-o", help="Output format.", show_default="table on a terminal, json elsewhere"),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write the rows to this file.")] = None,
    schema: Schemas = None,
    since: Annotated[str | None, typer.Option(help="Only records since then: 1h, 2026-11-16T08:00Z.")] = None,
    until: Annotated[str | None, typer.Option(help="Only records before then.")] = None,
    limit_rows: Annotated[
        int | None, typer.Option("--limit-rows", min=1, max=LIMIT_ROWS_MAX, help="At most this many rows.")
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(help="The tables directory of a runner of pipelines: tables are views, also as tables.NAME."),
    ] = None,
    path: Annotated[
        Path | None, typer.Option(help="Read topics from a data directory or a backup instead of a server.")
    ] = None,
    engine: Engines = "auto",
    master: Annotated[str | None, typer.Option(help="Where Spark runs [SPARK_MASTER, local[*]].")] = None,
    conf: Annotated[list[str] | None, typer.Option(help="A setting of Spark, as name=value; repeatable.")] = None,
    warm: Annotated[
        bool, typer.Option("--warm/--no-warm", help="Use a Spark that stays for the next queries of this user.")
    ] = True,
) -> None:
    """Query topics and archives in SQL: each topic that a query names is a table of its records.

    Columns are topic, seq, ts, node, tag, data, meta and the fields of the payloads. Names with . : or - are written in
    backticks. Without a query and on a terminal a prompt opens.
    """
    text = _text(query, file)
    from topics_spark.commands import pairs, point_at
    from topics_spark.sql.formats import form_for

    _check_engine(engine, text)
    inputs = _inputs(access, schema or [], since, until, tables, path)
    form = form_for(output, out, on_terminal=sys.stdout.isatty())
    _check_statements(text, out)
    _check_server(access, inputs)
    point_at(access.url, access.key)
    if text is not None and _without_spark(engine, is_spark_chosen=master is not None or bool(conf)):
        from topics_spark.sql.duckdb.answering import answer_first

        if not (text := answer_first(text, inputs, form, out, limit_rows, only=engine == "duckdb")):
            return
    shared = warm and master is None and not conf
    if shared and text is not None and _asked(access, text, form, out, limit_rows, inputs):
        return
    views = _start(inputs, master, dict(pairs(conf or [])))
    try:
        _answer(Session(views, form, out, limit_rows), text)
    finally:
        _end(views)


def _check_server(access: Access, inputs: QueryInputs) -> None:
    """A wrong address is reported at once, not after Spark has started."""
    if inputs.path is None and inputs.tables_dir is None:
        with access.open(retries_max=RETRIES_QUICK) as client:
            client.health()


def _check_engine(engine: str, text: str | None) -> None:
    from topics_spark.sql.duckdb.answering import is_installed

    if engine != "duckdb":
        return
    if text is None:
        raise CommandFailed("--engine duckdb is for given queries; the prompt uses Spark")
    if not is_installed():
        raise CommandFailed("--engine duckdb needs DuckDB and sqlglot: pip install 'topicsd[duckdb]'")


def _without_spark(engine: str, *, is_spark_chosen: bool) -> bool:
    """Whether DuckDB is asked first."""
    import os

    from topics_spark.sql.duckdb.answering import is_installed

    if engine == "auto":
        return not is_spark_chosen and not os.environ.get("SPARK_MASTER") and is_installed()
    return engine == "duckdb"


def _answer(session: Session, text: str | None) -> None:
    """The queries, or those that are typed at the prompt."""
    if text is None:
        from topics_spark.sql.prompt import converse

        converse(session, session.names)
    else:
        session.run_all(text)


def _end(views: Views) -> None:
    """After an interrupt the connection to Java may be in the middle of a reply: its complaints help nobody."""
    import contextlib

    with contextlib.suppress(Exception):
        views.spark.stop()


def _text(query: str | None, file: Path | None) -> str | None:
    """None: no query is given, and there is a terminal to ask at."""
    if query is not None and file is not None:
        raise CommandFailed("give a query or --file, not both")
    if query is not None:
        return query
    if file is None and sys.stdin.isatty():
        return None
    try:
        with sys.stdin.buffer if file is None or str(file) == "-" else file.open("rb") as source:
            data = source.read(SQL_BYTES_MAX + 1)
        text = data.decode()
    except OSError as error:
        raise CommandFailed(f"--file {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise CommandFailed(f"the queries must be UTF-8, but byte {error.start} is not") from None
    if len(data) > SQL_BYTES_MAX:
        raise CommandFailed(f"the queries are longer than {SQL_BYTES_MAX} bytes; split the file")
    return text


def _check_statements(text: str | None, out: Path | None) -> None:
    from topics_spark.sql.statements import statements

    count = 2 if text is None else len(list(statements(text)))
    if count == 0:
        raise CommandFailed('there is no query; for example: topics sql "SELECT count(*) FROM orders"')
    if count > 1 and out is not None:
        raise CommandFailed("--out is for the rows of one query; run the others separately")


def _inputs(
    access: Access, schemas: list[str], since: str | None, until: str | None, tables: Path | None, path: Path | None
) -> QueryInputs:
    from topics.cli.spans import moment_ms
    from topics_spark.sql.query_inputs import QueryInputs

    for option, folder in (("--tables", tables), ("--path", path)):
        if folder is not None and not folder.exists():
            raise CommandFailed(f"{option} {folder}: there is no such directory")
    for given in schemas:
        if "=" not in given:
            raise CommandFailed(f"--schema must be TOPIC='field TYPE, …', not {given!r}")
    return QueryInputs(
        url=None if path is not None else access.url,
        path=None if path is None else str(path.absolute()),
        tables_dir=None if tables is None else str(tables.absolute()),
        since_ms=None if since is None else moment_ms(since, "--since"),
        until_ms=None if until is None else moment_ms(until, "--until"),
        schemas=dict(cast("tuple[str, str]", given.split("=", 1)) for given in schemas),
    )


def _asked(
    access: Access, text: str, form: Form, out: Path | None, limit_rows: int | None, inputs: QueryInputs
) -> bool:
    """Whether a warm Spark has answered; a failure is raised with its exit code, its words are already said."""
    from dataclasses import asdict

    from topics_spark.sql.warm.asking import ask, warm_address
    from topics_spark.sql.warm.requests import SqlRequest

    if (address := warm_address(access.url, access.key)) is None:
        return False
    place = None if out is None else str(out.absolute())
    code = ask(address, SqlRequest(text, form, place, limit_rows, {**asdict(inputs), "schemas": dict(inputs.schemas)}))
    if code:
        raise typer.Exit(code)
    return True


def _start(inputs: QueryInputs, master: str | None, conf: dict[str, str]) -> Views:
    from topics_spark.source.progress import waiting
    from topics_spark.sql.views import Views

    with waiting("starting Spark", "Spark is ready"):
        spark = started(master, conf)
    # Spark's own handler calls Java, in the middle of the call that is interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return Views(spark, inputs)
    except BaseException:
        spark.stop()
        raise


def started(master: str | None, conf: dict[str, str]) -> SparkSession:
    """A quiet session for queries of people."""
    import logging

    from topics_spark.sql.views import SESSION_SETTINGS
    from topics_spark.start import quiet_errors, session

    quiet_errors()
    # Ctrl-C ends a call to Java in the middle, which its client reports with a stack for every step that fails then.
    for library in ("py4j", "py4j.java_gateway", "py4j.clientserver"):
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
    # Some of it goes to no logger of its own.
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)
    spark = session("topics sql", master=master, config={**SESSION_SETTINGS, **conf}, quick=True)
    try:
        spark.sparkContext.setLogLevel("OFF")
    except BaseException:
        spark.stop()
        raise
    return spark


class Session:
    """Runs queries one after another; rows go to the output, messages to standard error."""

    def __init__(
        self,
        views: Views,
        form: Form,
        out: Path | None = None,
        limit_rows: int | None = None,
        engine: str = "Spark",
    ) -> None:
        self._views = views
        self._form: Form = form
        self._out = out
        self._limit_rows = limit_rows
        self._engine = engine

    def run_all(self, text: str) -> None:
        """Stops at the first failure."""
        from topics_spark.sql.statements import statements

        for statement in statements(text):
            try:
                self._answer(statement.text)
            except Exception as error:
                if (failed := _failed(error)) is None:
                    raise
                raise failed from error

    def _answer(self, sql: str) -> None:
        from topics_spark.sql.formats import deliver, say_count
        from topics_spark.sql.query_progress import watched

        begun_s = time.monotonic()
        with watched(self._views.spark) as watcher:
            rows = self._views.ask(sql)
            if self._limit_rows is not None:
                rows = rows.limit(self._limit_rows)
            count = deliver(rows, self._form, self._out, watcher.stop)
            watcher.stop()
        say_count(count, self._out, time.monotonic() - begun_s, self._engine)

    # --- for the prompt ---

    def run(self, sql: str) -> bool:
        return self._said(lambda: self._answer(sql))

    def list(self) -> bool:
        from topics_spark.sql.prompt import show_names

        return self._said(lambda: show_names(self._views.topics(), self._views.inputs.table_names()))

    def describe(self, name: str) -> bool:
        from topics_spark.sql.prompt import show_columns

        return self._said(lambda: show_columns(self._views.describe(name)))

    def names(self) -> list[str]:
        try:
            return self._views.topics() + self._views.inputs.table_names()
        except Exception:  # noqa: BLE001 - a name that cannot be completed is no reason to say anything
            return []

    def _said(self, work: Callable[[], None]) -> bool:
        try:
            work()
            sys.stdout.flush()
        except KeyboardInterrupt:
            say("stopped")
        except Exception as error:  # noqa: BLE001 - the prompt stays, whatever a query did
            known = failure_of(_failed(error) or error)
            say(known.line if known is not None else f"{type(error).__name__}: {error}")
        else:
            return True
        return False


def _failed(error: Exception) -> CommandFailed | None:
    """Spark's errors in one line; None for other exceptions."""
    from py4j.protocol import Py4JError  # pyright: ignore[reportMissingTypeStubs]
    from pyspark.errors import AnalysisException, PySparkException

    from topics_spark.errors import ConnectorError
    from topics_spark.sql.error_lines import error_line

    if isinstance(error, AnalysisException):
        return CommandFailed(error_line(error), WRONG_USE)
    if isinstance(error, PySparkException | Py4JError | ConnectorError):
        return CommandFailed(error_line(error), NOT_SO)
    return None
