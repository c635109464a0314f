"""A database whose bucket loses requests and answers: the bucket gets the whole log all the same, and nothing twice."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

import topics
from tests.patience import PATIENCE_S
from topics.client.values import Tombstone
from topics.model.settings import Settings
from topics.storage.bucket.bucket import Found, Unreachable
from topics.storage.bucket.shared_directory import SharedDirectory
from topics.storage.bucket.starting import joining
from topics.storage.disk import Buffer

T = TypeVar("T")


class Flaky(SharedDirectory):
    """Of every three requests one is lost, or its answer is."""

    def __init__(self, path: str, seed: int) -> None:
        super().__init__(path)
        self._random = random.Random(seed)
        self.reliable = True
        self.lost = self.unanswered = 0

    def _meet(self, request: Callable[[], T]) -> T:
        fate = 1.0 if self.reliable else self._random.random()
        if fate < 0.15:
            self.lost += 1
            raise Unreachable("lost")
        answer = request()
        if fate < 0.35:
            self.unanswered += 1
            raise Unreachable("no answer")
        return answer

    def create(self, key: str, data: Buffer) -> None:
        create = super().create
        self._meet(lambda: create(key, data))

    def swap(self, key: str, data: Buffer, etag: str | None) -> str:
        swap = super().swap
        return self._meet(lambda: swap(key, data, etag))

    def upload(self, key: str, path: str) -> None:
        upload = super().upload
        self._meet(lambda: upload(key, path))

    def read(self, key: str) -> Found | None:
        read = super().read
        return self._meet(lambda: read(key))


@pytest.mark.parametrize("seed", [1])
def test_lost_requests_and_answers_change_nothing(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bucket"
    path.mkdir()
    bucket = Flaky(str(path), seed)
    monkeypatch.setattr(joining, "connect", lambda url, environ: bucket)
    monkeypatch.setattr("topics.storage.bucket.shipping.RETRY_S_MIN", 0.001)
    monkeypatch.setattr("topics.storage.bucket.shipping.RETRY_S_MAX", 0.01)
    settings = Settings(bucket=f"file://{path}", bucket_piece_ms=1, bucket_lease_ms=1_000, checkpoint_ms=50)
    expected: list[int] = []
    for number in range(2):
        with topics.open(str(tmp_path / f"data{number}"), settings=settings) as database:
            bucket.reliable = False
            deadline_s = time.monotonic() + PATIENCE_S
            while bucket.lost < 6 * (number + 1) or bucket.unanswered < 6 * (number + 1):
                assert time.monotonic() < deadline_s
                expected.append(len(expected))
                database.append("t", expected[-1])
            bucket.reliable = True
    with topics.open(str(tmp_path / "last"), settings=settings) as database:
        found = list(database.read("t"))
        assert [record.data for record in found if not isinstance(record, Tombstone)] == expected
        assert len(found) == len(expected), "no loss is reported"
