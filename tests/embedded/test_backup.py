"""`Database.backup`: a file with everything in it, made while other threads write."""

import tarfile
import threading
from pathlib import Path

import pytest

import topics
from topics.model.errors import InvalidRequest
from topics.storage.archive import ArchiveReader


def test_a_backup_made_beside_writers_holds_all_that_came_before(tmp_path: Path) -> None:
    with topics.open(str(tmp_path / "data")) as database:
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                database.append("t", number)
                number += 1

        writer = threading.Thread(target=write)
        writer.start()
        database.append_many("before", range(100))
        length = database.backup(str(tmp_path / "b.tar"))
        stop.set()
        writer.join()
        written = [record.data for record in database.diff("t", 0, limit=1000).records]
    data = (tmp_path / "b.tar").read_bytes()
    assert len(data) == length
    reader = ArchiveReader()
    reader.feed(data)
    reader.finish()
    with tarfile.open(tmp_path / "b.tar") as tar:
        tar.extractall(tmp_path / "copy", filter="data")
    with topics.open(str(tmp_path / "copy")) as copy:
        assert copy.state("before").count == 100
        copied = [record.data for record in copy.diff("t", 0, limit=1000).records]
        assert copied[: len(written)] == written[: len(copied)]


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with topics.open(str(tmp_path / "data")) as database, pytest.raises(InvalidRequest, match="exists"):
        database.backup(str(tmp_path / "mine"))
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_backup_that_cannot_be_written_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    with topics.open(str(tmp_path / "data")) as database:
        database.append("t", 1)
        with pytest.raises(FileNotFoundError):
            database.backup(str(tmp_path / "nowhere" / "b.tar"))
        database.backup(str(tmp_path / "b.tar"))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar", "data"]
