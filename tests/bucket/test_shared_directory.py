"""A directory as a bucket: the same calls as on an object store, by several processes at once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from topics.storage.bucket.bucket import Changed, Exists, ObjectBucket, Refused
from topics.storage.bucket.shared_directory import SharedDirectory


def check_bucket(bucket: ObjectBucket, tmp_path: Path) -> None:
    """What the protocol needs of any bucket."""
    assert bucket.read("a/1") is None
    bucket.create("a/1", b"one")
    with pytest.raises(Exists):
        bucket.create("a/1", b"other")
    found = bucket.read("a/1")
    assert found is not None
    assert found.data == b"one"
    with pytest.raises(Changed):
        bucket.swap("p", b"1", "no such version")
    first = bucket.swap("p", b"1", None)
    with pytest.raises(Changed):
        bucket.swap("p", b"2", None)
    second = bucket.swap("p", b"2", first)
    with pytest.raises(Changed):
        bucket.swap("p", b"3", first)
    now = bucket.read("p")
    assert now is not None
    assert (now.data, now.etag) == (b"2", second)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"x" * (6 << 20))
    for _ in range(2):
        bucket.upload("files/big", str(source))
    assert bucket.read_range("files/big", (6 << 20) - 4, 10) == b"xxxx"
    assert bucket.read_range("a/1", 1, 2) == b"ne"
    assert bucket.read_range("a/none", 1, 2) is None
    assert bucket.download("files/big", str(target))
    assert target.read_bytes() == source.read_bytes()
    assert not bucket.download("files/none", str(tmp_path / "none"))
    bucket.create("a/0", b"0123456789")
    assert bucket.read_range("a/0", 2, 3) == b"234"
    assert bucket.read_range("a/0", 8, 100) == b"89", "less where the object ends"
    assert bucket.read_range("a/none", 0, 1) is None
    bucket.delete(["a/0"])
    bucket.create("a/2", b"two")
    bucket.create("ab/1", b"")
    assert [(one.key, one.size_bytes) for one in bucket.listing("a/")] == [("a/1", 3), ("a/2", 3)]
    assert [one.key for one in bucket.listing("a/", after="a/1")] == ["a/2"]
    assert all(one.modified_ms > 0 for one in bucket.listing("files/"))
    bucket.delete(["a/1", "a/2", "a/none"])
    assert list(bucket.listing("a/")) == []
    bucket.delete(["ab/1", "p", "files/big"])


def test_a_directory_has_what_the_protocol_needs(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    check_bucket(SharedDirectory(str(tmp_path / "shared")), tmp_path)


def test_of_many_that_swap_at_once_one_succeeds(tmp_path: Path) -> None:
    buckets = [SharedDirectory(str(tmp_path)) for _ in range(4)]
    first = buckets[0].swap("p", b"0", None)
    outcomes: list[bool] = []

    def swap(number: int) -> None:
        try:
            buckets[number].swap("p", b"%d" % (number + 1), first)
        except Changed:
            outcomes.append(False)
        else:
            outcomes.append(True)

    threads = [threading.Thread(target=swap, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == [False, False, False, True]


def test_a_directory_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="create it, or mount it"):
        SharedDirectory(str(tmp_path / "none")).read("a")
