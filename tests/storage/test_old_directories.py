"""A data directory of any released version opens, and answers as the version that wrote it did."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.storage.old_directories import BOOT, OTHER_BOOT, VERSIONS, answers, differences, recorded, records_of, unpack
from topics.engine.core.checkpoints.image import TopicImage, encode_topic
from topics.engine.opening.composition import new_state
from topics.engine.opening.restore import restore
from topics.engine.transactions.ledger import APP_CHUNK, Ledger, encode_app
from topics.model.settings import Settings
from topics.storage.disk import Disk
from topics.storage.pack import Packs
from topics.storage.snapshot import Snapshots
from topics.storage.steps import at_once

WRITTEN_BY = sorted({path.name.rpartition("_")[0] for path in VERSIONS.glob("*.tar.xz")})
# How the directory was left, and the boot it is opened on.
ENDS = {"clean": ("clean", BOOT), "killed": ("killed", BOOT), "power": ("killed", OTHER_BOOT)}


def test_there_is_a_directory_of_the_first_version() -> None:
    assert "v0_1" in WRITTEN_BY


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("version", WRITTEN_BY)
def test_a_directory_of_an_older_version_answers_as_it_did_then(version: str, end: str, tmp_path: Path) -> None:
    kind, boot = ENDS[end]
    unpack(version, kind, tmp_path / "data")
    wanted = recorded(version, end)
    questions = [(answer["method"], answer["path"], answer["body"]) for answer in wanted["answers"]]
    found = answers(tmp_path / "data", boot, questions, wanted["asked_ms"])
    wrong = [line for was, now in zip(wanted["answers"], found, strict=True) for line in changes(was, now)]
    assert wrong == []


def changes(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    asked = f"{was['method']} {was['path']}"
    if was["status"] != now["status"]:
        return [f"{asked}: status {now['status']}, was {was['status']}: {now['answer']}"]
    if "/export" in was["path"]:
        lines, now_lines = records_of(was["answer"]), records_of(now["answer"])
        return [] if lines == now_lines else [f"{asked}: records differ:\n{lines}\n{now_lines}"]
    return list(differences(json.loads(was["answer"]), json.loads(now["answer"]), asked))


@pytest.mark.parametrize("kind", ["clean", "killed"])
def test_a_snapshot_of_what_was_read_has_the_bytes_that_it_had_then(kind: str, tmp_path: Path) -> None:
    unpack("before_17", kind, tmp_path / "data")
    disk = Disk()
    snapshot = Snapshots(disk, str(tmp_path / "data/shard-00/snapshots")).load_newest()
    state = new_state(Settings(), Packs(disk, str(tmp_path / "data/shard-00/packs"), None))
    at_once(restore(state, snapshot))
    images = {topic.name: topic_then(encode_topic(topic, {}, state.features)) for topic in state.by_id.values()}
    images |= {f"app {app.name}": app_then(encode_app(app)) for app in state.feature(Ledger).by_id.values()}
    wanted = recorded("before_17", "images")[kind]
    assert {"jobs", "failed", "stamped", "events", "both.a", "turned", "app nightly"} <= wanted.keys()
    assert {name: hashlib.sha256(image).hexdigest() for name, image in images.items()} == wanted


def topic_then(image: bytes) -> bytes:
    """The image of a topic without the fields that were added to queues and their jobs since: groups, priorities."""
    topic = msgspec.msgpack.decode(image)
    queue = topic[TopicImage.__struct_fields__.index("queue")]
    if queue is not None:
        del queue[5:]
        for job in queue[3]:
            del job[7:]
    return msgspec.msgpack.encode(topic)


def app_then(image: bytes) -> bytes:
    """The image of an app without the fields that were added to its stages since: when each began, and its owner."""
    app = msgspec.msgpack.decode(image.removeprefix(APP_CHUNK))
    *_, stages, _owners, _version_fence, _named = app
    for stage in stages:
        del stage[5:]
    return APP_CHUNK + msgspec.msgpack.encode(app)
