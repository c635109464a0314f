"""Small questions through DuckDB: what is let through has the rows that Spark has, and what is not goes to Spark."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.types import StructType

from tests.serving import TOPICS, ServerProcess, serving
from topics import cli
from topics.cli.failure import REFUSED, WRONG_USE
from topics_spark.pipelines.tables import MANIFESTS, DataFile, Manifest
from topics_spark.sql import formats
from topics_spark.sql.duckdb import answering, relations, rendering
from topics_spark.sql.duckdb.expressions import NotAlike
from topics_spark.sql.duckdb.translation import parsed, translated
from topics_spark.sql.formats import Form
from topics_spark.sql.query_inputs import QueryInputs
from topics_spark.sql.views import SESSION_SETTINGS, Views

# Blanks, quotes and control characters, numbers at their ends, missing fields, fields of another type.
PAYLOADS: list[dict[str, Any]] = [
    {"id": 1, "total": 1.5, "name": "Ann", "ok": True, "buyer": {"name": "a,b", "age": 7}, "tags": ["x", None]},
    {"id": 2, "total": 20, "name": " blank ", "ok": False, "buyer": {"name": 'q"q'}, "tags": []},
    {"id": 3, "total": -0.0, "name": "", "ok": None, "buyer": None},
    {"id": 2**62, "total": 1e300, "name": "#no comment", "buyer": {"name": "\u2028é漢😀", "age": None}},
    {"id": -5, "total": 12345678.9, "name": "line\nbreak\r\ttab\x01\x1f", "note": "late"},
    {"id": None, "total": 1e-7, "name": 'a\\"b', "note": None},
    {"id": 7, "total": 0.001, "name": "Ann"},
    {"id": 8, "total": 100.25, "name": "ann%"},
]
ALIKE = [
    "SELECT * FROM orders",
    "SELECT name, total, ok, ts FROM orders",
    "SELECT count(*), max(at) FROM totals WHERE total > 1",
    "SELECT * FROM orders WHERE total > 1.25 LIMIT 3",
    "SELECT seq, Name, data FROM orders ORDER BY seq DESC LIMIT 4 OFFSET 1",
    "SELECT count(*), COUNT(1), count(name), sum(TOTAL), avg(Id), min(name), max(o.total) FROM orders o WHERE id < 10",
    "SELECT tag, count(*) AS n, sum(id) AS ids FROM orders WHERE id < 100 GROUP BY tag ORDER BY n DESC, tag",
    "SELECT Tag, count(DISTINCT name) FROM orders GROUP BY TAG ORDER BY 1",
    "SELECT tag AS kind, avg(id) a FROM orders WHERE id < 9 GROUP BY kind HAVING a > 1 AND count(*) >= 1 ORDER BY kind",
    "SELECT name, length(name) AS chars FROM orders ORDER BY name NULLS LAST, seq",
    "SELECT name FROM orders ORDER BY name DESC, seq",
    "SELECT DISTINCT tag FROM orders ORDER BY tag",
    "SELECT buyer.name, o.buyer.age, data.note FROM orders o ORDER BY o.seq",
    "SELECT id FROM orders WHERE buyer IS NOT NULL AND NOT ok ORDER BY id",
    "SELECT id FROM orders WHERE name LIKE '%nn_' OR name LIKE 'Ann' ORDER BY id",
    "SELECT id FROM orders WHERE name IN ('Ann', '') AND id NOT IN (7, 9) ORDER BY id",
    "SELECT id + 1 AS a, id * 2 - 1 AS b, total / 4 AS c, id/2 AS d, -total AS e FROM orders WHERE id < 9 ORDER BY 1",
    "SELECT id FROM orders WHERE id BETWEEN -5 AND 3 AND total <> 1.5 ORDER BY id",
    "SELECT id FROM orders WHERE id < total ORDER BY id",
    "SELECT seq, coalesce(name, note, 'none') AS text, total >= 1 AS large FROM orders ORDER BY seq",
    "SELECT sum(CASE WHEN total > 1.0 THEN 1 ELSE 0 END) AS n, count(*) FILTER (WHERE tag = 'eu') AS eu FROM orders",
    "SELECT count(*) AS n FROM orders WHERE ts > '2020-01-01' AND ts < TIMESTAMP '2099-01-01 00:00:00'",
    "SELECT date_trunc('year', ts) AS y, count(*) AS n FROM orders GROUP BY date_trunc('year', ts) ORDER BY y",
    "SELECT min(ts) AS first, max(seq) FROM orders",
    "SELECT seq, ts, topic, node, meta FROM orders ORDER BY ts, seq",
    "SELECT id, _corrupt FROM misfits ORDER BY seq",
    "SELECT data FROM texts ORDER BY seq",
    "SELECT count(*) FROM nothing",
    "SELECT seq, tag FROM nothing",
    "SELECT tag, total FROM tables.totals ORDER BY tag",
    "SELECT tag, count(*) FROM tables.archive GROUP BY tag ORDER BY tag",
    "SELECT seq AS a, -- a comment; with a semicolon\n tag AS a FROM orders ORDER BY seq",
    "SELECT 1 AS one, 'x' AS x, true AS yes, seq FROM orders ORDER BY seq LIMIT 2",
]
FOR_SPARK = [
    "SELECT 1",
    "SELECT * FROM orders o JOIN texts t ON o.seq = t.seq",
    "SELECT * FROM orders, texts",
    "SELECT * FROM (SELECT 1)",
    "WITH a AS (SELECT 1) SELECT * FROM a",
    "SELECT * FROM orders UNION SELECT * FROM orders",
    "SELECT id FROM orders WHERE id IN (SELECT 1)",
    "FROM orders SELECT id",
    "VALUES (1)",
    "SHOW TABLES",
    "SELECT upper(name) AS n FROM orders",
    "SELECT round(total) AS n FROM orders",
    "SELECT id / id AS n FROM orders",
    "SELECT id / 0 AS n FROM orders",
    "SELECT id % 2 AS n FROM orders",
    "SELECT id * 1.5 AS n FROM orders",
    "SELECT 1 + 1 AS n FROM orders",
    "SELECT id + 1 FROM orders",
    "SELECT count(*) + 1 FROM orders",
    "SELECT id FROM orders WHERE id = '1'",
    "SELECT id FROM orders WHERE id > 0.5",
    "SELECT id FROM orders WHERE name = 'it''s'",
    r"SELECT id FROM orders WHERE name = 'a\nb'",
    "SELECT id FROM orders WHERE ts > 'yesterday'",
    "SELECT id FROM orders WHERE ts > '2026-02-30'",
    "SELECT id FROM orders WHERE name ILIKE 'a'",
    "SELECT id FROM orders WHERE ok IS TRUE",
    "SELECT id FROM orders TABLESAMPLE (5 ROWS)",
    "SELECT total, count(*) FROM orders GROUP BY total",
    "SELECT DISTINCT total FROM orders",
    "SELECT DISTINCT * FROM orders",
    "SELECT tag, count(*) FROM orders GROUP BY ALL",
    "SELECT tag, count(*) FROM orders GROUP BY ROLLUP (tag)",
    "SELECT id FROM orders ORDER BY ALL",
    "SELECT id FROM orders SORT BY id",
    "SELECT id AS seq FROM orders ORDER BY seq + 1",
    "SELECT id FROM orders LIMIT ALL",
    "SELECT id, row_number() OVER (ORDER BY id) AS n FROM orders",
    "SELECT sum(DISTINCT id) FROM orders",
    "SELECT count(DISTINCT id, name) FROM orders",
    "SELECT count(id, name) FROM orders",
    "SELECT sum(sum(id)) AS n FROM orders",
    "SELECT sum(count(*)) AS n FROM orders",
    "SELECT first(id) AS n FROM orders",
    "SELECT tags[0] AS t FROM orders",
    "SELECT nothing FROM orders",
    "SELECT buyer.nothing FROM orders",
    "SELECT * EXCEPT (id) FROM orders",
    "SELECT o.* FROM orders o",
    "SELECT id FROM orders AS o(a, b)",
    "SELECT /*+ COALESCE(1) */ id FROM orders",
    "SELECT CAST(id AS INT) AS n FROM orders",
    "SELECT now() AS n FROM orders",
    "SELECT id FROM a.orders",
    "SELECT count(*) AS n FROM orders HAVING n > 0",
    "SELECT 1L AS n FROM orders",
    "SELECT 1e3 AS n FROM orders",
    "SELECT 99999999999999999999 AS n FROM orders",
    "SELECT * FROM tables.archive",
    "SELECT id FROM tables.archive",
    "SELECT tag AS id, count(*) FROM tables.archive GROUP BY id",
    "SELECT count(*) FROM tables.old",
    f"SELECT id FROM orders WHERE {' AND '.join(['id = 1'] * 2000)}",
    f"SELECT id FROM orders WHERE {'(' * 4000}id = 1{')' * 4000}",
]


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        client = server.client()
        for number, payload in enumerate(PAYLOADS):
            tag = {} if number % 3 == 2 else {"tag": ("eu", "us")[number % 3]}
            body = {"records": [{"data": payload, **tag}], **({"node": "n-1"} if number % 2 else {})}
            assert client.post("/v0/topics/orders", body).status in (200, 201)
        client.append("texts", "hello", 5, None, [1, {"a": "b"}])
        client.append("misfits", {"id": 1}, "text", {"id": 3}, {"other": 1})
        client.append("nothing", {"id": 1})
        assert client.post("/v0/topics/nothing/delete", {"before_seq": 2}).status == 200
        yield server


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`totals` in two files, `archive` with payloads, and `old`, whose manifest does not know its columns."""
    place = tmp_path_factory.mktemp("tables")
    at = pa.array([1_700_000_000_123_456, None], pa.timestamp("us", "UTC"))
    totals = pa.table({"tag": ["eu", None], "total": [6.5, 2.0], "at": at})
    archive = pa.table({"topic": ["o", "o"], "seq": [1, 2], "tag": ["eu", None], "data": ['{"id":1}', '{"id":2}']})
    made = {"totals": (totals, "tag STRING, total DOUBLE, at TIMESTAMP"), "old": (totals, None)}
    made["archive"] = (archive, "topic STRING, seq BIGINT, tag STRING, data STRING")
    for name, (rows, columns) in made.items():
        folder = place / name
        (folder / MANIFESTS).mkdir(parents=True)
        for number in (1, 2):
            parquet.write_table(rows, folder / f"{number}.parquet")
        schema = None if columns is None else msgspec.json.encode(struct_json(columns)).decode()
        manifest = Manifest(1, [DataFile("1.parquet", 2, 100), DataFile("2.parquet", 2, 100)], schema=schema)
        (folder / MANIFESTS / f"{1:020}.json").write_bytes(msgspec.json.encode(manifest))
    return place


def struct_json(columns: str) -> dict[str, Any]:
    """As Spark writes a schema."""
    names = {"STRING": "string", "DOUBLE": "double", "BIGINT": "long", "TIMESTAMP": "timestamp"}
    fields = [column.split() for column in columns.split(", ")]
    return {
        "type": "struct",
        "fields": [{"name": name, "type": names[kind], "nullable": True, "metadata": {}} for name, kind in fields],
    }


@pytest.fixture
def inputs(open_server: ServerProcess, tables: Path) -> QueryInputs:
    return QueryInputs(url=f"http://127.0.0.1:{open_server.port}", tables_dir=str(tables))


@pytest.mark.parametrize("sql", FOR_SPARK)
def test_what_may_differ_is_left_to_spark(sql: str, inputs: QueryInputs) -> None:
    with pytest.raises(NotAlike), answering.rows_of(sql, inputs):
        pytest.fail("it is answered")


def test_a_question_that_reads_much_is_left_to_spark(inputs: QueryInputs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relations, "RECORDS_MAX", 7)
    with pytest.raises(NotAlike, match="more than 7 records"), answering.rows_of("SELECT id FROM orders", inputs):
        pytest.fail("it is answered")
    with answering.rows_of("SELECT id FROM orders", inputs, is_small=False) as rows:
        assert sum(1 for _ in rows.rows()) == 8


def test_an_overflow_is_left_to_spark(inputs: QueryInputs) -> None:
    sql = "SELECT sum(id * 2) AS n FROM orders"
    with pytest.raises(NotAlike, match="Overflow"), answering.rows_of(sql, inputs):
        pytest.fail("it is answered")


def test_only_columns_of_the_question_are_read(inputs: QueryInputs) -> None:
    read = relations.relation(inputs, ("orders",)).read
    asked = "select count(*) from orders where id > 1"
    schema, _ = read(relations.Question(asked, (), frozenset(), asked), None)
    assert schema.names == ["data"]
    assert [field.name for field in schema.field("data").type] == ["id"]


def test_names_of_columns_cannot_become_sql() -> None:
    payload = StructType().add('a"; DROP', "long").add("b' || '", "long")
    columns = {field.name: relations.of_the_record(field.name, field.dataType) for field in payload.fields}
    found = translated(parsed("SELECT `a\"; DROP`, `b' || '` FROM t"), columns)
    assert found.sql == 'SELECT topic_rows."a""; DROP" AS c0, topic_rows."b\' || \'" AS c1 FROM topic_rows'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (9999999.5, "9999999.5"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (0.001, "0.001"),
        (-9.99e-4, "-9.99E-4"),
        (1.5e300, "1.5E300"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_doubles_are_written_as_java_does(value: float, text: str) -> None:
    assert rendering.double_text(value) == text


# --- the command ---


def environ(server: ServerProcess, **more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "SPARK_"))}
    # Without Java: what needs Spark fails.
    return clean | {"TOPICS_URL": f"http://127.0.0.1:{server.port}", **more}


@pytest.fixture
def url(open_server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    """The command sets it for Spark's processes; here it must not outlive the test."""
    url = f"http://127.0.0.1:{open_server.port}"
    monkeypatch.setenv("TOPICS_URL", url)
    return url


@pytest.mark.slow
def test_the_command_answers_without_spark_and_says_so(open_server: ServerProcess, tmp_path: Path, url: str) -> None:
    out = tmp_path / "n.parquet"
    done = subprocess.run(
        [
            TOPICS,
            "sql",
            "SELECT count(*) AS n FROM orders; SELECT id FROM orders WHERE id < 3 ORDER BY id",
            "-o",
            "csv",
        ],
        env=environ(open_server, JAVA_HOME="/nowhere"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "n\n8\nid\n-5\n1\n2\n"), done.stderr
    assert [line.rpartition(" ")[2] for line in done.stderr.splitlines()] == ["(DuckDB)", "(DuckDB)"]
    code = cli.run(["sql", "--url", url, "SELECT id, ts FROM orders", "--out", str(out)])
    assert code == 0
    assert parquet.read_table(out).schema.field("ts").type == pa.timestamp("us", "UTC")
    assert parquet.read_table(out).num_rows == 8
    assert [path.name for path in tmp_path.iterdir()] == ["n.parquet"]


@pytest.mark.parametrize(
    ("sql", "code", "complaint"),
    [
        ("SELECT upper(name) AS n FROM orders", WRONG_USE, "DuckDB does not answer this query: upper; --engine spark"),
        ("SELECT id FROM orderz", REFUSED, "there is no topic `orderz`; did you mean `orders`"),
    ],
)
def test_duckdb_alone_says_what_it_does_not_answer(
    url: str, capsys: pytest.CaptureFixture[str], sql: str, code: int, complaint: str
) -> None:
    assert cli.run(["sql", "--url", url, "--engine", "duckdb", sql]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line


def test_without_duckdb_the_way_to_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(answering, "is_installed", lambda: False)
    assert cli.run(["sql", "--engine", "duckdb", "SELECT 1"]) == WRONG_USE
    assert "pip install 'topicsd[duckdb]'" in capsys.readouterr().err


def test_what_is_left_keeps_its_place(
    inputs: QueryInputs, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "SELECT count(*) AS n\nFROM orders; SELECT upper(name)\n FROM orders; SELECT id FROM orders"
    left = answering.answer_first(text, inputs, "json", None, None, only=False)
    assert left == f"{' ' * 20}\n{' ' * 12}{text[33:]}"
    assert json.loads(capfdbinary.readouterr().out) == {"n": 8}


# --- with Spark beside it ---


@pytest.fixture
def views(spark: SparkSession, inputs: QueryInputs) -> Views:
    session = spark.newSession()
    for name in ("spark.sql.session.timeZone", "spark.sql.runSQLOnFiles", "spark.sql.parquet.outputTimestampType"):
        session.conf.set(name, SESSION_SETTINGS[name])
    return Views(session, inputs)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_both_engines_write_the_same_bytes(views: Views, inputs: QueryInputs, tmp_path: Path) -> None:
    for name in ("orders", "misfits", "texts", "nothing", "totals", "tables.totals", "tables.archive"):
        views.ask(f"SELECT * FROM {name}")
        # Spark reads each once, instead of once for every question.
        views.spark.catalog.cacheTable(name)
    wanted = [views.spark.sql(sql) for sql in ALIKE]
    # One job for all of them: the rows of each keep their order.
    texts = [formats._as_json(rows).toDF("text").withColumn("number", lit(n)) for n, rows in enumerate(wanted)]
    theirs: dict[int, list[str]] = {}
    for text, number in functools.reduce(DataFrame.unionAll, texts).collect():
        theirs.setdefault(number, []).append(text)
    different: list[Any] = []
    for number, sql in enumerate(ALIKE):
        with answering.rows_of(sql, inputs) as rows:
            count = rendering.deliver(rows, "json", tmp_path / "ours")
            ours = (tmp_path / "ours").read_text().split("\n")[:-1]
            kinds = [each.dataType for each in wanted[number].schema.fields]
            if [each.dataType for each in rows.schema.fields] != kinds or len(ours) != count:
                different.append((sql, rows.schema, wanted[number].schema))
        if ours != theirs.get(number, []):
            different.append((sql, ours, theirs.get(number)))
    assert different == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", ["csv", "table"])
def test_both_engines_write_a_form_alike(views: Views, inputs: QueryInputs, tmp_path: Path, form: Form) -> None:
    sql = "SELECT name, ok, total, ts, id, data, tags, buyer, tag FROM orders ORDER BY seq"
    count = formats.deliver(views.ask(sql), form, tmp_path / "theirs", lambda: None)
    with answering.rows_of(sql, inputs) as rows:
        assert rendering.deliver(rows, form, tmp_path / "ours") == count == len(PAYLOADS)
    assert (tmp_path / "ours").read_text() == (tmp_path / "theirs").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_limit_and_parquet_are_alike(views: Views, inputs: QueryInputs, tmp_path: Path) -> None:
    sql = "SELECT seq, ts, data, name, total FROM orders ORDER BY seq"
    formats.deliver(views.ask(sql).limit(3), "parquet", tmp_path / "theirs", lambda: None)
    with answering.rows_of(sql, inputs, limit_rows=3) as rows:
        assert rendering.deliver(rows, "parquet", tmp_path / "ours") == 3
    theirs, ours = parquet.read_table(tmp_path / "theirs"), parquet.read_table(tmp_path / "ours")
    assert ours.to_pylist() == theirs.to_pylist()
    assert ours.schema.types == theirs.schema.types
