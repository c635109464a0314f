"""What the server tells about itself: to whom, without secrets, and as it happened."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.bucket.standbys import Servers, servers
from tests.bucket.test_lost_machine import health, until_shipped
from tests.live.rig import EventSource, eventually
from tests.serving import ServerProcess, serving
from topics.api.console.history import POINTS_MAX, SERIES

__all__ = ["servers"]

KEYS = "root-secret,reader-secret:read,team-secret:read+write+delete+admin:team."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), api_keys=KEYS, jwt_secret="j" * 40, max_claim=77) as server:
        yield server


def test_a_key_learns_what_it_may_do(server: ServerProcess) -> None:
    me = server.client("team-secret").get("/v0/me").json
    assert (me["key"], me["scopes"], me["prefixes"]) == (3, ["read", "write", "delete", "admin"], ["team."])
    assert server.client("reader-secret").get("/v0/me").json["scopes"] == ["read"]


def test_without_keys_everyone_may_do_everything(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        me = server.client().get("/v0/me").json
        assert (me["key"], len(me["scopes"]), me["prefixes"], me["console"]) == (None, 4, [], "full")


@pytest.mark.parametrize("path", ["/v0/server", "/v0/history"])
def test_the_server_is_shown_to_administrators_of_all_names_only(server: ServerProcess, path: str) -> None:
    assert server.client("root-secret").get(path).status == 200
    assert server.client("reader-secret").get(path).code == "forbidden"
    assert server.client("team-secret").get(path).code == "forbidden"


def test_settings_are_shown_with_their_origin_and_secrets_are_not(server: ServerProcess) -> None:
    reply = server.client("root-secret").get("/v0/server")
    settings = {item["name"]: item for item in reply.json["settings"]}
    assert (settings["max_claim"]["value"], settings["max_claim"]["origin"]) == (77, "environment TOPICS_MAX_CLAIM")
    assert (settings["max_topics"]["value"], settings["max_topics"]["origin"]) == (100_000, "default")
    for name in ("api_keys", "jwt_secret"):
        assert (settings[name]["value"], settings[name]["secret"]) == (None, True)
        assert settings[name]["origin"].startswith("environment")
    for secret in ("root-secret", "reader-secret", "team-secret", "j" * 40):
        assert secret not in reply.body.decode()
    assert [key["key"] for key in reply.json["keys"]] == [1, 2, 3]
    assert reply.json["keys"][2]["prefixes"] == ["team."]


def test_files_and_the_end_of_the_log_are_shown(server: ServerProcess) -> None:
    shown = server.client("root-secret").get("/v0/server?log_lines=2").json
    files = {group["kind"]: group for group in shown["files"]}
    assert set(files) == {"log", "packs", "snapshots"}
    assert files["log"]["files"] >= 1
    assert len(shown["log"]) == 2
    lines = server.client("root-secret").get("/v0/server").json["log"]
    assert any("listening on" in line["message"] for line in lines)


def test_the_past_has_a_point_for_what_happened(server: ServerProcess) -> None:
    client = server.client("root-secret")

    def busy() -> bool:
        client.append("traffic", *range(100))
        client.diff("traffic", limit=100)
        return any(client.get("/v0/history").json["series"]["records_in_per_s"])

    eventually(busy, within_s=60)
    history = client.get("/v0/history").json
    assert set(history["series"]) == set(SERIES)
    assert 0 < len(history["ts"]) <= POINTS_MAX
    assert {len(column) for column in history["series"].values()} == {len(history["ts"])}
    assert history["series"]["records_out_per_s"][-1] > 0
    assert client.get(f"/v0/history?since={history['ts'][-1]}").json["ts"] != history["ts"]


def test_what_needs_attention_is_told_in_words_and_only_of_names_the_key_may_see(server: ServerProcess) -> None:
    client = server.client("root-secret")
    for queue in ("team.mail", "other.mail"):
        client.put(f"/v0/topics/{queue}", {"type": "queue", "dead_letter": f"{queue}.dead"})
        client.append(queue, 1)
        client.post(f"/v0/topics/{queue}/claim", {"node": "w"})
        client.post(f"/v0/topics/{queue}/nack", {"node": "w", "seqs": [1], "dead_letter": True, "error": "boom"})
    seen = client.get("/v0/overview").json
    texts = [finding["text"] for finding in seen["attention"]]
    assert texts == ["1 job of other.mail is dead", "1 job of team.mail is dead"]
    limited = server.client("team-secret").get("/v0/overview").json
    assert [finding["name"] for finding in limited["attention"]] == ["team.mail"]
    assert (limited["queues"], limited["dead"], limited["records"]) == (1, 1, 1)


def test_the_overview_has_the_copy_in_the_bucket_as_health_has_it(servers: Servers) -> None:
    primary = servers.primary("a", advertise_url="http://10.0.0.1:4000", bucket_lease_ms=60_000)
    client = primary.client()
    client.append("t", 1)
    until_shipped(client)
    shown = client.get("/v0/overview").json
    assert shown["bucket"] == health(client)
    assert (shown["bucket"]["state"], shown["bucket"]["lag_bytes"]) == ("ok", 0)
    assert (shown["role"], "primary" in shown) == ("primary", False)
    follower = servers.standby("b").client().get("/v0/overview").json
    assert (follower["role"], follower["primary"]) == ("standby", "http://10.0.0.1:4000")
    assert (follower["bucket"]["state"], follower["bucket"]["lag_ms"] >= 0) == ("ok", True)


def test_without_a_bucket_the_overview_says_nothing_of_one(server: ServerProcess) -> None:
    assert not {"bucket", "role", "primary"} & set(server.client("root-secret").get("/v0/overview").json)


def test_the_error_of_a_pipeline_is_told_to_keys_that_may_see_its_topics(server: ServerProcess) -> None:
    client = server.client("root-secret")
    failed = {"state": "failed", "runner": "r", "revision": 1, "batch": 1, "lag": 0, "last_error": "a secret record"}
    for name, source in (("team.own", "team.in"), ("team.of-others", "other.in")):
        body = {"sources": {"v": {"topic": source}}, "sql": "SELECT * FROM v", "sink": {"topic": "team.out"}}
        assert client.put(f"/v0/pipelines/{name}", body).status == 201
        assert client.post(f"/v0/pipelines/{name}/status", failed).status == 200

    def failing(key: str) -> list[str]:
        found = server.client(key).get("/v0/overview").json["attention"]
        return [each["name"] for each in found if each["kind"] == "pipeline"]

    assert failing("root-secret") == ["team.of-others", "team.own"]
    assert failing("team-secret") == ["team.own"]
    for name in ("team.own", "team.of-others"):
        assert client.delete(f"/v0/pipelines/{name}").status == 200


def test_a_key_with_prefixes_sees_its_own_live_readers_only(server: ServerProcess) -> None:
    root, team = server.client("root-secret"), server.client("team-secret")
    root.append("other.log", 1)
    root.append("team.log", 1)

    def readers() -> list[int]:
        return [client.get("/v0/overview").json["live_readers"] for client in (root, team)]

    with stream(server, "other.log", "root-secret"):
        eventually(lambda: readers() == [1, 0])
        with stream(server, "team.log", "team-secret"):
            eventually(lambda: readers() == [2, 1])


def stream(server: ServerProcess, topic: str, key: str) -> closing[EventSource]:
    source = EventSource(server.port, f"/v0/topics/{topic}/stream", {"Authorization": f"Bearer {key}"})
    assert source.status == 200
    return closing(source)


def test_a_paused_queue_and_its_oldest_job_are_told(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/topics/q", {"type": "queue"})
        client.append("q", 1)
        client.append("q", 2)
        client.post("/v0/topics/q/claim", {"node": "w"})
        client.post("/v0/topics/q/pause", {})
        shown = client.get("/v0/overview").json
        assert shown["attention"][0]["problem"] == "paused"
        second = client.diff("q")["records"][1]
        assert shown["oldest_job"] == {"topic": "q", "ts": second["$ts"]}


def test_who_reads_a_topic_is_listed(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.append("t", 1, 2, 3)
        client.put("/v0/routers/r", {"source": "t", "dest": "copy"})
        client.post("/v1/api/topics/consume", {"topic_id": "t", "group_id": "g", "start": "Earliest", "limit": 2})
        shown = client.get("/v0/topics/t/readers").json
        assert shown["followers_total"] == 0
        assert [(group["group"], group["lag"]) for group in shown["groups"]] == [("g", 3)]
        assert [router["dest"] for router in shown["routers_out"]] == ["copy"]
        assert client.get("/v0/topics/copy/readers").json["routers_in"][0]["source"] == "t"
        assert client.get("/v0/topics/none/readers").code == "topic_not_found"


def test_groups_are_seen_and_reset_by_key_after_a_look(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.append("t", *range(10))
        consumed = client.post(
            "/v1/api/topics/consume", {"topic_id": "t", "group_id": "g", "start": "Earliest", "limit": 4}
        )
        assert len(consumed.json["messages"]) == 4
        client.post("/v1/api/topics/ack", {"topic_id": "t", "group_id": "g", "upto_offset": 1})
        (group,) = client.get("/v0/groups").json["groups"]
        assert (group["committed_offset"], group["lag"], group["open_claims"]) == (1, 8, 1)
        assert (group["claims"][0]["from_offset"], group["claims"][0]["to_offset"]) == (2, 3)
        body = {"topic": "t", "group": "g", "start": "Earliest"}
        preview = client.post("/v0/groups/reset", {**body, "dry_run": True}).json
        assert preview["partitions"] == [
            {"partition": 0, "offset_before": 2, "next_offset": 0, "lag_before": 8, "lag": 10}
        ]
        assert client.get("/v0/groups").json["groups"][0]["lag"] == 8
        assert client.post("/v0/groups/reset", body).json["dry_run"] is False
        assert client.get("/v0/groups?lag_min=10").json["groups"][0]["lag"] == 10
        assert client.get("/v0/groups?lag_min=11").json["groups"] == []


def test_topics_are_found_by_part_of_their_name_in_any_order(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="root,part:read:app.") as server:
        client = server.client("root")
        for number in range(30):
            client.append(f"app.{number:02}.Orders", *range(number + 1))
        client.put("/v0/topics/app.jobs", {"type": "queue"})
        client.append("zzz.orders", *range(100))
        found = client.get("/v0/topics?contains=ORDERS&sort=-records&page_size=3").json
        assert [item["count"] for item in found["topics"]] == [100, 30, 29]
        pages = [found]
        while "next_cursor" in pages[-1]:
            cursor = pages[-1]["next_cursor"]
            pages.append(client.get(f"/v0/topics?contains=ORDERS&sort=-records&page_size=3&cursor={cursor}").json)
        counts = [item["count"] for page in pages for item in page["topics"]]
        assert counts == [100, *range(30, 0, -1)]
        queues = client.get("/v0/topics?type=queue").json["topics"]
        assert [item["topic"] for item in queues] == ["app.jobs"]
        assert queues[0]["queue"]["ready"] == 0
        named = client.get("/v0/topics?contains=1&page_size=5").json
        assert len(named["topics"]) == 5
        after = client.get(f"/v0/topics?contains=1&page_size=5&cursor={named['next_cursor']}").json
        assert after["topics"][0]["topic"] > named["topics"][-1]["topic"]
        limited = server.client("part").get("/v0/topics?contains=orders&sort=records").json["topics"]
        assert len(limited) == 30
        assert client.get("/v0/topics?sort=size").detail["field"] == "sort"


def test_dry_runs_of_deletes_count_and_change_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        records = [{"data": number, "tag": f"t{number % 3}"} for number in range(30)]
        client.post("/v0/topics/t", {"records": records})
        client.put("/v0/routers/r", {"source": "t", "dest": "copy"})
        client.post("/v0/topics/t/delete", {"match": "t0", "before_seq": 10})
        for body, count in (({"match": "t1"}, 10), ({"before_seq": 11}, 7), ({"match": "t0", "before_seq": 16}, 2)):
            reply = client.post("/v0/topics/t/delete", {**body, "dry_run": True}).json
            assert (reply["deleted"], reply["dry_run"], reply["count"]) == (count, True, 27)
            assert client.state("t")["count"] == 27
        dropped = client.delete("/v0/topics/t?dry_run=true").json
        assert (dropped["deleted"], dropped["records"], dropped["routers_removed"]) == (True, 27, ["r"])
        assert client.state("t")["count"] == 27
        assert client.delete("/v0/topics/t").json["deleted"] is True
        assert client.delete("/v0/topics/t?dry_run=true").json["deleted"] is False
