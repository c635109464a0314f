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
    """What queries read: of which server or files, since when and until when, and what is told about payloads."""

    url: str | None = None
    path: str | None = None
    tables_dir: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    schemas: Mapping[str, str] = field(default_factory=dict[str, str])

    def options(self, topic: str) -> dict[str, str]:
        """For `format("topics")`; the key is in the environment only."""
        # What a cap drops while it is read was there too short for this query: that is no failure of it.
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
        """Where topics are; a refusal of the server is raised as the client has it."""
        from topics_spark.source.backends import backend_of

        try:
            with contextlib.closing(backend_of(SourceOptions.parse(self.options(topic)))) as backend:
                yield backend
        except ServerFailed as error:
            raise error.__cause__ or error from None

    def table_names(self) -> list[str]:
        if self.tables_dir is None:
            return []
        from topics_spark.pipelines import tables

        return sorted(folder.parent.name for folder in Path(self.tables_dir).glob(f"*/{tables.MANIFESTS}"))
