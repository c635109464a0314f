"""The same job on a standalone cluster as on one machine: batch and stream, source and sink, and a lost executor."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import ServerProcess, serving
from tests.spark.bounds import needs_bounds
from tests.spark.cluster import Cluster, cluster
from tests.spark.running import contents, fill, running
from tests.spark.test_sink_crashes import RECORDS as KILLED_RECORDS
from tests.spark.test_sink_crashes import ROUNDS, check, head, strike, until
from topics.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

RECORDS = 200
KINDS = ("batch", "stream")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


def test_a_job_does_the_same_on_a_cluster_of_two_workers(nodes: Cluster, server: ServerProcess, tmp_path: Path) -> None:
    """One job, first a batch, then a stream: to start one takes longer than both."""
    url = f"http://127.0.0.1:{server.port}"
    with Client(url) as client:
        for kind in KINDS:
            fill(client, f"in-{kind}", RECORDS)
        arguments = (url, "in", "out", str(tmp_path / "checkpoint"))
        with running(tmp_path / "job.log", ",".join(KINDS), nodes.url, *arguments) as job:
            job.succeed()
        for kind in KINDS:
            assert contents(client, f"out-{kind}") == contents(client, f"in-{kind}")
            assert len(contents(client, f"in-{kind}")) == RECORDS


@needs_bounds
@pytest.mark.crash
def test_an_executor_killed_in_mid_batch_is_replaced_and_adds_nothing(
    nodes: Cluster, server: ServerProcess, tmp_path: Path
) -> None:
    url, killed = f"http://127.0.0.1:{server.port}", 0
    with Client(url) as client:
        fill(client, "in", KILLED_RECORDS)
        arguments = ("stream", nodes.url, url, "in", "out", str(tmp_path / "checkpoint"))
        with running(tmp_path / "job.log", *arguments) as job:
            for _ in range(2 * ROUNDS):
                before = head(client, "out")
                until(lambda before=before: head(client, "out") > before and nodes.executors(), job)
                killed += strike(nodes.executors()[:1])
            job.succeed()
        assert killed, "no executor was met"
        check(client)
