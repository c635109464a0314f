"""When a schedule is due: cron expressions in a time zone, intervals, one-off times; cronsim parses the expressions.

Times are wall-clock milliseconds. cronsim and the time zones are loaded with the first cron expression.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import islice, pairwise, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from topics.model.errors import InvalidRequest

if TYPE_CHECKING:
    from cronsim import CronSim

CRON_CHARS_MAX = 256
ZONE_CHARS_MAX = 64
# A search for the next time ends here: long enough for a 29 February, short enough not to hold the loop.
SEARCH_YEARS_MAX = 9
# The shortest time between two due times is searched among this many, and within this time: enough for every minute of
# an hour.
GAPS_MAX = 64
YEAR_MS = 366 * 86_400_000
# After the year 9999 there is no date.
TIME_MS_MAX = 253_402_300_799_000


class Timing(NamedTuple):
    """One of `cron`, `every_ms` and `at` is set. Intervals count from `anchor_ms`."""

    cron: str | None
    every_ms: int
    at: int
    timezone: str
    anchor_ms: int

    def next_after(self, after_ms: int) -> int:
        """The first due time after this one; 0: there is none."""
        if self.every_ms:
            passed = (after_ms - self.anchor_ms) // self.every_ms
            return self.anchor_ms + max(1, passed + 1) * self.every_ms
        if self.cron is None:
            return self.at if self.at > after_ms else 0
        return next(_cron_times(self.cron, self.timezone, after_ms), 0)

    def newest_up_to(self, now_ms: int, after_ms: int, count: int) -> list[int]:
        """The last `count` due times up to now, without those before `after_ms`, in ascending order."""
        if self.every_ms:
            last = self.anchor_ms + (now_ms - self.anchor_ms) // self.every_ms * self.every_ms
            found = [last - number * self.every_ms for number in range(count)]
        elif self.cron is None:
            found = [self.at]
        else:
            # One more: a search backwards starts before the time it is given.
            times = _cron_times(self.cron, self.timezone, now_ms + 1, backwards=True)
            found = [time for time, _ in zip(times, range(count), strict=False)]
        return [time for time in reversed(found) if after_ms <= time <= now_ms]


def check_cron(cron: str, timezone: str, now_ms: int) -> None:
    """Refuse an expression that is not valid, or that never becomes due."""
    from cronsim import CronSimError

    if len(cron) > CRON_CHARS_MAX:
        raise InvalidRequest(f"cron must be at most {CRON_CHARS_MAX} characters", field="cron", max=CRON_CHARS_MAX)
    try:
        found = next(_cron_times(cron, timezone, now_ms), None)
    except CronSimError as error:
        raise InvalidRequest(
            f"cron {cron!r} is not valid: {_lower(str(error))}; it has five fields (minute, hour, day of month, month, "
            "day of week), or six with seconds first",
            field="cron",
        ) from None
    if found is None:
        raise InvalidRequest(f"cron {cron!r} is never due within {SEARCH_YEARS_MAX} years", field="cron")


def shortest_gap_ms(cron: str, now_ms: int) -> int:
    """Between the next due times of an expression; those of UTC, so that it is the same all year."""
    times = _cron_times(cron, "UTC", now_ms)
    first = next(times, 0)
    near = takewhile(lambda time: time <= first + YEAR_MS, islice(times, GAPS_MAX))
    return min((later - earlier for earlier, later in pairwise((first, *near))), default=TIME_MS_MAX)


def check_timezone(name: str) -> None:
    try:
        _zone(name)
    except (KeyError, ValueError, OSError):
        raise InvalidRequest(
            f'timezone {name[:ZONE_CHARS_MAX]!r} is not known; use a name of the IANA database like "Europe/Vienna", '
            "or UTC",
            field="timezone",
        ) from None


def _cron_times(cron: str, timezone: str, from_ms: int, *, backwards: bool = False) -> Iterator[int]:
    """Due times after this one, or before it."""
    whole_s, rest_ms = divmod(from_ms, 1000)
    start = datetime.fromtimestamp(whole_s, _zone(timezone)).replace(microsecond=1000 * rest_ms)
    try:
        for found in _bounded()(cron, start, backwards):
            yield round(found.timestamp()) * 1000
    except (OverflowError, ValueError):
        # Dates end with the year 9999.
        return


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    if len(name) > ZONE_CHARS_MAX:
        raise ValueError(name)
    from zoneinfo import ZoneInfo

    return ZoneInfo(name)


@lru_cache(maxsize=1)
def _bounded() -> type[CronSim]:
    from cronsim import CronSim

    class BoundedCronSim(CronSim):
        """Gives up sooner."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._begin_year = self.dt.year

        def _check(self) -> None:
            if abs(self.dt.year - self._begin_year) > SEARCH_YEARS_MAX:
                raise StopIteration

        def advance_month(self) -> None:
            super().advance_month()
            self._check()

        def reverse_month(self) -> None:
            super().reverse_month()
            self._check()

        def __next__(self) -> datetime:
            self._begin_year = self.dt.year
            return super().__next__()

    return BoundedCronSim


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
