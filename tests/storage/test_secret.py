"""The secret of stream tokens: kept for its owner alone, and a server without a usable one says so and goes on."""

import errno
import logging
from pathlib import Path

import pytest

from tests.faults import FaultyDisk
from topics.storage.disk import Disk
from topics.storage.secret import SECRET_BYTES, SECRET_NAME, make_secret, read_secret


def test_a_secret_is_kept_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    assert read_secret(Disk(), str(tmp_path)) is None
    made = make_secret(Disk(), str(tmp_path))
    assert len(made) == SECRET_BYTES
    assert read_secret(Disk(), str(tmp_path)) == made
    assert (tmp_path / SECRET_NAME).stat().st_mode & 0o777 == 0o600
    assert make_secret(Disk(), str(tmp_path)) != made


@pytest.mark.parametrize("content", [b"", b"x" * (SECRET_BYTES - 1), b"x" * (SECRET_BYTES + 1)])
def test_a_secret_of_another_length_is_not_used(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SECRET_NAME).write_bytes(content)
    assert read_secret(Disk(), str(tmp_path)) is None


def test_a_secret_that_cannot_be_read_or_written_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyDisk()
    kept = make_secret(disk, str(tmp_path))
    with caplog.at_level(logging.WARNING, "topics.storage"):
        disk.fail("open", path=SECRET_NAME, error=errno.EACCES)
        assert read_secret(disk, str(tmp_path)) is None
        disk.fail("rename", path=SECRET_NAME, error=errno.EROFS)
        another = make_secret(disk, str(tmp_path))
    assert [record.getMessage().split(" cannot be ")[1].split(":")[0] for record in caplog.records] == [
        "read",
        "written; stream tokens will be invalid after a restart",
    ]
    assert another != kept
    assert read_secret(disk, str(tmp_path)) == kept, "the one that is valid after a restart"
