"""Definitions run to their end on real Spark and a real server, without a runner."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from topics.client import Client, Outgoing, Record
from topics.model.requests.pipelines import PipelineRequest
from topics_spark.pipelines import building
from topics_spark.pipelines.assignment import Assignment, RunnerConfig, app_of
from topics_spark.pipelines.definition import parse
from topics_spark.pipelines.quality.cases import Case
from topics_spark.pipelines.quality.trial import run_case

END_S_MAX = 360.0
STARTS_MAX = 6
WORKER_LATE = "Python worker failed to connect back"
_numbers = itertools.count(1)


class World:
    def __init__(self, spark: SparkSession, client: Client, home: Path) -> None:
        self.spark = spark
        self.client = client
        self.config = RunnerConfig(str(home / "state"), str(home / "tables"), ("tests.spark.functions",), client.url)
        self.name = f"w{next(_numbers)}"

    def topic(self, name: str) -> str:
        return f"{self.name}.{name}"

    def append(self, topic: str, *payloads: Any, **fields: Any) -> None:
        self.client.append_many(self.topic(topic), [Outgoing(payload, **fields) for payload in payloads])

    def assignment(self, definition: dict[str, Any], generation: int = 1) -> Assignment:
        request = parse(definition, self.name, "test")
        fence = self.client.take_fence(app_of(self.name))
        return Assignment(self.name, request, generation, generation, fence)

    def run(self, definition: dict[str, Any], generation: int = 1) -> list[dict[str, Any]]:
        """Runs to its end over the existing records; Spark's reports on its batches.

        As a runner would, it starts again if Spark did not wait long enough for a Python process on a busy machine.
        """
        whole = {"trigger": {"once": True}, **definition}
        for _ in range(STARTS_MAX):
            query = building.start(
                self.spark.newSession(), self.assignment(whole, generation), self.config, self.client
            )
            deadline_s = time.monotonic() + END_S_MAX
            while query.isActive:
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            if (error := query.exception()) is None:
                return [json.loads(progress.json) for progress in query.recentProgress]
            if WORKER_LATE not in str(error):
                raise error
        raise AssertionError(WORKER_LATE)

    def try_case(self, name: str, definition: PipelineRequest, case: Case) -> list[str]:
        """What is wrong with a test of a definition; again, if Spark did not wait long enough for a Python process."""
        for _ in range(STARTS_MAX):
            wrong = run_case(self.spark.newSession(), name, definition, self.config, case)
            if WORKER_LATE not in "".join(wrong):
                return wrong
        raise AssertionError(WORKER_LATE)

    def read(self, topic: str) -> list[Record]:
        return [record for record in self.client.read(self.topic(topic)) if isinstance(record, Record)]

    def data(self, topic: str) -> list[Any]:
        return [record.data for record in self.read(topic)]

    def source(self, topic: str, **more: Any) -> dict[str, Any]:
        return {"topic": self.topic(topic), **more}

    def sink(self, topic: str, **more: Any) -> dict[str, Any]:
        return {"topic": self.topic(topic), **more}

    def table(self, name: str) -> Path:
        return Path(self.config.tables_dir) / name
