"""The runner as a process: definitions are added, changed, fail and are removed; it is stopped, and it is killed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving import serving
from tests.spark.cluster import cluster
from tests.spark.runner_process import running, status_of, topics, until
from topics.client import Client, Fenced, Outgoing, Record, TopicNotFound
from topics_spark.pipelines import tables
from topics_spark.pipelines.assignment import app_of
from topics_spark.pipelines.leases import LEASE_MS, LEASES

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(2700)]
KEY = "never-to-be-seen-4711"
LOGS = {"logs": {"topic": "logs", "schema": "level STRING, n INT"}}


class World:
    def __init__(self, port: int, home: Path) -> None:
        self.port = port
        self.home = home
        self.client = Client(f"http://127.0.0.1:{port}", KEY)

    def append(self, *numbers: int, level: str = "error") -> None:
        self.client.append_many("logs", [Outgoing({"level": level, "n": number}) for number in numbers])

    def data(self, topic: str) -> list[Any]:
        try:
            return [record.data for record in self.client.read(topic) if isinstance(record, Record)]
        except TopicNotFound:
            return []

    def topics(self, *arguments: str) -> Any:
        return topics(self.port, *arguments, key=KEY)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with serving(tmp_path / "data", api_keys=KEY) as server:
        world = World(server.port, tmp_path)
        yield world
        world.client.close()


def test_definitions_come_change_fail_and_go_while_the_runner_runs(world: World) -> None:
    client, home = world.client, world.home
    world.append(1, 2)
    copy = {"sources": LOGS, "sql": "SELECT n FROM logs", "sink": {"topic": "copy"}}
    with running(world.port, home, "--allow-python", "tests.spark.functions", key=KEY) as runner:
        runner.wait_for_log("Spark is ready after")
        client.put_pipeline("copy", copy)
        until(lambda: world.data("copy") == [{"n": 1}, {"n": 2}], lambda: runner.log)
        world.append(3)
        until(lambda: world.data("copy")[2:] == [{"n": 3}], lambda: runner.log)

        client.put_pipeline("copy", {**copy, "sql": "SELECT n * 10 AS n FROM logs", "sink": {"topic": "tens"}})
        client.put_pipeline("broken", {**copy, "sql": "SELECT n,\n  nothing\nFROM logs", "sink": {"topic": "never"}})
        client.put_pipeline("nosy", {**copy, "sql": "SELECT * FROM text.`/etc/passwd`", "sink": {"topic": "never"}})
        numbers = {"sources": {"numbers": LOGS["logs"]}, "sink": {"topic": "doubled"}}
        client.put_pipeline("allowed", {**numbers, "python": "tests.spark.functions:doubled"})
        client.put_pipeline("foreign", {**numbers, "python": "os:system"})
        until(lambda: world.data("tens") == [{"n": 10}, {"n": 20}, {"n": 30}], lambda: runner.log)
        until(lambda: world.data("doubled") == [{"n": 2}, {"n": 4}, {"n": 6}], lambda: runner.log)
        for name, said in {
            "broken": r"nothing.*line 2,? pos 2",
            "nosy": "the views of this pipeline are logs",
            "foreign": "--allow-python os",
        }.items():
            error = until(lambda name=name: status_of(client, name).get("last_error"), lambda: runner.log)
            assert re.search(said, error, re.DOTALL), error
            assert status_of(client, name)["state"] == "restarting"
        assert world.data("copy") == [{"n": 1}, {"n": 2}, {"n": 3}], "a changed pipeline left its old sink alone"

        listed = world.topics("pipelines", "ls")
        assert re.search(r"allowed\s+(running|starting)", listed.stdout), listed
        assert re.search(r"broken\s+(restarting|starting) .*UNRESOLVED_COLUMN", listed.stdout), listed
        shown = world.topics("pipelines", "status", "broken")
        assert (shown.returncode, "UNRESOLVED_COLUMN" in shown.stdout) == (1, True), shown
        assert world.topics("pipelines", "status", "copy").returncode == 0
        told = [json.loads(line) for line in world.topics("pipelines", "logs", "copy").stdout.splitlines()]
        assert {event["pipeline"] for event in told} == {"copy"}
        assert sum(event.get("numInputRows", 0) for event in told) >= 6
        assert {event.get("state") for event in told} >= {"running"}

        assert world.topics("pipelines", "rm", "allowed", "foreign", "nosy", "broken").returncode == 0
        runner.wait_for_log("pipeline allowed stops")
        world.append(4)
        until(lambda: world.data("tens")[3:] == [{"n": 40}], lambda: runner.log)
        assert len(world.data("doubled")) == 3

        assert runner.terminate() == 0
        assert status_of(client, "copy")["state"] == "stopped"
        (job,) = client.claim(LEASES, "next", 9)
        assert job.tag == "copy", "the lease is there for the next one at once"
        assert "Traceback" not in runner.log
        assert KEY not in runner.log
    written = [each for each in home.rglob("*") if each.is_file() and "data" not in each.relative_to(home).parts[:1]]
    assert any("copy" in each.parts and "offsets" in each.parts for each in written), "there are checkpoints"
    assert [each for each in written if KEY.encode() in each.read_bytes()] == []


def test_another_runner_goes_on_where_a_killed_one_was(world: World) -> None:
    client = world.client
    world.append(1, 2)
    client.put_pipeline(
        "sums",
        {
            "sources": LOGS,
            "sql": "SELECT level, sum(n) AS n FROM logs GROUP BY level",
            "sink": {"topic": "sums"},
            "output_mode": "update",
        },
    )
    with (
        running(world.port, world.home, key=KEY, name="one") as one,
        running(world.port, world.home, key=KEY, name="two") as two,
    ):
        until(lambda: world.data("sums") == [{"level": "error", "n": 3}], lambda: one.log + two.log)
        until(lambda: status_of(client, "sums").get("runner"), lambda: one.log + two.log)
        for each in (one, two):
            each.wait_for_log("Spark is ready after")
        first, second = (one, two) if status_of(client, "sums")["runner"] == "one" else (two, one)
        token = client.txn(app_of("sums")).fence
        first.kill()
        killed_s = time.monotonic()
        world.append(4)
        until(lambda: world.data("sums")[1:] == [{"level": "error", "n": 7}], lambda: second.log)
        assert time.monotonic() - killed_s > LEASE_MS / 1000 / 2, "a lease was respected"
        version = client.txn(app_of("sums")).version
        assert version is not None
        assert token is not None
        with pytest.raises(Fenced):
            client.commit_txn(app_of("sums"), version + 1, [], fence=token)
        assert "pipeline sums starts" in second.log


def test_the_same_definitions_run_on_a_cluster(world: World) -> None:
    client = world.client
    world.append(1, 2, 3)
    client.put_pipeline("copy", {"sources": LOGS, "sql": "SELECT n FROM logs WHERE n > 1", "sink": {"topic": "copy"}})
    client.put_pipeline("kept", {"sources": {"logs": {"topic": "logs"}}, "use": "archive", "sink": {"table": "logs"}})
    memory = ("--conf", "spark.executor.memory=512m")
    with (
        cluster(world.home / "cluster", workers=1) as nodes,
        running(world.port, world.home, *memory, key=KEY, master=nodes.url) as runner,
    ):
        until(lambda: world.data("copy") == [{"n": 2}, {"n": 3}], lambda: runner.log)
        kept = world.home / "tables" / "logs"
        until(lambda: sum(file.rows for file in tables.load(kept).files) == 3, lambda: runner.log)
        assert runner.terminate() == 0
        assert KEY not in runner.log + "".join(node.log.read_text() for node in nodes.nodes)


def test_check_shows_rows_or_what_is_wrong(world: World) -> None:
    world.append(*range(20))
    place = world.home / "some.yaml"
    definitions = {
        "good": {"sources": LOGS, "sql": "SELECT level, n + 1 AS next FROM logs", "sink": {"topic": "x"}},
        "mistyped": {"sources": LOGS, "sql": "SELECT level\nFROM logs\nWHERE n >> ", "sink": {"topic": "x"}},
        "unknown": {"sources": LOGS, "sql": "SELECT level,\n  nothing FROM logs", "sink": {"topic": "x"}},
        "unordered": {"sources": LOGS, "sql": "SELECT level FROM logs ORDER BY level", "sink": {"topic": "x"}},
        "foreign": {"sources": LOGS, "python": "os:system", "sink": {"topic": "x"}},
        "misspelt": {
            "sources": {"logs": {"topic": "logs", "schema": "n DECIMAL(9, 2), level STRNG"}},
            "sql": "SELECT level FROM logs",
            "sink": {"topic": "x"},
        },
        "narrow": {"sources": LOGS, "sql": "SELECT n, data FROM logs WHERE n < 0", "sink": {"topic": "x"}},
    }
    place.write_text(json.dumps({"pipelines": definitions}))
    done = world.topics("pipelines", "check", str(place), "--master", "local[1]")
    assert done.returncode == 1
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 10
    assert all(row["level"] == "error" and 1 <= row["next"] <= 20 for row in rows)
    for said in (
        r"^topics: good: struct<level:string,next:int>$",
        r"^topics: mistyped: .*line 3, pos ",
        r"^topics: unknown: .*nothing(.|\n)*line 2,? pos 2",
        r"^topics: unordered: .*[Ss]orting is not supported",
        r"^topics: foreign: .*--allow-python os",
        r"^topics: misspelt: sources.logs.schema: 'level STRNG' is not a name and a type",
        r"^topics: narrow: .*left out: n$",
    ):
        assert re.search(said, done.stderr, re.MULTILINE), (said, done.stderr)
    for unsaid in ('{"ts"', "+- ", "'Project"):
        assert unsaid not in done.stderr, "Spark's log and its plan come with the line that says what is wrong"
    assert KEY not in done.stdout + done.stderr
