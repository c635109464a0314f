"""A bucket that does not answer for a moment stops no start, and a start that waits for it can be stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bucket.bad_network import BadNetwork, bad_network
from tests.bucket.interrupted import until_shipped
from tests.bucket.s3_server import S3Server, s3_server
from tests.bucket.standbys import Servers, role, servers, until, until_primary, until_sees
from tests.bucket.test_following import Gap
from tests.engine.rig import Rig
from tests.serving import ServerProcess
from topics.model.setting_types import WrongSetting
from topics.storage.bucket.bucket import BucketError, Changed, Exists, Found, Listed, Refused, Unreachable
from topics.storage.bucket.shared_directory import SharedDirectory
from topics.storage.bucket.starting import joining, patience, standby_start
from topics.storage.bucket.starting.connecting import check
from topics.storage.bucket.starting.patience import START_S, GivenUp, Patience
from topics.storage.disk import Buffer

__all__ = ["servers"]


class Clock:
    """Time that passes in pauses only."""

    def __init__(self, gives_up_s: float = 1e9) -> None:
        self.now_s = 0.0
        self._gives_up_s = gives_up_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s >= self._gives_up_s:
            raise GivenUp("enough")

    def patience(self, *, for_ever: bool = False) -> Patience:
        return Patience(self.pause, lambda: self.now_s, for_ever)


def failing(clock: Clock, until_s: float, error: type[BucketError]) -> Callable[[], float]:
    def attempt() -> float:
        if clock.now_s < until_s:
            raise error("not now")
        return clock.now_s

    return attempt


@pytest.mark.parametrize("error", [Unreachable, Changed, Exists])
def test_what_has_no_answer_is_asked_again_for_a_while(error: type[BucketError]) -> None:
    clock = Clock()
    assert clock.patience().ask(failing(clock, START_S - 1, error)) >= START_S - 1
    clock = Clock()
    with pytest.raises(error):
        clock.patience().ask(failing(clock, 1e9, error))
    assert START_S <= clock.now_s <= START_S + 1


def test_what_is_refused_is_not_asked_again() -> None:
    clock = Clock()
    for for_ever in (False, True):
        with pytest.raises(Refused):
            clock.patience(for_ever=for_ever).ask(failing(clock, 1.0, Refused))
    assert clock.now_s == 0.0


def test_a_standby_that_knows_its_bucket_asks_for_ever() -> None:
    clock = Clock()
    assert clock.patience(for_ever=True).ask(failing(clock, 100 * START_S, Unreachable)) >= 100 * START_S


def test_a_start_that_is_given_up_ends() -> None:
    clock = Clock(gives_up_s=1_000.0)
    with pytest.raises(GivenUp):
        clock.patience(for_ever=True).ask(failing(clock, 1e9, Unreachable))


class Stumbling(SharedDirectory):
    """Each call that writes fails once, and has written."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.failed: set[str] = set()

    def create(self, key: str, data: Buffer) -> None:
        super().create(key, data)
        self._stumble("create")

    def swap(self, key: str, data: Buffer, etag: str | None) -> str:
        made = super().swap(key, data, etag)
        self._stumble("swap")
        return made

    def _stumble(self, call: str) -> None:
        if call not in self.failed:
            self.failed.add(call)
            raise Unreachable("no answer")


def test_a_probe_that_meets_a_hiccup_is_made_again(tmp_path: Path) -> None:
    bucket = Stumbling(str(tmp_path))
    check(bucket, f"file://{tmp_path}", Clock().patience())
    assert bucket.failed == {"create", "swap"}


def test_a_bucket_that_never_answers_is_refused_with_what_was_tried(tmp_path: Path) -> None:
    class Silent(SharedDirectory):
        def create(self, key: str, data: Buffer) -> None:
            raise Unreachable("no answer in time")

    with pytest.raises(WrongSetting, match="cannot write to it: no answer in time; check that it exists"):
        check(Silent(str(tmp_path)), f"file://{tmp_path}", Clock().patience())


class Hiccups(SharedDirectory):
    """The first read of each object, and of each list, has no answer."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.refused: set[str] = set()

    def read(self, key: str) -> Found | None:
        self._refuse_once(key)
        return super().read(key)

    def download(self, key: str, path: str) -> bool:
        self._refuse_once(key)
        return super().download(key, path)

    def listing(self, prefix: str, after: str = "") -> Iterator[Listed]:
        self._refuse_once(f"{prefix} after {after}")
        return super().listing(prefix, after)

    def _refuse_once(self, key: str) -> None:
        if key not in self.refused and not key.startswith("probe/"):
            self.refused.add(key)
            raise Unreachable("no answer")


@pytest.mark.parametrize("standby", [False, True])
def test_a_restore_whose_every_read_meets_a_hiccup_does_not_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, standby: bool
) -> None:
    monkeypatch.setattr(patience, "PAUSE_S", 0.001)
    (tmp_path / "bucket").mkdir()
    environ = {"bucket": f"file://{tmp_path}/bucket", "bucket_piece_ms": 1}
    with Rig(tmp_path / "a", **environ) as rig:
        for number in range(20):
            rig.append("t", number)
            until_shipped(rig)
            if number == 10:
                rig.checkpoint()
        rig.close()
    bucket = Hiccups(str(tmp_path / "bucket"))
    for module in (joining, standby_start):
        monkeypatch.setattr(module, "connect", lambda url, environ: bucket)
    with Rig(tmp_path / "b", standby=standby, **environ) as rig:
        assert [record["data"] for record in rig.records("t")] == list(range(20))
        rig.close()
    assert {key.partition("/")[0] for key in bucket.refused} > {"log", "snapshots", "primary"}


def test_a_start_that_waits_for_a_lease_is_stopped_at_once(servers: Servers, tmp_path: Path) -> None:
    servers.primary("a", bucket_lease_ms=3_600_000).kill()
    waiting = servers.start("b")
    waiting.wait_for_log("waiting up to 3600 s for the lease")
    assert waiting.terminate() == 0
    assert not (tmp_path / "b" / "shard-00").exists()


def test_a_standby_that_waits_for_the_end_of_a_gap_is_stopped_at_once(tmp_path: Path) -> None:
    gap = Gap(tmp_path, has_snapshot=False)
    waiting = ServerProcess(tmp_path / "b", "--standby", bucket=gap.url)
    waiting.wait_for_log("waiting for the primary's next snapshot")
    assert waiting.terminate() == 0


# --- on S3 ---


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3") as server:
        yield server


class Leaving(BadNetwork):
    """Goes away with the first probe of a start after `leaves` is set."""

    leaves = False

    def _meet(self, request: bytes) -> bytes | None:
        if self.leaves and b"/probe/" in request.split(b"\r\n", 1)[0]:
            self.leaves, self.away = False, True
        return super()._meet(request)


def through(network: BadNetwork, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    network.lead_to(s3.environ, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [[], ["--standby"]])
def test_a_start_while_the_bucket_is_away_for_a_moment_succeeds(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    with bad_network(s3.port) as network:
        through(network, s3, monkeypatch)
        network.away = True
        server = ServerProcess(tmp_path / "a", *arguments, bucket="s3://bkt/topics", bucket_lease_ms=1_000)
        try:
            server.wait_for_log("the bucket does not answer, and is asked again")
            network.away = False
            until_primary(server.ready())
        finally:
            server.kill()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_that_joins_again_waits_for_the_bucket_as_long_as_it_takes(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = Servers(tmp_path, bucket="s3://bkt/topics", bucket_lease_ms=1_000)
    network = Leaving(s3.port)
    try:
        through(network, s3, monkeypatch)
        primary = servers.primary("a")
        primary.client().put("/v0/topics/r", {"durability": "replicated"})
        for name, value in s3.environ.items():
            monkeypatch.setenv(name, value)
        standby = servers.standby("b")
        until_sees(standby.client(), "r", 0)
        network.leaves = True
        primary.process.send_signal(signal.SIGSTOP)
        after = until_primary(standby)
        primary.process.send_signal(signal.SIGCONT)
        primary.wait_for_log("the bucket does not answer, and is asked again")
        since_s = time.monotonic()
        # Longer than a start would wait that is not this server's second one.
        until(lambda: time.monotonic() > since_s + START_S + 2)
        assert primary.process.poll() is None
        network.away = False
        again = primary.client()
        until(lambda: role(again) == "standby", "the old primary follows")
        assert after.append("r", 1).status == 200
        until_sees(again, "r", 1)
    finally:
        servers.end()
        network.close()
