"""`topics sql` on Spark: what queries see of topics and tables, the forms of rows, the command, and its prompt."""

import contextlib
import csv
import fcntl
import itertools
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tests.serving import TOPICS, Client, ServerProcess, serving
from tests.spark.conftest import SECRET
from topics import cli
from topics.cli.failure import NO_ACCESS, NOT_SO, REFUSED, UNREACHABLE, WRONG_USE, CommandFailed
from topics_spark.pipelines.tables import MANIFESTS, DataFile, Manifest
from topics_spark.sql.command import Session
from topics_spark.sql.formats import TABLE_ROWS_MAX, Form, deliver
from topics_spark.sql.parsing import question
from topics_spark.sql.query_inputs import QueryInputs
from topics_spark.sql.views import SESSION_SETTINGS, Views

slow = [pytest.mark.slow, pytest.mark.timeout(900)]
START_S_MAX = 600.0
ORDERS = [
    ({"id": 1, "total": 1.5, "buyer": {"name": "Ann"}}, "eu"),
    ({"id": 2, "total": 20, "buyer": {"name": "Bob"}}, "us"),
    ({"id": 3, "total": 4.5, "note": "late"}, "eu"),
]


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Without keys: Spark was started by others, and knows no key of this server."""
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture(scope="module")
def orders(open_server: ServerProcess) -> str:
    append(open_server.client(), "orders", ORDERS)
    return "orders"


def append(client: Client, topic: str, records: Sequence[tuple[Any, str | None]]) -> None:
    body = {"records": [{"data": data} | ({"tag": tag} if tag else {}) for data, tag in records]}
    assert client.post(f"/v0/topics/{topic}", body).status in (200, 201)


@pytest.fixture
def views(spark: SparkSession, open_server: ServerProcess) -> Views:
    session = spark.newSession()
    for name in ("spark.sql.session.timeZone", "spark.sql.runSQLOnFiles", "spark.sql.parquet.outputTimestampType"):
        session.conf.set(name, SESSION_SETTINGS[name])
    return Views(session, inputs(open_server))


def inputs(server: ServerProcess, **more: Any) -> QueryInputs:
    return QueryInputs(url=f"http://127.0.0.1:{server.port}", **more)


def answer(views: Views, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in views.ask(sql).collect()]


# --- what queries see ---


class TestViews:
    pytestmark = slow

    def test_a_topic_is_a_table_of_its_records(self, views: Views, orders: str) -> None:
        assert answer(views, "SELECT tag, count(*) FROM orders GROUP BY tag ORDER BY tag") == [("eu", 2), ("us", 1)]

    def test_fields_of_payloads_stand_beside_the_columns_of_records(self, views: Views, orders: str) -> None:
        rows = views.ask("SELECT * FROM orders ORDER BY seq")
        own = ["topic", "seq", "ts", "node", "tag", "data", "meta"]
        assert rows.columns == [*own, "id", "total", "buyer", "note", "_corrupt"]
        assert dict(rows.dtypes)["total"] == "double"
        found = answer(views, "SELECT seq, id, total, buyer.name, data.note, _corrupt FROM orders ORDER BY seq")
        assert found[0] == (1, 1, 1.5, "Ann", None, None)
        assert found[2] == (3, 3, 4.5, None, "late", None)

    def test_topics_are_joined(self, views: Views, open_server: ServerProcess, orders: str) -> None:
        append(open_server.client(), "paid.eu-1", [({"order": 1, "by": "card"}, None)])
        sql = "SELECT o.id, p.by FROM orders o JOIN `paid.eu-1` p ON o.id = p.order"
        assert answer(views, sql) == [(1, "card")]

    def test_a_dot_without_backticks_is_an_error(self, views: Views) -> None:
        with pytest.raises(CommandFailed, match=r"in backticks: `paid\.eu`"):
            views.ask("SELECT * FROM paid.eu")

    def test_only_what_is_named_becomes_a_view(self, views: Views, orders: str) -> None:
        views.ask("SELECT count(*) FROM orders")
        assert [table.name for table in views.spark.catalog.listTables()] == ["orders"]

    def test_only_what_is_mentioned_is_read(self, views: Views, orders: str) -> None:
        def read(sql: str) -> list[str]:
            views.ask(sql)
            schema = views._topic_rows(question(views.spark, sql), "orders").schema
            payload: Any = schema["data"].dataType if "data" in schema.names else StructType()
            return [name for name in schema.names if name != "data"] + [f"data.{name}" for name in payload.names]

        assert read("SELECT tag, count(*) FROM orders GROUP BY tag") == ["tag"]
        assert read("SELECT count(*) FROM orders") == ["seq"]
        assert read("SELECT sum(TOTAL) FROM orders WHERE tag = 'eu'") == ["tag", "total", "data.total"]
        every = read("SELECT * FROM orders")
        assert {"ts", "meta", "id", "data.note", "_corrupt"} <= set(every)
        assert read("SELECT x FROM (TABLE orders) t(a, b, c, d, e, f, g, h, i, j, k, x)") == every

    def test_a_misspelt_column_is_answered_with_the_one_that_was_meant(self, views: Views, orders: str) -> None:
        with pytest.raises(AnalysisException, match="`buyer`"):
            views.ask("SELECT buyr FROM orders")

    def test_a_schema_may_be_given(self, spark: SparkSession, open_server: ServerProcess, orders: str) -> None:
        told = Views(spark.newSession(), inputs(open_server, schemas={"orders": "id STRING NOT NULL, note STRING"}))
        assert answer(told, "SELECT id, note FROM orders WHERE note IS NOT NULL") == [("3", "late")]
        with pytest.raises(CommandFailed, match=r"^--schema orders: line 1, column 4: "):
            Views(spark.newSession(), inputs(open_server, schemas={"orders": "id NUMBR"}))

    def test_fields_that_cannot_be_columns_are_in_data(
        self, views: Views, open_server: ServerProcess, topic: str
    ) -> None:
        append(open_server.client(), topic, [({"Tag": "mine", "id": 1, "ID": 2, "n": 3}, "yours")])
        assert answer(views, f"SELECT tag, data.Tag, n FROM {topic}") == [("yours", "mine", 3)]
        assert answer(views, f"SELECT to_json(data) FROM {topic}") == [('{"Tag":"mine","id":1,"ID":2,"n":3}',)]

    def test_payloads_that_are_no_objects_are_text(self, views: Views, open_server: ServerProcess, topic: str) -> None:
        append(open_server.client(), topic, [("hello", None), (5, None)])
        assert answer(views, f"SELECT data FROM {topic} ORDER BY seq") == [('"hello"',), ("5",)]

    def test_every_query_sees_what_is_there_by_then(self, views: Views, open_server: ServerProcess, topic: str) -> None:
        append(open_server.client(), topic, [({"n": 1}, None)])
        assert answer(views, f"SELECT sum(n) FROM {topic}") == [(1,)]
        append(open_server.client(), topic, [({"n": 2, "later": True}, None)])
        assert answer(views, f"SELECT sum(n), max(later) FROM {topic}") == [(3, True)]

    def test_a_name_of_with_and_a_topic_of_that_name(self, views: Views, orders: str) -> None:
        assert answer(views, "WITH orders AS (SELECT id FROM orders WHERE id > 1) SELECT count(*) FROM orders") == [
            (2,)
        ]
        assert answer(views, "WITH none AS (SELECT 1) SELECT * FROM none") == [(1,)]

    def test_queries_may_be_pipes(self, views: Views, orders: str) -> None:
        assert answer(views, "FROM orders |> WHERE total > 2 |> AGGREGATE count(*)") == [(2,)]

    def test_records_are_bounded_by_time(self, spark: SparkSession, open_server: ServerProcess, topic: str) -> None:
        client = open_server.client()
        append(client, topic, [({"n": 1}, None)])
        first_ms = client.diff(topic)["records"][0]["$ts"]
        while time.time() * 1000 <= first_ms + 2:
            pass
        append(client, topic, [({"n": 2}, None)])
        second_ms = client.diff(topic)["records"][1]["$ts"]
        sql = f"SELECT n FROM {topic}"
        assert answer(Views(spark.newSession(), inputs(open_server, since_ms=second_ms)), sql) == [(2,)]
        assert answer(Views(spark.newSession(), inputs(open_server, until_ms=second_ms)), sql) == [(1,)]

    def test_a_topic_that_is_not_there_is_told_with_those_that_come_close(self, views: Views, orders: str) -> None:
        with pytest.raises(CommandFailed, match="there is no topic `orderz`; did you mean `orders`") as failed:
            views.ask("SELECT * FROM orderz")
        assert failed.value.code == REFUSED

    def test_names_that_differ_in_case_only_are_not_mixed_up(
        self, views: Views, open_server: ServerProcess, orders: str
    ) -> None:
        append(open_server.client(), "Orders", [({"id": 9}, None)])
        assert answer(views, "SELECT id FROM Orders") == [(9,)]
        with pytest.raises(CommandFailed, match="SQL ignores case"):
            views.ask("SELECT * FROM orders, Orders")

    @pytest.mark.parametrize(
        ("sql", "what"),
        [
            ("INSERT INTO orders VALUES (1)", "insert into statement"),
            ("CREATE TABLE t (a INT)", "create table"),
            ("DROP VIEW orders", "drop view"),
            ("SET spark.sql.ansi.enabled = false", "set command"),
            ("SELECT * FROM IDENTIFIER('or' || 'ders')", "plan with unresolved identifier"),
        ],
    )
    def test_only_queries_run(self, views: Views, sql: str, what: str) -> None:
        with pytest.raises(CommandFailed, match=f"only queries are allowed here .* not {what}"):
            views.ask(sql)

    def test_topics_are_read_from_files(self, spark: SparkSession, tmp_path: Path) -> None:
        with serving(tmp_path / "data") as server:
            append(server.client(), "kept", [({"n": 7}, "a")])
        files = Views(spark.newSession(), QueryInputs(path=str(tmp_path / "data")))
        assert answer(files, "SELECT tag, n FROM kept") == [("a", 7)]
        assert files.topics() == ["kept"]


# --- tables ---


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """As a runner leaves them: `orders`, an archive, and `totals`; a file that does not count lies beside."""
    archive = {"topic": ["orders"] * 2, "seq": [1, 2], "tag": ["eu", None], "data": ['{"id":1,"old":true}', '{"id":2}']}
    for name, columns in {"orders": archive, "totals": {"tag": ["eu"], "total": [6.0]}}.items():
        folder = tmp_path / name
        (folder / MANIFESTS).mkdir(parents=True)
        parquet.write_table(pa.table(columns), folder / "1.parquet")
        parquet.write_table(pa.table(columns), folder / "unnamed.parquet")
        manifest = Manifest(1, [DataFile("1.parquet", 2, 100)])
        (folder / MANIFESTS / f"{1:020}.json").write_bytes(msgspec.json.encode(manifest))
    return tmp_path


@pytest.fixture
def both(spark: SparkSession, open_server: ServerProcess, tables: Path) -> Views:
    return Views(spark.newSession(), inputs(open_server, tables_dir=str(tables)))


class TestTables:
    pytestmark = slow

    def test_a_table_is_a_view_and_only_files_that_count_are_read(self, both: Views) -> None:
        assert answer(both, "SELECT * FROM totals") == [("eu", 6.0)]
        assert answer(both, "SELECT * FROM tables.totals") == [("eu", 6.0)]

    def test_a_topic_comes_first_and_the_table_has_a_prefix(self, both: Views, orders: str) -> None:
        assert answer(both, "SELECT count(*) FROM orders") == [(3,)]
        assert answer(both, "SELECT seq, id, old FROM tables.orders ORDER BY seq") == [(1, 1, True), (2, 2, None)]
        sql = "SELECT count(*) FROM orders o LEFT ANTI JOIN tables.orders a ON o.seq = a.seq"
        assert answer(both, sql) == [(1,)], "what is not in the archive yet"

    def test_a_table_that_does_not_exist_is_an_error(self, both: Views) -> None:
        with pytest.raises(CommandFailed, match=r"no topic or table `tables\.total`; did you mean `totals`"):
            both.ask("SELECT * FROM tables.total")


# --- forms ---


SAMPLE = """
SELECT * FROM VALUES (1, 'a,"b"', NULL, array(1, 2), TIMESTAMP '2026-11-16 01:02:03.5'),
                     (2, 'x\\ny', '', NULL, NULL) AS t(i, s, n, a, t)
"""


def delivered(views: Views, sql: str, form: Form, out: Path) -> int:
    return deliver(views.ask(sql), form, out, lambda: None)


class TestForms:
    pytestmark = slow

    def test_csv_is_what_every_reader_of_csv_reads(self, views: Views, tmp_path: Path) -> None:
        assert delivered(views, SAMPLE, "csv", tmp_path / "a.csv") == 2
        with (tmp_path / "a.csv").open(newline="") as file:
            assert list(csv.reader(file)) == [
                ["i", "s", "n", "a", "t"],
                ["1", 'a,"b"', "", "[1,2]", "2026-11-16T01:02:03.500Z"],
                ["2", "x\ny", "", "", ""],
            ]

    def test_json_is_an_object_a_line_with_every_column(self, views: Views, tmp_path: Path) -> None:
        assert delivered(views, SAMPLE, "json", tmp_path / "a.json") == 2
        assert [json.loads(line) for line in (tmp_path / "a.json").read_text().splitlines()] == [
            {"i": 1, "s": 'a,"b"', "n": None, "a": [1, 2], "t": "2026-11-16T01:02:03.500Z"},
            {"i": 2, "s": "x\ny", "n": "", "a": None, "t": None},
        ]

    def test_columns_of_one_name_stay_apart(self, views: Views, tmp_path: Path) -> None:
        delivered(views, "SELECT 1 AS a, 2 AS a", "json", tmp_path / "a.json")
        assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1, "a_2": 2}
        delivered(views, "SELECT 1 AS a, 2 AS a", "csv", tmp_path / "a.csv")
        assert (tmp_path / "a.csv").read_text() == "a,a\n1,2\n"
        with pytest.raises(CommandFailed, match="two columns with one name; rename with AS: a"):
            delivered(views, "SELECT 1 AS a, 2 AS a", "parquet", tmp_path / "a.parquet")

    def test_parquet_is_one_file_with_types(self, views: Views, tmp_path: Path) -> None:
        sql = "SELECT id, timestamp_micros(id) t, 'x' s FROM range(0, 1000, 1, 3)"
        assert delivered(views, sql, "parquet", tmp_path / "a.parquet") == 1000
        found = parquet.read_table(tmp_path / "a.parquet")
        assert sorted(found.column("id").to_pylist()) == list(range(1000))
        assert found.schema.field("t").type == pa.timestamp("us", "UTC")
        assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"], "nothing else is left"

    def test_no_rows_are_a_file_as_well(self, views: Views, tmp_path: Path) -> None:
        for form in ("csv", "json", "parquet"):
            assert delivered(views, "SELECT 1 AS a WHERE false", form, tmp_path / form) == 0
        assert (tmp_path / "csv").read_text() == "a\n"
        assert (tmp_path / "json").read_text() == ""
        assert parquet.read_table(tmp_path / "parquet").column_names == ["a"]

    def test_a_query_that_fails_leaves_the_file_that_was_there(self, views: Views, tmp_path: Path) -> None:
        out = tmp_path / "a.json"
        out.write_text("before")
        with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
            delivered(views, "SELECT 1 / id FROM range(1)", "json", out)
        assert out.read_text() == "before"
        assert list(tmp_path.iterdir()) == [out]

    def test_a_table_shows_its_first_rows_and_says_so(
        self, views: Views, capfdbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        session = Session(views, "table")
        assert session.run("SELECT id, array(id) AS a, CAST('x' AS BINARY) b FROM range(2000)")
        out, err = capfdbinary.readouterr()
        lines = out.decode().splitlines()
        assert lines[0].split() == ["id", "a", "b"]
        assert lines[2].split() == ["0", "[0]", "eA=="]
        assert len(lines) == TABLE_ROWS_MAX + 2
        assert f"the first {TABLE_ROWS_MAX} rows" in err.decode()

    def test_a_limit_holds(self, views: Views, orders: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        assert Session(views, "json", limit_rows=2).run("SELECT id FROM orders")
        assert len(capfdbinary.readouterr().out.splitlines()) == 2

    def test_a_failing_query_is_one_line(self, views: Views, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        session = Session(views, "json")
        assert not session.run("SELECT 1,\n  1 / id FROM range(1)")
        assert not session.run("SELEKT 1")
        assert not session.describe("nowhere")
        said = [line for line in capfdbinary.readouterr().err.decode().splitlines() if line.startswith("topics: ")]
        assert said[0].startswith("topics: line 2, column 3: Division by zero")
        assert said[1].startswith("topics: line 1, column 1: Syntax error at or near 'SELEKT'")
        assert said[2].startswith("topics: there is no topic `nowhere`")
        with pytest.raises(CommandFailed) as failed:
            session.run_all("SELECT 1 / id FROM range(1)")
        assert failed.value.code == NOT_SO
        with pytest.raises(CommandFailed) as failed:
            session.run_all("SELECT nothing")
        assert failed.value.code == WRONG_USE


# --- the command ---


def environ(server: ServerProcess | None, key: str = SECRET, **more: str) -> dict[str, str]:
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "SPARK_", "PYSPARK_"))
    }
    where = "http://127.0.0.1:1" if server is None else f"http://127.0.0.1:{server.port}"
    return clean | {"TOPICS_URL": where, "TOPICS_API_KEY": key, "SPARK_MASTER": "local[2]", **more}


def run(
    server: ServerProcess | None, *arguments: str | Path, stdin: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [TOPICS, "sql", *arguments],
        env=environ(server, **more),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
    )
    assert SECRET not in done.stdout + done.stderr
    return done


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", "http://127.0.0.1:1")


@pytest.mark.usefixtures("nowhere")
def test_a_wrong_address_is_told_before_spark_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["sql", "SELECT 1"]) == UNREACHABLE
    out, err = capsys.readouterr()
    assert out == ""
    assert "starting Spark" not in err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((" -- nothing\n",), "there is no query"),
        (("SELECT 1", "-f", "x.sql"), "give a query or --file, not both"),
        (("-f", "/nowhere/x.sql"), "--file /nowhere/x.sql: No such file"),
        (("SELECT 1", "--schema", "orders"), "--schema must be TOPIC="),
        (("SELECT 1", "--since", "soon"), "--since is 'soon'"),
        (("SELECT 1", "--out", "rows.xls"), "give the format with -o"),
        (("SELECT 1; SELECT 2", "--out", "rows.csv"), "--out is for the rows of one query"),
        (("SELECT 1", "--tables", "/nowhere"), "--tables /nowhere: there is no such directory"),
    ],
)
@pytest.mark.usefixtures("nowhere")
def test_wrong_use_is_told_before_spark_starts(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["sql", *arguments]) == WRONG_USE
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_file_of_queries_gives_rows_on_stdout_and_all_else_on_stderr(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    append(client, "sales", ORDERS)
    file = tmp_path / "queries.sql"
    file.write_text(
        "-- by tag\nSELECT tag, count(*) AS n FROM sales GROUP BY tag ORDER BY tag;\n\nSELECT\n  idd FROM sales;"
    )
    done = run(server, "-f", file)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"tag": "eu", "n": 2}, {"tag": "us", "n": 1}]
    assert done.returncode == WRONG_USE
    said = done.stderr.splitlines()
    assert "starting Spark" in said
    assert any(line.startswith("Spark is ready after") for line in said)
    assert any(re.fullmatch(r"topics: 2 rows after .* s \(Spark\)", line) for line in said)
    assert said[-1].startswith("topics: line 5, column 3: ")
    assert "`id`" in said[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_archive_is_asked_without_a_server_and_gives_parquet(tables: Path, tmp_path: Path) -> None:
    out = tmp_path / "totals.parquet"
    done = run(None, "--tables", tables, "--out", out, stdin="SELECT tag, total * 2 AS double FROM tables.totals")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert parquet.read_table(out).to_pylist() == [{"tag": "eu", "double": 12.0}]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_key_that_may_not_read_gets_an_error(server: ServerProcess) -> None:
    done = run(server, "SELECT * FROM sales", key="wrong")
    assert done.returncode == NO_ACCESS
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ctrl_c_ends_a_query_with_at_most_a_line(server: ServerProcess) -> None:
    long = "SELECT max(hash(a.id, b.id)) FROM range(10000000) a CROSS JOIN range(10000000) b"
    process = subprocess.Popen(
        [TOPICS, "sql", long],
        env=environ(server),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        before = list(itertools.takewhile(lambda line: " tasks after " not in line, process.stderr))
        # As a terminal does it: Java and the Python workers get the signal as well.
        os.killpg(process.pid, signal.SIGINT)
        out, said = process.communicate(timeout=START_S_MAX)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, out) == (130, ""), (before, said)
    assert len(said.splitlines()) <= 1, said


# --- the prompt ---


class Terminal:
    """`topics sql` on a terminal of its own: what is typed, and what appears."""

    def __init__(self, **env: str) -> None:
        self.shown = ""
        self._seen = 0
        self._terminal, inner = pty.openpty()
        self.process = subprocess.Popen(
            [TOPICS, "sql"],
            env=env,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            # Ctrl-C is a signal only to those whose terminal this is.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - a single call
        )
        os.close(inner)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The next appearance, after the one that was waited for before."""
        deadline_s = time.monotonic() + START_S_MAX
        while (found := re.compile(pattern).search(self.shown, self._seen)) is None:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, self.shown
            if select.select([self._terminal], [], [], left_s)[0]:
                with contextlib.suppress(OSError):
                    self.shown += os.read(self._terminal, 65536).decode(errors="replace")
        self._seen = found.end()
        return found

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._terminal)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_prompt_answers_stops_queries_and_remembers(server: ServerProcess, client: Client, tmp_path: Path) -> None:
    append(client, "prompted.eu", ORDERS)
    terminal = Terminal(**environ(server, TERM="xterm", XDG_STATE_HOME=str(tmp_path), COLUMNS="200"))
    try:
        terminal.wait_for(r"starting Spark \d+ s")
        terminal.wait_for("topics> ")
        terminal.type("SELECT tag, sum(total) AS total\n")
        terminal.wait_for(r"   \.\.\.> ")
        terminal.type("FROM `prompted.eu` GROUP BY tag ORDER BY tag;\n")
        terminal.wait_for(r"eu +6\.0\r\nus +20\.0\r\n")
        terminal.wait_for("topics: 2 rows after")
        terminal.type("\\d\n")
        terminal.wait_for(r"prompted\.eu +topic")
        terminal.type("SELECT nothing FROM `prompted.eu`;\n")
        terminal.wait_for("topics: line 1, column 8: .*nothing")
        terminal.wait_for("topics> ")
        terminal.type("SELECT max(hash(a.id, b.id)) FROM range(10000000) a CROSS JOIN range(10000000) b;\n")
        terminal.wait_for(r"query .* \d+/\d+ tasks")
        terminal.type("\x03")
        terminal.wait_for("topics: stopped")
        terminal.wait_for("topics> ")
        terminal.type("SELECT 40 + 2 AS answer;\n")
        terminal.wait_for(r"\r\n +42\r\n")
        terminal.wait_for("topics> ")
        terminal.type("\x04")
        assert terminal.process.wait(START_S_MAX) == 0
    finally:
        terminal.close()
    assert SECRET not in terminal.shown
    history = tmp_path / "topics" / "sql_history"
    assert "SELECT 40 + 2 AS answer;" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
