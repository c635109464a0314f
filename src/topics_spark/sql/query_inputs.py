"""What queries read: which server, files and tables, from when to when, and with which schemas for payloads."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from topics_spark.errors import ServerFailed
from topics_spark.options import SourceOptions

if TYPE_CHECKING:
    from topics_spark.source.backends import Backend


@dataclass(frozen=True, slots=True)
class QueryInputs:
    """What queries read: server or files, from when to when, and the schemas of payloads."""

    url: str | None = None
    path: str | None = None
    tables_dir: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    schemas: Mapping[str, str] = field(default_factory=dict[str, str])

    def options(self, topic: str) -> dict[str, str]:
        """Options for `format("topics")`; the key is only in the environment."""
        # Records that a cap drops while they are read are not a failure of this query.
        given = {"subscribe": topic, "failOnDataLoss": "false"}
        told = {
            "url": self.url,
            "path": self.path,
            "startingTimestamp": self.since_ms,
            "endingTimestamp": self.until_ms,
        }
        return given | {name: str(value) for name, value in told.items() if value is not None}

    @contextlib.contextmanager
    def backend(self, topic: str = "-") -> Generator[Backend]:
        """The backend of a topic; errors of the server are raised as the client raises them."""
        from topics_spark.source.backends import backend_of

        try:
            with contextlib.closing(backend_of(SourceOptions.parse(self.options(topic)))) as backend:
                yield backend
        except ServerFailed as error:
            raise error.__cause__ or error from None

    def table_names(self) -> list[str]:
        if self.tables_dir is None:
            return []
        from topics_spark.pipelines.assignment import RunnerConfig

        config = RunnerConfig("", self.tables_dir)
        return sorted(folder.name for folder in Path(self.tables_dir).glob("*") if config.has_table(folder.name))
