"""A share that is not mounted looks like an empty bucket: nobody writes, takes over or begins anew there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from tests.bucket.interrupted import shipping_of, until_shipped
from tests.bucket.standbys import Servers, role, servers, until, until_sees
from tests.bucket.test_lost_machine import everything, health, settings
from tests.bucket.test_lost_machine import until_shipped as until_all_shipped
from tests.engine.rig import Rig
from tests.serving import Client, ServerProcess
from topics.model.errors import DataDirIncompatible
from topics.storage.bucket.bucket import Unreachable
from topics.storage.bucket.shared_directory import SharedDirectory
from topics.storage.bucket.slots import IDENTITY, LOG, TermClosing, encode_slot, slot_key
from topics.storage.bucket.starting.identity import KnownBucket, identify
from topics.storage.bucket.starting.joining import Note, join_bucket, read_note, write_note
from topics.storage.bucket.starting.patience import Patience
from topics.storage.bucket.starting.standby_start import begin_standby
from topics.storage.bucket.terms import BEGINNING
from topics.storage.directory import DataDirectory
from topics.storage.disk import Disk

__all__ = ["servers"]

REPLICATED = {"durability": "replicated"}


class Share:
    """A directory that can be unmounted: what is below it is an empty one then."""

    def __init__(self, path: Path) -> None:
        self.path = path / "mounted"
        self.shared, self.below = path / "shared", path / "below"
        for folder in (self.shared, self.below):
            folder.mkdir(exist_ok=True)
        self.mount()

    def mount(self) -> None:
        self._show(self.shared)

    def unmount(self) -> None:
        self._show(self.below)

    def _show(self, folder: Path) -> None:
        link = self.path.with_name("next")
        link.symlink_to(folder)
        link.rename(self.path)

    @property
    def written_below(self) -> list[str]:
        """Objects in the empty directory, without files aside, probes and empty folders."""
        found = [str(path.relative_to(self.below)) for path in self.below.rglob("*") if path.is_file()]
        return [name for name in found if not name.startswith((".", "probe/"))]


@pytest.fixture
def share(tmp_path: Path) -> Share:
    return Share(tmp_path)


def test_a_bucket_gets_its_name_once_and_a_directory_notes_it(tmp_path: Path, share: Share) -> None:
    url = f"file://{share.path}"
    for name in ("a", "b"):
        with Rig(tmp_path / name, bucket=url, bucket_lease_ms=1_000) as rig:
            rig.append("t", name)
            until_shipped(rig)
            rig.close()
    notes = [read_note(Disk(), str(tmp_path / name)) for name in ("a", "b")]
    known = [note.bucket for note in notes if note is not None]
    assert known == [KnownBucket(url, (share.shared / IDENTITY).read_text())] * 2


def test_of_two_that_name_a_new_bucket_both_know_the_same_name(tmp_path: Path) -> None:
    class Raced(SharedDirectory):
        """Another server is first, just after this one has looked."""

        raced = False

        def create(self, key: str, data: object) -> None:
            if not self.raced:
                self.raced = True
                identify(SharedDirectory(str(tmp_path)), "file:///x", None, "b")
            super().create(key, data)  # type: ignore[arg-type]

    first = identify(Raced(str(tmp_path)), "file:///x", None, "a")
    assert first == identify(SharedDirectory(str(tmp_path)), "file:///x", None, "c")


@pytest.mark.parametrize("emptied", [True, False])
def test_a_bucket_that_is_another_one_is_refused_at_the_same_address_only(tmp_path: Path, emptied: bool) -> None:
    bucket = SharedDirectory(str(tmp_path))
    if not emptied:
        identify(bucket, "file:///x", None, "a")
    known = KnownBucket("file:///x", "another")
    with pytest.raises(DataDirIncompatible, match="is it mounted"):
        identify(bucket, "file:///x/", known, "a")
    assert (tmp_path / IDENTITY).exists() != emptied, "nothing is made where it is refused"
    assert identify(bucket, "file:///y", known, "a").url == "file:///y"


class Moves:
    """A directory that has the log of one bucket, and is started with another one."""

    def __init__(self, tmp_path: Path, note: Note) -> None:
        self.path = tmp_path / "data"
        for name in ("before", "now"):
            (tmp_path / name).mkdir()
        self.urls = [f"file://{tmp_path / name}" for name in ("before", "now")]
        self.buckets = [SharedDirectory(str(tmp_path / name)) for name in ("before", "now")]
        directory = DataDirectory(Disk(), str(self.path))
        directory.open(may_be_filled=True)
        directory.begin()
        (self.path / "shard-00" / "wal" / "record").touch()
        self.note = structs.replace(note, bucket=identify(self.buckets[0], self.urls[0], None, "a"))
        if note.complete:
            self.note = structs.replace(self.note, complete=directory.runs_noted)
        write_note(Disk(), str(self.path), self.note)
        directory.close()

    def start(self, *, standby: bool) -> None:
        patience, disk = Patience(lambda seconds: None), Disk()
        directory = DataDirectory(disk, str(self.path))
        directory.open(may_be_filled=True)
        try:
            if standby:
                begin_standby(self.urls[1], {}, disk, directory, now_ms=lambda: 1, patience=patience)
            else:
                join_bucket(
                    self.urls[1], {}, disk, directory, own_url="", lease_ms=1, now_ms=lambda: 1, patience=patience
                )
        finally:
            directory.close()


@pytest.mark.parametrize("standby", [True, False])
def test_the_copy_of_a_standby_is_not_removed_for_another_bucket(tmp_path: Path, standby: bool) -> None:
    moves = Moves(tmp_path, Note("b", standby=True))
    with pytest.raises(DataDirIncompatible, match=r"standby's copy of the log in .*/before"):
        moves.start(standby=standby)
    assert (moves.path / "shard-00" / "wal" / "record").exists()


def test_what_another_bucket_has_of_a_primary_is_set_aside(tmp_path: Path) -> None:
    moves = Moves(tmp_path, Note("a", complete=1))
    moves.start(standby=True)
    assert list(moves.path.glob("aside-*/shard-00/wal/record"))


def test_a_start_that_is_refused_has_not_noted_its_bucket(tmp_path: Path) -> None:
    moves = Moves(tmp_path, Note("a", complete=1))
    closing = encode_slot(TermClosing(*BEGINNING, "token", 1, "another"))
    moves.buckets[1].create(slot_key(*BEGINNING), closing)
    with pytest.raises(DataDirIncompatible, match="another was primary last"):
        moves.start(standby=False)
    assert read_note(Disk(), str(moves.path)) == moves.note


def test_every_call_notices_that_the_share_is_gone(share: Share, tmp_path: Path) -> None:
    bucket = SharedDirectory(str(share.path))
    identify(bucket, "file:///x", None, "a")
    bucket.create("log/1", b"1")
    etag = bucket.swap("primary", b"1", None)
    (tmp_path / "file").write_bytes(b"x")
    share.unmount()
    calls: list[Callable[[], object]] = [
        lambda: bucket.create("log/2", b"2"),
        lambda: bucket.swap("primary", b"2", None),
        lambda: bucket.swap("primary", b"2", etag),
        lambda: bucket.upload("files/1", str(tmp_path / "file")),
        lambda: bucket.read("log/1"),
        lambda: bucket.read_range("log/1", 0, 1),
        lambda: bucket.download("log/1", str(tmp_path / "copy")),
        lambda: list(bucket.listing("log/")),
    ]
    for call in calls:
        with pytest.raises(Unreachable, match="is it mounted"):
            call()
    assert share.written_below == []
    share.mount()
    bucket.create("log/2", b"2")
    assert [found.key for found in bucket.listing("log/")] == ["log/1", "log/2"]


def test_a_primary_whose_share_is_gone_counts_nothing_as_copied(tmp_path: Path, share: Share) -> None:
    pace = {"bucket": f"file://{share.path}", "bucket_piece_ms": 1, "bucket_lease_ms": 60_000}
    with Rig(tmp_path / "a", **pace) as rig:
        rig.configure("r", **REPLICATED)
        rig.append("r", 1)
        until_shipped(rig)
        copy = shipping_of(rig)
        shipped_to = copy.shipped_to
        share.unmount()
        rig.append("d", 2)
        rig.wait_until(lambda: copy.away_since_s is not None)
        assert copy.shipped_to == shipped_to
        share.mount()
        until_shipped(rig)
        rig.append("r", 3)
        rig.close()
    assert share.written_below == []
    with Rig(tmp_path / "b", **pace) as again:
        assert [record["data"] for record in again.records("r")] == [1, 3]


def test_a_standby_whose_share_is_gone_takes_nothing_over(servers: Servers, tmp_path: Path) -> None:
    share = Share(tmp_path)
    primary = servers.primary("a", bucket=f"file://{share.shared}")
    client = primary.client()
    client.put("/v0/topics/r", REPLICATED)
    client.append("r", 1)
    standby = servers.standby("b", bucket=f"file://{share.path}")
    reader = standby.client()
    until_sees(reader, "r", 1)
    share.unmount()
    standby.wait_for_log("the bucket does not answer: .* is it mounted")
    # Longer than its lease: the primary renews it where the standby does not see that.
    before = health(client)
    until(lambda: client.append("r", 2).status == 200 and health(reader)["lag_ms"] > 3_000)
    assert role(reader) == "standby"
    assert health(reader)["state"] == "away"
    assert share.written_below == []
    assert health(client)["term"] == before["term"]
    share.mount()
    until_sees(reader, "r", client.state("r")["head_seq"])
    assert everything(reader, "r") == everything(client, "r")
    primary.kill()
    until(lambda: role(reader) == "primary", "it takes over when it sees the bucket")
    assert everything(reader, "r")[0] == 1


def test_no_server_starts_where_its_share_is_not_mounted(servers: Servers, tmp_path: Path) -> None:
    share = Share(tmp_path)
    url = f"file://{share.path}"
    primary = servers.primary("a", bucket=url)
    primary.client().append("t", 1)
    until_all_shipped(primary.client())
    standby = servers.standby("b", bucket=url)
    until_sees(standby.client(), "t", 1)
    for server in (standby, primary):
        server.kill()
    share.unmount()
    for name, arguments in (("a", []), ("a", ["--standby"]), ("b", ["--standby"]), ("b", [])):
        refused = ServerProcess(tmp_path / name, *arguments, **{**settings(servers.bucket), "bucket": url})
        assert refused.exit_code() == 2
        assert "is it mounted" in refused.lines[-1]
    assert share.written_below == []
    assert list((tmp_path / "b" / "shard-00" / "wal").iterdir()), "the copy of a standby is not removed"
    share.mount()
    client = servers.primary("a", bucket=url).client()
    assert everything(client, "t") == [1]
    until_sees(servers.standby("b", bucket=url).client(), "t", 1)


def test_who_is_primary_does_not_vanish_from_a_bucket(servers: Servers) -> None:
    """Also of a bucket that is not asked for its name each time: emptied, it has no primary, and no log to continue."""
    primary = servers.primary("a")
    primary.client().append("t", 1)
    standby = servers.standby("b", bucket_lease_ms=2_000)
    reader: Client = standby.client()
    until_sees(reader, "t", 1)
    primary.kill()
    (servers.bucket / "primary").unlink()
    standby.wait_for_log("who is primary is no longer there")
    until(lambda: health(reader)["lag_ms"] > 4_000)
    assert role(reader) == "standby"
    assert len(list((servers.bucket / LOG).iterdir())) == 2, "no term was closed but the first"
