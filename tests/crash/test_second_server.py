"""Two servers and one data directory: the second is refused, whatever was removed, and none writes beside another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.rig import Rig
from tests.faults import FaultyDisk
from tests.serving import ServerProcess, serving
from topics.model.errors import ReadOnly


def test_a_removed_lock_lets_no_second_server_in(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as first:
        client = first.client()
        assert client.append("a", 1).status == 201
        (tmp_path / "data" / "lock").unlink()
        second = ServerProcess(tmp_path / "data")
        assert second.exit_code() != 0
        assert "is in use by process" in second.log
        assert client.append("a", 2).status == 200
        assert client.payloads("a") == [1, 2]


def test_a_server_whose_directory_was_replaced_turns_read_only_at_its_next_checkpoint(tmp_path: Path) -> None:
    with serving(tmp_path / "data", checkpoint_ms=1) as server:
        client = server.client()
        assert client.append("a", 1).status == 201
        (tmp_path / "data").rename(tmp_path / "moved")
        (tmp_path / "data").mkdir()
        client.append("a", 2)
        server.wait_for_log("was replaced by another directory")
        refused, ready = client.append("a", 3), client.get("/v0/ready")
        assert (refused.code, ready.status) == ("read_only", 503)
        assert str(tmp_path).encode() not in refused.body + ready.body
        assert client.get("/v0/health").status == 200


def test_a_process_that_wakes_up_on_another_boot_writes_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyDisk("boot-1")
    with Rig(tmp_path / "data", disk=disk) as rig:
        rig.append("a", 1)
        rig.checkpoint()
        disk._boot_id = "boot-2"
        rig.append("a", 2)
        assert not rig.store.checkpoint()
        with pytest.raises(ReadOnly, match="boot id"):
            rig.append("a", 3)
        assert rig.seqs("a") == [1, 2], "reading continues"
    assert "the boot id has changed" in caplog.text
