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


def test_a_blank_in_the_sql_does_not_start_a_pipeline_again(client: Client) -> None:
    first = client.put("/v0/pipelines/blank", COUNTS).json
    assert (first["effect"], first["changed"]) == ("created", [])
    same = client.put("/v0/pipelines/blank", COUNTS).json
    assert (same["effect"], same["revision"]) == ("same", first["revision"])
    spaced = {**COUNTS, "sql": "SELECT level,\n  count(*) AS n -- of each\nFROM logs GROUP BY level;"}
    blank = client.put("/v0/pipelines/blank", spaced).json
    assert (blank["effect"], blank["changed"], blank["generation"]) == ("continues", ["sql"], first["generation"])


def test_put_tells_its_effect_before_it_has_one(client: Client) -> None:
    new = client.put("/v0/pipelines/planned?dry_run=true", COUNTS)
    assert (new.status, new.json["effect"], new.json["created"], new.json["dry_run"]) == (200, "created", True, True)
    assert client.get("/v0/pipelines/planned").status == 404
    first = client.put("/v0/pipelines/planned", COUNTS).json
    other = {**COUNTS, "sql": "SELECT level FROM logs", "output_mode": "append"}
    plan = client.put("/v0/pipelines/planned?dry_run=true", other).json
    assert (plan["effect"], plan["changed"]) == ("starts_again", ["sql", "output_mode"])
    assert client.get("/v0/pipelines/planned").json["revision"] == first["revision"]
    kept = client.put("/v0/pipelines/planned?keep_checkpoint=true", other).json
    assert (kept["effect"], kept["generation"]) == ("continues", first["generation"])
    elsewhere = {**other, "sources": {"logs": {"topic": "others"}}}
    refused = client.put("/v0/pipelines/planned?keep_checkpoint=true", elsewhere)
    assert (refused.status, refused.detail["field"]) == (400, "keep_checkpoint")


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


def test_a_page_of_pipelines_that_report_a_lot_is_short(client: Client) -> None:
    made = [f"large-{number:02}" for number in range(12)]
    for name in made:
        assert client.put(f"/v0/pipelines/{name}", COUNTS).status == 201
        report = {**RUNNING, "progress": {"text": "x" * 1_000_000}}
        assert client.post(f"/v0/pipelines/{name}/status", report).status == 200
    found, query = list[str](), "prefix=large"
    while query:
        reply = client.get(f"/v0/pipelines?{query}")
        assert len(reply.body) < 6 * 1024 * 1024
        found += [item["pipeline"] for item in reply.json["pipelines"]]
        query = f"prefix=large&cursor={reply.json['next_cursor']}" if "next_cursor" in reply.json else ""
    assert found == made
    for name in made:
        assert client.delete(f"/v0/pipelines/{name}").status == 200


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


def test_lag_is_measured_against_the_heads_whatever_the_runner_does(client: Client) -> None:
    definition = {**COUNTS, "sources": {"v": {"topics": ["lag.a", "lag.b", "lag.none"]}}}
    client.put("/v0/pipelines/behind", definition)
    client.append("lag.a", *range(10))
    client.append("lag.b", 1)
    epoch = client.get("/v0/topics/lag.a").json["epoch"]
    positions = {"lag.a": {"epoch": epoch, "seq": 7}, "lag.b": {"seq": 0}, "lag.none": {"seq": 0}, "orders": {"seq": 0}}
    client.append("orders", 1)
    report = {"state": "restarting", "runner": "r", "lag": 0, "positions": positions, "late_rows": 563}
    client.post("/v0/pipelines/behind/status", report)
    seen = client.get("/v0/pipelines/behind").json
    assert (seen["lag"], seen["status"]["lag"], "positions" in seen["status"]) == (4, 4, False)
    assert [(each["topic"], each["seq"], each["lag"]) for each in seen["inputs"]] == [("lag.a", 7, 3), ("lag.b", 0, 1)]

    client.put("/v0/pipelines/behind", {**definition, "enabled": False})
    client.append("lag.a", *range(3_000))
    seen = client.get("/v0/pipelines/behind").json
    assert seen["lag"] == 3_004, "also while it is paused and its runner is silent"
    record = client.diff("lag.a", from_seq=7, limit=1)["records"][0]
    assert seen["oldest_unread_ts"] == record["$ts"]
    (listed,) = client.get("/v0/pipelines?prefix=behind").json["pipelines"]
    assert (listed["lag"], listed["oldest_unread_ts"]) == (3_004, seen["oldest_unread_ts"])
    text = client.get("/v0/metrics").body.decode()
    assert 'topics_pipeline_lag{pipeline="behind"} 3004.0' in text
    assert 'topics_pipeline_topic_lag{pipeline="behind",topic="lag.a"} 3003.0' in text
    assert 'topics_pipeline_oldest_unread_age_seconds{pipeline="behind"}' in text
    assert 'topics_pipeline_late_rows_total{pipeline="behind"} 563.0' in text

    client.delete("/v0/topics/lag.a")
    client.append("lag.a", 1, 2)
    assert client.get("/v0/pipelines/behind").json["lag"] == 3, "all of a topic that was created again"


def test_lag_without_positions_is_unknown_or_that_of_the_runner(client: Client) -> None:
    client.put("/v0/pipelines/unheard", COUNTS)
    assert client.get("/v0/pipelines/unheard").json["lag"] is None
    client.post("/v0/pipelines/unheard/status", RUNNING)
    seen = client.get("/v0/pipelines/unheard").json
    assert (seen["lag"], seen["oldest_unread_ts"], seen["inputs"]) == (7, None, [])


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
        ({"sink": {"topic": "logs"}}, "sink.topic"),
        ({"sink": {"table": "../etc"}}, "sink.table"),
        ({"sink": {"topic": "a", "partition_by": ["x"]}}, "sink.partition_by"),
        ({"sink": {"table": "t", "tag": "x"}}, "sink.tag"),
        ({"sink": {"topic": "t", "take_over": True}}, "sink.take_over"),
        ({"sink": {"topic": "t", "format": "delta"}}, "sink.format"),
        ({"sink": {"table": "t", "format": "csv"}}, "sink.format"),
        ({"sink": {"table": "t", "key": []}}, "sink.key"),
        ({"sink": {"table": "t", "key": ["a", "a"]}}, "sink.key"),
        ({"sink": {"table": "t", "deleted": "gone"}}, "sink.deleted"),
        ({"sink": {"table": "t", "newest_by": "at"}}, "sink.newest_by"),
        ({"sink": {"table": "t", "cluster_by": ["a"]}}, "sink.cluster_by"),
        (
            {"sink": {"table": "t", "format": "delta", "cluster_by": ["a"], "partition_by": ["b"]}},
            "sink.cluster_by",
        ),
        ({"sink": {"table": "t", "key": ["a"]}, "output_mode": "complete"}, "sink.key"),
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
            {"sink": {"table": "u", "format": "delta", "key": ["id"], "newest_by": "seq", "deleted": "gone"}},
            {"sink": {"table": "v", "format": "iceberg", "cluster_by": ["id"], "partition_by": []}},
        )
    ):
        assert client.put(f"/v0/pipelines/good-{number}", {**COUNTS, **change}).status == 201, change


def test_a_table_has_one_owner(client: Client) -> None:
    rows = {**COUNTS, "sink": {"table": "owned"}}
    taking = {**COUNTS, "sink": {"table": "owned", "take_over": True}}
    client.put("/v0/pipelines/owner", rows)
    refused = client.put("/v0/pipelines/rival", rows)
    assert (refused.status, refused.code, refused.detail["pipeline"]) == (409, "table_taken", "owner")
    assert client.put("/v0/pipelines/owner", {**rows, "description": "the same table"}).status == 200
    archive = {"sources": {"v": {"topic": "a"}}, "use": "archive"}
    assert client.put("/v0/pipelines/owned", archive).code == "table_taken", "a table has the name of its pipeline"
    assert client.put("/v0/pipelines/rival", {**rows, "enabled": False}).status == 201
    assert client.put("/v0/pipelines/rival", rows).code == "table_taken"

    assert client.put("/v0/pipelines/rival", taking).status == 200
    owner = client.get("/v0/pipelines/owner").json
    assert owner["definition"]["enabled"] is False
    assert owner["generation"] < owner["revision"], "it may go on where it was, elsewhere"
    assert client.put("/v0/pipelines/rival", {**taking, "trigger": {"every": "9 seconds"}}).status == 200
    assert client.put("/v0/pipelines/owner", rows).code == "table_taken"
    assert client.put("/v0/pipelines/owner", taking).status == 200
    assert client.get("/v0/pipelines/rival").json["definition"]["enabled"] is False


def test_a_table_of_a_foreign_pipeline_cannot_be_taken(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="root,team:read+admin+delete:team.") as server:
        root, team = server.client("root"), server.client("team")
        root.put("/v0/pipelines/secret", {**COUNTS, "sink": {"table": "t"}})
        mine = {**COUNTS, "sources": {"v": {"topic": "team.in"}}, "sink": {"table": "t", "take_over": True}}
        refused = team.put("/v0/pipelines/team.p", mine)
        assert refused.code == "table_taken"
        assert "secret" not in refused.body.decode()
        assert root.get("/v0/pipelines/secret").json["definition"].get("enabled") is not False


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
