"""Checkpoints: which versions their batches get, and that one which does not fit what is committed is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from topics import testing
from topics.cli.failure import CommandFailed
from topics.model.requests.pipelines import PipelineRequest
from topics_spark.errors import NeedsDecision
from topics_spark.pipelines.checkpoints import places
from topics_spark.pipelines.checkpoints.positions import positions
from topics_spark.pipelines.checkpoints.resuming import Resumed, Start, resume
from topics_spark.pipelines.definition import parse

FLOOR, CEILING = 7 << 32, 8 << 32


class Committed:
    """The highest version on the server, raised as the sink does: what is not above it adds nothing."""

    def __init__(self) -> None:
        self.version: int | None = None

    def commit(self, version: int) -> bool:
        added = self.version is None or version > self.version
        self.version = version if added else self.version
        return added


def batch(checkpoint: Path, committed: Committed, start: Start = "checkpoint", *, rows: bool = True) -> bool:
    """Start a runner on this directory, and run one batch to its end; whether its rows were added."""
    found = resume(checkpoint, FLOOR, CEILING, committed.version, start)
    offsets = checkpoint / "offsets"
    offsets.mkdir(exist_ok=True)
    number = len(list(offsets.iterdir()))
    (offsets / str(number)).touch()
    return committed.commit(found.base + number) if rows else True


def test_a_new_pipeline_begins_and_goes_on_from_its_own_directory(tmp_path: Path) -> None:
    committed = Committed()
    assert resume(tmp_path / "a", FLOOR, CEILING, None, "checkpoint") == Resumed(FLOOR)
    assert all(batch(tmp_path / "a", committed) for _ in range(6))
    assert committed.version == FLOOR + 5


def test_versions_of_an_earlier_generation_do_not_count(tmp_path: Path) -> None:
    assert resume(tmp_path / "a", FLOOR, CEILING, FLOOR - 1, "checkpoint") == Resumed(FLOOR)


@pytest.mark.parametrize("start", ["start", "end"])
def test_another_directory_is_refused_and_loses_nothing_once_it_is_chosen(tmp_path: Path, start: Start) -> None:
    committed = Committed()
    for _ in range(6):
        batch(tmp_path / "a", committed)
    with pytest.raises(NeedsDecision, match=r"--from start .*--from end") as refused:
        batch(tmp_path / "b", committed)
    assert refused.value.problem == "no_checkpoint"
    assert not (tmp_path / "b").exists()
    assert all(batch(tmp_path / "b", committed, start) for _ in range(6))
    assert resume(tmp_path / "b", FLOOR, CEILING, committed.version, "checkpoint").start == start


def test_the_first_directory_is_refused_after_the_second_has_run(tmp_path: Path) -> None:
    committed = Committed()
    for _ in range(6):
        batch(tmp_path / "a", committed)
    for _ in range(100):
        batch(tmp_path / "a", committed, rows=False)
    batch(tmp_path / "b", committed, "start")
    with pytest.raises(NeedsDecision) as refused:
        batch(tmp_path / "a", committed)
    assert refused.value.problem == "old_checkpoint"
    assert batch(tmp_path / "a", committed, "end")
    assert len(list(tmp_path.glob("a-*"))) == 1, "the old one is set aside, not deleted"


def test_a_copy_from_before_the_last_batches_is_refused(tmp_path: Path) -> None:
    committed = Committed()
    batch(tmp_path / "a", committed)
    batch(tmp_path / "a", committed)
    (tmp_path / "a" / "offsets" / "1").unlink()
    with pytest.raises(NeedsDecision):
        batch(tmp_path / "a", committed)


def test_a_batch_that_was_planned_or_committed_before_a_crash_is_repeated(tmp_path: Path) -> None:
    committed = Committed()
    batch(tmp_path / "a", committed)
    (tmp_path / "a" / "offsets" / "1").touch()
    assert resume(tmp_path / "a", FLOOR, CEILING, committed.version, "checkpoint") == Resumed(FLOOR)
    committed.commit(FLOOR + 1)
    assert resume(tmp_path / "a", FLOOR, CEILING, committed.version, "checkpoint") == Resumed(FLOOR)


def test_a_choice_survives_a_crash_before_the_first_batch(tmp_path: Path) -> None:
    chosen = resume(tmp_path / "b", FLOOR, CEILING, FLOOR + 5, "end")
    assert resume(tmp_path / "b", FLOOR, CEILING, FLOOR + 5, "checkpoint") == chosen
    assert chosen.base > FLOOR + 5


def test_a_checkpoint_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a" / "offsets").mkdir(parents=True)
    (tmp_path / "a" / "offsets" / "41").touch()
    assert resume(tmp_path / "a", FLOOR, CEILING, FLOOR + 41, "checkpoint") == Resumed(FLOOR)


def test_versions_never_reach_the_next_generation(tmp_path: Path) -> None:
    with pytest.raises(NeedsDecision, match="another name"):
        resume(tmp_path / "a", FLOOR, CEILING, CEILING - 1, "start")


# --- positions ---


def written(checkpoint: Path, log: str, number: int, *sources: object) -> None:
    place = checkpoint / log / str(number)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(
        "\n".join(["v1", '{"batchWatermarkMs":0}', *(json.dumps(each) if each else "-" for each in sources)])
    )


def definition(**source: object) -> PipelineRequest:
    return parse({"sources": {"v": source}, "sql": "SELECT 1", "sink": {"topic": "out"}}, "p", "test")


def at(checkpoint: Path, request: PipelineRequest, *listed: str) -> dict[str, int]:
    return {name: each["seq"] for name, each in positions(checkpoint, request, lambda _: listed).items()}


def test_a_position_is_the_end_of_the_last_finished_batch_of_the_slowest_reader(tmp_path: Path) -> None:
    first, second = ({"a": {"epoch": 7, "seq": seq}, "b": {"epoch": 8, "from": 2, "seq": 2}} for seq in (10, 20))
    written(tmp_path, "offsets", 4, first, None, second)
    written(tmp_path, "commits", 4)
    written(tmp_path, "offsets", 5, second, None, second)
    assert at(tmp_path, definition(topics=["a", "b"])) == {"a": 10, "b": 2}
    assert at(tmp_path, definition(pattern="a|b|new"), "a", "new") == {"a": 10, "b": 2, "new": 0}


def test_before_its_first_batch_is_done_a_pipeline_is_where_it_begins(tmp_path: Path) -> None:
    assert at(tmp_path, definition(topic="a")) == {"a": 0}
    assert at(tmp_path, definition(topic="a", start=5)) == {"a": 5}
    assert at(tmp_path, definition(topic="a", start="latest")) == {}, "unknown until it has begun"
    written(tmp_path, "offsets", 0, {"a": {"epoch": 7, "from": 3, "seq": 9}})
    assert at(tmp_path, definition(topic="a", start="latest")) == {"a": 3}


# --- places ---


@pytest.fixture
def engine() -> Iterator[testing.Engine]:
    with testing.engine() as engine:
        yield engine


def test_state_does_not_depend_on_where_the_runner_is_started(
    engine: testing.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(places.VARIABLE, raising=False)
    found: list[Path] = []
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found.append(places.directory(engine.client(), None, places.STATE))
    assert found[0] == found[1] == Path(engine.client().server()["data_dir"], "pipelines", "state")
    (tmp_path / "x" / "pipelines" / "state").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "x")
    assert places.home(engine.client()) == tmp_path / "x" / "pipelines", "that of an earlier version is used on"
    monkeypatch.setenv(places.VARIABLE, str(tmp_path / "named"))
    assert places.directory(engine.client(), None, places.TABLES) == tmp_path / "named" / "tables"
    assert places.directory(engine.client(), "here", places.TABLES) == Path(os.getcwd(), "here")


def test_an_object_store_is_not_taken_for_a_directory(engine: testing.Engine) -> None:
    with pytest.raises(CommandFailed, match="object stores"):
        places.directory(engine.client(), "s3a://bucket/tables", places.TABLES)
