"""A pipeline assigned to a runner, and the runner's configuration."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topics.model.requests.pipelines import PipelineRequest

# A batch id has room below the generation: versions of a pipeline only grow.
GENERATION_SHIFT: Final = 32


@dataclass(frozen=True, slots=True)
class Assignment:
    """One pipeline assigned to one runner: what to run, and the token that keeps other runners from committing."""

    name: str
    definition: PipelineRequest
    revision: int
    generation: int
    fence: int

    @property
    def app(self) -> str:
        return app_of(self.name)

    @property
    def table(self) -> str:
        return self.definition.table_of(self.name)

    @property
    def version_base(self) -> int:
        return self.generation << GENERATION_SHIFT


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    """A runner's directories, its server, and the modules whose functions it may load."""

    state_dir: str
    tables_dir: str
    allow_python: tuple[str, ...] = ()
    # The server; None: the one in the environment of Spark. Its key is only in that environment.
    url: str | None = None

    def options(self) -> dict[str, str]:
        """The options of every source and sink."""
        return {} if self.url is None else {"url": self.url}

    def checkpoint(self, assignment: Assignment) -> str:
        return f"{self.state_dir}/{assignment.name}/{assignment.generation}"

    def table(self, name: str) -> Path:
        return Path(self.tables_dir, name)

    def forget_checkpoints(self, pipeline: str, below: int | None = None) -> None:
        """Remove those of a pipeline before a generation, or all: none of them is used again."""
        for found in Path(self.state_dir, pipeline).glob("*"):
            if found.name.isdecimal() and (below is None or int(found.name) < below):
                shutil.rmtree(found, ignore_errors=True)


def app_of(pipeline: str) -> str:
    """The name under which a pipeline commits its transactions."""
    return f"pipeline:{pipeline}"
