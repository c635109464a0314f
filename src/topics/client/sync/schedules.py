"""Schedules: records that the server appends at due times."""

# Made by tools/sync_half.py from aio/schedules.py: change that one.
from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec

from topics.client.request import QueryValue, Request, body_of
from topics.client.sync.wire.transport import Transport
from topics.client.values import Removed, Schedule, ScheduleDone, SchedulePage, ms_of

PAGE_SIZE: Final = 1_000
_schedule = msgspec.json.Decoder(Schedule)
_page = msgspec.json.Decoder(SchedulePage)
_done = msgspec.json.Decoder(ScheduleDone)
_removed = msgspec.json.Decoder(Removed)


class Schedules:
    _transport: Transport

    def put_schedule(
        self,
        name: str,
        topic: str,
        *,
        cron: str | None = None,
        every_ms: int | None = None,
        at: int | datetime | None = None,
        timezone: str | None = None,
        data: Any = None,
        tag: str | None = None,
        missed: Literal["skip", "once", "all"] | None = None,
        jitter_ms: int | None = None,
        paused: bool | None = None,
    ) -> Schedule:
        """Create a schedule, or change it: a record is appended to the topic whenever it is due.

        One of `cron` (five fields, or six with seconds first), `every_ms` and `at` (ms since the epoch, or a datetime).
        """
        body = body_of(
            topic=topic,
            cron=cron,
            every_ms=every_ms,
            at=ms_of(at),
            timezone=timezone,
            data=data,
            tag=tag,
            missed=missed,
            jitter_ms=jitter_ms,
            paused=paused,
        )
        request = Request(method="PUT", path=_path(name), decoder=_schedule, body=body, safe=True)
        return self._transport.call(request)

    def schedule(self, name: str) -> Schedule:
        """A schedule, its next and its last run."""
        return self._transport.call(Request(method="GET", path=_path(name), decoder=_schedule, safe=True))

    def schedules(
        self, topic: str | None = None, *, prefix: str | None = None, page_size: int = PAGE_SIZE
    ) -> Iterator[Schedule]:
        """Schedules by name; pages are fetched as needed."""
        query: dict[str, QueryValue] = {"topic": topic, "prefix": prefix, "page_size": page_size}
        for page in self._transport.pages("/v0/schedules", query, _page):
            yield from page.schedules

    def run_schedule(self, name: str) -> int:
        """Append its record now, due or not; its due times stay. The record's seq."""
        request = Request(method="POST", path=f"{_path(name)}/run", decoder=_done)
        return (self._transport.call(request)).seq

    def drop_schedule(self, name: str) -> bool:
        """Remove a schedule; the records it appended stay. False: there was none."""
        request = Request(method="DELETE", path=_path(name), decoder=_removed, safe=True)
        return (self._transport.call(request)).deleted


def _path(name: str) -> str:
    return f"/v0/schedules/{quote(name, safe=':')}"
