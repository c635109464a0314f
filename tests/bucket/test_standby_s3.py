"""A standby on a real S3 server: follows, takes over from a primary that is killed, and is followed in its turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bucket.s3_server import S3Server, s3_server
from tests.bucket.standbys import Servers, until, until_primary, until_sees
from tests.bucket.test_lost_machine import everything

ROUNDS = 3


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3") as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_standbys_take_over_one_after_the_other(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    servers = Servers(tmp_path)
    environ = {"bucket": "s3://bkt/topics", "bucket_lease_ms": 3_000}
    try:
        primary = servers.primary("0", **environ)
        primary.client().put("/v0/topics/r", {"durability": "replicated"})
        for number in range(1, ROUNDS + 1):
            assert primary.client().append("r", number).json["last_seq"] == number
            standby = servers.standby(str(number), **environ)
            until_sees(standby.client(), "r", number)
            primary.kill()
            assert everything(until_primary(standby), "r") == list(range(1, number + 1))
            primary = standby
    finally:
        servers.end()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_standby_says_that_the_bucket_is_away(tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    servers = Servers(tmp_path)
    environ = {"bucket": "s3://bkt/away", "bucket_takeover": "manual"}
    try:
        servers.primary("a", **environ).client().append("t", 1)
        client = servers.standby("b", **environ).client()
        until_sees(client, "t", 1)
        assert client.get("/v0/overview").json["attention"] == []
        s3.kill()
        found = until(lambda: client.get("/v0/overview").json["attention"])
        assert [finding["problem"] for finding in found] == ["bucket_away"]
        assert "what this standby shows is that old" in found[0]["text"]
        s3.start_again()
        until(lambda: not client.get("/v0/overview").json["attention"])
    finally:
        servers.end()
