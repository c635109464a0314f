"""Pipeline definitions over HTTP: kept through kills, checked for shape, guarded by scopes and prefixes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Client, ServerProcess, serving

COUNTS = {
    "sources": {
        "logs": {"topic": "logs", "schema": "level STRING", "watermark": {"column": "ts", "delay": "1 minute"}}
    },
    "sql": "SELECT level, count(*) AS n FROM logs GROUP BY level",
    "sink": {"topic": "counts", "tag": "level"},
    "trigger": {"every": "1 second"},
    "output_mode": "update",
}
RUNNING = {"state": "running", "runner": "r1", "batch": 3, "rows_per_second": 12.5, "lag": 7}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Client:
    return server.client()


def names(client: Client, query: str = "") -> list[str]:
    return [item["pipeline"] for item in client.get(f"/v0/pipelines{query}").json["pipelines"]]


def test_a_definition_comes_back_as_it_was_put(client: Client) -> None:
    made = client.put("/v0/pipelines/as-put", COUNTS)
    assert (made.status, made.json["created"], made.json["definition"]) == (201, True, COUNTS)
    seen = client.get("/v0/pipelines/as-put").json
    assert seen["definition"] == COUNTS
    assert seen["revision"] == seen["generation"] == made.json["revision"]
    assert seen["status"] is None


def test_the_same_again_changes_nothing(client: Client) -> None:
    first = client.put("/v0/pipelines/same", COUNTS).json
    again = client.put("/v0/pipelines/same", COUNTS)
    assert (again.status, again.json["created"], again.json["revision"]) == (200, False, first["revision"])


def test_only_a_change_of_substance_begins_a_new_generation(client: Client) -> None:
    first = client.put("/v0/pipelines/changing", COUNTS).json
    slower = client.put("/v0/pipelines/changing", {**COUNTS, "trigger": {"every": "5 seconds"}}).json
    assert slower["revision"] > first["revision"]
    assert slower["generation"] == first["generation"]
    other = client.put("/v0/pipelines/changing", {**COUNTS, "sql": "SELECT 1"}).json
    assert other["generation"] == other["revision"] > slower["revision"]


def test_a_pipeline_made_again_never_repeats_a_revision(client: Client) -> None:
    first = client.put("/v0/pipelines/again", COUNTS).json
    assert client.delete("/v0/pipelines/again").json["deleted"] is True
    assert client.get("/v0/pipelines/again").code == "pipeline_not_found"
    assert client.delete("/v0/pipelines/again").json["deleted"] is False
    assert client.put("/v0/pipelines/again", COUNTS).json["generation"] > first["generation"]


def test_definitions_survive_kills(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/pipelines/kept", COUNTS)
        client.put("/v0/pipelines/gone", COUNTS)
        client.delete("/v0/pipelines/gone")
        kept = client.put("/v0/pipelines/kept", {**COUNTS, "enabled": False}).json
        server.kill()
    with serving(tmp_path) as server:
        client = server.client()
        assert names(client) == ["kept"]
        assert client.get("/v0/pipelines/kept").json["definition"] == kept["definition"]
        assert client.get("/v0/pipelines/kept").json["revision"] == kept["revision"]
        assert client.get("/v0/topics").json["topics"] == []
        assert server.terminate() == 0
    with serving(tmp_path) as server:
        assert names(server.client()) == ["kept"]


def test_the_list_is_paged_and_filtered(client: Client) -> None:
    for number in range(5):
        client.put(f"/v0/pipelines/paged-{number}", COUNTS)
    first = client.get("/v0/pipelines?prefix=paged&page_size=3").json
    rest = client.get(f"/v0/pipelines?prefix=paged&page_size=3&cursor={first['next_cursor']}").json
    found = [item["pipeline"] for page in (first, rest) for item in page["pipelines"]]
    assert found == [f"paged-{number}" for number in range(5)]
    assert "next_cursor" not in rest


def test_what_a_runner_reports_is_shown_and_measured(client: Client) -> None:
    client.put("/v0/pipelines/reported", COUNTS)
    assert client.post("/v0/pipelines/reported/status", RUNNING).status == 200
    status = client.get("/v0/pipelines/reported").json["status"]
    assert {name: status[name] for name in RUNNING} == RUNNING
    assert status["ts"] > 0
    text = client.get("/v0/metrics").body.decode()
    assert 'topics_pipeline_lag{pipeline="reported"} 7.0' in text
    assert 'topics_pipeline_up{pipeline="reported"} 1.0' in text
    assert client.post("/v0/pipelines/absent/status", RUNNING).code == "pipeline_not_found"
    assert client.post("/v0/pipelines/reported/status", {**RUNNING, "state": "bored"}).status == 400
    assert client.post("/v0/pipelines/reported/status", {**RUNNING, "last_error": "x" * 65537}).status == 400


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sources": {}}, "sources"),
        ({"sources": {"no view": {"topic": "a"}}}, "sources"),
        ({"sources": {"v": {}}}, "sources.v.topic"),
        ({"sources": {"v": {"topic": "a", "pattern": "b"}}}, "sources.v.topic"),
        ({"sources": {"v": {"topic": "no/name"}}}, "sources.v.topic"),
        ({"sources": {"v": {"pattern": "("}}}, "sources.v.pattern"),
        ({"sources": {"v": {"topic": "a", "start": "yesterday"}}}, "sources.v.start"),
        (
            {"sources": {"v": {"topic": "a", "watermark": {"column": "ts", "delay": "soon"}}}},
            "sources.v.watermark.delay",
        ),
        ({"python": "m:f"}, "sql"),
        ({"sql": None}, "sql"),
        ({"sql": None, "python": "os.system('x')"}, "python"),
        ({"sql": None, "use": "magic"}, "use"),
        ({"sql": None, "use": "dedupe"}, "options.key"),
        ({"sql": None, "use": "dedupe", "options": {"key": ["a"], "horizon": "soon"}}, "options.horizon"),
        ({"sql": None, "use": "dedupe", "options": {"key": ["a"], "surprise": 1}}, "options.surprise"),
        ({"options": {}}, "options"),
        ({"sink": None}, "sink"),
        ({"sink": {"topic": "a", "table": "b"}}, "sink"),
        ({"sink": {"table": "../etc"}}, "sink.table"),
        ({"sink": {"topic": "a", "partition_by": ["x"]}}, "sink.partition_by"),
        ({"sink": {"table": "t", "tag": "x"}}, "sink.tag"),
        ({"trigger": {}}, "trigger"),
        ({"trigger": {"every": "often"}}, "trigger.every"),
        ({"trigger": {"cron": "* * * *"}}, "trigger.cron"),
        ({"trigger": {"cron": "61 * * * *"}}, "trigger.cron"),
        ({"trigger": {"cron": "x * * * *"}}, "trigger.cron"),
        ({"state_retention": "long"}, "state_retention"),
        ({"output_mode": "shout"}, "output_mode"),
        ({"guarantee": "maybe"}, "guarantee"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_wrong_shape_is_refused_by_the_field(client: Client, change: dict[str, Any], field: str) -> None:
    refused = client.put("/v0/pipelines/wrong", {**COUNTS, **change})
    assert (refused.status, refused.code, refused.detail["field"]) == (400, "invalid_request", field)
    assert client.get("/v0/pipelines/wrong").status == 404


def test_good_shapes_are_taken(client: Client) -> None:
    for number, change in enumerate(
        (
            {"trigger": {"cron": "*/5 0-6,12 1 * 1-5"}},
            {"trigger": {"once": True}},
            {"sources": {"v": {"topics": ["a", "b"], "start": 5}, "w": {"pattern": "x.*", "static": True}}},
            {"sources": {"v": {"topic": "a", "start": "2026-01-31T12:00:00Z"}}},
            {"sql": None, "python": "jobs.clean:run"},
            {"sql": None, "use": "dedupe", "options": {"key": ["tag"], "horizon": "2 hours"}},
            {"sink": {"table": "t", "partition_by": ["day"]}},
        )
    ):
        assert client.put(f"/v0/pipelines/good-{number}", {**COUNTS, **change}).status == 201, change


def test_keys_see_and_touch_only_what_they_may(tmp_path: Path) -> None:
    keys = "root:read+write+admin+delete,team:read+admin+delete:team.,reader:read"
    with serving(tmp_path, api_keys=keys) as server:
        root, team, reader = (server.client(key) for key in ("root", "team", "reader"))
        mine = {**COUNTS, "sources": {"v": {"topic": "team.in"}}, "sink": {"topic": "team.out"}}
        assert reader.put("/v0/pipelines/p", mine).status == 403
        assert team.put("/v0/pipelines/team.p", mine).status == 201
        assert team.put("/v0/pipelines/p", mine).status == 403
        assert team.put("/v0/pipelines/team.q", {**mine, "sink": {"topic": "out"}}).status == 403
        assert team.put("/v0/pipelines/team.q", {**mine, "sources": {"v": {"pattern": "team.*"}}}).status == 403
        assert root.put("/v0/pipelines/team.foreign", COUNTS).status == 201
        assert names(team) == ["team.p"]
        assert team.get("/v0/pipelines/team.foreign").status == 403
        assert team.delete("/v0/pipelines/team.foreign").status == 403
        assert names(reader) == ["team.foreign", "team.p"]
        assert reader.post("/v0/pipelines/team.p/status", RUNNING).status == 403
        assert server.stranger().get("/v0/pipelines").status == 401
