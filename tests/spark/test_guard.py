"""What the SQL of a definition may reach: views and pure functions, nothing else on the machine."""

import pytest
from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from topics.model.errors import InvalidRequest
from topics_spark.pipelines.guard import check_sql

pytestmark = [pytest.mark.slow, pytest.mark.timeout(720)]
VIEWS = ("logs", "users")

QUERIES = {
    "a plain one": "SELECT level, count(*) AS n FROM logs WHERE ms > 5 GROUP BY level HAVING n > 1 ORDER BY n LIMIT 3",
    "a join": "SELECT l.*, u.name FROM logs l LEFT JOIN users u ON l.who = u.who",
    "a window of time": "SELECT window(ts, '1 minute') AS slot, count(*) FROM logs GROUP BY window(ts, '1 minute')",
    "windows over rows": "SELECT rank() OVER (PARTITION BY level ORDER BY ms) FROM logs",
    "with": "WITH slow AS (SELECT * FROM logs WHERE ms > 9), few AS (SELECT * FROM slow LIMIT 2) SELECT * FROM few",
    "a subquery": "SELECT * FROM (SELECT level FROM logs) t WHERE level IN (SELECT name FROM users)",
    "a scalar subquery": "SELECT level, (SELECT max(ms) FROM logs) AS top FROM users",
    "a union": "SELECT level FROM logs UNION ALL SELECT name FROM users",
    "json and arrays": "SELECT from_json(data, 'a INT').a, explode(split(tag, ',')), transform(xs, x -> x) FROM logs",
    "a lateral view": "SELECT level, x FROM logs LATERAL VIEW explode(xs) t AS x",
    "case, cast, struct": "SELECT CASE WHEN ms > 1 THEN cast(ms AS STRING) END, named_struct('a', 1) FROM logs",
    "grouping sets": "SELECT level, who, count(*) FROM logs GROUP BY GROUPING SETS ((level), (who))",
    "a pivot": "SELECT * FROM logs PIVOT (count(*) FOR level IN ('error', 'info'))",
    "values": "SELECT * FROM VALUES (1, 'a') AS t(n, s)",
    "a range of numbers": "SELECT id FROM range(10)",
    "views in any case": "SELECT * FROM LOGS",
    "a pipe": "FROM logs |> WHERE ms > 3 |> SELECT level",
}

REFUSED = {
    "a file by format": "SELECT * FROM parquet.`/etc/passwd`",
    "a text file": "SELECT * FROM text.`/etc/passwd`",
    "a file in a subquery": "SELECT * FROM logs WHERE level IN (SELECT value FROM text.`/etc/passwd`)",
    "a file in a with": "WITH t AS (SELECT * FROM text.`/etc/passwd`) SELECT * FROM t",
    "a file in a scalar subquery": "SELECT (SELECT max(value) FROM text.`/etc/passwd`) FROM logs",
    "a file in an exists": "SELECT * FROM logs WHERE EXISTS (SELECT * FROM text.`/etc/passwd`)",
    "read_files": "SELECT * FROM read_files('/etc/passwd')",
    "another catalog": "SELECT * FROM other.db.t",
    "the session's tables": "SELECT * FROM default.logs",
    "a view that is not its own": "SELECT * FROM global_temp.secrets",
    "a topic that is not its own": "SELECT * FROM payroll",
    "a name in a text": "SELECT * FROM IDENTIFIER('text.`/etc/passwd`')",
    "show": "SHOW TABLES",
    "set": "SET spark.sql.runSQLOnFiles = true",
    "reset": "RESET",
    "a stream of its own": "SELECT * FROM STREAM(other)",
    "create": "CREATE TABLE t AS SELECT * FROM logs",
    "a view": "CREATE TEMPORARY VIEW v AS SELECT 1",
    "a function from a jar": "CREATE TEMPORARY FUNCTION f AS 'java.lang.Runtime' USING JAR '/tmp/x.jar'",
    "add jar": "ADD JAR '/tmp/x.jar'",
    "list": "LIST FILES",
    "insert": "INSERT INTO logs SELECT * FROM logs",
    "insert overwrite directory": "INSERT OVERWRITE DIRECTORY '/tmp/x' USING json SELECT * FROM logs",
    "drop": "DROP TABLE logs",
    "explain": "EXPLAIN SELECT * FROM logs",
    "describe": "DESCRIBE logs",
    "cache": "CACHE TABLE logs",
    "refresh": "REFRESH '/etc'",
    "a script": "SELECT TRANSFORM (level) USING 'sh' AS x FROM logs",
    "a program": "BEGIN SELECT 1; END",
    "execute immediate": "EXECUTE IMMEDIATE 'SHOW TABLES'",
    "a variable": "DECLARE VARIABLE x = 1",
    "a procedure": "CALL system.anything()",
    "reflect": "SELECT reflect('java.lang.System', 'getenv', 'TOPICS_API_KEY') FROM logs",
    "java_method": "SELECT java_method('java.lang.System', 'exit', 1) FROM logs",
    "try_reflect": "SELECT try_reflect('java.lang.System', 'getenv') FROM logs",
    "reflect by its full name": "SELECT system.builtin.reflect('java.lang.System', 'getenv') FROM logs",
    "reflect in a backtick": "SELECT `reflect`('java.lang.System', 'getenv') FROM logs",
    "reflect by a text": "SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv') FROM logs",
    "reflect in an order": "SELECT level FROM logs ORDER BY reflect('java.lang.System', 'getenv')",
    "reflect in a lambda": "SELECT transform(xs, x -> reflect('java.lang.System', 'getenv')) FROM logs",
    "a function of python": "SELECT * FROM python_worker_logs()",
}


@pytest.mark.parametrize("name", QUERIES)
def test_queries_over_the_views_are_taken(spark: SparkSession, name: str) -> None:
    check_sql(spark, QUERIES[name], VIEWS)


@pytest.mark.parametrize("name", REFUSED)
def test_everything_else_is_refused(spark: SparkSession, name: str) -> None:
    with pytest.raises((InvalidRequest, ParseException)) as refused:
        check_sql(spark, REFUSED[name], VIEWS)
    if isinstance(refused.value, InvalidRequest):
        assert refused.value.detail["field"] == "sql"


def test_a_mistake_names_its_line(spark: SparkSession) -> None:
    with pytest.raises(ParseException, match=r"line 3, pos 8"):
        check_sql(spark, "SELECT level\nFROM logs\nGROUPED level level level", VIEWS)
