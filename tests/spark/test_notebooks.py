"""Topics in notebooks: the magic and its results, and the example in a real kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.serving import ServerProcess, serving
from tests.spark.running import ROOT
from topics_spark import notebooks
from topics_spark.errors import ConnectorError
from topics_spark.notebooks import QueryResult, query, results

PACKAGES = Path(sys.prefix) / "notebooks"
EXAMPLE = ROOT / "examples" / "notebooks" / "orders.ipynb"
NOTEBOOK_S_MAX = 1500
SUM = "SELECT tag, sum(n) AS n FROM numbers GROUP BY tag ORDER BY tag"


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        records = [{"data": {"n": n, "text": "<script>"}, "tag": "ab"[n % 2]} for n in range(60)]
        assert server.client().post("/v0/topics/numbers", {"records": records}).status in (200, 201)
        yield server


@pytest.fixture
def url(open_server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"http://127.0.0.1:{open_server.port}"
    monkeypatch.setenv("TOPICS_URL", url)
    return url


@pytest.fixture
def shell(url: str) -> Any:
    """What IPython gives to an extension."""
    shell = SimpleNamespace(user_ns={}, topics=None)
    shell.register_magic_function = lambda function, magic_kind, magic_name: setattr(shell, magic_name, function)
    notebooks.load_ipython_extension(shell)
    return shell


@pytest.mark.usefixtures("url")
def test_a_query_gives_rows_for_every_library() -> None:
    found = query(SUM)
    assert (found.columns, found.rows()) == (["tag", "n"], [("a", 870), ("b", 900)])
    assert found.arrow().to_pydict() == {"tag": ["a", "b"], "n": [870, 900]}
    assert found.polars().rows() == [("a", 870), ("b", 900)]
    assert repr(found).startswith("2 rows after ")
    assert repr(found).endswith("(DuckDB)")


def test_a_library_that_is_missing_is_named_with_the_way_to_it() -> None:
    with pytest.raises(ConnectorError, match="nowhere is not installed: %pip install nowhere"):
        results.needed("nowhere.at_all")


@pytest.mark.usefixtures("url")
def test_a_table_is_escaped_and_short() -> None:
    shown = query("SELECT seq, text FROM numbers")._repr_html_()
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown
    assert shown.count("<tr>") == results.SHOWN_ROWS_MAX + 1
    assert "60 rows after" in shown
    assert f"the first {results.SHOWN_ROWS_MAX}" in shown
    assert results.cell(None) == "<i>NULL</i>"
    assert len(results.cell("x" * 1000)) == results.CELL_CHARS_MAX


def test_a_cell_of_sql_is_a_variable_and_a_line_is_a_result(shell: Any) -> None:
    found = shell.topics("found --engine duckdb --until 2099-01-01T00:00Z", SUM + ";\n")
    assert isinstance(found, QueryResult)
    assert shell.user_ns == {"found": found}
    assert shell.topics("SELECT count(*) AS n FROM numbers").rows() == [(60,)]


@pytest.mark.parametrize(
    ("line", "sql", "complaint"),
    [
        ("--engine nothing", SUM, "invalid choice: 'nothing'"),
        ("1st", SUM, "'1st' cannot be the name of a variable"),
        ("--since soon", SUM, "since is 'soon'"),
        ("", "SELECT 1; SELECT 2", "give one query, not 2"),
        ("", "-- nothing", "give one query, not 0"),
        ("--engine duckdb", "SELECT upper(tag) AS t FROM numbers", "DuckDB does not answer this query: upper"),
    ],
)
def test_wrong_use_is_told(shell: Any, line: str, sql: str, complaint: str) -> None:
    with pytest.raises(Exception, match=complaint):
        shell.topics(line, sql)


@pytest.mark.slow
@pytest.mark.usefixtures("url")
def test_a_plot_has_the_columns_at_its_axes() -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    axes = query(SUM).plot(kind="bar")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tag", "n")
    assert [bar.get_height() for bar in axes.patches] == [870, 900]
    plt.close("all")
    with pytest.raises(ConnectorError, match="a plot needs two columns"):
        query("SELECT count(*) AS n FROM numbers").plot()


@pytest.mark.slow
@pytest.mark.timeout(NOTEBOOK_S_MAX + 60)
@pytest.mark.skipif(not PACKAGES.exists(), reason="`make .venv/notebooks` installs Jupyter")
def test_the_example_runs_in_a_kernel(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "SPARK_"))}
    with serving(tmp_path / "data") as server:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.notebook_job", str(EXAMPLE), str(tmp_path / "executed.ipynb")],
            cwd=ROOT,
            env={
                **clean,
                "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), str(PACKAGES)]),
                "TOPICS_URL": f"http://127.0.0.1:{server.port}",
                "SPARK_MASTER": "local[2]",
                "HOME": str(tmp_path),
                "JUPYTER_PLATFORM_DIRS": "1",
            },
            capture_output=True,
            text=True,
            timeout=NOTEBOOK_S_MAX,
        )
    assert done.returncode == 0, done.stderr[-50_000:]
    cells = json.loads((tmp_path / "executed.ipynb").read_text())["cells"]
    shown = [output_of(cell) for cell in cells if cell["cell_type"] == "code"]
    by_tag, plot, pandas, polars, arrow, so_far, live, spark = shown[2:]
    assert "<td>asia</td><td>4</td><td>273.0</td>" in by_tag["text/html"]
    assert "(DuckDB)" in by_tag["text/html"]
    assert plot["image/png"]
    assert "273.0" in pandas["text/html"]
    assert "shape: (3, 3)" in polars["text/plain"]
    assert "total: double" in arrow["text/plain"]
    assert "<td>2</td><td>21.0</td><td>31.5</td>" in so_far["text/html"]
    assert "(Spark)" in so_far["text/html"]
    assert "notebook.orders: 3 new" in live["text/html"]
    assert "&quot;id&quot;: 102" in live["text/html"]
    assert live["text/plain"] == "3"
    assert spark["text/plain"].startswith("[{'tag': 'asia', 'count': 4},")


def output_of(cell: Any) -> dict[str, str]:
    """The newest output of each kind."""
    found: dict[str, str] = {}
    for output in cell["outputs"]:
        found |= {kind: "".join(text) for kind, text in output.get("data", {}).items()}
    return found
