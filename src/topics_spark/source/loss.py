"""Lost records: an error, or a line in the log with their range."""

from __future__ import annotations

import logging

from topics_spark.errors import DataLost

log = logging.getLogger("topics_spark")


def report_loss(what: str, *, fail: bool) -> None:
    if fail:
        raise DataLost(what)
    log.warning("data loss: %s", what)


def gap_text(topic: str, gap_from: int, gap_to: int, reason: str, missed_estimate: int) -> str:
    return f"topic {topic!r} has lost about {missed_estimate} records from seq {gap_from} to {gap_to} ({reason})"
