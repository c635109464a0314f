"""The example of docs/TRANSACTIONS.md runs as it stands, and the page names every setting and limit there is."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from tests.serving import serving
from topics.model import settings
from topics.model.requests import transactions as txns

PAGE = (Path(__file__).parent.parent.parent / "docs" / "TRANSACTIONS.md").read_text()


def test_the_example_does_what_it_says(tmp_path: Path) -> None:
    script = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0]
    with serving(tmp_path / "data") as server:
        environ = {**os.environ, "URL": f"http://127.0.0.1:{server.port}"}
        run = subprocess.run(["bash", "-euc", script], env=environ, capture_output=True, text=True, check=True)
        answers = [json.loads(answer) for answer in re.findall(r"\{.*?\}(?=\{|$)", run.stdout)]
        assert [answer.get("records") for answer in answers[:2]] == [2, 2]
        assert [answer["deduped"] for answer in answers[2:]] == [False, True]
        assert answers[2]["topics"] == answers[3]["topics"]
        assert answers[2]["topics"]["orders"]["records"] == 3
        client = server.client()
        assert [record["data"] for record in client.diff("orders")["records"]] == [{"id": 1}, {"id": 2}, {"id": 3}]
        assert [record["data"] for record in client.diff("audit")["records"]] == ["done"]


def test_the_page_names_the_settings_and_limits() -> None:
    for name in ("stage_ttl_ms", "max_staged_bytes", "max_staged_bytes_per_app", "max_stages", "max_txn_apps"):
        assert settings.find(name)
        assert f"`{name}`" in PAGE
    for limit in (txns.COMMIT_STAGES_MAX, txns.TXN_TOPICS_MAX, txns.PARTS_MAX):
        assert f"{limit:,}" in PAGE
