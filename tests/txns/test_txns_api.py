"""Transactions over a real socket."""

from __future__ import annotations

from pathlib import Path

from tests.serving import serving


def test_stage_commit_and_read(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        client = server.client()
        staged = client.post("/v0/txns/etl/7/stage", {"stage": "s1", "part": 0, "topic": "t", "records": [{"data": 1}]})
        assert staged.status == 200
        assert staged.json["records"] == 1
        assert client.get("/v0/topics/t").status == 404
        done = client.post("/v0/txns/etl/7/commit", {"stages": ["s1"]})
        assert done.status == 200
        assert done.json["topics"] == {"t": {"first_seq": 1, "last_seq": 1, "records": 1}}
        again = client.post("/v0/txns/etl/7/commit", {"stages": ["s1"]})
        assert again.status == 200
        assert again.json["deduped"]
        assert client.get("/v0/txns/etl").json["version"] == 7
