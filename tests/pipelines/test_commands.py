"""`topics pipelines put` as a process: it says what it does, and does not start a pipeline again without a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.terminal import Done, run
from tests.serving import serving

COPY: dict[str, Any] = {"sources": {"v": {"topic": "a"}}, "sql": "SELECT 1 AS n FROM v", "sink": {"topic": "out"}}


def test_a_table_of_another_pipeline_is_not_compacted(tmp_path: Path) -> None:
    (tmp_path / "t" / "_manifest").mkdir(parents=True)
    manifest = {"seq": 1, "files": [], "topic": "pipelines.manifest.other", "epoch": 1}
    (tmp_path / "t" / "_manifest" / "1.json").write_text(json.dumps(manifest))
    with serving(tmp_path / "data") as server:
        server.client().put("/v0/pipelines/p", {**COPY, "sink": {"table": "t"}})
        done = run(server, "pipelines", "compact", "p", "--tables", tmp_path)
    assert (done.code, "belongs to the pipeline other" in done.err) == (1, True), done
    assert "Traceback" not in done.err


def test_put_says_what_it_does_and_asks_before_a_pipeline_starts_again(tmp_path: Path) -> None:
    file = tmp_path / "copy.json"

    def put(*flags: str, **changes: Any) -> Done:
        file.write_text(json.dumps({**COPY, **changes}))
        return run(server, "pipelines", "put", file, *flags)

    with serving(tmp_path / "data") as server:
        assert "copy: created" in put().err
        assert "copy: same" in put().err
        assert "(sql), revision 2: continues from its checkpoint" in put(sql="SELECT 1 AS n  FROM v").err
        refused = put(sql="SELECT 2 AS n FROM v")
        assert (refused.code, "--keep-checkpoint" in refused.err) == (2, True), refused
        assert server.client().get("/v0/pipelines/copy").json["revision"] == 2
        assert "starts again" in put("--yes", sql="SELECT 2 AS n FROM v").err
        assert "continues" in put("--keep-checkpoint", sql="SELECT 3 AS n FROM v").err
