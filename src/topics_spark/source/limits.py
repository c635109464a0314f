"""How Spark bounds a batch of a stream: from 4.2 on it names the last offset and a limit, Spark 4.1 names neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

__all__ = ["LIMITED", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

    LIMITED: Final = True
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        LIMITED: Final = True
    except ImportError:
        # Names that Spark 4.1 never asks for.
        LIMITED: Final = False
        ReadAllAvailable = ReadLimit = ReadMaxRows = type("ReadLimit", (), {})
        SupportsTriggerAvailableNow = type("SupportsTriggerAvailableNow", (), {})
