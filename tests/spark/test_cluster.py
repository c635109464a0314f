"""The same job on a standalone cluster as on one machine: batch and stream, source and sink."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving import ServerProcess, serving
from tests.spark.cluster import Cluster, cluster
from tests.spark.running import contents, fill, running
from topics.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RECORDS = 200


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_job_does_the_same_on_a_cluster_of_two_workers(
    nodes: Cluster, server: ServerProcess, tmp_path: Path, kind: str
) -> None:
    url = f"http://127.0.0.1:{server.port}"
    with Client(url) as client:
        fill(client, f"{kind}-in", RECORDS)
        arguments = (url, f"{kind}-in", f"{kind}-out", str(tmp_path / "checkpoint"))
        with running(tmp_path / "job.log", kind, nodes.url, *arguments) as job:
            job.succeed()
        assert contents(client, f"{kind}-out") == contents(client, f"{kind}-in")
        assert len(contents(client, f"{kind}-in")) == RECORDS
