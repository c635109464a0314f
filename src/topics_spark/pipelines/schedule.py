"""When a pipeline with a cron trigger runs next: five fields, UTC, to the minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from topics.model.requests.pipelines import check_cron

_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
# The longest possible wait is from one 29th of February to the next, across a year like 2100.
DAYS_AHEAD_MAX = 366 * 8 + 1


class Schedule:
    """The times of a cron line. As in cron, day and weekday are alternatives if both are restricted."""

    def __init__(self, cron: str) -> None:
        fields = check_cron(cron).split()
        minutes, hours, days, months, weekdays = (
            _numbers(text, *bounds) for text, bounds in zip(fields, _BOUNDS, strict=True)
        )
        self._minutes, self._hours = sorted(minutes), sorted(hours)
        self._days, self._months = days, months
        self._weekdays = {day % 7 for day in weekdays}
        self._either_day = fields[2][0] != "*" and fields[4][0] != "*"

    def next_after(self, moment: datetime) -> datetime | None:
        """The first time after `moment`; None if there is none, as for the 31st of February."""
        start = moment.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
        day = start.replace(hour=0, minute=0)
        for _ in range(DAYS_AHEAD_MAX):
            if self._names_day(day):
                for hour in self._hours:
                    for minute in self._minutes:
                        found = day.replace(hour=hour, minute=minute)
                        if found >= start:
                            return found
            day += timedelta(days=1)
        return None

    def _names_day(self, day: datetime) -> bool:
        if day.month not in self._months:
            return False
        by_date, by_weekday = day.day in self._days, day.isoweekday() % 7 in self._weekdays
        return by_date or by_weekday if self._either_day else by_date and by_weekday


def _numbers(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        start, stop = (low, high) if span == "*" else (int(first), int(last or (high if step else first)))
        found.update(range(start, stop + 1, int(step or 1)))
    return found
