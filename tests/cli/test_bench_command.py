"""`topics bench`: figures that can be, on a topic that is gone afterwards."""

import signal
import subprocess
import time
from typing import Any

import pytest

from tests.cli.terminal import Invoke, start
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess
from topics.cli import bench_load
from topics.cli.bench_load import Load
from topics.cli.connection import Access
from topics.cli.failure import REFUSED, CommandFailed

DEADLINE_S = PATIENCE_S
pytestmark = pytest.mark.slow


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
    assert "what Python programs get" in done.err
    lines = done.out.splitlines()
    assert lines[0].split()[:3] == ["WHAT", "REQUESTS/S", "RECORDS/S"]
    assert len(lines) == 5


def test_processes_share_the_connections_and_their_figures_are_merged(
    server: ServerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put("/v0/topics/merged", {})
    found: list[list[int]] = []
    real = bench_load._answer

    def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
        told = real(process)
        if "taken_us" in told:
            found.append(told["taken_us"])
        return told

    monkeypatch.setattr(bench_load, "_answer", answer)
    access = Access(f"http://127.0.0.1:{server.port}")
    measured = bench_load.measure(Load(access, "merged", 3, 20, connections=5, seconds=0.1), processes=2)
    assert len(found) == 2
    assert sorted(measured.taken_us) == sorted([*found[0], *found[1]])
    assert measured.records == 3 * len(measured.taken_us)
    # Each connection has made one more request before it was measured.
    assert client.state("merged")["count"] == measured.records + 3 * 5
    client.delete("/v0/topics/merged")


def test_more_processes_than_connections_are_not_started(invoke: Invoke) -> None:
    done = invoke("bench", "--seconds", 0.1, "-c", 1, "-p", 8)
    assert ", 1 connection, " in done.err


def test_what_a_process_meets_is_the_error_of_the_command(server: ServerProcess) -> None:
    access = Access(f"http://127.0.0.1:{server.port}")
    with pytest.raises(CommandFailed, match="no-such-topic") as failed:
        bench_load.measure(Load(access, "no-such-topic", 1, 20, connections=2, seconds=0.1), processes=2)
    assert failed.value.code == REFUSED


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
