"""Primaries killed under load, on a real S3 server behind a bad network, with two standbys that race for each term."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bucket.bad_network import BadNetwork, bad_network
from tests.bucket.load import Load, make_topics
from tests.bucket.s3_server import s3_server
from tests.bucket.standbys import Servers, role, until
from tests.serving import Client, ServerProcess, free_port

# Fifty with the usual factor of `make torture`.
KILLS = 5 * int(os.environ.get("TOPICS_TORTURE") or 1)
NAMES = ("a", "b", "c")
# Of ten requests to the bucket one is delayed, cut, repeated or refused.
SHARE = 0.1
SETTINGS = {
    "bucket": "s3://bkt/topics",
    "bucket_lease_ms": 3_000,
    "bucket_piece_ms": 10,
    "checkpoint_ms": 1_000,
    "wal_file_bytes": 1 << 20,
}


class Fleet:
    """Three servers, each on a port of its own that it keeps; one that has ended is started again as a standby."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self.ports = {name: free_port() for name in NAMES}
        self._running: dict[str, ServerProcess] = {}
        # One that was killed, until another one is primary.
        self._killed: str | None = None
        for name in NAMES:
            self._start(name, *([] if name == NAMES[0] else ["--standby"]))

    def _start(self, name: str, *arguments: str) -> None:
        self._running[name] = self._servers.start(name, *arguments, port=self.ports[name], **SETTINGS).ready()

    @contextlib.contextmanager
    def primary(self) -> Iterator[Client]:
        """A client of the one that is, now or soon."""
        with contextlib.closing(Client(self.ports[until(self._find_primary, "a primary")])) as client:
            yield client

    def _find_primary(self) -> str | None:
        for name, server in self._running.items():
            if name == self._killed:
                continue
            if server.process.poll() is not None:
                self._start(name, "--standby")
            with contextlib.closing(Client(self.ports[name])) as client:
                if role(client) == "primary":
                    return name
        return None

    def kill_primary(self) -> None:
        """And start it again when another one is primary."""
        name = until(self._find_primary, "a primary")
        self._killed = name
        self._running[name].kill()
        until(self._find_primary, "another primary")
        self._killed = None
        self._start(name, "--standby")


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BadNetwork]:
    """The S3 server behind a network that is good, until a test changes that."""
    with s3_server(tmp_path / "s3") as s3, bad_network(s3.port) as network:
        network.lead_to(s3.environ, monkeypatch)
        yield network


@pytest.mark.crash
@pytest.mark.timeout(600 + 120 * KILLS)
def test_killed_under_load_again_and_again_nothing_acknowledged_is_lost(tmp_path: Path, network: BadNetwork) -> None:
    servers = Servers(tmp_path)
    try:
        fleet = Fleet(servers)
        with fleet.primary() as client:
            make_topics(client)
        load = Load(list(fleet.ports.values()))
        network.share = SHARE
        for _ in range(KILLS):
            load.until_progress(20)
            fleet.kill_primary()
        load.until_progress(20)
        load.end()
        network.share = 0.0
        with fleet.primary() as client:
            counts = load.check(client)
        print(f"{KILLS} kills, {counts}, {network.requests} requests, {dict(network.fates)}")
        assert set(network.fates) > {"lost", "cut", "late", "twice", "refused"}
    finally:
        servers.end()
