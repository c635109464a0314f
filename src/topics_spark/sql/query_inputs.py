"""What queries read: which server, files and tables, from when to when, and with which schemas for payloads."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from topics.cli.failure import REFUSED, CommandFailed
from topics_spark.errors import ServerFailed
from topics_spark.options import SourceOptions, Subscription

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from topics_spark.source.backends import Backend

# Tables can always be named `tables.NAME`: Spark's database of global views has this name.
TABLES: Final = "tables"
SAMPLE_RECORDS: Final = 1_000
CLOSE_NAMES_MAX: Final = 3


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

    # --- topics ---

    def is_topic(self, name: str) -> bool:
        with self.backend(name) as backend:
            return bool(backend.heads(Subscription((name,))))

    def topics(self) -> list[str]:
        if self.path is None:
            from topics.client import Client

            with Client(self.url) as client:
                return [item.topic for item in client.list()]
        with self.backend() as backend:
            return sorted(backend.heads(Subscription(pattern=".*")))

    def inferred_payload(self, name: str) -> StructType | None:
        """The fields of a topic's payloads, from samples; None if no payload is an object."""
        from topics_spark.payloads.inference import inferred

        with self.backend(name) as backend:
            return inferred(backend.sample(name, SAMPLE_RECORDS))

    def absent(self, name: str) -> CommandFailed:
        """The error for a name that is neither a topic nor a table."""
        there = self.topics() + self.table_names()
        close = difflib.get_close_matches(name, there, n=CLOSE_NAMES_MAX) or difflib.get_close_matches(
            name.removeprefix(f"{TABLES}."), self.table_names(), n=CLOSE_NAMES_MAX
        )
        hint = f"did you mean {', '.join(map(quoted, close))}?" if close else "`topics topic ls` lists what exists"
        what = "topic or table" if self.tables_dir is not None else "topic"
        return CommandFailed(f"there is no {what} {quoted(name)}; {hint}", REFUSED)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
