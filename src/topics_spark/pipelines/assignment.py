"""A pipeline assigned to a runner, and the runner's configuration."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topics.model.requests.pipelines import PipelineRequest
from topics_spark.pipelines.checkpoints.resuming import Start

# A batch id has room below the generation: versions of a pipeline only grow.
GENERATION_SHIFT: Final = 32
# Batches, failures and runners of all pipelines.
PROGRESS: Final = "pipelines.progress"
# The names of Spark's observed metrics that count rows which do not meet an expectation begin with this.
OBSERVED: Final = "topics.expect"
# How an error says which expectation it is about.
NOT_MET: Final = "is not met by the row"
# The name under which payloads that do not fit the schema are counted, after the view's.
DEAD_LETTER: Final = "dead_letter"
# The folder of a table that lists its files.
MANIFESTS: Final = "_manifest"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One pipeline assigned to one runner: what to run, and the token that keeps other runners from committing."""

    name: str
    definition: PipelineRequest
    revision: int
    generation: int
    fence: int
    # Of the checkpoint, if it has one: the version of its first batch.
    base: int | None = None
    # Of something that is done next to its stream.
    app_suffix: str = ""

    @property
    def app(self) -> str:
        return app_of(self.name) + self.app_suffix

    @property
    def table(self) -> str:
        return self.definition.table_of(self.name)

    @property
    def version_base(self) -> int:
        return self.generation << GENERATION_SHIFT if self.base is None else self.base

    @property
    def version_ceiling(self) -> int:
        """The first version of the next generation."""
        return (self.generation + 1) << GENERATION_SHIFT


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """A runner's directories, its server, and the modules whose functions it may load."""

    state_dir: str
    tables_dir: str
    allow_python: tuple[str, ...] = ()
    # The server; None: the one in the environment of Spark. Its key is only in that environment.
    url: str | None = None
    # What to do if the checkpoint of a pipeline that has committed batches is not there.
    start: Start = "checkpoint"

    def options(self) -> dict[str, str]:
        """The options of every source and sink."""
        return {} if self.url is None else {"url": self.url}

    def checkpoint(self, assignment: Assignment) -> str:
        return f"{self.state_dir}/{assignment.name}/{assignment.generation}"

    def places(self, assignment: Assignment) -> dict[str, str | None]:
        """Its checkpoint and its table, for its status."""
        table = assignment.definition.table_written(assignment.name)
        return {
            "checkpoint": self.checkpoint(assignment),
            "table": None if table is None else self.place(table),
        }

    def table(self, name: str) -> Path:
        """The directory of a table of Parquet files."""
        return Path(self.tables_dir, name)

    def place(self, name: str) -> str:
        """Where a table is: a directory, or a place in an object store."""
        return f"{self.tables_dir.rstrip('/')}/{name}"

    def has_table(self, name: str) -> bool:
        """Whether there is such a table in a directory of this machine."""
        return "://" not in self.tables_dir and any(
            (self.table(name) / mark).exists() for mark in (MANIFESTS, "_delta_log", "metadata/version-hint.text")
        )

    def forget_checkpoints(self, pipeline: str, below: int | None = None) -> None:
        """Remove those of a pipeline before a generation, or all: none of them is used again."""
        for found in Path(self.state_dir, pipeline).glob("*"):
            if found.name.isdecimal() and (below is None or int(found.name) < below):
                shutil.rmtree(found, ignore_errors=True)


def manifest_topic(pipeline: str) -> str:
    """The topic whose records say which files of its table are valid."""
    return f"pipelines.manifest.{pipeline}"


def app_of(pipeline: str) -> str:
    """The name under which a pipeline commits its transactions."""
    return f"pipeline:{pipeline}"
