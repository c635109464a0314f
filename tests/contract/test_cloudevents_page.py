"""docs/CLOUDEVENTS.md is true: its blocks run as they are printed, and its figures are the limits."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.serving import TOPICS, Client, serving
from topics.model.requests.batch import META_KEYS_MAX
from topics.model.setting_types import KIB
from topics.model.settings import Settings

PAGE = (Path(__file__).parent.parent.parent / "docs" / "CLOUDEVENTS.md").read_text()


@pytest.mark.slow
def test_the_page_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (script,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with serving(tmp_path) as server:
        monkeypatch.setenv("TOPICS_URL", f"http://127.0.0.1:{server.port}")
        environ = {**os.environ, "PATH": f"{TOPICS.parent}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-euc", script], env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith('{"specversion":"1.0","id":"4","source":"/shop","type":"order.sent"}\n')
        names: dict[str, Any] = {"__name__": "page"}
        exec(code, names)
        client: Client = server.client()
        assert [record["meta"]["id"] for record in client.diff("orders")["records"]] == list("1234567")
    printed = capsys.readouterr().out
    assert "{'order': 5}" in printed
    assert r"b'\x89PNG'" in printed


def test_the_page_names_the_limits() -> None:
    assert f"({Settings().max_meta_bytes // KIB} KiB)" in PAGE
    assert f"at most {META_KEYS_MAX - 1}." in PAGE
