"""Transactions, pipelines and backups through the client."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from topics.client import Fenced, Outgoing, PipelineNotFound, StageNotFound

# --- transactions ---


def test_a_version_is_committed_once(client: Any, topic: str) -> None:
    app = f"app-{topic}"
    staged = client.stage(app, 1, "s", 0, [1, Outgoing(2, tag="t", topic=f"{topic}.other")], topic)
    assert (staged.stage, staged.part, staged.records, staged.done) == ("s", 0, 2, False)
    assert client.stage(app, 1, "s", 0, [1, Outgoing(2, tag="t", topic=f"{topic}.other")], topic).records == 2
    client.stage(app, 1, "s", 1, b'[{"data":[ 3 ]}]', topic)
    done = client.commit_txn(app, 1, ["s"])
    assert (done.committed, done.deduped) == (True, False)
    assert {name: span.records for name, span in done.topics.items()} == {topic: 2, f"{topic}.other": 1}
    again = client.commit_txn(app, 1, ["s"])
    assert again.deduped
    assert [record.raw for record in client.read(topic)] == [b"1", b"[ 3 ]"]
    assert [record.tag for record in client.read(f"{topic}.other")] == ["t"]
    assert client.stage(app, 1, "s", 2, [1], topic).done
    assert client.txn(app).version == 1
    assert app in [found.app for found in client.txns(page_size=1)]


def test_a_stage_can_be_thrown_away(client: Any, topic: str) -> None:
    app = f"app-{topic}"
    client.stage(app, 5, "s", 0, [1], topic)
    assert [stage.stage for stage in client.txn(app).stages] == ["s"]
    assert client.abort_txn(app, 5, ["s"]) == 1
    with pytest.raises(StageNotFound):
        client.commit_txn(app, 5, ["s"])
    assert client.commit_txn(app, 5, []).committed
    assert client.forget_txn(app) is True
    assert client.forget_txn(app) is False


def test_a_lower_fence_is_shut_out(client: Any, topic: str) -> None:
    app = f"app-{topic}"
    old = client.take_fence(app)
    new = client.take_fence(app)
    assert new > old
    with pytest.raises(Fenced):
        client.stage(app, 1, "s", 0, [1], topic, old)
    client.stage(app, 1, "s", 0, [1], topic, new)
    assert client.commit_txn(app, 1, ["s"], new).committed
    assert client.txn(app).fence == new


# --- pipelines ---


def test_a_pipeline_is_defined_reported_and_dropped(client: Any, topic: str) -> None:
    definition = {
        "sources": {"orders": {"topic": topic}},
        "sql": "SELECT * FROM orders",
        "sink": {"topic": f"{topic}.out"},
    }
    made = client.put_pipeline(topic, definition)
    assert (made.created, made.definition["sql"], made.status) == (True, "SELECT * FROM orders", None)
    assert not client.put_pipeline(topic, definition).created
    reported = client.report_pipeline(topic, {"state": "running", "runner": "r1", "rows_total": 5})
    assert reported.status["rows_total"] == 5
    assert client.pipeline(topic).status["state"] == "running"
    assert [found.pipeline for found in client.pipelines(topic, page_size=1)] == [topic]
    assert client.drop_pipeline(topic) is True
    assert client.drop_pipeline(topic) is False
    with pytest.raises(PipelineNotFound):
        client.pipeline(topic)


# --- backup ---


@pytest.mark.needs_server("a backup as a stream; a database writes a file")
def test_a_backup_is_a_tar_of_the_announced_length(client: Any, topic: str) -> None:
    client.append(topic, 1)
    with client.backup() as backup:
        copy = b"".join(backup)
        assert len(copy) == backup.bytes_total
    with tarfile.open(fileobj=io.BytesIO(copy)) as archive:
        assert len(archive.getnames()) > 1
