"""Schedules: records that the database appends at due times, while it is open."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from topics.client.request import body_of
from topics.client.values import Schedule, ms_of
from topics.embedded.host import Host
from topics.embedded.requests import decoded
from topics.engine.schedules.verbs import SchedulePage, ScheduleState
from topics.model.schedules.schedule_config import ScheduleConfig, ScheduleRequest

PAGE_SIZE: Final = 1_000
_request = msgspec.json.Decoder(ScheduleRequest)


class Schedules:
    _host: Host

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
        request = decoded(_request, body)
        change = self._host.commit(lambda: self._host.store.schedules.put(name, request))
        schedule = _schedule(change.result)
        schedule.created = change.created
        return schedule

    def schedule(self, name: str) -> Schedule:
        """A schedule, its next and its last run."""
        return _schedule(self._host.look(lambda: self._host.store.schedules.look(name)))

    def schedules(
        self, topic: str | None = None, *, prefix: str | None = None, page_size: int = PAGE_SIZE
    ) -> Iterator[Schedule]:
        """Schedules by name."""

        def page_after(cursor: str | None) -> SchedulePage:
            schedules = self._host.store.schedules
            return self._host.run(schedules.list(prefix or "", cursor, page_size, wanted=wanted))

        def wanted(_name: str, config: ScheduleConfig) -> bool:
            return topic in (None, config.topic)

        cursor: str | None = None
        while True:
            page = page_after(cursor)
            yield from map(_schedule, page.schedules)
            cursor = page.next_cursor
            if cursor is None:
                return

    def run_schedule(self, name: str) -> int:
        """Append its record now, due or not; its due times stay. The record's seq."""
        return self._host.commit(lambda: self._host.store.schedules.run(name)).first_seq

    def drop_schedule(self, name: str) -> bool:
        """Remove a schedule; the records it appended stay. False: there was none."""
        return bool(self._host.commit(lambda: self._host.store.schedules.drop(name)).result)


def _schedule(state: ScheduleState) -> Schedule:
    fields = msgspec.structs.asdict(state.config) | state._asdict()
    del fields["config"]
    return Schedule(schedule=fields.pop("name"), **fields | {"data": msgspec.json.decode(state.config.data)})
