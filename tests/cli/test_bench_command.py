"""`topics bench`: figures that can be, on a topic that is gone afterwards."""

import signal
import time

from tests.cli.terminal import Invoke, start
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess

DEADLINE_S = PATIENCE_S


def test_a_bench_measures_each_kind_and_leaves_nothing(invoke: Invoke, client: Client) -> None:
    done = invoke("bench", "--seconds", 0.1, "-c", 2, "--batch", 10, "--size", 50, "-o", "json")
    rows = {row["what"]: row for row in done.json}
    assert list(rows) == ["append 1", "append 10", "diff 1000", "export"]
    for row in rows.values():
        assert row["requests_per_s"] > 0
        assert row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"] <= row["max_ms"]
    ratio = rows["append 10"]["records_per_s"] / rows["append 10"]["requests_per_s"]
    assert abs(ratio - 10) < 0.1
    assert client.get("/v0/topics?prefix=bench-").json["topics"] == []


def test_the_table_is_for_people(invoke: Invoke) -> None:
    done = invoke("bench", "--seconds", 0.1, "--durability", "fsync", "-c", 1)
    assert "what one Python program gets" in done.err
    lines = done.out.splitlines()
    assert lines[0].split()[:3] == ["WHAT", "REQUESTS/S", "RECORDS/S"]
    assert len(lines) == 5


def test_an_interrupted_bench_leaves_no_topic(server: ServerProcess, client: Client) -> None:
    def found() -> list[dict[str, int]]:
        return client.get("/v0/topics?prefix=bench-").json["topics"]

    process = start(server, "bench", "--seconds", 60, "-c", 16)
    end_s = time.monotonic() + DEADLINE_S
    while not any(topic["count"] for topic in found()):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    assert found() == []
