"""Garbage collections of a server that makes very many objects: many short ones, none of all objects together."""

import re
import sys
from pathlib import Path

import pytest

from tests.serving import ServerProcess

JOBS, BATCHES = 10_000, 20

# A server that logs how many objects each collection has to look at.
SERVER = """
import gc, sys
from topics.cli import main

def began(phase, info):
    if phase == "start" and info["generation"] == 0:
        print("young objects:", gc.get_count()[0], file=sys.stderr, flush=True)

gc.callbacks.append(began)
sys.exit(main())
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerProcess:
    monkeypatch.setattr(ServerProcess, "command", (sys.executable, "-c", SERVER))
    return ServerProcess(tmp_path).ready()


@pytest.mark.slow
def test_no_collection_looks_at_all_that_was_made_in_a_burst(server: ServerProcess) -> None:
    try:
        client = server.client()
        assert client.put("/v0/topics/q", {"type": "queue"}).status == 201
        server.lines.clear()
        jobs = {"records": [{"data": 1, "delay_ms": 3_600_000}] * JOBS}
        for _ in range(BATCHES):
            assert client.post("/v0/topics/q?return_seqs=false", jobs).status == 200
        server.wait_for_log("young objects")
        looked_at = [int(found[1]) for line in server.lines if (found := re.search(r"young objects: (\d+)", line))]
        assert max(looked_at) < JOBS * BATCHES // 2
    finally:
        server.kill()
