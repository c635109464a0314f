"""A bucket in a directory whose writes and reads by range a test can refuse, hold up, or do something else before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.engine.rig import Rig
from tests.patience import PATIENCE_S
from topics.storage.bucket.bucket import Unreachable
from topics.storage.bucket.shared_directory import SharedDirectory
from topics.storage.bucket.shipping import Shipping
from topics.storage.bucket.terms import TakenOver
from topics.storage.disk import Buffer


class Interrupted(SharedDirectory):
    """A bucket whose writes call `before` first, which may raise, wait or do something else meanwhile."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        super().__init__(str(path))
        self.before: Callable[[str], None] = nothing
        self.uploaded: list[str] = []
        self.before_range: Callable[[str], None] = nothing
        # the reads by range, but for those of a start, which asks for the last bytes of a pack
        self.ranges: list[str] = []

    def create(self, key: str, data: Buffer) -> None:
        self.before(key)
        super().create(key, data)

    def swap(self, key: str, data: Buffer, etag: str | None) -> str:
        self.before(key)
        return super().swap(key, data, etag)

    def upload(self, key: str, path: str) -> None:
        self.before(key)
        self.uploaded.append(key)
        super().upload(key, path)

    def read_range(self, key: str, offset: int, length: int) -> bytes | None:
        self.before_range(key)
        if length > 8:
            self.ranges.append(key)
        return super().read_range(key, offset, length)


def refuse(key: str) -> None:
    raise Unreachable(f"no answer for {key}")


def nothing(key: str) -> None:
    """Lets a write through."""


def end_thread(key: str) -> None:
    """The machine is lost, and the shipping thread with it: this is what it ends at."""
    raise TakenOver(f"no more of {key}")


def die(rig: Rig, bucket: Interrupted) -> None:
    """As if the machine was lost: nothing more of it reaches the bucket, and its lease is not given up."""
    bucket.before = end_thread
    rig.abandon()
    with shipping_of(rig)._changed:
        shipping_of(rig)._renew_at_s = 0.0
        shipping_of(rig)._changed.notify()
    shipping_of(rig)._thread.join(PATIENCE_S)
    assert not shipping_of(rig)._thread.is_alive()
    bucket.before = nothing


def shipping_of(rig: Rig) -> Shipping:
    assert rig.store.shipping is not None
    return rig.store.shipping


def until_shipped(rig: Rig) -> None:
    rig.wait_until(lambda: shipping_of(rig).status.state == "ok" and not shipping_of(rig).status.lag_bytes)
