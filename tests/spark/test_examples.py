"""examples/log_analytics: the report is that of the lines, and its pipeline is one that the server accepts."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.serving import serving

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "log_analytics"
pytestmark = pytest.mark.slow


def test_the_report_counts_every_line_and_names_the_slow_path(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
        command = [sys.executable, EXAMPLE / "report.py", f"http://127.0.0.1:{server.port}", "2000"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environ, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        rows = [line.strip("|").split("|") for line in done.stdout.splitlines() if line.startswith("|")]
        table = {row[0].strip(): row for row in rows[1:]}
        assert set(table) == {"/", "/cart", "/search", "/report"}
        assert sum(int(row[1]) for row in table.values()) == 2000
        assert [path for path, row in table.items() if float(row[2]) > 0] == ["/cart"]
        client = server.client()
        assert "/report" in {found["path"] for found in client.payloads("access.slow", from_seq=0)}
        definition = tomllib.loads((EXAMPLE / "errors.toml").read_text())
        assert client.put("/v0/pipelines/errors", definition).status == 201
