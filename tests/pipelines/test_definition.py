"""Definitions from files: TOML, YAML and JSON say the same, and what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from topics.model.errors import InvalidRequest
from topics_spark.pipelines.definition import load_file

TOML = """
sql = "SELECT count(*) FROM logs"
[sources.logs]
topic = "logs"
[sink]
topic = "counts"
"""
YAML = """
sql: SELECT count(*) FROM logs
sources: {logs: {topic: logs}}
sink: {topic: counts}
"""
JSON = '{"sql":"SELECT count(*) FROM logs","sources":{"logs":{"topic":"logs"}},"sink":{"topic":"counts"}}'


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_three_ways_to_write_the_same(tmp_path: Path) -> None:
    files = [("a.toml", TOML), ("b.yaml", YAML), ("c.json", JSON)]
    loaded = [load_file(written(tmp_path / name, text)) for name, text in files]
    assert [list(pipelines) for pipelines in loaded] == [["a"], ["b"], ["c"]]
    assert loaded[0]["a"] == loaded[1]["b"] == loaded[2]["c"]


def test_many_pipelines_in_one_file(tmp_path: Path) -> None:
    text = f'{{"pipelines":{{"one":{JSON},"two":{JSON}}}}}'
    assert list(load_file(written(tmp_path / "all.json", text))) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", TOML.replace("[sink]", "[sunk]"), "unknown field `sunk`"),
        ("a.toml", TOML.replace('topic = "logs"', 'topic = "a/b"'), "sources.logs.topic"),
        ("a.toml", "sql = ", "a.toml"),
        ("a.json", "[]", "must be a table of fields"),
        ("a.txt", "", "must end in one of"),
        ("bad name.json", JSON, "pipeline must be"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        load_file(written(tmp_path / name, text))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        load_file(tmp_path / "absent.toml")
